"""The list of the unsupported cases in docs/coremltools.md."""

import json
from pathlib import Path

DOCS = Path(__file__).parent.parent.parent / "docs" / "coremltools.md"
LIST = Path(__file__).parent / "unsupported.json"
BEGIN = "<!-- unsupported cases: `python -m oracle.coremltools_tests --docs` writes them -->"
END = "<!-- end of the unsupported cases -->"


def written(text: str) -> str:
    """The page with the present list."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{DOCS} has no lines {BEGIN!r} and {END!r}")
    rows: dict[str, list[str]] = {}
    for entry in json.loads(LIST.read_text()):
        rows.setdefault(entry["reason"], []).append(entry["what"])
    lines = [f"| {', '.join(dict.fromkeys(cases))} | {reason} |" for reason, cases in rows.items()]
    return "\n".join([before + BEGIN, "| cases | reason |", "|---|---|", *lines, END + after])
