"""Reads and writes the case files of the Rust test."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

from .language import Case

DIRECTORY = Path(__file__).parents[2] / "crates" / "engine" / "tests" / "cases"


def path_of(family: str) -> Path:
    return DIRECTORY / f"{family}.jsonl"


def cases_of(family: str) -> list[Case]:
    """The cases of a family, in the order of its module."""
    module = importlib.import_module(f".{family}", __package__)
    made = []
    seen: set[str] = set()
    for case in module.cases():
        if case["id"] in seen:
            raise ValueError(f"two cases have the id {case['id']}")
        seen.add(case["id"])
        made.append(case)
    return made


def text_of(family: str) -> str:
    """The contents of a family's file."""
    return "".join(json.dumps(case, separators=(",", ":"), allow_nan=False) + "\n" for case in cases_of(family))
