"""`coremill convert` on programs with one ATen operator each; the results are compared with torch.

The cases are those of `oracle.aten`, which also explains how to add cases and how to run some of them.
"""

import collections
from pathlib import Path

import pytest
import torch

from oracle.aten import FAMILIES
from oracle.aten.case import Case
from oracle.aten.judge import faults
from oracle.aten.make import all_cases, family_cases, make
from oracle.support.cargo import ROOT
from oracle.support.sampling import every, sampled

#: Target, precision, and the step of the sample of cases.
FORMS = [("ios18", "fp32", 1), ("ios18", "fp16", 4), ("ios15", "fp32", 4)]
#: Every change runs one in `SHARE` cases, and at least one case of each operator.
SHARE = 2
#: Core operators that inference programs do not contain, or that do not compute anything.
OUTSIDE = {
    "_local_scalar_dense.default": "item",
    "atan2.out": "an out variant",
    "resize_.default": "changes storage",
}
BACKWARD = "_backward."
SYMBOLIC = "sym_"


def test_runs_enough_uniquely_named_cases() -> None:
    """Enough cases run, and names are unique in each family."""
    assert sum(len(chosen(family)) for family in FAMILIES) >= 1500
    names = collections.Counter((family, one.name) for family, one in all_cases())
    assert [name for name, count in names.items() if count > 1] == []


def test_every_core_aten_operator_has_case() -> None:
    """Each overload of the core ATen set has a case that runs."""
    missing = sorted(core_operators() - covered() - set(OUTSIDE))
    assert missing == []


def test_every_operator_in_zoo_exports_has_case() -> None:
    """Each overload in the exports of the zoo, which `oracle/aten/exported.txt` lists, has a case that runs."""
    found = covered()
    listed = (ROOT / "oracle/aten/exported.txt").read_text().split()
    assert [name for name in listed if name not in found] == []


def chosen(family: str) -> list[Case]:
    """The cases of a family that run."""
    return sampled(family_cases(family), SHARE, lambda one: one.target)


def covered() -> set[str]:
    """The operators whose cases run."""
    return {one.target.removeprefix("aten.") for family in FAMILIES for one in chosen(family)}


def core_operators() -> set[str]:
    """The operators that torch tags as core, without derivatives and queries of sizes."""
    found = set()
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if space != "aten" or not hasattr(torch.ops.aten, base):
            continue
        operator = getattr(getattr(torch.ops.aten, base), overload or "default", None)
        if operator is not None and torch.Tag.core in operator.tags:
            found.add(f"{base}.{overload or 'default'}")
    return {name for name in found if BACKWARD not in name and not name.startswith(SYMBOLIC)}


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the families' archives."""
    return tmp_path_factory.mktemp("aten")


@pytest.mark.parametrize("family", FAMILIES)
def test_converted_operators_match_torch(family: str, archives: Path, coremill: object) -> None:
    """Runs the cases of a family for each target and precision."""
    cases = chosen(family)
    directory = archives / family
    failures = {name: f"not exported: {reason}" for name, reason in make(cases, directory).items()}
    for target, precision, share in FORMS:
        packages = directory / f"{target}-{precision}"
        selected = cases if share == 1 else family_cases(family)[:: every(SHARE * share)]
        for name, reason in faults(selected, directory, packages, target, precision).items():
            failures[f"{name} for {target} in {precision}"] = reason
    report = "\n".join(f"  {name}: {reason}" for name, reason in failures.items())
    assert not failures, f"{len(failures)} cases fail:\n{report}"
