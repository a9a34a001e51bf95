"""Runs the cases in ExecuTorch's own runtime: programs in which nothing is delegated.

    python -m oracle.aten.kernels DIR [--family NAME ...] [--only TEXT ...]

takes the archives that `python -m oracle.aten DIR --export-only` left, and lowers them with `coremill lower --portable`.
"""

import argparse
import collections
import json
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy
import torch
from executorch.runtime import Runtime

from . import FAMILIES
from .case import Case
from .make import array, family_cases
from .portable import TOLERANCE

SECONDS = 60


def serve(pipe: Connection) -> None:
    """Runs programs until there are no more; the runtime ends the process where a kernel refuses."""
    torch.set_num_threads(1)
    runtime = Runtime.get()
    while True:
        try:
            path, calls = pipe.recv()
        except EOFError:
            return
        try:
            method = runtime.load_program(path).load_method("forward")
            results = [[value.clone() if isinstance(value, torch.Tensor) else value for value in method.execute(call)] for call in calls]
            pipe.send([[array(torch.as_tensor(value)) for value in one] for one in results])
        except Exception as error:  # It is told with its case.
            pipe.send(f"{type(error).__name__}: {error}".splitlines()[0])


class Runner:
    """A process that has the runtime, and another one after each that ended."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("fork")
        self.process: Any = None

    def run(self, path: Path, calls: list[list[torch.Tensor]]) -> Any:
        if self.process is None:
            self.pipe, end = self.context.Pipe()
            self.process = self.context.Process(target=serve, args=(end,), daemon=True)
            self.process.start()
            end.close()
        try:
            self.pipe.send((str(path), calls))
            if not self.pipe.poll(SECONDS):
                raise EOFError
            return self.pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self.process.kill()
            self.process.join()
            self.process = None
            return "the runtime ended the process"


def lower(archive: Path, program: Path) -> str | None:
    """Why the archive is not lowered."""
    line = [os.environ["COREMILL"], "lower", str(archive), "--portable", "-o", str(program)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=SECONDS)
    return None if done.returncode == 0 else done.stderr.strip().replace("\n", " ")[:300] or str(done.returncode)


def compare(got: list[list[numpy.ndarray]], arrays: dict[str, numpy.ndarray], allowed: float, exact: bool) -> str | None:
    for index, outputs in enumerate(got):
        ending = f"@{index}" if index else ""
        keys = sorted((key for key in arrays if key.startswith("out") and key.partition("@")[1:] == (("@", str(index)) if index else ("", ""))), key=lambda key: int(key.removeprefix("out").partition("@")[0]))
        if len(keys) != len(outputs):
            return f"{len(outputs)} outputs, and {len(keys)} in eager torch{ending}"
        for key, value in zip(keys, outputs, strict=True):
            want = arrays[key]
            if value.shape != want.shape or value.dtype != want.dtype:
                return f"{key} is {value.dtype} {value.shape}, and in eager torch {want.dtype} {want.shape}"
            if not exact or not want.size:
                continue
            value, want = value.astype(numpy.float64), want.astype(numpy.float64)
            if not numpy.array_equal(numpy.isnan(value), numpy.isnan(want)):
                return f"{key} is no number elsewhere"
            finite = numpy.isfinite(want)
            if not numpy.array_equal(value[~finite], want[~finite], equal_nan=True):
                return f"{key} is infinite elsewhere"
            if finite.any():
                error = numpy.abs(value[finite] - want[finite]).max() / max(1.0, numpy.abs(want[finite]).max())
                if not error <= allowed:
                    return f"{key} is wrong by {error:.2e}"
    return None


def faults(family: str, directory: Path, only: list[str] | None = None, every: int = 1) -> tuple[int, dict[str, str]]:
    """How many cases of a family there are, and what is wrong by name."""
    cases = {one.name: one for one in family_cases(family)}
    archives = sorted((directory / family).glob("*.pt2"))
    archives = [one for one in archives if one.stem in cases and (not only or any(text in one.stem for text in only))][::every]
    programs = directory / family / "portable"
    programs.mkdir(exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        refused = dict(zip(archives, pool.map(lambda one: lower(one, programs / f"{one.stem}.pte"), archives), strict=True))
    with numpy.load(directory / family / "reference.npz") as file:
        references: dict[str, dict[str, numpy.ndarray]] = collections.defaultdict(dict)
        for key in file:
            name, _, place = key.rpartition("/")
            references[name][place] = file[key]
    kinds = json.loads((directory / family / "kinds.json").read_text())
    runner, found = Runner(), {}
    for archive in archives:
        one: Case = cases[archive.stem]
        if refused[archive] is not None:
            found[one.name] = f"refused: {refused[archive]}"
            continue
        got = runner.run(programs / f"{one.name}.pte", [list(one.inputs), *map(list, one.further)])
        allowed = max(one.tolerance.get("fp32", 0.0), 1e-4, *(TOLERANCE.get(kind, 0.0) for kind in kinds[one.name]))
        reason = got if isinstance(got, str) else compare(got, references[one.name], allowed, one.exact)
        if reason is not None:
            found[one.name] = reason
    return len(archives), found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m oracle.aten.kernels")
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--only", nargs="+", metavar="TEXT")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every so many cases")
    options = parser.parse_args()
    total = bad = refused = 0
    for family in options.family:
        if not (options.directory / family).exists():
            continue
        count, found = faults(family, options.directory, options.only, options.every)
        for name, reason in found.items():
            print(f"  {family}/{name}: {reason}", flush=True)
        turned_away = sum(reason.startswith("refused") for reason in found.values())
        print(f"{family}: {count - len(found)} of {count} right, {turned_away} refused", flush=True)
        total, bad, refused = total + count, bad + len(found), refused + turned_away
    print(f"{total - bad} of {total} right, {refused} refused, {bad - refused} wrong")
    return int(bad > refused)


if __name__ == "__main__":
    sys.exit(main())
