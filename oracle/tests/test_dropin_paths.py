"""Compares the drop-in's direct path with ExecuTorch's own: programs have the same interface and results.

`python -m coremill.executorch oracle/dropin/paths.py RESULTS --exports EXPORTS` compares the paths on exports of the zoo.
"""

import ast
import functools
import json
from pathlib import Path

import pytest

from oracle.dropin.worker import ROOT
from oracle.tests.test_dropin import process

WORKERS = [ROOT / "oracle" / "dropin" / name for name in ("paths.py", "breaks.py")]


def cases(worker: Path) -> list[str]:
    """A worker's cases, from its source: only the worker's process may import the names that our backend replaces."""
    functions = [node for node in ast.parse(worker.read_text()).body if isinstance(node, ast.FunctionDef)]
    return [one.name for one in functions if any(isinstance(mark, ast.Name) and mark.id == "case" for mark in one.decorator_list)]


@functools.cache
def results(worker: Path, folder: Path) -> dict[str, str | None]:
    """The errors by case; one process runs all cases of a worker."""
    output = f"{worker.stem}.json"
    done = process("-m", "coremill.executorch", str(worker), output, folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / output).read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("paths")


@pytest.mark.parametrize(("worker", "name"), [(worker, name) for worker in WORKERS for name in cases(worker)], ids=lambda one: getattr(one, "stem", one))
def test_direct_path_matches_executorch_path(worker: Path, name: str, folder: Path) -> None:
    """One of a worker's cases."""
    assert results(worker, folder)[name] is None, results(worker, folder)[name]


def test_functions_imported_before_install_use_direct_path(tmp_path: Path) -> None:
    """Functions that a script imports before the partitioner use the direct path, too."""
    code = """
import torch
from executorch.exir import to_edge, to_edge_transform_and_lower
import coremill.executorch
coremill.executorch.install()
from executorch.backends.apple.coreml.partition import CoreMLPartitioner
import executorch.exir.program as program
assert program.to_edge_transform_and_lower is to_edge_transform_and_lower
exported = torch.export.export(torch.nn.Linear(2, 2), (torch.randn(1, 2),))
for edge in (
    to_edge_transform_and_lower(exported, partitioner=[CoreMLPartitioner()]),
    program.to_edge_transform_and_lower(exported, None, [CoreMLPartitioner()]),
    to_edge(exported).to_backend(CoreMLPartitioner()),
):
    assert type(edge).__name__ == "DirectEdgeManager", type(edge)
"""
    done = process("-c", code, folder=tmp_path)
    assert done.returncode == 0, done.stderr


#: Simulates another release of ExecuTorch, in which the modules of the direct path cannot be imported.
OLDER = """
import importlib.metadata, sys
version = importlib.metadata.version
importlib.metadata.version = lambda name: "1.3.1" if name == "executorch" else version(name)
sys.modules["coremill.executorch._managers"] = None
import executorch.exir
standard = executorch.exir.to_edge_transform_and_lower.__closure__[0].cell_contents
from coremill.executorch import CoreMLPartitioner
assert executorch.exir.to_edge_transform_and_lower.__closure__[0].cell_contents is standard
print("standard")
"""


def test_other_executorch_releases_use_standard_path(tmp_path: Path) -> None:
    (tmp_path / "older.py").write_text(OLDER)
    done = process("older.py", folder=tmp_path)
    assert done.stdout == "standard\n", done.stdout + done.stderr
