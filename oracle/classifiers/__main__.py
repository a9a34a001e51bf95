"""Compares all models, and prints a row for each.

    python -m oracle.classifiers                    all models
    python -m oracle.classifiers resnet18 swin_t    some of them
"""

import argparse
import sys
import tempfile
from pathlib import Path

from oracle.classifiers.check import check
from oracle.classifiers.models import FRONTENDS, ROWS


def main() -> None:
    """Runs the models on the command line, or all."""
    parser = argparse.ArgumentParser(prog="python -m oracle.classifiers", description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help="names, such as resnet18; all if left out")
    arguments = parser.parse_args()
    unknown = set(arguments.models) - {row.name for row in ROWS}
    if unknown:
        parser.error(f"unknown model {sorted(unknown)[0]}; the models are {', '.join(row.name for row in ROWS)}")
    has_failed = False
    print(f"{'model':36} {'predictions':>11} {'clear':>6} {'labels':>7} {'difference':>11} {'errors':>7}")
    for row in ROWS:
        if arguments.models and row.name not in arguments.models:
            continue
        with tempfile.TemporaryDirectory(prefix="classifiers-") as folder:
            found = check(row, list(FRONTENDS), Path(folder))
        name = f"{row.library} {row.name}"
        print(f"{name:36} {found.predictions:11} {found.clear:6} {len(found.labels):7} {found.difference:11.4f} {len(found.errors):7}", flush=True)
        for error in found.errors[:5]:
            print(f"    {error}", flush=True)
        has_failed |= bool(found.errors)
    sys.exit(int(has_failed))


if __name__ == "__main__":
    main()
