"""Runs a script or a module whose imports of ExecuTorch's Core ML backend find coremill's.

    python -m coremill.executorch SCRIPT ARGS...
    python -m coremill.executorch -m MODULE ARGS...
"""

import os
import runpy
import sys

from . import install
from ._install import when_runtime_is_imported

USAGE = """usage: python -m coremill.executorch SCRIPT [ARGS...]
       python -m coremill.executorch -m MODULE [ARGS...]

Runs a script or a module. Its imports of executorch.backends.apple.coreml find coremill.executorch, and
executorch.runtime runs Core ML delegates on this machine.

example: python -m coremill.executorch export.py --out model.pte
         python -m coremill.executorch -m pytest tests"""


def main() -> None:
    """Runs the script or module on the command line."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        sys.exit(0 if arguments else 2)
    is_module = arguments[0] == "-m"
    if is_module and len(arguments) < 2:
        sys.exit(f"{USAGE}\n\nerror: -m needs the name of a module")
    if not is_module and arguments[0].startswith("-"):
        sys.exit(f"{USAGE}\n\nerror: unknown option {arguments[0]}")
    install()
    if sys.platform != "darwin":
        when_runtime_is_imported(_register_runtime)
    name = arguments[1] if is_module else arguments[0]
    sys.argv = arguments[1:] if is_module else arguments
    if is_module:
        # Like `python -m`, allows imports from the current directory.
        sys.path.insert(0, os.getcwd())
        if name == "pytest":
            os.environ["PYTEST_PLUGINS"] = ",".join(
                filter(None, [os.environ.get("PYTEST_PLUGINS"), "coremill.executorch._pytest"])
            )
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    elif os.path.exists(name):
        sys.path.insert(0, os.path.dirname(os.path.abspath(name)))
        runpy.run_path(name, run_name="__main__")
    else:
        sys.exit(f"error: cannot open {name}: there is no such file")


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
    main()
