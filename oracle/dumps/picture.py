"""Prints `docs/terminal.svg`, the picture of a terminal in the README: `COREMILL=PATH python -m oracle.dumps.picture`.

The command is run, with the colors that it prints at a terminal.
"""

import html
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINE = ["convert", str(ROOT / "examples/digits.pt2"), "-o", "Digits.mlpackage", "--verify"]
SHOWN = "coremill convert digits.pt2 -o Digits.mlpackage --verify"
COLOURS = {"31": "#f85149", "32": "#3fb950", "33": "#d29922", "34": "#58a6ff", "35": "#bc8cff", "36": "#39c5cf", "90": "#8b949e"}
PLAIN = "#e6edf3"
WIDTH, HEIGHT, MARGIN = 8.5, 19, 18
#: Browsers collapse other spaces.
NBSP = "\u00a0"


def spans(line: str) -> str:
    """Converts a line with escape sequences to spans of text."""
    found, colour, bold, dim = "", PLAIN, False, False
    for index, part in enumerate(re.split(r"\x1b\[([\d;]*)m", line)):
        if index % 2 == 0:
            weight = ' font-weight="bold"' if bold else ""
            faded = ' opacity="0.65"' if dim else ""
            found += f'<tspan fill="{colour}"{weight}{faded}>{html.escape(part).replace(" ", NBSP)}</tspan>' if part else ""
            continue
        for code in part.split(";"):
            if code in ("", "0"):
                colour, bold, dim = PLAIN, False, False
            elif code in ("1", "2"):
                bold, dim = bold or code == "1", dim or code == "2"
            else:
                colour = COLOURS.get(code.replace("9", "3", 1) if code != "90" and len(code) == 2 else code, colour)
    return found


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"CLICOLOR_FORCE": "1", "COLUMNS": "88"}
        line = [os.environ["COREMILL"], *LINE]
        done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    said = (done.stdout + done.stderr).replace(str(ROOT / "examples") + "/", "")
    said = re.sub(r"\+cu\d+", "", said)
    lines = [f"\x1b[32m$\x1b[0m {SHOWN}", *said.rstrip().splitlines()]
    plain = [re.sub(r"\x1b\[[\d;]*m", "", one) for one in lines]
    width, height = int(max(map(len, plain)) * WIDTH + 2 * MARGIN), len(lines) * HEIGHT + 2 * MARGIN
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">')
    print(f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>')
    print('<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14">')
    for row, one in enumerate(lines):
        print(f'<text x="{MARGIN}" y="{MARGIN + 14 + row * HEIGHT}">{spans(one)}</text>')
    print("</g>\n</svg>")
    return 0


if __name__ == "__main__":
    sys.exit(main())
