"""The list of the unsupported cases in docs/coremltools.md."""

from pathlib import Path

from oracle.coremltools_tests.unsupported import LIST, entries
from oracle.support.pages import with_part

DOCS = Path(__file__).parent.parent.parent / "docs" / "coremltools.md"
BEGIN = "<!-- unsupported cases: `python -m oracle.coremltools_tests --docs` writes them -->"
END = "<!-- end of the unsupported cases -->"


def written(text: str) -> str:
    """The page with the present list."""
    rows: dict[str, list[str]] = {}
    for entry in entries(LIST.read_text()):
        if entry.get("outcome") == "other operations":
            continue
        rows.setdefault(entry["reason"], []).append(entry["what"])
    lines = [f"| {', '.join(dict.fromkeys(cases))} | {reason} |" for reason, cases in rows.items()]
    return with_part(text, BEGIN, END, "\n".join(["", "| cases | reason |", "|---|---|", *lines, ""]))
