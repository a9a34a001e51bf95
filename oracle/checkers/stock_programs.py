"""Runs programs in ExecuTorch's own runtime on our engine, from Python and from C++ built by CMake, and compares both with
eager torch.

    python -m oracle.checkers.stock_programs COREMILL [--exports DIR] [--delegated DIR] [--sanitize KIND] [--only NAME ...]

`COREMILL` lowers exports of the zoo (`python -m oracle.zoo.exports DIR --everyday`) and the small programs of
`oracle.corpora.lowered_programs`; `python -m oracle.corpora.delegated DIR` writes those of ExecuTorch's own Core ML backend. Prints a line
per method: the largest error relative to the largest element, in Python and in C++. With `--sanitize`, the C++ program
also loads each program again, and runs it on several threads.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from oracle.checkers.lowering import BOUND, Call, bound, compare, delegates, errors_in_peer, loads, operators, recorded, taken
from oracle.checkers.peer_programs import OUT_OF_RANGE, methods_of, own
from oracle.corpora.delegated import ROWS as PEER_ROWS
from oracle.corpora.lowered_programs import ROWS, export
from oracle.support import stock, stock_app
from oracle.support.served import Runtime

#: Maximum error of programs that compute in fp16.
HALF_BOUND = 2e-2


@dataclass
class Program:
    """A method of a program, with its calls."""

    name: str
    path: Path
    method: str
    calls: list[Call]
    bound: float


def of_exports(command: str, exports: Path, folder: Path, names: set[str]) -> Iterator[Program]:
    """Programs of the zoo, lowered to one delegate and to several."""
    for archive in sorted(exports.glob("*.pt2")):
        record = archive.with_suffix(".npz")
        if not record.exists() or (names and archive.stem not in names):
            continue
        path, known = folder / f"{archive.stem}.pte", operators(archive)
        skipped = random.Random(archive.stem).sample(known, min(3, len(known)))
        for form, forms in {"": [], " in parts": ["--skip-ops", ",".join(skipped)]}.items():
            line = [command, "lower", archive, "-o", path, "--precision", "fp32", *forms]
            subprocess.run(line, check=True, capture_output=True)
            program = loads(path)
            if delegates(program):
                calls = taken(program, list(recorded(record)))
                yield Program(f"zoo {archive.stem}{form}", path, "forward", calls, bound(calls))


def of_rows(command: str, folder: Path, names: set[str]) -> Iterator[Program]:
    """Small programs with all kinds of inputs, states and outputs."""
    for row in ROWS:
        if names and row.name not in names:
            continue
        program, calls = export(row)
        archive, path = folder / "row.pt2", folder / f"row-{row.name}.pte"
        torch.export.save(program, archive)
        forms = {"": [], " in parts": ["--skip-ops", row.skip]} if row.skip else {"": []}
        for form, options in forms.items():
            line = [command, "lower", archive, "-o", path, "--precision", "fp32", *options, *row.options]
            subprocess.run(line, check=True, capture_output=True)
            if delegates(loads(path)):
                yield Program(f"small {row.name}{form}", path, "forward", calls, BOUND)


def of_peer(folder: Path, names: set[str]) -> Iterator[Program]:
    """Programs of ExecuTorch's own backend."""
    for row in PEER_ROWS:
        path = folder / f"{row.name}.pte"
        if not path.exists() or (names and row.name not in names):
            continue
        halves = row.name in ("halves", "three_functions", "large")
        methods = [plan.name for plan in loads(path).execution_plan]
        for method, calls in methods_of(path.with_suffix(".npz"), methods).items():
            calls = [call for at, call in enumerate(calls) if (row.name, at) not in OUT_OF_RANGE]
            yield Program(f"peer {row.name}", path, method, calls, HALF_BOUND if halves else 2e-4)


def in_app(app: Runtime, program: Program) -> list[float]:
    """The error of each call in the C++ program."""
    app.ask("load", program.path)
    app.ask("method", program.method)
    return [compare(own(app.run(call.inputs), call), call) for call in program.calls]


def judge(app: Runtime, program: Program) -> tuple[float, float]:
    """The largest error in Python and in C++."""
    in_python = errors_in_peer(program.path, program.calls, program.method, own)
    return max(in_python, default=0.0), max(in_app(app, program), default=0.0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m oracle.checkers.stock_programs", description="test programs in ExecuTorch's runtime")
    parser.add_argument("coremill", help="the command")
    parser.add_argument("--exports", type=Path, metavar="DIR", help="check the local programs of the zoo")
    parser.add_argument("--delegated", type=Path, metavar="DIR", help="check the programs that ExecuTorch lowered")
    parser.add_argument("--sanitize", metavar="KIND", help="sanitizer of the C++ program: address or thread")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="check only these")
    options = parser.parse_args()
    names, wrong, count = set(options.only), [], 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        stock.register()
        library = Path(os.environ["COREMILL_LIBRARY"])
        if options.sanitize == "thread":
            # The sanitizer does not see the synchronization of Rust's threads, so only C++ is checked.
            os.environ["TSAN_OPTIONS"] = "ignore_noninstrumented_modules=1"
        else:
            library = library.with_suffix(".a")
        sanitize = [f"-DSANITIZE={options.sanitize}"] if options.sanitize else []
        app = Runtime(folder, stock_app.build(stock_app.SOURCE, folder / "build", library, *sanitize) / "stock_app")
        programs = [of_rows(options.coremill, folder, names)]
        programs += [of_exports(options.coremill, options.exports, folder, names)] if options.exports else []
        programs += [of_peer(options.delegated, names)] if options.delegated else []
        for program in (program for kind in programs for program in kind):
            try:
                found = judge(app, program)
                if options.sanitize:
                    # Instances with separate states return the results of the first call.
                    app.ask("method", program.method)
                    app.run(program.calls[0].inputs)
                    app.ask("cycles", 3)
                    app.ask("threads", 8, 1)
            except (RuntimeError, AssertionError) as error:
                wrong.append(f"{program.name} {program.method}: {error}")
                print(wrong[-1], flush=True)
                continue
            is_fine = all(error <= program.bound for error in found)
            print(program.name, program.method, *(f"{error:.1e}" for error in found), "" if is_fine else "WRONG", flush=True)
            wrong += [] if is_fine else [program.name]
            count += 1
        app.close()
        wrong += [f"the C++ program ended with {app.process.returncode}"] if app.process.returncode else []
    print(f"{count} methods, {len(wrong)} wrong: {'; '.join(wrong)[:2000]}" if wrong else f"all {count} methods are right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
