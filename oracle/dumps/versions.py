"""The table of tested versions in docs/python.md, from `docs/versions.json`.

    python -m oracle.dumps.versions [FILE ...]

`python -m oracle.dropin.versions --record` writes the file and the table. This command adds the newest results of other such files.
"""

import json
import platform
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from oracle.support.pages import with_part

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/python.md"
RECORDED = ROOT / "docs/versions.json"
BEGIN, END = "<!-- versions -->\n", "<!-- end of versions -->\n"
PACKAGES = ("torch", "executorch", "torchao")


def record(passed: int, failed: list[str]) -> None:
    """Adds the results of the present environment."""
    row = {name: version(name).partition("+")[0] for name in PACKAGES}
    row |= {"python": platform.python_version(), "date": date.today().isoformat(), "passed": passed, "failed": failed}
    add([row])


def add(rows: list[dict[str, Any]]) -> None:
    """Adds results to the file and the page. The newest of a version of torch counts."""
    newest: dict[str, dict[str, Any]] = {}
    for row in [*json.loads(RECORDED.read_text()), *rows]:
        known = newest.setdefault(row["torch"], row)
        if row["date"] >= known["date"]:
            newest[row["torch"]] = row
    rows = sorted(newest.values(), key=lambda one: [int(part) for part in one["torch"].split(".")], reverse=True)
    RECORDED.write_text(json.dumps(rows, indent=2) + "\n")
    PAGE.write_text(page(PAGE.read_text(), rows))


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = ["| torch | ExecuTorch | torchao | Python | checks | date |", "|---|---|---|---|---|---|"]
    for row in rows:
        names = ", ".join(f"`{name}`" for name in row["failed"])
        checks = f"{row['passed']} pass" + (f"; fail: {names}" if names else "")
        versions = " | ".join(row[name] for name in (*PACKAGES, "python"))
        lines.append(f"| {versions} | {checks} | {row['date']} |")
    return "\n".join(lines) + "\n"


def page(text: str, rows: list[dict[str, Any]]) -> str:
    """A page with the table."""
    return with_part(text, BEGIN, END, table(rows))


if __name__ == "__main__":
    add([row for file in sys.argv[1:] for row in json.loads(Path(file).read_text())])
