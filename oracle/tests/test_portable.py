"""Calls outside delegates become calls of ExecuTorch's kernels, whose results are compared with eager torch.

The cases are those of `oracle.aten`. Each is lowered without delegates, then interpreted in torch and run in ExecuTorch's
own runtime, whose kernels have further restrictions.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from oracle.aten import FAMILIES, kernels, portable
from oracle.aten.make import family_cases, make
from oracle.support.cargo import ROOT, TARGET
from oracle.support.sampling import every

#: Every change tests one of `SHARE` cases; `python -m oracle.aten.portable` and `.kernels` test all cases in a folder.
SHARE = 6
#: Parts of the messages for refused calls, by the family of the cases.
REFUSED = {
    "activation": [],
    "binary": ["aten.lcm.default", "aten.gcd.default", "aten.nextafter.default"],
    "creation": ["aten.multinomial"],
    "index": ["aten.nonzero_numpy.default"],
    "linear": ["aten.linalg_inv.default"],
    "order": ["aten._unique", "aten.unique_"],
    "padding": ["unknown at compile time"],
    "pool": ["the indices of the maxima"],
    "reduction": ["aten.bincount.default", "higher_order.associative_scan"],
    "shape": ["no upper bound", "aten.tensor_split.tensor_indices_or_sections"],
    "sizes": ["_operator.pow", "a Fourier transform along axis 0", "the size of the image is unknown at compile time"],
}  # fmt: skip


def test_kernel_list_matches_pinned_executorch() -> None:
    """The list of kernels equals that of the pinned executorch."""
    line = [sys.executable, "-m", "oracle.dumps.kernels"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    assert portable.KERNELS.read_text() == done.stdout


@pytest.fixture(scope="session")
def xtask() -> str:
    subprocess.run(["cargo", "build", "--quiet", "--package", "xtask"], cwd=ROOT, check=True)
    return str(TARGET / "debug/xtask")


@pytest.fixture(scope="session", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A family, and the folder of its archives."""
    directory = tmp_path_factory.mktemp("portable")
    assert make(family_cases(request.param)[:: every(SHARE)], directory / request.param) == {}
    return request.param, directory


def fail_on_unexpected(family: str, found: dict[str, str]) -> None:
    """Fails unless every failure is an expected refusal. Does not require that the expected refusals occur."""
    expected = REFUSED.get(family, [])
    unexpected = {
        name: reason
        for name, reason in found.items()
        if not (reason.startswith("refused") and any(part in reason for part in expected))
    }
    report = "\n".join(f"  {name}: {reason}" for name, reason in unexpected.items())
    assert not unexpected, f"{len(unexpected)} unexpected failures:\n{report}"


def test_interpreted_portable_graph_matches_torch(family: tuple[str, Path], xtask: str) -> None:
    """Interprets the rewritten graph in torch: every value has the declared type."""
    name, directory = family
    fail_on_unexpected(name, portable.faults(name, directory, xtask)[1])


def test_portable_program_matches_torch_in_executorch(family: tuple[str, Path], coremill: object) -> None:
    """Runs the program in ExecuTorch's runtime."""
    name, directory = family
    fail_on_unexpected(name, kernels.faults(name, directory)[1])
