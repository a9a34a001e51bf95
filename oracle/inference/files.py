"""The files that the Rust test reads."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

DIRECTORY = Path(__file__).parents[2] / "crates" / "mil" / "tests" / "inference"


def path_of(family: str) -> Path:
    return DIRECTORY / f"{family}.json"


def text_of(family: str) -> str:
    """The contents of a family's file: one line per instance, sorted."""
    from .runner import judge, with_symbols_fixed

    module = importlib.import_module(f".{family}", __package__)
    made = list(module.instances())
    made.extend(variant for variant in map(with_symbols_fixed, made) if variant is not None)
    wrong = dict(getattr(module, "WRONG_WHEN_FIXED", {}))
    for instance in made:
        if instance["id"] in wrong:
            instance["because"], instance["instead"] = wrong.pop(instance["id"])
    if wrong:
        raise ValueError(f"{family} has no instances {', '.join(wrong)}")
    judged = sorted(made, key=lambda instance: instance["id"])
    seen: set[str] = set()
    for instance in judged:
        if instance["id"] in seen:
            raise ValueError(f"two instances have the id {instance['id']}")
        seen.add(instance["id"])
        if instance["op"] not in module.OPERATIONS:
            raise ValueError(f"{instance['op']} is not among OPERATIONS of {family}")
        try:
            instance.update(judge(instance))
        except Exception as error:
            raise ValueError(f"{instance['id']} cannot be built") from error
    rare = [[*definition, reason] for definition, reason in sorted(getattr(module, "RARE", {}).items())]
    lines = [
        f'{{"family":{_line(family)},',
        f'"operations":{_line(sorted(module.OPERATIONS))},',
        f'"rare":{_line(rare)},',
        '"instances":[',
        ",\n".join(_line(instance) for instance in judged),
        "]}",
    ]
    return "\n".join(lines) + "\n"


def _line(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False)
