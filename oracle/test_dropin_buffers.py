"""The drop-in on random modules that read and write buffers, executed in ExecuTorch's own runtime beside torch.

COREMILL_RANDOM_MODULES is the number of modules; a sample of them runs with every change.
"""

import json
import os
from pathlib import Path

from oracle.dropin.worker import ROOT
from oracle.sampling import ALL
from oracle.test_dropin import process

COUNT = int(os.environ.get("COREMILL_RANDOM_MODULES", 300 if ALL else 16))
#: The sample begins with modules whose states once could not be taken out of the graph.
FIRST = 18


def test_random_modules(tmp_path: Path) -> None:
    """Three steps of each give what torch gives, and the sample has what is hard: states, and several delegates."""
    script = str(ROOT / "oracle" / "dropin" / "buffers.py")
    done = process("-m", "coremill.executorch", script, "results.json", str(COUNT), str(FIRST), folder=tmp_path)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2000:]
    tried = json.loads((tmp_path / "results.json").read_text())
    assert len(tried) == COUNT
    failed = {seed: one for seed, one in tried.items() if one["failure"] is not None}
    assert not failed, json.dumps(failed, indent=1).replace("\\n", "\n")
    assert any(one["states"] for one in tried.values())
    assert any(one["delegates"] > 1 for one in tried.values())
