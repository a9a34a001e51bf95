"""Command line of the zoo."""

import argparse
import sys
from pathlib import Path

from .generate import generate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m oracle.zoo", description="make Core ML packages for tests")
    parser.add_argument("--out", type=Path, metavar="DIR", help="output directory for the packages")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="make only these entries")
    parser.add_argument("--jobs", type=int, metavar="N", help="number of processes (default: 2)")
    parser.add_argument("--list", action="store_true", help="print the entries and stop")
    options = parser.parse_args()

    from .table import ENTRIES

    if options.list:
        for entry in ENTRIES:
            print(entry.name, entry.target, entry.precision)
        return 0
    if options.out is None:
        parser.error("--out is required unless --list is passed")
    names = [entry.name for entry in ENTRIES]
    unknown = sorted(set(options.only or []) - set(names))
    if unknown:
        parser.error(f"no entry is named {', '.join(unknown)}; --list shows the names")
    errors = generate(options.out, options.only or names, options.jobs)
    for name, error in errors.items():
        print(f"failed: {name}: {error.strip().splitlines()[-1]}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
