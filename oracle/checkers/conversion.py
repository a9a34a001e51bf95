"""Checks a package that `coremill convert` wrote from an export: see `oracle.zoo.exports`.

coremltools' reader infers every type again and compares it; the outputs of `coremill run` for every call are compared
with eager torch's; and the program must not contain needless operations.

    python -m oracle.checkers.conversion EXPORTS

reads lines of JSON, `{"name": ..., "package": ..., "precision": ...}`, and answers each with a `Verdict` as JSON.
"""

import collections
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy
from coremltools.proto import MIL_pb2

from oracle.checkers.programs import loads_in_coremltools, read
from oracle.support.distance import Mismatch, distance, strain
from oracle.support.waste import needless, operations

#: Guards Python's parser, with which numpy reads headers. In Python 3.11, it fails now and then if several threads parse at the
#: same time (CPython issue 106905).
PARSER = threading.Lock()

#: Maximum error of an output, by the program's precision; torch computes in fp32. If a network amplifies rounding to
#: fp16, its error may be twice that of torch with every operator's result rounded: the largest error of a few outputs
#: varies that much by chance.
TOLERANCE = {"fp32": 1e-3, "fp16": 1e-2}
#: Maximum error by the least precise element type of torch's computation, whatever the program's precision.
KIND_TOLERANCE = {"bfloat16": 2e-2, "float16": 4e-3}
#: fp16 programs run with every result rounded, as on the device.
HOW = {"fp32": "fast", "fp16": "faithful"}
SECONDS = 300
NUMBERS = {
    MIL_pb2.FLOAT16: numpy.float16,
    MIL_pb2.FLOAT32: numpy.float32,
    MIL_pb2.INT32: numpy.int32,
    MIL_pb2.INT8: numpy.int8,
}


@dataclass
class Verdict:
    """The results of all checks of a package."""

    name: str
    #: Errors of coremltools' reader.
    refused: list[str] = field(default_factory=list)
    operations: int = 0
    histogram: dict[str, int] = field(default_factory=dict)
    #: Casts and transposes that do nothing or cancel each other.
    needless: list[str] = field(default_factory=list)
    #: Largest error of all outputs of all calls; `None` if the package did not run.
    error: float | None = None
    #: Maximum allowed error.
    allowed: float = 0.0
    #: Reason for a larger allowed error, if any.
    excuse: str | None = None
    #: Reason why there is no error, if any.
    problem: str | None = None

    def faults(self) -> list[str]:
        """The failures as messages."""
        found = [f"coremltools: {one}" for one in self.refused] + self.needless
        if self.problem:
            found.append(self.problem)
        elif self.error is None or not self.error <= self.allowed:
            found.append(f"the outputs are wrong by {self.error}, more than {self.allowed}")
        return found


def judge(name: str, package: Path, exports: Path, precision: str) -> Verdict:
    """Runs all checks on a package."""
    verdict = Verdict(name, refused=[first_line(one) for one in loads_in_coremltools(package)])
    program = read(package).model.mlProgram
    counts = collections.Counter(one.type for one in operations(program) if one.type != "const")
    verdict.operations, verdict.histogram = counts.total(), dict(sorted(counts.items()))
    verdict.needless = needless(program)
    # All dialects of a program share its reference.
    reference = name.split(".")[0]
    record = json.loads((exports / f"{reference}.json").read_text())
    verdict.allowed = TOLERANCE[precision]
    reasons = {
        f"torch computes in {kind}, which Core ML does not support": KIND_TOLERANCE[kind]
        for kind in {one["dtype"] for one in [*record["inputs"], *record["outputs"]]} & KIND_TOLERANCE.keys()
    }
    if precision == "fp16":
        half = record["half_error"]
        reasons[f"torch itself is wrong by {half:.1e} where it rounds to fp16"] = 2 * half
    try:
        with numpy.load(exports / f"{reference}.npz") as file:
            verdict.error = largest_error(package, dict(file), record["calls"], precision)
    except Mismatch as error:
        verdict.problem = str(error)
        return verdict
    for reason, allowed in reasons.items():
        if verdict.error > verdict.allowed < allowed:
            verdict.allowed, verdict.excuse = allowed, reason
    return verdict


def largest_error(
    package: Path,
    arrays: dict[str, numpy.ndarray],
    calls: int,
    precision: str,
    values: bool = True,
    relative: float | None = None,
) -> float:
    """Runs all calls of a reference in order on one state. Without `values`, only shapes and types count.

    With `relative`, this is the maximum error of each element relative to its own magnitude.
    """
    (function,) = read(package).model.mlProgram.functions.values()
    (block,) = function.block_specializations.values()
    inputs = [one for one in function.inputs if one.type.WhichOneof("type") == "tensorType"]
    # A buffer that is not a state is an input, and an output under this name.
    changed = {one.name: f"{one.name}_out" for one in inputs if f"{one.name}_out" in block.outputs}
    # A changed input of the caller is an output, too, but not an input of the next call.
    own = {one.name for one in inputs[: len(of_call(arrays, "in", 0))]}
    carried = {name: out for name, out in changed.items() if name not in own}
    names = [name for name in block.outputs if name not in changed.values()]
    given = [adapted(of_call(arrays, "in", call), inputs, carried) for call in range(calls)]
    if carried:
        buffers = {one.name: first(one, arrays) for one in inputs if one.name in carried}
        found: list[dict[str, numpy.ndarray]] = []
        calls_so_far: list[dict[str, numpy.ndarray]] = []
        for call in given:
            # States last for one run, so earlier calls are run again.
            calls_so_far.append(call | buffers)
            found.append(run(package, calls_so_far, precision)[-1])
            buffers = {name: found[-1][out].astype(buffers[name].dtype) for name, out in carried.items()}
    else:
        found = run(package, given, precision)
    worst = 0.0
    for call, outputs in enumerate(found):
        theirs = of_call(arrays, "out", call)
        if len(names) != len(theirs):
            raise Mismatch(f"expected {len(theirs)} outputs, found {len(names)}: {', '.join(names)}")
        for name, other in zip(names, theirs, strict=True):
            found_error = error(outputs[name], other, f"call {call}, output `{name}`")
            worst = max(worst, found_error) if values else worst
            if relative is not None and strain(outputs[name], other, relative) > 1:
                raise Mismatch(f"call {call}, output `{name}`: the relative error of an element exceeds {relative:.0e}")
    return worst


def run(package: Path, calls: list[dict[str, numpy.ndarray]], precision: str) -> list[dict[str, numpy.ndarray]]:
    """The outputs of each call, by name."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.npz"
        line: list[object] = [os.environ["COREMILL"], "run", package, "--precision", HOW[precision], "--threads", 1]
        for index, call in enumerate(calls):
            path = Path(folder) / f"{index}.npz"
            numpy.savez(path, **call)
            line += ["--inputs", path]
        line += ["-o", out]
        try:
            done = subprocess.run(list(map(str, line)), capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise Mismatch(f"`coremill run` takes more than {SECONDS} s") from None
        if done.returncode:
            raise Mismatch(f"`coremill run`: {first_line(done.stderr)}")
        with PARSER, numpy.load(out) as file:
            arrays = dict(file)
    if len(calls) == 1:
        return [arrays]
    found: list[dict[str, numpy.ndarray]] = [{} for _ in calls]
    for written, array in arrays.items():
        name, _, call = written.rpartition("@")
        # The file also has the last call under its plain name.
        if name:
            found[int(call)][name] = array
    return found


def of_call(arrays: dict[str, numpy.ndarray], side: str, call: int) -> list[numpy.ndarray]:
    """The inputs or outputs of a call, in order."""
    ending = f"@{call}" if call else ""
    found = []
    while f"{side}{len(found)}{ending}" in arrays:
        found.append(arrays[f"{side}{len(found)}{ending}"])
    return found


def first(wanted: Any, arrays: dict[str, numpy.ndarray]) -> numpy.ndarray:
    """The initial value of a buffer: zeros unless the reference contains it."""
    kind = NUMBERS[wanted.type.tensorType.dataType]
    for name, array in arrays.items():
        if name.startswith("first.") and re.sub(r"\W", "_", name.removeprefix("first.")) == wanted.name:
            return array.astype(kind)
    return numpy.zeros([one.constant.size for one in wanted.type.tensorType.dimensions], kind)


def adapted(given: list[numpy.ndarray], inputs: list[Any], carried: dict[str, str]) -> dict[str, numpy.ndarray]:
    """Converts inputs to the package's types: Core ML functions have no int64, bool or rank-0 inputs."""
    inputs = [one for one in inputs if one.name not in carried]
    if len(given) != len(inputs):
        raise Mismatch(f"expected {len(given)} inputs, found {len(inputs)}: {', '.join(one.name for one in inputs)}")
    found = {}
    for array, wanted in zip(given, inputs, strict=True):
        kind = NUMBERS.get(wanted.type.tensorType.dataType)
        if kind is None:
            raise Mismatch(f"input `{wanted.name}` has a type that Core ML does not support for inputs")
        if not array.shape and len(wanted.type.tensorType.dimensions) == 1:
            array = array.reshape(1)
        found[wanted.name] = array.astype(kind)
    return found


def error(found: numpy.ndarray, wanted: numpy.ndarray, where: str) -> float:
    """The distance, limited to the largest finite number: JSON lacks infinity."""
    try:
        return min(distance(found, wanted), sys.float_info.max)
    except Mismatch as mismatch:
        raise Mismatch(f"{where}: {mismatch}") from None


def first_line(text: str) -> str:
    """The first line that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else "no output"


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
