"""A program with ExecuTorch's C++ runtime and our engine, built by CMake against the installed package."""

import importlib.util
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent


def build(source: Path, folder: Path, library: Path, *options: str) -> Path:
    """Builds a program with ExecuTorch's package. Returns its folder."""
    cmake = Path(sys.executable).with_name("cmake")
    package = next(iter(importlib.util.find_spec("executorch").submodule_search_locations))
    configure = [cmake, "-S", source, "-B", folder, f"-DCMAKE_PREFIX_PATH={package}", f"-DCOREMILL_LIBRARY={library}", *options]
    for line in (configure, [cmake, "--build", folder]):
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stdout + done.stderr)
    return folder
