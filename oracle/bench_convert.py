"""How long `coremill convert` takes, and how much memory, beside `coremltools.convert` of the same program.

    python -m oracle.bench_convert --coremill PATH [--models DIR] [--only NAME ...] [--rounds N] [--json]

Ours is the whole command, the reading of the archive and the writing of the package included; theirs is the conversion
alone, without imports, without `run_decompositions`, and without writing. Both take turns, so that they find the same
machine. Ends with 1 if a promise is not kept.
"""

import argparse
import contextlib
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from .bench_models import MODELS, instance

#: How many times faster each must be.
PROMISES = {"mobilenet_v2": 100, "resnet50": 100, "vit_b_16": 50, "llama_prefill": 50}
#: Bytes that our process may have in memory at its peak.
MOST_MEMORY = 150 << 20


def archive_of(name: str, directory: Path) -> Path:
    """The exported program, made if it is not there."""
    path = directory / f"{name}.pt2"
    if not path.exists():
        model = next(model for model in MODELS if model.name == name)
        module, inputs = instance(model)
        program = torch.export.export(module, tuple(inputs.values()))
        unfinished = path.with_suffix(".unfinished.pt2")
        torch.export.save(program, unfinished)
        unfinished.rename(path)
    return path


#: Runs commands for us: a child begins with the peak of memory of the process that starts it, and ours holds torch.
LAUNCHER = """
import json, os, sys, time
for line in sys.stdin:
    started = time.monotonic()
    nothing = os.open(os.devnull, os.O_WRONLY)
    actions = [(os.POSIX_SPAWN_DUP2, nothing, 2)]
    command = json.loads(line)
    child = os.posix_spawn(command[0], command, os.environ, file_actions=actions)
    _, status, usage = os.wait4(child, 0)
    took = time.monotonic() - started
    os.close(nothing)
    code = os.waitstatus_to_exitcode(status)
    print(json.dumps([code, took, usage.ru_utime + usage.ru_stime, usage.ru_maxrss]), flush=True)
"""


class Launcher:
    """Measures commands."""

    def __init__(self) -> None:
        line = [sys.executable, "-I", "-S", "-c", LAUNCHER]
        self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, command: list[str]) -> tuple[float, float, int]:
        """Seconds by the clock, seconds of the processor, and the peak of memory in bytes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(command), file=self.process.stdin, flush=True)
        code, took, processor, peak = json.loads(self.process.stdout.readline())
        if code != 0:
            raise SystemExit(f"`{' '.join(command)}` ended with {code}")
        return took, processor, peak * (1 if sys.platform == "darwin" else 1024)


def ours(launcher: Launcher, command: str, archive: Path, package: Path) -> tuple[float, float, int]:
    """One conversion."""
    shutil.rmtree(package, ignore_errors=True)
    return launcher.run([command, "convert", str(archive), "-o", str(package)])


def theirs(program: Any) -> tuple[float, float]:
    """Seconds by the clock, and seconds of the processor."""
    import coremltools as ct

    clock, processor = time.monotonic(), time.process_time()
    # The bars of progress want something to write to.
    with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        ct.convert(program, convert_to="mlprogram", skip_model_load=True)
    return time.monotonic() - clock, time.process_time() - processor


def measure(launcher: Launcher, name: str, command: str, directory: Path, rounds: int) -> dict[str, Any]:
    """The line of a model."""
    archive = archive_of(name, directory)
    program = torch.export.load(archive).run_decompositions({})
    samples: dict[str, list[float]] = {"ours": [], "ours_processor": [], "theirs": [], "theirs_processor": []}
    memory = 0
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        package = Path(temporary) / "model.mlpackage"
        ours(launcher, command, archive, package)
        for _ in range(rounds):
            for _ in range(3):
                clock, processor, peak = ours(launcher, command, archive, package)
                samples["ours"].append(clock)
                samples["ours_processor"].append(processor)
                memory = max(memory, peak)
            clock, processor = theirs(program)
            samples["theirs"].append(clock)
            samples["theirs_processor"].append(processor)
    line: dict[str, Any] = {key: statistics.median(values) for key, values in samples.items()}
    line |= {"model": name, "memory": memory, "times": line["theirs"] / line["ours"]}
    line["times_processor"] = line["theirs_processor"] / line["ours_processor"]
    return line


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m oracle.bench_convert", description=__doc__.splitlines()[0])
    parser.add_argument("--coremill", required=True, type=os.path.abspath, metavar="PATH", help="the command")
    parser.add_argument("--models", type=Path, default=Path("target/bench-exports"), metavar="DIR")
    parser.add_argument("--only", nargs="+", default=list(PROMISES), choices=PROMISES, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    options = parser.parse_args()
    os.environ["TQDM_DISABLE"] = "1"
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    options.models.mkdir(parents=True, exist_ok=True)

    launcher = Launcher()
    missed = []
    if not options.json:
        print(f"{'model':<15} {'ours':>9} {'theirs':>9} {'faster':>8} {'promised':>9} {'by CPU time':>12} {'memory':>9}")
    for name in options.only:
        line = measure(launcher, name, options.coremill, options.models, options.rounds)
        if options.json:
            print(json.dumps(line), flush=True)
        else:
            print(
                f"{name:<15} {line['ours'] * 1000:>6.0f} ms {line['theirs'] * 1000:>6.0f} ms {line['times']:>6.0f} x "
                f"{PROMISES[name]:>7} x {line['times_processor']:>10.0f} x {line['memory'] / (1 << 20):>6.0f} MB",
                flush=True,
            )
        if line["times"] < PROMISES[name]:
            missed.append(f"{name} is {line['times']:.0f} times as fast, not {PROMISES[name]}")
        if line["memory"] > MOST_MEMORY:
            missed.append(f"{name} takes {line['memory'] >> 20} MB, not {MOST_MEMORY >> 20}")
    for one in missed:
        print(f"missed: {one}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
