"""Measures how much of the prose is in the cryptic style that the project has left behind.

    python -m oracle.dumps.prose [PREFIX ...]

Prints the share of such lines by crate and page, and with prefixes the lines themselves. A match is a place to read, not a
proof. CONTRIBUTING.md has the rules of style.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED = {"docs/commands.md", "docs/operators.md", "docs/ops.md", "docs/python-api.md"}
#: Maximum share of matching lines in a crate or a page.
BOUND = 0.02
#: Beginnings of sentences without a subject.
BEGINNINGS = r"^(?:What|How)\b|(?:^|[.;:] )(?:Of (?:an?|the|each|all|several|what|those|these|`)|Who [a-z]+s\b)"
#: Verbs and pronouns that replace a technical term.
VAGUE = [
    r"\b(?:gives?|giving|says?|said|tells?|told|asks?|asked|lies?|lay|lying|stands?|stood|beside|anew)\b",
    r"\b(?:nobody|somebody|anybody|whoever|whatever|whichever)\b",
    r"\baccepted (?:is|are)\b|\b(?:is|are) accepted\b|\bso (?:many|much)\b",
]
#: Clauses that replace a noun or a condition.
CLAUSES = [
    r"\bwhat (?:it|its|they|the|an?|is|are|was|were|has|have|can|could|comes?|follows|remains|becomes?|callers?|must|does)\b",
    r"\b(?:none|nothing) (?:if|where|for|when|without)\b",
    r"\b(?:those|that) of\b|\b(?:those|ones?) (?:that|which|who)\b",
    r"\bas \w+ (?:has|have) (?:it|them)\b|\bas (?:it|they) (?:is|are|was|were)\b",
    r"(?:^|[,;.:] )where (?:there|it|they|that|the|an?|no|one|some|all|both|only)\b",
]
PATTERN = re.compile("|".join([BEGINNINGS, *(f"(?i:{rule})" for rule in VAGUE + CLAUSES)]))


def comments() -> Iterator[tuple[str, int, str]]:
    """The lines of doc comments, with file and line number."""
    for folder in ("crates", "integrations"):
        for path in sorted(ROOT.glob(f"{folder}/*/src/**/*.rs")):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if found := re.match(r"\s*(?:///|//!)\s?(.*)", line):
                    yield path.relative_to(ROOT).as_posix(), number, found[1]


def pages() -> Iterator[tuple[str, int, str]]:
    """The lines of pages outside code blocks."""
    for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]:
        name, is_code = path.relative_to(ROOT).as_posix(), False
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.startswith("```"):
                is_code = not is_code
            elif not is_code and line.strip() and name not in GENERATED:
                yield name, number, line


def part(place: str) -> str:
    """The crate or the page of a line."""
    return place if place.endswith(".md") else "/".join(place.split("/")[:2])


def shares() -> dict[str, float]:
    """The share of matching lines by crate and page."""
    total: Counter[str] = Counter()
    matching: Counter[str] = Counter()
    for place, _, text in [*comments(), *pages()]:
        total[part(place)] += 1
        matching[part(place)] += PATTERN.search(text) is not None
    return {name: matching[name] / count for name, count in total.items()}


def main() -> None:
    prefixes = tuple(sys.argv[1:])
    if not prefixes:
        for name, share in sorted(shares().items(), key=lambda entry: -entry[1]):
            print(f"{share:6.1%}  {name}")
    for place, number, text in [*comments(), *pages()]:
        if prefixes and place.startswith(prefixes) and PATTERN.search(text):
            print(f"{place}:{number}: {text.strip()}")


if __name__ == "__main__":
    main()
