"""Pages with a generated part between two marks."""


def with_part(page: str, begin: str, end: str, part: str) -> str:
    """The page with another part between its marks."""
    before, first, rest = page.partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise ValueError(f"the page lacks the marks {begin!r} and {end!r}")
    return before + begin + part + end + after
