"""Command line of the ATen cases."""

import argparse
import logging
import shutil
import sys
from pathlib import Path


def main() -> int:
    from . import FAMILIES

    parser = argparse.ArgumentParser(
        prog="python -m oracle.aten", description="convert and run programs of one operator"
    )
    parser.add_argument("out", type=Path, nargs="?", metavar="OUTDIR", help="output directory for archives and packages")
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=list(FAMILIES), help="only these families")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="only cases whose names contain one of these")
    parser.add_argument("--target", default="ios18", help="release to convert for (default: ios18)")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "fp16"], help="(default: fp32)")
    parser.add_argument("--export-only", action="store_true", help="only export")
    parser.add_argument("--again", action="store_true", help="only convert the archives in OUTDIR")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    options = parser.parse_args()

    from .make import family_cases, timed_make

    if options.out is None and not options.list:
        parser.error("OUTDIR is required unless --list is passed")
    logging.disable(logging.ERROR)
    total = bad = 0
    for family in options.family:
        cases = family_cases(family)
        if options.only:
            cases = [one for one in cases if any(text in one.name for text in options.only)]
        if options.list:
            for one in cases:
                print(family, one.name)
            continue
        if not cases:
            continue
        directory = options.out / family
        found = {}
        if not options.again:
            shutil.rmtree(directory, ignore_errors=True)
            found = {name: f"not exported: {reason}" for name, reason in timed_make(family, cases, directory).items()}
        if not options.export_only:
            # Imported here because coremltools imports slowly and exporting does not need it.
            from .judge import faults

            packages = directory / f"{options.target}-{options.precision}"
            shutil.rmtree(packages, ignore_errors=True)
            found |= faults(cases, directory, packages, options.target, options.precision)
        for name, reason in found.items():
            print(f"  {family}/{name}: {reason}", flush=True)
        if not options.export_only:
            print(f"{family}: {len(cases) - len(found)} of {len(cases)} right", flush=True)
        total += len(cases)
        bad += len(found)
    if not (options.list or options.export_only):
        print(f"{total - bad} of {total} right")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
