"""Runs a script or a module whose imports of coremltools find coremill's.

    python -m coremill.coremltools SCRIPT ARGS...
    python -m coremill.coremltools -m MODULE ARGS...
"""

import os
import runpy
import sys

from . import install

USAGE = """usage: python -m coremill.coremltools SCRIPT [ARGS...]
       python -m coremill.coremltools -m MODULE [ARGS...]

Runs a script or a module. Its imports of coremltools find coremill.coremltools.

example: python -m coremill.coremltools convert_model.py"""


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
    name = arguments[1] if is_module else arguments[0]
    sys.argv = arguments[1:] if is_module else arguments
    if is_module:
        # Like `python -m`, allows imports from the current directory.
        sys.path.insert(0, os.getcwd())
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    elif os.path.exists(name):
        sys.path.insert(0, os.path.dirname(os.path.abspath(name)))
        runpy.run_path(name, run_name="__main__")
    else:
        sys.exit(f"error: cannot open {name}: no such file or directory")


if __name__ == "__main__":
    main()
