"""`coremill convert` on exported programs: coremltools loads the packages, and the results are compared with eager torch.

Here the small programs of the zoo are converted; `cargo xtask zoo` converts all of them.
"""

import collections
import json
import subprocess
import sys
from pathlib import Path

import pytest

from oracle.checkers.conversion import judge
from oracle.conftest import Command
from oracle.support.cargo import ROOT, TARGET
from oracle.zoo.exports.table import ROWS, everyday

#: Target and precision.
FORMS = [("ios18", "fp16"), ("ios18", "fp32"), ("ios15", "fp16")]


def test_zoo_names_are_unique_valid_file_names() -> None:
    """Names are valid file names and unique."""
    counts = collections.Counter(row.name for row in ROWS)
    assert [name for name, count in counts.items() if count > 1] == []
    # In file names, a dot separates the name from the dialect.
    assert all(name == name.lower() and not set(name) & {"/", "."} for name in counts)


def test_zoo_has_enough_programs_and_families() -> None:
    """The minimum breadth of the table."""
    families = collections.Counter(row.family for row in ROWS)
    assert families.total() >= 160
    assert len(families) >= 15
    assert sum(row.dialects for row in ROWS) >= 20


@pytest.fixture(scope="session")
def exports() -> Path:
    """The folder of the exported programs, created in a separate process because models leave state in torch."""
    directory = TARGET / "exports"
    line = [sys.executable, "-m", "oracle.zoo.exports", str(directory), "--everyday", "--missing"]
    subprocess.run(line, cwd=ROOT, check=True)
    return directory


@pytest.mark.parametrize(("target", "precision"), FORMS)
@pytest.mark.parametrize("name", [row.name for row in everyday()])
def test_converted_programs_match_torch(name: str, target: str, precision: str, exports: Path, coremill: Command, tmp_path: Path) -> None:
    """The program converts, coremltools type-checks the package, the results agree with torch, and no operation is
    redundant."""
    package = tmp_path / f"{name}.mlpackage"
    archive = exports / f"{name}.pt2"
    # States need iOS18; for older releases, buffers are inputs and outputs.
    states = "keep" if target == "ios18" else "io"
    coremill("convert", archive, "-o", package, "--target", target, "--precision", precision, "--states", states)
    assert judge(name, package, exports, precision).faults() == []


@pytest.mark.parametrize("dialect", ["core", "edge"])
@pytest.mark.parametrize("name", [row.name for row in everyday() if row.dialects])
def test_core_and_edge_dialects_match_torch(name: str, dialect: str, exports: Path, coremill: Command, tmp_path: Path) -> None:
    """The decomposed dialects of a program pass the same checks."""
    record = json.loads((exports / f"{name}.json").read_text())
    if dialect not in record["dialects"]:
        pytest.skip(f"ExecuTorch cannot write it: {record['no_edge']}")
    package = tmp_path / f"{name}.mlpackage"
    archive = exports / f"{name}.{dialect}.pt2"
    coremill("convert", archive, "-o", package, "--target", "ios18", "--precision", "fp32")
    assert judge(name, package, exports, "fp32").faults() == []
