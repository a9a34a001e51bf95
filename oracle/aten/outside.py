"""Shared code of the two references for programs without delegates."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy

from oracle.support.distance import distance, strain

from . import FAMILIES
from .case import Case
from .make import family_cases, made

#: Maximum error by the least precise element type of the computation.
TOLERANCE = {"bfloat16": 4e-2, "float16": 1e-2}


@dataclass
class Exported:
    """A case with its exported archive."""

    case: Case
    archive: Path
    #: Inputs and outputs of eager torch.
    arrays: dict[str, numpy.ndarray]
    #: Element types of the computation.
    kinds: list[str]

    def fault(self, calls: list[list[numpy.ndarray]]) -> str | None:
        """Compares the outputs of the calls with torch. Returns the failure, or `None`."""
        allowed = max(self.case.tolerance.get("fp32", 0.0), 1e-4, *(TOLERANCE.get(kind, 0.0) for kind in self.kinds))
        for index, outputs in enumerate(calls):
            ending = f"@{index}" if index else ""
            count = sum(key.startswith("out") and key.partition("@")[1:] == ending.partition("@")[1:] for key in self.arrays)
            if len(outputs) != count:
                return f"{len(outputs)} outputs, but {count} in eager torch"
            for place, value in enumerate(outputs):
                key = f"out{place}{ending}"
                reason = self.difference(value, self.arrays[key], allowed)
                if reason:
                    return f"{key} is {reason}"
        return None

    def difference(self, value: numpy.ndarray, want: numpy.ndarray, allowed: float) -> str | None:
        if value.shape != want.shape or value.dtype != want.dtype:
            return f"{value.dtype} {value.shape}, but {want.dtype} {want.shape} in eager torch"
        if not self.case.exact or not want.size:
            return None
        error = distance(value, want, least=1.0)
        if error > allowed:
            return f"wrong by {error:.2e}"
        relative = self.case.relative.get("fp32")
        if relative is not None and strain(value, want, relative) > 1:
            return f"the error exceeds {relative:.0e} of an element"
        return None


def exported(family: str, directory: Path, only: list[str] | None = None) -> list[Exported]:
    """The cases of a family that were exported to a folder."""
    references, kinds = made(directory / family)
    found = []
    for case in sorted(family_cases(family), key=lambda case: case.name):
        archive = directory / family / f"{case.name}.pt2"
        if case.outside and archive.exists() and (not only or any(text in case.name for text in only)):
            found.append(Exported(case, archive, references[case.name], kinds[case.name]))
    return found


def judge(
    parser: argparse.ArgumentParser, faults: Callable[[str, argparse.Namespace], tuple[int, dict[str, str]]]
) -> int:
    """Prints the failures of each family and a summary. Exits with an error unless all failures are refusals.

    `faults` returns the number of cases of a family, and the failures by name.
    """
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--only", nargs="+", metavar="TEXT")
    options = parser.parse_args()
    total = bad = refused = 0
    for family in options.family:
        if not (options.directory / family).exists():
            continue
        count, found = faults(family, options)
        for name, reason in found.items():
            print(f"  {family}/{name}: {reason}", flush=True)
        turned_away = sum(reason.startswith("refused") for reason in found.values())
        print(f"{family}: {count - len(found)} of {count} right, {turned_away} refused", flush=True)
        total, bad, refused = total + count, bad + len(found), refused + turned_away
    print(f"{total - bad} of {total} right, {refused} refused, {bad - refused} wrong")
    return int(bad > refused)
