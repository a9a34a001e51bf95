"""The drop-in on random modules that read and write buffers, executed in ExecuTorch's own runtime and compared with torch.

COREMILL_RANDOM_MODULES is the number of modules; a sample of them runs with every change.
"""

import json
import os
from pathlib import Path

from oracle.dropin.worker import ROOT
from oracle.support.sampling import ALL
from oracle.tests.test_dropin import process

COUNT = int(os.environ.get("COREMILL_RANDOM_MODULES", 300 if ALL else 16))
#: The first seed. The first modules are regression cases: their states could not be removed from the graph.
FIRST = 18


def test_random_buffer_modules_match_torch(tmp_path: Path) -> None:
    """Three steps of each module agree with torch, and the sample has difficult cases: states, and several delegates.
    """
    script = str(ROOT / "oracle" / "dropin" / "buffers.py")
    done = process("-m", "coremill.executorch", script, "results.json", str(COUNT), str(FIRST), folder=tmp_path)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2000:]
    results = json.loads((tmp_path / "results.json").read_text())
    assert len(results) == COUNT
    failed = {seed: one for seed, one in results.items() if one["failure"] is not None}
    assert not failed, json.dumps(failed, indent=1).replace("\\n", "\n")
    assert any(one["states"] for one in results.values())
    assert any(one["delegates"] > 1 for one in results.values())
