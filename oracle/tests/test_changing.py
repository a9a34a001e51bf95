"""Files that are truncated or rewritten while a command reads them cause an error, and never a crash by a signal.

Each command runs a few times; `COREMILL_TRUNCATIONS` sets the number.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch

from oracle.conftest import SECONDS

TIMES = int(os.environ.get("COREMILL_TRUNCATIONS", "4"))
WIDTH = 1024


class Layers(torch.nn.Module):
    """Some megabytes of weights, so that reading them takes a while."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(6)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, coremill: Callable[..., str]) -> Path:
    """An archive, its package, and an input."""
    directory = tmp_path_factory.mktemp("sources")
    x = torch.randn(2, WIDTH)
    torch.export.save(torch.export.export(Layers().eval(), (x,)), directory / "model.pt2")
    coremill("convert", directory / "model.pt2", "-o", directory / "model.mlpackage")
    numpy.savez(directory / "x.npz", x=x.numpy())
    return directory


def result(out: str, directory: Path) -> tuple[str, list[bytes]]:
    """The output of a command and the files that it wrote."""
    written = [path for path in [*sorted(directory.glob("out.*/**/*")), directory / "out.pte"] if path.is_file()]
    return out, [path.read_bytes() for path in written]


def weights(package: Path) -> Path:
    """The weight file of a package."""
    return next(package.rglob("weight.bin"))


#: The arguments of each command, and the input file that is changed while the command runs.
COMMANDS: dict[str, tuple[list[str], Callable[[Path], Path]]] = {
    "convert": (["convert", "model.pt2", "-o", "out.mlpackage"], lambda at: at / "model.pt2"),
    "lower": (["lower", "model.pt2", "-o", "out.pte"], lambda at: at / "model.pt2"),
    "run": (["run", "model.mlpackage", "--inputs", "x.npz"], lambda at: weights(at / "model.mlpackage")),
    "compare": (["compare", "model.pt2", "model.mlpackage"], lambda at: weights(at / "model.mlpackage")),
}


@pytest.mark.parametrize("how", ["shorten", "rewrite"])
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_survive_input_files_changing_during_read(name: str, how: str, sources: Path) -> None:
    """The command fails with an error that names the file, or its result is that of the unchanged file."""
    arguments, file_to_change = COMMANDS[name]
    path = file_to_change(sources)
    content = path.read_bytes()
    command = [os.environ["COREMILL"], *arguments]
    started = time.perf_counter()
    done = subprocess.run(command, cwd=sources, check=True, capture_output=True, timeout=SECONDS, text=True)
    duration = time.perf_counter() - started
    expected = result(done.stdout, sources)
    generator = random.Random(f"{name} {how}")
    failed = 0
    for _ in range(TIMES):
        process = subprocess.Popen(command, cwd=sources, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(generator.uniform(0, duration))
        has_exited = process.poll() is not None
        if how == "shorten":
            os.truncate(path, generator.randrange(len(content)))
        else:
            with open(path, "r+b") as file:
                file.write(bytes(len(content)))
        out, errors = process.communicate(timeout=SECONDS)
        path.write_bytes(content)
        assert process.returncode in ((0,) if has_exited else (0, 1)), f"{process.returncode}: {errors}"
        if process.returncode == 1:
            assert "error:" in errors and path.name in errors, errors
            failed += 1
        # After a failure, the result of an earlier run remains.
        assert result(out if process.returncode == 0 else expected[0], sources) == expected
    # Many changes come after the command has read the whole file, but some must come earlier.
    assert TIMES < 50 or failed > TIMES // 20, f"{failed} of {TIMES} failed"


#: A script that truncates the weight file of a model after loading it.
TRUNCATE_AFTER_LOADING = """
import os, sys, numpy, coremill
path, spoiled = sys.argv[1:]
ready = coremill.load(path)
x = {"x": numpy.load("x.npz")["x"]}
os.truncate(spoiled, 5000)
for _ in range(2):
    try:
        ready.predict(x)
    except coremill.Error as error:
        print(error)
    else:
        print("no error")
"""


def test_python_predict_raises_when_weight_file_is_truncated(sources: Path) -> None:
    """Each run raises an exception that names the file, and the process survives."""
    path = weights(sources / "model.mlpackage")
    content = path.read_bytes()
    command = [sys.executable, "-c", TRUNCATE_AFTER_LOADING, "model.mlpackage", str(path)]
    done = subprocess.run(command, cwd=sources, capture_output=True, timeout=SECONDS, text=True, check=False)
    path.write_bytes(content)
    lines = done.stdout.strip().splitlines()
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    assert len([line for line in lines if path.name in line]) == 2, lines
