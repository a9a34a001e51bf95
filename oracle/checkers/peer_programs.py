"""Checks our support of programs that ExecuTorch's own Core ML backend lowered: each is read, extracted, checked and run,
by the runtime library and by the command, and compared with eager torch.

    python -m oracle.checkers.peer_programs PROGRAMS EXPORTS COREMILL SERVE [NAME ...]

`python -m oracle.zoo.peer EXPORTS --peer executorch` or `python -m oracle.corpora.delegated PROGRAMS` write `PROGRAMS/NAME.pte`.
The calls and torch's outputs are in `PROGRAMS/NAME.npz`, or else in `EXPORTS/NAME.npz`. Prints a line for each: the
largest error relative to the largest element, the seconds of the command that runs it, and the failures.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
import torch

from oracle.checkers.lowering import Call, compare, errors_in_peer, recorded
from oracle.support.served import Runtime

#: Almost all of the files compute in fp16.
BOUND = 1e-2
#: Programs that compute NaN, as they are written, although torch does not.
NOT_A_NUMBER = {
    # They fill all scores of a row with the least fp32 number, which is `-inf` in fp16, and compute its softmax.
    "deberta", "deberta_v2",
    # Its float mask became a boolean one that excludes the masked elements: all of them, in one row.
    "multihead_padding",
}  # fmt: skip
#: Calls that ExecuTorch's lowering excluded, so that Core ML refuses them, too: a dimension of 1 where torch exported
#: for 2 and more, and another batch size than the example's, which the program contains as a constant.
OUT_OF_RANGE = {("dynamic", 1), ("dynamic", 2), ("free_recurrent", 1)}


def methods_of(archive: Path, names: list[str]) -> dict[str, list[Call]]:
    """The calls of each method, in order."""
    with numpy.load(archive) as arrays:
        named = any(key.startswith(f"{name}.") for key in arrays.files for name in names)
    if not named:
        (name,) = names
        return {name: list(recorded(archive))}
    return {name: list(recorded(archive, f"{name}.")) for name in names}


def command_of(path: Path, command: str, method: str, calls: list[Call], folder: Path) -> tuple[list[float], float]:
    """The error of each call that the command runs, and the seconds of the run."""
    line = [command, "run", str(path), "--function", method, "--positional", "-o", str(folder / "outputs.npz")]
    for at, call in enumerate(calls):
        numpy.savez(folder / f"inputs{at}.npz", **{f"in{index}": one.numpy() for index, one in enumerate(call.inputs)})
        line += ["--inputs", str(folder / f"inputs{at}.npz")]
    start = time.monotonic()
    subprocess.run(line, capture_output=True, text=True, check=True)
    took = time.monotonic() - start
    found = []
    with numpy.load(folder / "outputs.npz") as arrays:
        for at, call in enumerate(calls):
            # The last call's outputs have no suffix.
            ending = f"@{at}" if at + 1 < len(calls) else ""
            names = [f"arr_{index}{ending}" for index in range(len(arrays.files))]
            results = [torch.from_numpy(arrays[name]) for name in names if name in arrays]
            found.append(compare(own(results, call), call))
    return found, took


def own(results: list[torch.Tensor], call: Call) -> list[torch.Tensor]:
    """The results that the module itself returns. ExecuTorch puts the inputs that it has written to before them."""
    return results[max(len(results) - len(call.outputs), 0) :]


def allowed(references: Path) -> float:
    """The maximum error: at most twice torch's own error with fp16 rounding, for networks that amplify it."""
    record = references.with_suffix(".json")
    half_error = json.loads(record.read_text())["half_error"] if record.exists() else None
    return max(BOUND, 2 * (half_error or 0.0))


def extract(path: Path, command: str, folder: Path) -> None:
    """Extracts all models and checks each."""
    line = [command, "extract", str(path), "-o", str(folder)]
    subprocess.run(line, capture_output=True, text=True, check=True)
    models = sorted(folder.iterdir())
    if not models:
        raise RuntimeError("the program contains no model")
    for model in models:
        subprocess.run([command, "check", str(model)], capture_output=True, text=True, check=True)


def gives_nan(results: list[torch.Tensor]) -> bool:
    """Whether each result contains NaN."""
    return all(bool(one.isnan().any()) for one in results)


def is_refused(runtime: Runtime, call: Call) -> bool:
    """Whether the runtime refuses the call with a message about the expected inputs."""
    try:
        runtime.run(call.inputs)
    except RuntimeError as error:
        return any(word in str(error) for word in ("must ", "expect"))
    return False


def judge(path: Path, references: Path, command: str, runtime: Runtime, folder: Path, bound: float) -> str:
    """The result line of a program."""
    wrong, worst, seconds = [], 0.0, 0.0
    try:
        for method, calls in methods_of(references, runtime.ask("load", path)).items():
            runtime.ask("method", method)
            beyond = [call for at, call in enumerate(calls) if (path.stem, at) in OUT_OF_RANGE]
            wrong += [f"{method} accepts inputs that it was not lowered for" for call in beyond if not is_refused(runtime, call)]
            calls = [call for at, call in enumerate(calls) if (path.stem, at) not in OUT_OF_RANGE]
            if path.stem in NOT_A_NUMBER:
                wrong += [f"call {at} returns numbers" for at, call in enumerate(calls) if not gives_nan(runtime.run(call.inputs))]
                continue
            in_library = [compare(own(runtime.run(call.inputs), call), call) for call in calls]
            in_command, took = command_of(path, command, method, calls, folder)
            seconds += took
            worst = max([worst, *in_library, *in_command])
            in_stock = errors_in_peer(path, calls, method, own)
            worst = max(worst, *in_stock)
            for who, found in (("library", in_library), ("command", in_command), ("ExecuTorch", in_stock)):
                wrong += [f"{who}, {method}, call {at}: {far}" for at, far in enumerate(found) if not far <= bound]
        with tempfile.TemporaryDirectory(dir=folder) as models:
            extract(path, command, Path(models))
    except subprocess.CalledProcessError as failed:
        wrong.append(f"`{' '.join(failed.cmd)}`: {failed.stderr.strip()}")
    except (RuntimeError, AssertionError, ValueError, KeyError) as problem:
        wrong.append(str(problem))
    return f"{worst:.1e} {seconds:.2f} s {'; '.join(wrong)[:900] or 'fine'}"


def main() -> int:
    programs, exports, command, serve, *names = sys.argv[1:]
    paths = [path for path in sorted(Path(programs).glob("*.pte")) if not names or path.stem in names]
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for path in paths:
            beside = path.with_suffix(".npz")
            references = beside if beside.exists() else Path(exports) / beside.name
            runtime = Runtime(folder, Path(serve))
            line = judge(path, references, command, runtime, folder, allowed(references))
            runtime.close()
            failed += not line.endswith(" fine")
            print(path.stem, line, flush=True)
    print(f"{failed} of {len(paths)} fail" if failed else f"all {len(paths)} are fine")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
