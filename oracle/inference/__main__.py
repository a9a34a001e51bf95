"""Writes the files that the Rust test reads: `python -m oracle.inference [FAMILY ...]`."""

import argparse
import sys

from . import FAMILIES
from .files import DIRECTORY, path_of, text_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m oracle.inference", description="record the inferences of coremltools")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(FAMILIES)}; all by default")
    chosen = parser.parse_args().families or FAMILIES
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for family in chosen:
        text = text_of(family)
        path_of(family).write_text(text)
        count, refused = text.count('"id":'), text.count('"refused":"')
        print(f"{family}: {count} instances, {refused} refused", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
