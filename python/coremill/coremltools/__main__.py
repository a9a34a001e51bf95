"""Runs a script or a module whose imports of coremltools find coremill's.

    python -m coremill.coremltools SCRIPT ARGS...
    python -m coremill.coremltools -m MODULE ARGS...
"""

from .._aliases import run_script
from . import install

USAGE = """usage: python -m coremill.coremltools SCRIPT [ARGS...]
       python -m coremill.coremltools -m MODULE [ARGS...]

Runs a script or a module. Its imports of coremltools find coremill.coremltools.

example: python -m coremill.coremltools convert_model.py"""

if __name__ == "__main__":
    run_script(USAGE, lambda module: install())
