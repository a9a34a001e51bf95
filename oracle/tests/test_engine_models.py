"""Compares `coremill run` with eager torch on complete networks.

The packages are those of the zoo that were created from torch modules, with reference inputs and outputs; see
`oracle.zoo.reference`. The error of an output is its largest difference from torch's, divided by torch's largest
magnitude in that output.
"""

import collections
from pathlib import Path

import numpy
import pytest

from oracle.conftest import Command
from oracle.support.distance import distance
from oracle.zoo.table import COMPRESSED, ENTRIES, NETWORKS, REFERENCED

#: Maximum error by the precision of the program. torch computes in fp32; an fp16 program rounds its weights, and in
#: faithful mode every result.
TOLERANCE = {"fp32": 1e-3, "fp16": 1e-2}
ENTRY = {entry.name: entry for entry in ENTRIES}
Calls = dict[int, dict[str, numpy.ndarray]]


def test_zoo_has_enough_referenced_models() -> None:
    """There are enough models of every kind that the engine must run."""
    names = {entry.name for entry in REFERENCED}
    assert len(names & {entry.name for entry in NETWORKS}) >= 50
    assert len(names & {entry.name for entry in COMPRESSED}) >= 30
    kinds = collections.Counter(entry.precision for entry in REFERENCED)
    assert min(kinds["fp32"], kinds["fp16"]) >= 10


@pytest.mark.parametrize("precision", ["fast", "faithful"])
@pytest.mark.parametrize("package", [entry.name for entry in REFERENCED], indirect=True)
def test_agrees_with_torch(package: Path, precision: str, coremill: Command, tmp_path: Path) -> None:
    """Checks every output of every call; the calls of a function run in one process on one state."""
    tolerance = TOLERANCE[ENTRY[package.stem].precision]
    for function, (inputs, outputs) in references(package).items():
        found = run(coremill, package, inputs, precision, tmp_path, function)
        errors = {
            f"{function}, call {call}, {name}": error(found[call][name], wanted)
            for call, by_name in outputs.items()
            for name, wanted in by_name.items()
        }
        worst = max(errors, key=errors.__getitem__)
        assert errors[worst] < tolerance, f"{worst}: error {errors[worst]:.2e}; all: {summary(errors)}"
        for call, by_name in outputs.items():
            for name, wanted in by_name.items():
                if wanted.dtype.kind == "f" and wanted.ndim == 2:
                    same_choice(f"{function}, call {call}, {name}", found[call][name], wanted, tolerance)


def references(package: Path) -> dict[str, tuple[Calls, Calls]]:
    """The inputs and outputs of each call, by function; the name is empty for a single function."""
    found = {}
    for file in sorted(package.parent.glob(f"{package.stem}.*reference.npz")):
        sides: dict[str, Calls] = {"inputs": {}, "outputs": {}}
        with numpy.load(file) as arrays:
            for path in arrays:
                call, side, name = path.split("/", 2)
                sides[side].setdefault(int(call), {})[name] = arrays[path]
        function = file.name.removeprefix(f"{package.stem}.").removesuffix("reference.npz").removesuffix(".")
        found[function] = (sides["inputs"], sides["outputs"])
    assert found, f"there is no reference beside {package}"
    return found


def run(coremill: Command, package: Path, inputs: Calls, precision: str, folder: Path, function: str = "") -> Calls:
    """Runs all calls in one process. Returns the outputs of each."""
    line: list[object] = ["run", package, "--precision", precision, "-o", folder / "out.npz"]
    if function:
        line += ["--function", function]
    for call in sorted(inputs):
        numpy.savez(folder / f"{call}.npz", **inputs[call])
        line += ["--inputs", folder / f"{call}.npz"]
    coremill(*line)
    outputs: Calls = {call: {} for call in inputs}
    with numpy.load(folder / "out.npz") as arrays:
        for written in arrays:
            name, _, call = written.rpartition("@")
            if name:
                outputs[int(call)][name] = arrays[written]
    return outputs


def error(found: numpy.ndarray, wanted: numpy.ndarray) -> float:
    """The error of an output; integers and labels are equal or wrong."""
    found_error = distance(found, wanted)
    return found_error if wanted.dtype.kind == "f" else float(found_error > 0)


def same_choice(where: str, found: numpy.ndarray, wanted: numpy.ndarray, tolerance: float) -> None:
    """The most likely class of each row is torch's, unless the difference is within the tolerance."""
    for row, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        chosen, best = int(ours.argmax()), int(theirs.argmax())
        margin = float(theirs[best] - theirs[chosen])
        assert margin <= 2 * tolerance * float(numpy.abs(wanted).max()), f"{where}, row {row}: {chosen}, not {best}"


def summary(errors: dict[str, float]) -> str:
    """The errors that are not negligible."""
    return ", ".join(f"{name} {value:.1e}" for name, value in errors.items() if value > 1e-5)
