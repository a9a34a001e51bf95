"""Programs that need more memory than available cause an error with a hint instead of an abort."""

import os
import resource
import subprocess
from pathlib import Path

import pytest

from oracle.conftest import SECONDS

#: A tensor that doubles in an infinite loop.
GROWING_PROGRAM = """program(1.3) {
  func main<ios17>(tensor<fp32, [2]> x) {
    tensor<fp32, [?]> start = concat(values = (x, x), axis = int32(0), interleave = bool(false));
    tensor<fp32, [?]> y = while_loop(loop_vars = (start))
      (tensor<fp32, [?]> y_c) { bool go = const()[name = string("g"), val = bool(true)]; } -> (go)
      (tensor<fp32, [?]> y_b) {
        tensor<fp32, [?]> twice = concat(values = (y_b, y_b), axis = int32(0), interleave = bool(false));
      } -> (twice);
  } -> (y);
}
"""
ADDRESS_SPACE = 3 << 30


@pytest.mark.parametrize(
    ("options", "limit"),
    [([], ADDRESS_SPACE // 2), (["--max-memory", "100M"], 100 << 20)],
    ids=["default", "option"],
)
def test_growing_tensor_stops_at_memory_limit(options: list[str], limit: int, tmp_path: Path) -> None:
    """The run stops at the memory limit, by default half of the process's limit."""
    path = tmp_path / "grow.mil"
    path.write_text(GROWING_PROGRAM)
    command = [os.environ["COREMILL"], "run", path, "--random", "1", "--threads", "1", *options]
    done = subprocess.run(
        command,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE)),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1, f"{done.returncode}: {done.stderr}"
    assert f"the limit is {limit}" in done.stderr and "--max-memory" in done.stderr
