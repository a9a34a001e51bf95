"""Command line of the exports."""

import argparse
import json
import logging
import sys
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m oracle.zoo.exports", description="export programs with their inputs and outputs for tests"
    )
    parser.add_argument("out", type=Path, nargs="?", metavar="OUTDIR", help="output directory for the archives")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="make only these rows")
    parser.add_argument("--family", nargs="+", metavar="FAMILY", help="make only the rows of these families")
    parser.add_argument("--everyday", action="store_true", help="make the rows that are tested with every change")
    parser.add_argument("--missing", action="store_true", help="skip archives that are up to date in OUTDIR")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="threads that torch may use (default: 1)")
    parser.add_argument("--list", action="store_true", help="print the rows and stop")
    options = parser.parse_args()

    from .table import ROWS, stamps

    made_from = stamps()
    rows = [row for row in ROWS if not options.family or row.family in options.family]
    if options.list:
        for row in rows:
            print(row.name, row.family)
        return 0
    if options.out is None:
        parser.error("OUTDIR is required unless --list is passed")
    unknown = sorted(set(options.only or []) - {row.name for row in ROWS})
    if unknown:
        parser.error(f"no row is named {', '.join(unknown)}; --list shows the names")
    if options.only:
        rows = [row for row in ROWS if row.name in options.only]
    if options.everyday:
        rows = [row for row in rows if row.everyday]
    absent = [row for row in rows if not row.is_there]
    if absent:
        needs = ", ".join(sorted({row.needs for row in absent}))
        print(f"{len(absent)} rows skipped, because their packages are not installed: {needs}", flush=True)
        rows = [row for row in rows if row.is_there]
    if options.missing:
        rows = [row for row in rows if not is_made(row.name, made_from[row.name], options.out)]

    import torch

    from .make import attempt

    torch.set_num_threads(options.jobs)
    logging.disable(logging.ERROR)
    options.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for count, row in enumerate(rows, 1):
        started = time.monotonic()
        record = attempt(row, options.out, made_from[row.name])
        took = time.monotonic() - started
        reason = record.get("failed")
        failed += bool(reason)
        outcome = f"failed: {reason}" if reason else f"{record['nodes']} nodes, half error {record['half_error']:.1e}"
        print(f"[{count}/{len(rows)}] {row.family}/{row.name}: {outcome} ({took:.1f} s)", flush=True)
    print(f"{len(rows) - failed} exported, {failed} failed", flush=True)
    return 0


def is_made(name: str, stamp: str, directory: Path) -> bool:
    """Whether the files of a row exist and are up to date."""
    record = directory / f"{name}.json"
    if not record.exists():
        return False
    found = json.loads(record.read_text())
    return found.get("stamp") == stamp and ("failed" in found or (directory / f"{name}.npz").exists())


if __name__ == "__main__":
    sys.exit(main())
