"""Writes the files that the Rust test reads: `python -m oracle.engine [FAMILY ...]`."""

import argparse
import sys

from . import FAMILIES
from .files import DIRECTORY, path_of, text_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m oracle.engine", description="record the results of programs")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(FAMILIES)}; all by default")
    chosen = parser.parse_args().families or FAMILIES
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for family in chosen:
        text = text_of(family)
        path_of(family).write_text(text)
        print(f"{family}: {text.count(chr(10))} cases, {len(text) // 1024} KiB", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
