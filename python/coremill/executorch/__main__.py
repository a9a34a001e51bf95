"""Runs a script or a module whose imports of ExecuTorch's Core ML backend find coremill's.

    python -m coremill.executorch SCRIPT ARGS...
    python -m coremill.executorch -m MODULE ARGS...
"""

from __future__ import annotations

import os
import sys

from .._aliases import run_script
from . import install
from ._install import when_runtime_is_imported

USAGE = """usage: python -m coremill.executorch SCRIPT [ARGS...]
       python -m coremill.executorch -m MODULE [ARGS...]

Runs a script or a module. Its imports of executorch.backends.apple.coreml find coremill.executorch, and
executorch.runtime runs Core ML delegates on this machine.

example: python -m coremill.executorch export.py --out model.pte
         python -m coremill.executorch -m pytest tests"""


def _prepare(module: str | None) -> None:
    """Installs the drop-in. ExecuTorch's own tests find the runtime through a plug-in of pytest."""
    install()
    if sys.platform != "darwin":
        when_runtime_is_imported(_register_runtime)
    if module == "pytest":
        plugins = [os.environ.get("PYTEST_PLUGINS"), "coremill.executorch._pytest"]
        os.environ["PYTEST_PLUGINS"] = ",".join(filter(None, plugins))


def _register_runtime() -> None:
    """Registers the runtime's Core ML delegates; on a Mac, ExecuTorch does this itself.

    A script may run programs for other backends, so a missing C++ compiler is not an error.
    """
    from . import register_runtime

    try:
        register_runtime()
    except RuntimeError as error:
        print(f"warning: Core ML delegates cannot be executed here: {error}", file=sys.stderr)


if __name__ == "__main__":
    run_script(USAGE, _prepare)
