"""Checks programs that `coremill lower` wrote: ExecuTorch's reader and runtime accept them, and both runtimes agree with
eager torch.

    python -m oracle.checkers.lowering EXPORTS COREMILL SERVE NAME ...

lowers exports of the zoo (see `oracle.zoo.exports`) three times: with the defaults, with some operators kept outside
delegates, and without delegates. It prints the failures.
"""

import json
import random
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.scalar_type import ScalarType
from executorch.runtime import Runtime as Peer
from executorch.runtime import Verification

from oracle.support.distance import distance
from oracle.support.served import Runtime
from oracle.support.stock import register

#: Maximum error of a float output relative to the largest element; some intermediate values are fp16.
BOUND = 2e-3
#: The same for bfloat16, whose rounding error is larger.
COARSE = 8e-3
SECONDS = 300
#: Kernels around a delegate that contains all computation: updates of buffers, and casts to its types.
EDGES = {"aten::copy_", "dim_order_ops::_to_dim_order_copy"}
TYPES = {ScalarType.BFLOAT16: torch.bfloat16}


@dataclass
class Call:
    """The inputs of a method, and the outputs of eager torch."""

    inputs: list[Any]
    outputs: list[Any]


def loads(path: Path) -> Any:
    """The program as ExecuTorch reads it, after its verifier accepted it."""
    data = path.read_bytes()
    Peer.get().load_program(data, verification=Verification.InternalConsistency)
    return deserialize_pte_binary(data).program


def delegates(program: Any) -> int:
    """The number of delegates of all methods."""
    return sum(len(plan.delegates) for plan in program.execution_plan)


def error(found: Any, wanted: Any) -> float:
    """The error of a result."""
    if not isinstance(wanted, torch.Tensor):
        found = found.item() if isinstance(found, torch.Tensor) else found
        return 0.0 if found == wanted or (found is None and wanted is None) else float("inf")
    if not isinstance(found, torch.Tensor) or found.shape != wanted.shape or found.dtype != wanted.dtype:
        return float("inf")
    return distance(found, wanted, least=1e-6 if wanted.dtype.is_floating_point else 0.0)


def compare(results: list[Any], call: Call) -> float:
    """The largest error of all outputs."""
    if len(results) != len(call.outputs):
        return float("inf")
    return max((error(*pair) for pair in zip(results, call.outputs, strict=True)), default=0.0)


def bound(calls: list[Call]) -> float:
    """The maximum error for outputs of these types."""
    is_coarse = any(isinstance(one, torch.Tensor) and one.dtype == torch.bfloat16 for call in calls for one in call.outputs)
    return COARSE if is_coarse else BOUND


def taken(program: Any, calls: list[Call]) -> list[Call]:
    """Converts the calls to the input types of the only method: numpy lacks some of them."""
    plan = program.execution_plan[0]
    types = [TYPES.get(getattr(plan.values[at].val, "scalar_type", None)) for at in plan.inputs]
    kinds = [TYPES.get(getattr(plan.values[at].val, "scalar_type", None)) for at in plan.outputs]

    def cast(values: list[Any], types: list[torch.dtype | None]) -> list[Any]:
        if len(values) != len(types):
            return values
        return [one.to(kind) if kind is torch.bfloat16 else one for one, kind in zip(values, types, strict=True)]

    return [Call(cast(call.inputs, types), cast(call.outputs, kinds)) for call in calls]


def errors_in_ours(runtime: Runtime, path: Path, calls: list[Call], method: str = "forward") -> list[float]:
    """The error of each call in our runtime, with delegates on the engine."""
    runtime.ask("load", path)
    runtime.ask("method", method)
    return [compare(runtime.run(call.inputs), call) for call in calls]


def errors_in_peer(
    path: Path,
    calls: list[Call],
    method: str = "forward",
    own: Callable[[list[Any], Call], list[Any]] = lambda results, call: results,
) -> list[float]:
    """The error of each call in ExecuTorch's runtime, with delegates on the engine; `own` selects the results to
    compare."""
    register()
    program = Peer.get().load_program(path.read_bytes())
    loaded = program.load_method(method)
    found = []
    for call in calls:
        results = loaded.execute([one.clone() if isinstance(one, torch.Tensor) else one for one in call.inputs])
        found.append(compare(own([one.clone() if isinstance(one, torch.Tensor) else one for one in results], call), call))
    return found


def operators(archive: Path) -> list[str]:
    """The operators of an archive, by the names that ExecuTorch uses to skip them."""
    found = set()
    with zipfile.ZipFile(archive) as entries:
        for entry in entries.namelist():
            if re.search(r"models/\w+\.json$|serialized_exported_program\.json$", entry):
                nodes = json.loads(entries.read(entry))["graph_module"]["graph"]["nodes"]
                found |= {node["target"].removeprefix("torch.ops.") for node in nodes}
    # In-place operators have become functional.
    return sorted({re.sub(r"_(\.\w+)$", r"\1", name) for name in found if name.startswith("aten.")})


def recorded(archive: Path, prefix: str = "") -> Iterator[Call]:
    """The calls in the `.npz` file of an export of the zoo or of a program with several methods."""
    with numpy.load(archive) as arrays:
        keys = [key for key in arrays.files if key.startswith(prefix)]
        count = max((int(key.partition("@")[2] or 0) for key in keys), default=-1) + 1
        for at in range(count):
            suffix = f"@{at}" if at else ""

            def side(kind: str, suffix: str = suffix) -> list[torch.Tensor]:
                names = (f"{prefix}{kind}{index}{suffix}" for index in range(len(keys)))
                return [torch.from_numpy(arrays[name].copy()) for name in names if name in keys]

            yield Call(side("in"), side("out"))


def judge(exports: Path, command: str, runtime: Runtime, name: str, folder: Path) -> list[str]:
    """The failures of the lowered forms of an export."""
    archive = exports / f"{name}.pt2"
    calls = list(recorded(exports / f"{name}.npz"))
    known = operators(archive)
    skipped = random.Random(name).sample(known, min(5, len(known)))
    forms = {
        "delegated": ["--precision", "fp32"],
        f"without {','.join(skipped)}": ["--precision", "fp32", "--skip-ops", ",".join(skipped)],
        "portable": ["--portable"],
    }
    wrong = []
    for form, options in forms.items():
        path = folder / f"{name}.pte"
        path.unlink(missing_ok=True)
        line = [command, "lower", str(archive), "-o", str(path), *options]
        done = subprocess.run(line, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode != 0:
            wrong.append(f"{name} {form}: {done.stderr.strip()[:600]}")
            continue
        try:
            program = loads(path)
            calls = taken(program, calls)
            outside = {one.name for one in program.execution_plan[0].operators} - EDGES
            if form == "delegated" and (delegates(program) != 1 or outside):
                wrong.append(f"{name} {form}: {delegates(program)} delegates, outside {outside}")
            found = {"ours": errors_in_ours(runtime, path, calls), "ExecuTorch": errors_in_peer(path, calls)}
            wrong += [f"{name} {form}: {who} has error {e}" for who, all in found.items() for e in all if not e <= bound(calls)]
        except (RuntimeError, AssertionError, ValueError) as problem:
            wrong.append(f"{name} {form}: {str(problem)[:600]}")
    return wrong


def main() -> None:
    exports, command, serve, *names = sys.argv[1:]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        runtime = Runtime(folder, Path(serve))
        for name in names:
            print(name, *judge(Path(exports), command, runtime, name, folder) or ["fine"], sep="\n  ", flush=True)


if __name__ == "__main__":
    main()
