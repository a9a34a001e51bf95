"""Exports the cases and computes their expected outputs."""

import collections
import importlib
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy
import torch

from oracle.support.arrays import array, tensors_of

from . import FAMILIES
from .case import Case, restart


def family_cases(family: str) -> list[Case]:
    """The cases of a family, with unique names."""
    restart()
    torch.manual_seed(3)
    found = list(importlib.import_module(f"oracle.aten.{family}").cases())
    counts = collections.Counter(one.name for one in found)
    numbers: collections.Counter[str] = collections.Counter()
    for one in found:
        name = one.name
        if counts[name] > 1:
            one.name = f"{name}-{numbers[name]}"
            numbers[name] += 1
    return found


def all_cases() -> Iterator[tuple[str, Case]]:
    """Yields every case with its family."""
    for family in FAMILIES:
        for one in family_cases(family):
            yield family, one


def make(cases: list[Case], directory: Path) -> dict[str, str]:
    """Writes `NAME.pt2` for each case and `reference.npz` for all. Returns the export errors by case name."""
    directory.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, numpy.ndarray] = {}
    errors: dict[str, str] = {}
    kinds: dict[str, list[str]] = {}
    for one in cases:
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                calls = [one.inputs, *one.further]
                results = [tensors_of(one.module(*(value.clone() for value in call))) for call in calls]
                dynamic = (one.dynamic,) if one.dynamic is not None else None
                program = torch.export.export(one.module, one.inputs, dynamic_shapes=dynamic)
                torch.export.save(program, directory / f"{one.name}.pt2")
        except Exception as error:  # Export errors are collected and reported together.
            errors[one.name] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            continue
        kinds[one.name] = sorted({str(value.dtype).removeprefix("torch.") for value in [*one.inputs, *results[0]]})
        for index, (call, outputs) in enumerate(zip(calls, results, strict=True)):
            ending = f"@{index}" if index else ""
            for side, tensors in (("in", call), ("out", outputs)):
                for position, tensor in enumerate(tensors):
                    arrays[f"{one.name}/{side}{position}{ending}"] = array(tensor)
    numpy.savez(directory / "reference.npz", **arrays)
    (directory / "kinds.json").write_text(json.dumps(kinds))
    return errors


def made(directory: Path) -> tuple[dict[str, dict[str, numpy.ndarray]], dict[str, list[str]]]:
    """Reads the files that `make` wrote: inputs and outputs by case name, and the element types."""
    with numpy.load(directory / "reference.npz") as file:
        references: dict[str, dict[str, numpy.ndarray]] = collections.defaultdict(dict)
        for key in file:
            name, _, place = key.rpartition("/")
            references[name][place] = file[key]
    return references, json.loads((directory / "kinds.json").read_text())


def timed_make(family: str, cases: list[Case], directory: Path) -> dict[str, str]:
    """Calls `make` and prints the duration."""
    started = time.monotonic()
    errors = make(cases, directory)
    took = time.monotonic() - started
    print(f"{family}: {len(cases) - len(errors)} exported, {len(errors)} not, in {took:.0f} s", flush=True)
    return errors
