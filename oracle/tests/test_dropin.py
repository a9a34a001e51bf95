"""The Python drop-in for ExecuTorch's Core ML backend: lowered programs run in ExecuTorch's own runtime and agree with torch."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from oracle.dropin import specs
from oracle.dropin.worker import CASES, GUIDE, ROOT
from oracle.support.sampling import ALL

#: Parts of ExecuTorch's backend that have their own test files, `test_coreml_PART`.
THEIRS = ("multifunction", "partitioner", "quantizer", "recipes")
#: Timeout of a process, which imports torch, ExecuTorch and torchao.
SECONDS = 1200


def process(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess:
    """Runs Python as users do, with the current module search path and further environment variables."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), *filter(None, sys.path)]), **variables)
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, timeout=SECONDS, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """The errors by case; one process runs all cases."""
    folder = tmp_path_factory.mktemp("dropin")
    worker = str(ROOT / "oracle" / "dropin" / "worker.py")
    done = process("-m", "coremill.executorch", worker, "results.json", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("name", CASES)
def test_lowers_and_runs_case_in_executorch_runtime(results: dict[str, str | None], name: str) -> None:
    """One of the worker's cases."""
    assert results[name] is None, results[name]


def test_every_guide_snippet_has_case() -> None:
    """Every snippet of the guide is run by a case."""
    names = re.findall(r"<!-- test: ([\w-]+) -->", GUIDE.read_text())
    worker = (ROOT / "oracle" / "dropin" / "worker.py").read_text()
    assert [name for name in names if f'"{name}"' not in worker] == []


def test_compile_specs_match_executorch(tmp_path: Path) -> None:
    """Our compile specs equal ExecuTorch's, byte for byte, with coremltools' enumerations and with ours."""
    script = str(ROOT / "oracle" / "dropin" / "specs.py")
    theirs = process(script, "executorch.backends.apple.coreml", "coremltools", folder=tmp_path)
    assert theirs.returncode == 0, theirs.stderr
    wanted = json.loads(theirs.stdout.splitlines()[-1])
    assert sorted(wanted) == sorted(specs.NAMES)
    for enumerations in ("coremltools", "coremill.executorch.enums"):
        ours = process(script, "coremill.executorch", enumerations, folder=tmp_path)
        assert ours.returncode == 0, ours.stderr
        assert json.loads(ours.stdout.splitlines()[-1]) == wanted


def test_torch_and_coremltools_are_imported_lazily(tmp_path: Path) -> None:
    """Neither coremltools nor torch is imported before it is needed."""
    code = """
import sys
import coremill.executorch
assert not {"torch", "executorch", "coremltools"} & set(sys.modules), "imported early"
import coremill.executorch.partition, coremill.executorch.quantizer, coremill.executorch.recipes
assert "coremltools" not in sys.modules, "coremltools is imported"
"""
    done = process("-c", code, folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_install_fails_after_executorch_backend_import(tmp_path: Path) -> None:
    """Installing the drop-in after ExecuTorch's own backend was imported is an error."""
    code = """
import executorch.backends.apple.coreml.compiler
import coremill.executorch
try:
    coremill.executorch.install()
except ImportError as error:
    assert "hint: call coremill.executorch.install() before" in str(error), error
else:
    raise SystemExit("nothing was raised")
import torch
from executorch.exir import to_edge_transform_and_lower
program = torch.export.export(torch.nn.Linear(2, 2), (torch.randn(1, 2),))
try:
    to_edge_transform_and_lower(program, partitioner=[coremill.executorch.CoreMLPartitioner()])
except RuntimeError as error:
    assert "is imported together with coremill.executorch" in str(error), error
else:
    raise SystemExit("nothing was raised")
"""
    done = process("-c", code, folder=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "usage:"), (["--frobnicate"], "unknown option --frobnicate"), (["-m"], "-m needs the name"), (["none.py"], "cannot open none.py")],
)
def test_command_line_reports_wrong_usage(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = process("-m", "coremill.executorch", *arguments, folder=tmp_path)
    assert done.returncode != 0 and message in done.stderr, done.stderr


@pytest.mark.parametrize("path", ["fast", "slow"])
def test_executorchs_own_tests(tmp_path: Path, path: str) -> None:
    """A sample of ExecuTorch's tests of its Core ML backend, unmodified, including the parts that they execute on
    macOS only, with the direct path and without it. With COREMILL_ALL_CASES=1 all of them, except for the one that
    downloads weights."""
    package = "executorch.backends.apple.coreml.test"
    files = ["test_coreml_multifunction", *(["test_enumerated_shapes"] if path == "fast" else [])]
    options = ["-q", "-p", "no:cacheprovider", "--no-header", "-k", "not test_vit_skip_conv"]
    if ALL:
        files = [f"test_{name}" for name in ("enumerated_shapes", "torch_ops", *(f"coreml_{part}" for part in THEIRS))]
    done = process(
        "-m", "coremill.executorch", "-m", "pytest", *options, "--pyargs", *(f"{package}.{file}" for file in files),
        folder=tmp_path, COREMILL_EXECUTORCH=path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1]
