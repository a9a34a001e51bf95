"""Compares the time and memory of `coremill convert` and `coremill lower` with their peers on the same programs.

    python -m oracle.bench.compile convert|lower --coremill PATH [--models DIR] [--only NAME ...] [--rounds N] [--json] [--record]

Ours is the complete command, including reading the archive and writing the file. The peer of `convert` is
`coremltools.convert` alone, without imports, `run_decompositions` and writing; a second figure includes all of these
except the imports. The peer of `lower` is ExecuTorch's `to_edge_transform_and_lower(...).to_executorch()`, without
imports and writing. Both run alternately, under the same load. The memory of `lower` and its file size are compared,
too. Exits with 1 if a target is missed.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from oracle.bench.models import MODELS, instance
from oracle.dumps import benchmarks

#: Minimum speedups.
PROMISES = {
    "convert": {"mobilenet_v2": 100, "resnet50": 100, "vit_b_16": 50, "llama_prefill": 50},
    "lower": {"mobilenet_v2": 100, "resnet50": 100},
}
#: File extension of each command's output.
SUFFIXES = {"convert": ".mlpackage", "lower": ".pte"}
#: Maximum peak memory of `convert`, in bytes.
MOST_MEMORY = 150 << 20
#: Maximum peak memory of `lower`, relative to the peer's.
PART_OF_MEMORY = 1 / 4


def archive_of(name: str, directory: Path) -> Path:
    """The path of the exported program, which is created if missing."""
    path = directory / f"{name}.pt2"
    if not path.exists():
        model = next(model for model in MODELS if model.name == name)
        module, inputs = instance(model)
        program = torch.export.export(module, tuple(inputs.values()))
        unfinished = path.with_suffix(".unfinished.pt2")
        torch.export.save(program, unfinished)
        unfinished.rename(path)
    return path


#: Runs commands in a small process: a child's peak memory starts with its parent's, and ours has loaded torch.
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
    """Runs commands and measures them."""

    def __init__(self) -> None:
        line = [sys.executable, "-I", "-S", "-c", LAUNCHER]
        self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, command: list[str]) -> tuple[float, float, int]:
        """Returns the wall-clock seconds, the processor seconds, and the peak memory in bytes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(command), file=self.process.stdin, flush=True)
        code, took, processor, peak = json.loads(self.process.stdout.readline())
        if code != 0:
            raise SystemExit(f"`{' '.join(command)}` ended with {code}")
        return took, processor, peak * (1 if sys.platform == "darwin" else 1024)


def ours(launcher: Launcher, command: list[str], archive: Path, made: Path) -> tuple[float, float, int]:
    """Runs the command once."""
    shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
    return launcher.run([*command, str(archive), "-o", str(made)])


def convert(program: Any) -> Any:
    """The peer of `convert`, on a decomposed program."""
    import coremltools as ct

    return ct.convert(program, convert_to="mlprogram", skip_model_load=True)


def convert_file(paths: tuple[Path, Path]) -> None:
    """The peer of `convert` from file to file, as the command works."""
    archive, made = paths
    convert(torch.export.load(archive).run_decompositions({})).save(str(made))


def lower(program: Any) -> bytes:
    """The peer of `lower`."""
    from executorch.backends.apple.coreml.partition import CoreMLPartitioner
    from executorch.exir import to_edge_transform_and_lower

    from oracle.zoo import shims  # noqa: F401

    made = to_edge_transform_and_lower(program, partitioner=[CoreMLPartitioner()]).to_executorch().buffer
    assert isinstance(made, bytes)
    return made


#: Lowers once in a separate process, and prints the size of the file.
ALONE = """
import sys, torch
from oracle.bench.compile import lower, quietly
with open(sys.argv[2], "w") as file:
    program = torch.export.load(sys.argv[1])
    print(len(quietly(lower, program)), file=file)
"""


def quietly(work: Callable[[Any], Any], subject: Any) -> Any:
    """Runs a function without its progress bars."""
    with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        return work(subject)


def theirs(work: Callable[[Any], Any], subject: Any) -> tuple[float, float]:
    """Returns the wall-clock seconds and the processor seconds."""
    clock, processor = time.monotonic(), time.process_time()
    quietly(work, subject)
    return time.monotonic() - clock, time.process_time() - processor


def measure(launcher: Launcher, what: str, name: str, coremill: str, directory: Path, rounds: int) -> dict[str, Any]:
    """Measures a model."""
    archive = archive_of(name, directory)
    command = [coremill, what]
    program = torch.export.load(archive)
    if what == "convert":
        program = program.run_decompositions({})
    samples: dict[str, list[float]] = {"ours": [], "ours_processor": [], "theirs": [], "theirs_processor": []}
    memory = 0
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        made = Path(temporary) / f"model{SUFFIXES[what]}"
        ours(launcher, command, archive, made)
        for _ in range(rounds):
            for _ in range(3):
                clock, processor, peak = ours(launcher, command, archive, made)
                samples["ours"].append(clock)
                samples["ours_processor"].append(processor)
                memory = max(memory, peak)
            clock, processor = theirs(convert if what == "convert" else lower, program)
            samples["theirs"].append(clock)
            samples["theirs_processor"].append(processor)
            if what == "convert":
                saved = Path(temporary) / "theirs.mlpackage"
                clock, _ = theirs(convert_file, (archive, saved))
                samples.setdefault("theirs_whole", []).append(clock)
                shutil.rmtree(saved)
        more = {}
        if what == "lower":
            told = Path(temporary) / "bytes"
            _, _, peak = launcher.run([sys.executable, "-c", ALONE, str(archive), str(told)])
            more = {"bytes": made.stat().st_size, "their_bytes": int(told.read_text()), "their_memory": peak}
    line: dict[str, Any] = {key: statistics.median(values) for key, values in samples.items()}
    line |= {"model": name, "memory": memory, "times": line["theirs"] / line["ours"], **more}
    line["times_processor"] = line["theirs_processor"] / line["ours_processor"]
    return line


def missed(what: str, line: dict[str, Any]) -> list[str]:
    """The targets that a result misses."""
    name, found = line["model"], []
    if line["times"] < PROMISES[what][name]:
        found.append(f"{name} is {line['times']:.0f} times as fast; the target is {PROMISES[what][name]}")
    most = line["their_memory"] * PART_OF_MEMORY if what == "lower" else MOST_MEMORY
    if line["memory"] > most:
        found.append(f"{name} uses {line['memory'] >> 20} MB; the target is {int(most) >> 20} MB")
    if what == "lower" and line["bytes"] > line["their_bytes"]:
        found.append(f"{name} is {line['bytes']} bytes, not {line['their_bytes']}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m oracle.bench.compile", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=PROMISES, help="which command")
    parser.add_argument("--coremill", required=True, type=os.path.abspath, metavar="PATH", help="the command")
    parser.add_argument("--models", type=Path, default=Path("target/bench-exports"), metavar="DIR")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    parser.add_argument("--record", action="store_true", help="write the figures to docs/benchmarks.json, for the README")
    options = parser.parse_args()
    os.environ["TQDM_DISABLE"] = "1"
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    options.models.mkdir(parents=True, exist_ok=True)

    launcher = Launcher()
    broken, lines = [], []
    if not options.json:
        print(f"{'model':<15} {'ours':>9} {'theirs':>9} {'faster':>8} {'promised':>9} {'by CPU time':>12} {'memory':>9}" + (f" {'whole way':>9}" if options.what == "convert" else ""))
    for name in options.only or PROMISES[options.what]:
        line = measure(launcher, options.what, name, options.coremill, options.models, options.rounds)
        if options.json:
            print(json.dumps(line), flush=True)
        else:
            text = (
                f"{name:<15} {line['ours'] * 1000:>6.0f} ms {line['theirs'] * 1000:>6.0f} ms {line['times']:>6.0f} x "
                f"{PROMISES[options.what][name]:>7} x {line['times_processor']:>10.0f} x {line['memory'] / (1 << 20):>6.0f} MB"
            )
            if options.what == "convert":
                text += f" {line['theirs_whole'] / line['ours']:>7.0f} x"
            if options.what == "lower":
                text += f" of {line['their_memory'] / (1 << 20):.0f}; {line['bytes']} bytes to {line['their_bytes']}"
            print(text, flush=True)
        broken += missed(options.what, line)
        lines.append(line)
    if options.record:
        benchmarks.record(options.what, lines)
    for one in broken:
        print(f"missed: {one}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
