"""Builds programs and libraries of the workspace for the tests.

Each build selects the whole workspace, as `cargo test --workspace` does. A build of a single package selects fewer features of
shared dependencies, so that cargo would compile most crates again.
"""

import functools
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")


def build(*targets: str) -> Path:
    """Builds targets, such as `--lib`, of the workspace; returns the folder of the results."""
    subprocess.run(["cargo", "build", "--quiet", "--workspace", *targets], cwd=ROOT, check=True)
    return TARGET / "debug"


@functools.cache
def example(name: str) -> Path:
    """The program of an example, built if necessary."""
    return build("--example", name) / "examples" / name


def run_example(name: str, *arguments: object, text: str | None = None) -> str:
    """What an example prints for arguments and standard input."""
    command = [str(example(name)), *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
