"""`coremill convert` on exported programs: coremltools takes the packages, and they compute what eager torch does.

Here the small programs of the zoo are converted; `cargo xtask zoo` converts all of them.
"""

import collections
import json
import subprocess
import sys
from pathlib import Path

import pytest

from oracle.conftest import ROOT, TARGET, Command
from oracle.conversion import judge
from oracle.zoo.exports.table import ROWS, everyday

#: Target and precision.
FORMS = [("ios18", "fp16"), ("ios18", "fp32"), ("ios15", "fp16")]


def test_names() -> None:
    """A name is a file name, and there is one row of each."""
    counts = collections.Counter(row.name for row in ROWS)
    assert [name for name, count in counts.items() if count > 1] == []
    # What follows a point is the dialect.
    assert all(name == name.lower() and not set(name) & {"/", "."} for name in counts)


def test_breadth() -> None:
    """The bars that the table must keep."""
    families = collections.Counter(row.family for row in ROWS)
    assert families.total() >= 160
    assert len(families) >= 15
    assert sum(row.dialects for row in ROWS) >= 20


@pytest.fixture(scope="session")
def exports() -> Path:
    """The folder of the exported programs, made in a process of its own: models leave much behind in torch."""
    directory = TARGET / "exports"
    line = [sys.executable, "-m", "oracle.zoo.exports", str(directory), "--everyday", "--missing"]
    subprocess.run(line, cwd=ROOT, check=True)
    return directory


@pytest.mark.parametrize(("target", "precision"), FORMS)
@pytest.mark.parametrize("name", [row.name for row in everyday()])
def test_convert(name: str, target: str, precision: str, exports: Path, coremill: Command, tmp_path: Path) -> None:
    """It converts, coremltools type-checks the package, the numbers are torch's, nothing undoes itself."""
    package = tmp_path / f"{name}.mlpackage"
    archive = exports / f"{name}.pt2"
    # States are there from iOS18 on; before, buffers come in and go out.
    states = "keep" if target == "ios18" else "io"
    coremill("convert", archive, "-o", package, "--target", target, "--precision", precision, "--states", states)
    assert judge(name, package, exports, precision).faults() == []


@pytest.mark.parametrize("dialect", ["core", "edge"])
@pytest.mark.parametrize("name", [row.name for row in everyday() if row.dialects])
def test_dialects(name: str, dialect: str, exports: Path, coremill: Command, tmp_path: Path) -> None:
    """So does the program in its decomposed forms, which compute the same."""
    record = json.loads((exports / f"{name}.json").read_text())
    if dialect not in record["dialects"]:
        pytest.skip(f"ExecuTorch cannot write it: {record['no_edge']}")
    package = tmp_path / f"{name}.mlpackage"
    archive = exports / f"{name}.{dialect}.pt2"
    coremill("convert", archive, "-o", package, "--target", "ios18", "--precision", "fp32")
    assert judge(name, package, exports, "fp32").faults() == []
