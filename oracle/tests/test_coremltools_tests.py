"""A sample of coremltools' own tests runs on coremill, and the docs list the unsupported ones.

`python -m oracle.coremltools_tests` runs all of them.
"""

import subprocess
import sys
from pathlib import Path

from oracle.coremltools_tests.docs import DOCS, written
from oracle.coremltools_tests.files import FILES

ROOT = Path(__file__).parent.parent.parent
#: Timeout. The sample takes 5 minutes on two idle cores.
SECONDS = 1800


def test_sample_of_coremltools_own_tests_passes() -> None:
    """No case of the sample fails unless it is listed as unsupported."""
    line = [sys.executable, "-m", "oracle.coremltools_tests", "--ci"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-10_000:]
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()[1:]}
    assert sorted(rows) == sorted(file.name for file in FILES)
    assert all(int(row[0]) > 0 for row in rows.values()), done.stdout


def test_docs_list_unsupported_cases() -> None:
    """`python -m oracle.coremltools_tests --docs` writes the list."""
    assert DOCS.read_text() == written(DOCS.read_text())
