"""The cases that cannot pass, each with its reason: `unsupported.json`."""

import json
import re
from pathlib import Path
from typing import Any

LIST = Path(__file__).parent / "unsupported.json"
#: Errors of comparisons of numbers in coremltools' tests.
_NUMBERS = re.compile(r"Not equal to tolerance|Arrays are not (equal|strictly)|Tensor-likes are not|allclose\(|\b(p?snr)\b")


def entries(text: str) -> list[dict[str, Any]]:
    """The entries of the list. Each names its cases and their error, so that it covers no other failure."""
    found = json.loads(text)
    for entry in found:
        if unknown := set(entry) - {"what", "reason", "case", "error", "outcome", "numbers"}:
            raise ValueError(f"unknown key `{min(unknown)}` in the entry of {entry.get('what')}")
        for key in ("what", "reason", "case", "error"):
            if not entry.get(key):
                raise ValueError(f"the entry of {entry.get('what')} has no `{key}`")
        for key in ("case", "error"):
            if re.search(entry[key], "") is not None:
                raise ValueError(f"`{key}` of the entry of {entry['what']} matches any text")
    return found


def is_of_numbers(error: str) -> bool:
    """Whether a failure is a comparison of numbers."""
    return _NUMBERS.search(error) is not None


def listed(known: list[dict[str, Any]], case: str, error: str) -> dict[str, Any] | None:
    """The entry for a failure: both patterns must be found.

    Other numbers than expected are a failure, unless the entry is for these.
    """
    for entry in known:
        if is_of_numbers(error) == entry.get("numbers", False) and re.search(entry["case"], case) and re.search(entry["error"], error):
            return entry
    return None
