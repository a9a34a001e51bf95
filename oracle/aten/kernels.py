"""Runs the cases without delegates in ExecuTorch's own runtime.

    python -m oracle.aten.kernels DIR [--family NAME ...] [--only TEXT ...]

reads the archives that `python -m oracle.aten DIR --export-only` wrote, and lowers them with `coremill lower --portable`.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from executorch.runtime import Runtime

from oracle.support.arrays import array

from .outside import exported, judge

SECONDS = 60


def serve(pipe: Connection) -> None:
    """Runs the programs that the pipe delivers. The runtime aborts the process if a kernel refuses its arguments."""
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
        except Exception as error:  # Reported with its case.
            pipe.send(f"{type(error).__name__}: {error}".splitlines()[0])


class Runner:
    """A process with the runtime that is started again after an abort."""

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
    """Lowers an archive. Returns the error message, or `None`."""
    line = [os.environ["COREMILL"], "lower", str(archive), "--portable", "-o", str(program)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=SECONDS)
    return None if done.returncode == 0 else done.stderr.strip().replace("\n", " ")[:300] or str(done.returncode)


def faults(family: str, directory: Path, only: list[str] | None = None, every: int = 1) -> tuple[int, dict[str, str]]:
    """Runs the cases of a family. Returns their number, and the failures by name."""
    cases = exported(family, directory, only)[::every]
    folder = directory / family / "portable"
    folder.mkdir(exist_ok=True)
    programs = [folder / f"{one.case.name}.pte" for one in cases]
    with ThreadPoolExecutor(2) as pool:
        refused = list(pool.map(lower, [one.archive for one in cases], programs))
    runner, found = Runner(), {}
    for one, program, refusal in zip(cases, programs, refused, strict=True):
        if refusal is not None:
            found[one.case.name] = f"refused: {refusal}"
            continue
        got = runner.run(program, [list(one.case.inputs), *map(list, one.case.further)])
        reason = got if isinstance(got, str) else one.fault(got)
        if reason is not None:
            found[one.case.name] = reason
    return len(cases), found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m oracle.aten.kernels")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="run one case in this many")
    return judge(parser, lambda family, options: faults(family, options.directory, options.only, options.every))


if __name__ == "__main__":
    sys.exit(main())
