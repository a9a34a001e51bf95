"""Measures the first runs of a model, relative to later ones and to onnxruntime.

    PYTHONPATH=target/python python -m oracle.bench.startup MODELS [--only NAME ...] [--threads N] [--runs N] [--rounds N]

`MODELS` is a folder that `python -m oracle.bench.models --out MODELS` wrote; `cargo xtask bench startup` builds the Python module
and runs this. Each measurement is a process of its own, ours and onnxruntime's alternately; it loads a model, runs it, and notes
the time since the load began after each run: processor time for one thread, which other processes hardly affect, and else
wall-clock time. The medians over the rounds count. The steady state is the median of the second half of the runs. Exits with 1 if
a run other than the first takes more than `SLOWEST` times the steady state, or if the cumulative time after any run is not below
onnxruntime's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from oracle.bench.dropin import processor

#: Maximum time of a run after the first, relative to the steady state.
SLOWEST = 1.3
PEERS = ("coremill", "onnxruntime")


def inputs_of(folder: Path, name: str) -> dict[str, Any]:
    """The recorded inputs of a model."""
    import numpy

    with numpy.load(folder / f"{name}.inputs.npz") as arrays:
        return dict(arrays)


def marks(peer: str, folder: Path, name: str, threads: int, runs: int) -> list[float]:
    """Milliseconds from the start of loading to the end of each run, without imports and inputs."""
    clock = time.process_time if threads == 1 else time.perf_counter
    inputs = inputs_of(folder, name)
    run: Any
    if peer == "coremill":
        import coremill

        start = clock()
        session = coremill.load(folder / f"{name}.mlpackage").session(threads=threads)

        def run() -> Any:
            return session.predict(inputs)
    else:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        start = clock()
        loaded = onnxruntime.InferenceSession(folder / f"{name}.onnx", options, providers=["CPUExecutionProvider"])

        def run() -> Any:
            return loaded.run(None, {one.name: inputs[one.name] for one in loaded.get_inputs()})

    found = []
    for _ in range(runs):
        run()
        found.append((clock() - start) * 1e3)
    return found


def ask(*words: object) -> list[float]:
    """Measures once in a separate process."""
    done = subprocess.run(
        [sys.executable, "-m", "oracle.bench.startup", *map(str, words)], capture_output=True, text=True
    )
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def judge(ours: list[float], theirs: list[float] | None) -> tuple[list[float], float, list[str]]:
    """Times of single runs relative to the steady state, that state, and the missed promises."""
    single = [end - start for start, end in zip([0.0, *ours], ours, strict=False)]
    steady = statistics.median(single[len(single) // 2 :])
    relative = [time / steady for time in single]
    missed = [f"run {at} takes {one:.2f} times the steady state" for at, one in enumerate(relative[1:], 2) if one > SLOWEST]
    if theirs is not None:
        late = [at for at, (own, peer) in enumerate(zip(ours, theirs, strict=True), 1) if own >= peer]
        if late:
            missed.append(f"not ahead of onnxruntime after {late[0]} runs")
    return relative, steady, missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", choices=PEERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.models
    if arguments.measure:
        print(json.dumps(marks(arguments.measure, folder, arguments.only[0], arguments.threads, arguments.runs)))
        return 0
    print(f"{processor()}, {os.cpu_count()} threads; each model has {arguments.threads}")
    kept = True
    for name in arguments.only or sorted(path.stem for path in folder.glob("*.mlpackage")):
        peers = PEERS if (folder / f"{name}.onnx").exists() else PEERS[:1]
        rows: dict[str, list[list[float]]] = {peer: [] for peer in peers}
        for _ in range(arguments.rounds):
            for peer in peers:
                options = ("--only", name, "--threads", arguments.threads, "--runs", arguments.runs)
                rows[peer].append(ask(folder, "--measure", peer, *options))
        medians = {peer: [statistics.median(one) for one in zip(*found, strict=True)] for peer, found in rows.items()}
        relative, steady, missed = judge(medians["coremill"], medians.get("onnxruntime"))
        kept &= not missed
        print(f"{name}: steady state {steady:.1f} ms; {'; '.join(missed) or 'fine'}")
        print("  run / steady state  ", *(f"{one:6.2f}" for one in relative))
        for peer, ends in medians.items():
            print(f"  {f'ms, {peer}':21}", *(f"{end:6.0f}" for end in ends), flush=True)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
