"""Lowers the zoo's exports through ExecuTorch's `to_edge_transform_and_lower` with our partitioner, and compares the
results with ExecuTorch's own Core ML backend.

    python -m coremill.executorch -m oracle.dropin.zoo EXPORTS [NAME ...]

`EXPORTS` is the folder that `python -m oracle.zoo.exports` wrote. Without names, every program in
`oracle/zoo/peer_pte.json` is lowered. Each program is lowered for iOS 18, as in that file, executed in ExecuTorch's
own runtime, and compared with eager torch. Prints a row for each: delegates, outside kernels and bytes, ours and
ExecuTorch's, and the largest error relative to the largest element. Exits with 1 if a program has more delegates than
ExecuTorch's, is larger, calls other kernels, or computes something else. If ExecuTorch's own backend fails, only the
numbers must be right.
"""

import json
import logging
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch

from oracle.checkers.lowering import EDGES, compare, recorded, taken
from oracle.checkers.peer_programs import allowed, own
from oracle.zoo.peer.worker import import_structures

PEER = Path(__file__).parents[1] / "zoo" / "peer_pte.json"


def lowered(archive: Path) -> Any:
    """Lowers an archive to an ExecuTorch program."""
    from executorch.backends.apple.coreml.compiler import CoreMLBackend
    from executorch.backends.apple.coreml.partition import CoreMLPartitioner
    from executorch.exir import to_edge_transform_and_lower

    from coremill.executorch import target

    import_structures(archive)
    specs = CoreMLBackend.generate_compile_specs(minimum_deployment_target=target.iOS18)
    program = torch.export.load(archive)
    return to_edge_transform_and_lower(program, partitioner=[CoreMLPartitioner(compile_specs=specs)]).to_executorch()


def errors(made: Any, archive: Path) -> list[float]:
    """The largest error of each call."""
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(made.buffer).load_method("forward")
    found = []
    for call in taken(made.executorch_program, list(recorded(archive.with_suffix(".npz")))):
        given = [one.clone() if isinstance(one, torch.Tensor) else one for one in call.inputs]
        results = [one.clone() if isinstance(one, torch.Tensor) else one for one in method.execute(given)]
        found.append(compare(own(results, call), call))
    return found


def judge(archive: Path, theirs: dict[str, Any]) -> tuple[str, list[str]]:
    """Returns a program's row of the table, and its failures."""
    made = lowered(archive)
    plan = made.executorch_program.execution_plan[0]
    outside = {f"{one.name}.{one.overload}".rstrip(".") for one in plan.operators}
    delegates, size = len(plan.delegates), len(made.buffer)
    worst = max(errors(made, archive.with_suffix(".npz")), default=0.0)
    wrong = [] if worst <= allowed(archive.with_suffix(".npz")) else ["other numbers"]
    if "failed" in theirs:
        beside = f"{'-':>7} {'-':>7} {'-':>9}"
    else:
        beside = f"{theirs['delegates']:7} {len(theirs['outside']):7} {theirs['bytes']:9}"
        more = {name for name in outside - set(theirs["outside"]) if name.partition(".")[0] not in EDGES}
        wrong += [f"{delegates} delegates in place of {theirs['delegates']}"] * (delegates > theirs["delegates"])
        wrong += [f"calls {', '.join(sorted(more))}"] * bool(more)
        wrong += [f"larger by {size / theirs['bytes'] - 1:.2%}"] * (size > theirs["bytes"])
    return f"{delegates:7} {len(outside):7} {size:9} {beside} {worst:8.1e}", wrong


def main() -> int:
    exports, *names = sys.argv[1:]
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    peer = json.loads(PEER.read_text())["models"]
    archives = [path for path in sorted(Path(exports).glob("*.pt2")) if path.stem.count(".") == 0]
    archives = [path for path in archives if (path.stem in names if names else path.stem in peer)]
    columns = f"{'parts':>7} {'outside':>7} {'bytes':>9}"
    print(f"{'':26} {columns} {columns} {'error':>8}   (ours, then theirs)")
    failed = beside = 0
    for archive in archives:
        theirs = peer.get(archive.stem, {"failed": "the peer has no result for it"})
        try:
            row, wrong = judge(archive, theirs)
        except Exception:  # A failing program must not hide the others.
            row, wrong = "", [traceback.format_exc()]
        failed += bool(wrong)
        beside += "failed" not in theirs
        print(f"{archive.stem:26} {row}  {'; '.join(wrong) or 'fine'}", flush=True)
    print(f"{len(archives) - failed} of {len(archives)} are fine; theirs lowers {beside} of them")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
