"""Judges a package that `coremill convert` wrote from an export: see `oracle.zoo.exports`.

coremltools' reader infers every type anew and compares; `coremill run` computes the outputs of every call, which eager
torch has computed, too; and the program has no more operations than it needs.

    python -m oracle.conversion EXPORTS

reads lines of JSON, `{"name": ..., "package": ..., "precision": ...}`, and answers each with a `Verdict` as JSON.
"""

import collections
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy
from coremltools.proto import MIL_pb2

from oracle.programs import loads_in_coremltools, read

#: The largest error of an output, by the precision of the program: torch computes in fp32. A network that multiplies the
#: rounding of its weights and layers to fp16, by itself and in torch, may be wrong by twice as much as it is there.
TOLERANCE = {"fp32": 1e-3, "fp16": 1e-2}
#: fp16 programs are run with every result rounded, as on the device.
HOW = {"fp32": "fast", "fp16": "faithful"}
SECONDS = 300
NUMBERS = {
    MIL_pb2.FLOAT16: numpy.float16,
    MIL_pb2.FLOAT32: numpy.float32,
    MIL_pb2.INT32: numpy.int32,
    MIL_pb2.INT8: numpy.int8,
}
#: Types whose every value the types after them hold.
HELD_BY = {"fp16": ("fp32",), "bool": ("fp16", "fp32", "int32"), "int8": ("int32", "fp32"), "int16": ("int32", "fp32")}


@dataclass
class Verdict:
    """What is known of a package."""

    name: str
    #: What coremltools' reader has to say against it.
    refused: list[str] = field(default_factory=list)
    operations: int = 0
    histogram: dict[str, int] = field(default_factory=dict)
    #: Casts and transposes that undo each other or nothing.
    needless: list[str] = field(default_factory=list)
    #: The largest error of all outputs of all calls; none if the package did not run.
    error: float | None = None
    #: The largest error that it may have.
    allowed: float = 0.0
    #: Why there is no error to tell.
    problem: str | None = None

    def faults(self) -> list[str]:
        """What is wrong with it, in words."""
        found = [f"coremltools: {one}" for one in self.refused] + self.needless
        if self.problem:
            found.append(self.problem)
        elif self.error is None or not self.error <= self.allowed:
            found.append(f"the outputs are wrong by {self.error}, more than {self.allowed}")
        return found


def judge(name: str, package: Path, exports: Path, precision: str) -> Verdict:
    """Everything about one package."""
    verdict = Verdict(name, refused=[first_line(one) for one in loads_in_coremltools(package)])
    program = read(package).model.mlProgram
    counts = collections.Counter(one.type for one in operations(program) if one.type != "const")
    verdict.operations, verdict.histogram = counts.total(), dict(sorted(counts.items()))
    verdict.needless = needless(program)
    # The forms of a program in other dialects share its reference.
    reference = name.split(".")[0]
    record = json.loads((exports / f"{reference}.json").read_text())
    verdict.allowed = TOLERANCE[precision]
    if precision == "fp16":
        verdict.allowed = max(verdict.allowed, 2 * record["half_error"])
    try:
        with numpy.load(exports / f"{reference}.npz") as file:
            verdict.error = largest_error(package, dict(file), record["calls"], precision)
    except Mismatch as error:
        verdict.problem = str(error)
    return verdict


class Mismatch(Exception):
    """The package cannot be run on the reference, or gives something of another kind."""


def largest_error(
    package: Path, arrays: dict[str, numpy.ndarray], calls: int, precision: str, values: bool = True
) -> float:
    """Runs all calls of a reference, one after the other on one state; without `values`, only shapes and types count."""
    inputs = edges(package)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.npz"
        line: list[object] = [os.environ["COREMILL"], "run", package, "--precision", HOW[precision], "-o", out]
        line += ["--positional", "--threads", 1]
        for call in range(calls):
            given = Path(folder) / f"{call}.npz"
            numpy.savez(given, **adapted(of_call(arrays, "in", call), inputs))
            line += ["--inputs", given]
        done = subprocess.run([str(one) for one in line], capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode:
            raise Mismatch(f"`coremill run`: {first_line(done.stderr)}")
        with numpy.load(out) as file:
            found = dict(file)
    worst = 0.0
    for call in range(calls):
        ours = outputs_of(found, call, calls)
        theirs = of_call(arrays, "out", call)
        if len(ours) != len(theirs):
            raise Mismatch(f"there are {len(ours)} outputs, not {len(theirs)}")
        for position, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            found_error = error(one, other, f"call {call}, output {position}")
            worst = max(worst, found_error) if values else worst
    return worst


def of_call(arrays: dict[str, numpy.ndarray], side: str, call: int) -> list[numpy.ndarray]:
    """The inputs or outputs of a call, in order."""
    ending = f"@{call}" if call else ""
    found = []
    while f"{side}{len(found)}{ending}" in arrays:
        found.append(arrays[f"{side}{len(found)}{ending}"])
    return found


def outputs_of(arrays: dict[str, numpy.ndarray], call: int, calls: int) -> list[numpy.ndarray]:
    """What `coremill run` wrote for a call, in order."""
    ending = f"@{call}" if calls > 1 else ""
    found = []
    while f"arr_{len(found)}{ending}" in arrays:
        found.append(arrays[f"arr_{len(found)}{ending}"])
    return found


def edges(package: Path) -> list[Any]:
    """The inputs of the program that are no states."""
    (function,) = read(package).model.mlProgram.functions.values()
    return [one for one in function.inputs if one.type.WhichOneof("type") == "tensorType"]


def adapted(given: list[numpy.ndarray], inputs: list[Any]) -> dict[str, numpy.ndarray]:
    """Inputs in the types of the package: Core ML has neither int64 nor bool at its edge, nor rank 0."""
    if len(given) != len(inputs):
        raise Mismatch(f"there are {len(inputs)} inputs, not {len(given)}: {', '.join(one.name for one in inputs)}")
    found = {}
    for position, (array, wanted) in enumerate(zip(given, inputs, strict=True)):
        kind = NUMBERS.get(wanted.type.tensorType.dataType)
        if kind is None:
            raise Mismatch(f"input `{wanted.name}` is of a type that Core ML does not pass")
        if not array.shape and len(wanted.type.tensorType.dimensions) == 1:
            array = array.reshape(1)
        found[f"in{position}"] = array.astype(kind)
    return found


def error(found: numpy.ndarray, wanted: numpy.ndarray, where: str) -> float:
    """The largest difference relative to the largest magnitude; of whole numbers and truth values the share that differs.

    NaN and infinities are where torch has them, or the error is infinite.
    """
    if not wanted.shape and found.shape == (1,):
        found = found.reshape(())
    if found.shape != wanted.shape:
        raise Mismatch(f"{where}: the shape is {found.shape}, not {wanted.shape}")
    if not wanted.size:
        return 0.0
    if wanted.dtype.kind != "f":
        return float((found.astype(numpy.float64) != wanted).mean())
    if found.dtype.kind != "f":
        raise Mismatch(f"{where}: the type is {found.dtype}, not {wanted.dtype}")
    found, wanted = found.astype(numpy.float64), wanted.astype(numpy.float64)
    finite = numpy.isfinite(wanted)
    if (
        not numpy.array_equal(found[~finite], wanted[~finite], equal_nan=True)
        or not numpy.isfinite(found[finite]).all()
    ):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = numpy.abs(wanted[finite]).max()
    return float(numpy.abs(found - wanted)[finite].max() / (scale or 1.0))


def operations(program: Any) -> Iterator[Any]:
    """Every operation, those in nested blocks included."""
    blocks = [block for one in program.functions.values() for block in one.block_specializations.values()]
    while blocks:
        for operation in blocks.pop().operations:
            yield operation
            blocks += operation.blocks


def needless(program: Any) -> list[str]:
    """Casts and transposes that do nothing, and pairs of them that undo each other."""
    made = {output.name: one for one in operations(program) for output in one.outputs}
    # Names of constants' values, and of types of whatever there is.
    types = {output.name: output.type for one in operations(program) for output in one.outputs}
    for function in program.functions.values():
        types |= {one.name: one.type for one in function.inputs}
    found = []
    for one in operations(program):
        name = one.outputs[0].name if one.outputs else ""
        if one.type == "transpose":
            permutation = integers(one, "perm", made)
            if permutation is None:
                continue
            before = producer(one, "x", made)
            if permutation == list(range(len(permutation))):
                found.append(f"the transpose `{name}` does nothing")
            elif before is not None and before.type == "transpose":
                earlier = integers(before, "perm", made)
                if earlier is not None and [earlier[axis] for axis in permutation] == list(range(len(permutation))):
                    found.append(f"the transpose `{name}` undoes the one before it")
        elif one.type == "cast":
            source = argument(one, "x")
            now = element(types.get(name))
            given = element(types.get(source)) if source in types else None
            before = producer(one, "x", made)
            if given == now:
                found.append(f"the cast `{name}` does nothing")
            elif before is not None and before.type == "cast":
                first = element(types.get(argument(before, "x")))
                if first == now and given in HELD_BY.get(first or "", ()):
                    found.append(f"the cast `{name}` undoes the one before it")
    return found


def argument(operation: Any, name: str) -> str:
    """The name that an operand is bound to."""
    bound = operation.inputs[name].arguments if name in operation.inputs else []
    return bound[0].name if bound else ""


def producer(operation: Any, name: str, made: dict[str, Any]) -> Any:
    """The operation that gives an operand."""
    return made.get(argument(operation, name))


def integers(operation: Any, name: str, made: dict[str, Any]) -> list[int] | None:
    """A constant operand."""
    bound = operation.inputs[name].arguments if name in operation.inputs else []
    if not bound:
        return None
    if bound[0].WhichOneof("binding") == "value":
        value = bound[0].value
    else:
        source = made.get(bound[0].name)
        if source is None or source.type != "const":
            return None
        value = source.attributes["val"]
    return list(value.immediateValue.tensor.ints.values)


def element(kind: Any) -> str | None:
    """The element type of a value, by MIL's name."""
    names = {
        MIL_pb2.FLOAT16: "fp16",
        MIL_pb2.FLOAT32: "fp32",
        MIL_pb2.INT32: "int32",
        MIL_pb2.INT16: "int16",
        MIL_pb2.UINT16: "uint16",
        MIL_pb2.INT8: "int8",
        MIL_pb2.UINT8: "uint8",
        MIL_pb2.BOOL: "bool",
    }
    return names.get(kind.tensorType.dataType) if kind is not None else None


def first_line(text: str) -> str:
    """The first line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else "nothing was said"


def main() -> int:
    (exports,) = sys.argv[1:]
    logging.disable(logging.ERROR)
    for line in sys.stdin:
        asked = json.loads(line)
        verdict = judge(asked["name"], Path(asked["package"]), Path(exports), asked["precision"])
        answer = asdict(verdict) | {"faults": verdict.faults()}
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
