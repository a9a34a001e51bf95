"""Measures throughput: inferences per second of sessions that several threads use at once, and of batches in
`coremill run`, relative to one thread.

    PYTHONPATH=target/python python -m oracle.bench.throughput MODELS [--only NAME ...] [--threads N] [--rounds N] [--seconds S]

`MODELS` is a folder that `python -m oracle.bench.models --out MODELS` wrote; `cargo xtask bench throughput` builds the Python
module and runs this. Each thread has a session of one thread, and all sessions share the model's weights. A round measures one
thread, then all threads, and the median of the rounds' ratios counts, so that other processes disturb both alike. If
the environment variable COREMILL names the command, `coremill run --batch` is measured in the same way, with one session and with
several. Exits with 1 if a ratio is below the promise.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import coremill
from oracle.bench.dropin import processor
from oracle.bench.startup import inputs_of

#: Minimum throughput of two threads on two processors, relative to one.
PROMISE = 1.7


def count_until(session: Any, inputs: dict[str, Any], end: float) -> int:
    """The number of runs that begin before a time."""
    count = 0
    while time.perf_counter() < end:
        session.predict(inputs)
        count += 1
    return count


def throughput(sessions: list[Any], inputs: dict[str, Any], seconds: float) -> float:
    """Runs per second of sessions that run at once."""
    with ThreadPoolExecutor(len(sessions)) as pool:
        start = time.perf_counter()
        counts = list(pool.map(lambda one: count_until(one, inputs, start + seconds), sessions))
        return sum(counts) / (time.perf_counter() - start)


def batch(command: str, package: Path, inputs: Path, threads: int, seconds: float, rate: float) -> float:
    """Runs per second of `coremill run --batch`, without loading. `rate` estimates those of one thread."""
    count = max(4, int(rate * seconds)) * threads
    with tempfile.TemporaryDirectory() as folder:
        for at in range(count):
            Path(folder, f"{at:06}.npz").symlink_to(inputs.resolve())
        line = [command, "run", str(package), "--batch", "--inputs", folder, "--threads", str(threads), "--json"]
        done = subprocess.run(line, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["batch"]["runs_per_second"]


def report(name: str, pairs: list[tuple[float, float]], threads: int) -> bool:
    """Prints the medians. Returns whether the promise is kept."""
    ratio = statistics.median(many / one for one, many in pairs)
    one, many = (statistics.median(pair[at] for pair in pairs) for at in (0, 1))
    print(f"{name:26} {one:10.1f} {many:10.1f} {ratio:6.2f}", flush=True)
    return ratio >= PROMISE * threads / 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of a measurement")
    arguments = parser.parse_args()
    names = arguments.only or sorted(path.stem for path in arguments.models.glob("*.mlpackage"))
    print(f"{processor()}, {os.cpu_count()} threads")
    print(f"{'runs per second':26} {'1 thread':>10} {f'{arguments.threads} threads':>10} {'ratio':>6}")
    kept = True
    for name in names:
        model = coremill.load(arguments.models / f"{name}.mlpackage")
        inputs = inputs_of(arguments.models, name)
        sessions = [model.session(threads=1) for _ in range(arguments.threads)]
        for session in sessions:
            session.predict(inputs)
        pairs = [
            (throughput(sessions[:1], inputs, arguments.seconds), throughput(sessions, inputs, arguments.seconds))
            for _ in range(arguments.rounds)
        ]
        kept &= report(name, pairs, arguments.threads)
        if command := os.environ.get("COREMILL"):
            rate = statistics.median(one for one, _ in pairs)
            package, given = (arguments.models / f"{name}{suffix}" for suffix in (".mlpackage", ".inputs.npz"))
            pairs = [
                tuple(batch(command, package, given, threads, arguments.seconds, rate) for threads in (1, arguments.threads))
                for _ in range(arguments.rounds)
            ]
            kept &= report(f"{name}, batch", pairs, arguments.threads)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
