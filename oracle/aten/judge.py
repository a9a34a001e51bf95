"""Converts the cases of a folder, runs the packages and reports errors."""

import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy

from oracle.checkers.conversion import KIND_TOLERANCE, largest_error
from oracle.checkers.programs import loads_in_coremltools
from oracle.support.distance import Mismatch

from .case import Case
from .make import made

#: Maximum error by precision of the program.
TOLERANCE = {"fp32": 1e-4, "fp16": 1e-2}
SECONDS = 600
#: Guards coremltools' reader, which keeps its state in globals.
READER = threading.Lock()
#: Maximum number of archives per process.
BATCH = 200


def convert(cases: list[Case], directory: Path, packages: Path, target: str, precision: str) -> dict[str, str]:
    """Converts the cases. Returns the error messages of the refused ones, by case name."""
    packages.mkdir(parents=True, exist_ok=True)
    refused: dict[str, str] = {}
    for start in range(0, len(cases), BATCH):
        batch = cases[start : start + BATCH]
        archives = [str(directory / f"{one.name}.pt2") for one in batch]
        line = [os.environ["COREMILL"], "convert", *archives, "--output-dir", str(packages)]
        line += ["--target", target, "--precision", precision]
        done = subprocess.run(line, capture_output=True, text=True, timeout=SECONDS, check=False)
        reasons = reasons_of(done.stderr)
        for one in batch:
            if not (packages / f"{one.name}.mlpackage").exists():
                last = done.stderr.strip().splitlines()[-1:] or ["no output"]
                refused[one.name] = reasons.get(one.name) or f"exit code {done.returncode}: {last[0]}"
    return refused


def reasons_of(text: str) -> dict[str, str]:
    """Parses the errors of a batch: the errors of each archive precede its `error: PATH: ...` summary."""
    found: dict[str, str] = {}
    before: list[str] = []
    for line in text.splitlines():
        head, colon, said = line.partition(": ")
        if not colon or not head.startswith("error"):
            continue
        path, point, rest = said.partition(".pt2: ")
        if not point:
            before.append(said)
            continue
        found[Path(path).name] = "; ".join([*before, rest])
        before = []
    return found


def faults(cases: list[Case], directory: Path, packages: Path, target: str, precision: str) -> dict[str, str]:
    """Converts and runs the cases. Returns the failures, by case name."""
    chosen = [one for one in cases if precision in one.precisions and (directory / f"{one.name}.pt2").exists()]
    refused = convert(chosen, directory, packages, target, precision)
    references, kinds = made(directory)

    def fault(one: Case) -> str | None:
        words = one.impossible.get(target) or one.impossible.get("*")
        if words is None and not one.inputs and target in ("ios15", "ios16", "ios17"):
            words = "needs iOS18"
        if one.name in refused:
            if words is not None and words in refused[one.name]:
                return None
            return f"refused: {refused[one.name]}"
        if words is not None:
            return f"expected a refusal with `{words}`"
        return wrong(one, packages / f"{one.name}.mlpackage", references[one.name], kinds[one.name], precision)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip([one.name for one in chosen], pool.map(fault, chosen), strict=True))
    return {name: reason for name, reason in found.items() if reason is not None}


def wrong(one: Case, package: Path, arrays: dict[str, numpy.ndarray], kinds: list[str], precision: str) -> str | None:
    """Compares a package with torch. Returns the failure, or `None`."""
    with READER:
        complaints = loads_in_coremltools(package)
    if complaints:
        return f"coremltools refuses it: {complaints[0].splitlines()[0]}"
    try:
        error = largest_error(package, arrays, 1 + len(one.further), precision, one.exact, one.relative.get(precision))
    except Mismatch as mismatch:
        return str(mismatch)
    # A case may set its own tolerance; element types that torch rounds to raise it further.
    stated = one.tolerance.get(precision, TOLERANCE[precision])
    allowed = max(stated, *(KIND_TOLERANCE.get(kind, 0.0) for kind in kinds))
    return None if error <= allowed else f"the outputs are wrong by {error:.2e}, more than {allowed:.0e}"
