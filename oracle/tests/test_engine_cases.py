"""The committed cases of the engine equal the references' current output."""

import json
import math
from typing import Any

import pytest

from oracle.engine import FAMILIES
from oracle.engine.files import DIRECTORY, cases_of, path_of

#: Tolerances, because the order of sums in the references depends on the machine.
RELATIVE, ABSOLUTE = 1e-5, 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_committed_cases_match_references(family: str) -> None:
    remedy = f"run `python -m oracle.engine {family}`"
    found = [json.loads(line) for line in path_of(family).read_text().splitlines()]
    made = cases_of(family)
    assert [case["id"] for case in found] == [case["id"] for case in made], remedy
    for old, new in zip(found, made, strict=True):
        assert _same(old, new), f"{new['id']}: {remedy}"


def test_case_files_match_families() -> None:
    assert sorted(path.stem for path in DIRECTORY.glob("*.jsonl")) == sorted(FAMILIES)


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, dict) and isinstance(new, dict):
        return list(old) == list(new) and all(_same(old[key], new[key]) for key in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_same, old, new))
    if isinstance(old, (int, float)) and isinstance(new, (int, float)):
        return math.isclose(old, new, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return old == new
