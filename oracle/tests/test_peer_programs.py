"""Programs of ExecuTorch's own Core ML backend, in all its forms, are read, extracted and run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oracle.checkers.peer_programs import judge
from oracle.support.cargo import ROOT, TARGET
from oracle.support.served import Runtime

#: The programs of `oracle.corpora.delegated`, with the maximum error relative to eager torch.
DELEGATED = {
    "single": 2e-4, "halves": 2e-2, "no_target": 2e-4, "parts": 2e-4, "weights_given": 2e-4, "state": 2e-4,
    "state_given": 2e-4, "dynamic": 2e-4, "enumerated": 2e-4, "several": 2e-4, "multifunction": 2e-4,
    "three_functions": 2e-2, "multifunction_parts": 2e-4, "apart": 2e-4,
}  # fmt: skip


@pytest.fixture(scope="module")
def delegated() -> Path:
    """The folder of the programs, created unless it exists."""
    folder = TARGET / "delegated"
    missing = [name for name in DELEGATED if not (folder / f"{name}.npz").exists()]
    if missing:
        command = [sys.executable, "-m", "oracle.corpora.delegated", folder, "--only", *missing]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("name", DELEGATED)
def test_extracts_and_runs_executorch_coreml_programs(name: str, runtime: Runtime, delegated: Path, tmp_path: Path) -> None:
    path = delegated / f"{name}.pte"
    result = judge(path, path.with_suffix(".npz"), os.environ["COREMILL"], runtime, tmp_path, DELEGATED[name])
    assert result.endswith(" fine"), result
