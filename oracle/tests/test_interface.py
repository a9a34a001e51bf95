"""The interface of converted programs: shapes of inputs, states, and changes of inputs."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from torch.export import Dim

from oracle.checkers.programs import loads_in_coremltools, read
from oracle.support.distance import within

Arrays = list[numpy.ndarray]


class Joined(torch.nn.Module):
    """Two inputs that share both dimensions."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cat([x * 2, y], 1), x + y


class Counter(torch.nn.Module):
    """Accumulates its inputs in a buffer with an initial value."""

    def __init__(self, first: float) -> None:
        super().__init__()
        self.register_buffer("total", torch.full((2, 3), first))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 2 + x


class IndexedCache(torch.nn.Module):
    """A cache that is written at an index, which is an input, and an integer counter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 2, 8, 4))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.cache.index_copy_(2, place, x)
        self.count.add_(place.shape[0])
        return self.cache.sum(2), self.count * 3


class Echo(torch.nn.Module):
    """Returns an input, a constant, and one result twice; one input is unused, and one is written to."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, unused: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y.add_(1)
        z = x + y
        return x, z, z, torch.ones(2)


@pytest.fixture
def convert(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Exports a module, converts it to `model.mlpackage`, and loads that with coremltools unless there were errors."""

    def convert(
        module: torch.nn.Module, arguments: tuple[torch.Tensor, ...], *options: str, dynamic: object = None
    ) -> subprocess.CompletedProcess[str]:
        archive, package = tmp_path / "model.pt2", tmp_path / "model.mlpackage"
        torch.export.save(torch.export.export(module, arguments, dynamic_shapes=dynamic), archive)
        line = [os.environ["COREMILL"], "convert", archive, "-o", package, "--precision", "fp32", *options]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            assert loads_in_coremltools(package) == []
        return done

    return convert


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Arrays]:
    """Runs `model.mlpackage`."""

    def run(*inputs: torch.Tensor) -> Arrays:
        numpy.savez(tmp_path / "in.npz", **{f"in{at}": one.numpy() for at, one in enumerate(inputs)})
        line = [os.environ["COREMILL"], "run", tmp_path / "model.mlpackage", "--positional"]
        subprocess.run([*line, "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz"], check=True)
        with numpy.load(tmp_path / "out.npz") as file:
            return list(file.values())

    return run


def agree(found: Arrays, wanted: list[torch.Tensor]) -> None:
    """Asserts that the results are equal within the precision of states."""
    assert [one.shape for one in found] == [tuple(one.shape) for one in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert within(one, other, relative=2e-3, absolute=2e-3), (one, other)


PAIR = (torch.randn(3, 4), torch.randn(3, 4))
DYNAMIC = ({0: Dim("rows", min=2, max=16), 1: Dim("columns", max=64)},) * 2


def test_two_inputs_share_enumerated_shapes(convert, run, tmp_path) -> None:
    """Both inputs have two enumerated shapes; the n-th shapes of both are used together."""
    shapes = ["--shapes", "x=3,4;5,4", "--shapes", "y=3,4;5,4"]
    assert convert(Joined(), PAIR, *shapes, dynamic=DYNAMIC).returncode == 0
    model = read(tmp_path / "model.mlpackage").model
    choices = [
        [list(shape.shape) for shape in feature.type.multiArrayType.enumeratedShapes.shapes]
        for feature in model.description.input
    ]
    assert choices == [[[3, 4], [5, 4]]] * 2
    assert model.specificationVersion == 9
    other = (torch.randn(5, 4), torch.randn(5, 4))
    for inputs in (PAIR, other):
        agree(run(*inputs), list(Joined()(*inputs)))


def test_single_enumerated_shape_becomes_fixed(convert, run, tmp_path) -> None:
    """An input with one enumerated shape has a fixed shape."""
    shapes = ["--shapes", "x=3,4", "--shapes", "y=3,4", "--target", "ios15"]
    assert convert(Joined(), PAIR, *shapes, dynamic=DYNAMIC).returncode == 0
    for feature in read(tmp_path / "model.mlpackage").model.description.input:
        assert feature.type.multiArrayType.WhichOneof("ShapeFlexibility") is None
    agree(run(*PAIR), list(Joined()(*PAIR)))


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (["x=3,4;5,4"], "input `y` has dynamic dimensions"),
        (["x=3,4;5,4", "y=3,4"], "the numbers must be equal"),
        (["x=3,4;5,4", "y=3,4;6,4"], "must equal a dimension of `x`"),
        (["x=3,4;17,4", "y=3,4;17,4"], "exported for sizes 1 to 16"),
        (["x=3,4,1;5,4,1", "y=3,4;5,4"], "has 2 dimensions, but shape [3, 4, 1] has 3"),
        (["z=3,4;5,4"], "is not an input"),
    ],
)
def test_rejects_invalid_enumerated_shapes(shapes: list[str], words: str, convert) -> None:
    options = [part for shape in shapes for part in ("--shapes", shape)]
    done = convert(Joined(), PAIR, *options, dynamic=DYNAMIC)
    assert done.returncode != 0
    assert words in done.stderr


def test_enumerated_shapes_of_several_inputs_need_ios18(convert) -> None:
    shapes = ["--shapes", "x=3,4;5,4", "--shapes", "y=3,4;5,4"]
    done = convert(Joined(), PAIR, *shapes, "--target", "ios17", dynamic=DYNAMIC)
    assert done.returncode != 0
    assert "needs iOS18" in done.stderr


@pytest.mark.parametrize("first", [0.0, 1.5])
def test_buffers_become_states(first: float, convert, run, tmp_path) -> None:
    """A buffer becomes a state regardless of its initial value."""
    x = torch.randn(2, 3)
    assert convert(Counter(first), (x,)).returncode == 0
    description = read(tmp_path / "model.mlpackage").model.description
    assert [feature.name for feature in description.state] == ["total"]
    assert [feature.name for feature in description.input] == ["x"]
    agree(run(x), [Counter(first)(x)])


def test_states_need_ios18(convert) -> None:
    """For older targets, the hint names the alternative."""
    done = convert(Counter(0.0), (torch.randn(2, 3),), "--target", "ios17")
    assert done.returncode != 0
    assert "needs iOS18" in done.stderr
    assert "--states io" in done.stderr


def test_states_io_makes_buffers_inputs_and_outputs(convert, run) -> None:
    """The buffer is the last input and the last output."""
    x, held = torch.randn(2, 3), torch.randn(2, 3)
    assert convert(Counter(1.5), (x,), "--states", "io", "--target", "ios15").returncode == 0
    agree(run(x, held), [(held + x) * 2 + x, held + x])


def test_integer_buffers_do_not_become_states(convert, run, tmp_path) -> None:
    """States are fp16, which represents integers exactly only up to 2048, so an integer buffer is not a state."""
    x, place = torch.randn(1, 2, 1, 4), torch.tensor([3])
    assert convert(IndexedCache(), (x, place)).returncode == 0
    description = read(tmp_path / "model.mlpackage").model.description
    assert [feature.name for feature in description.state] == ["cache"]
    assert [feature.name for feature in description.input] == ["x", "place", "count"]
    count = torch.tensor([5000], dtype=torch.int32)
    agree(run(x, place, count), [x.sum(2), (count + 1) * 3, count + 1])


def test_keeps_unused_inputs_and_duplicate_outputs(convert, run) -> None:
    """All outputs are kept, followed by the mutated input; the unused input is kept, too."""
    x, y, unused = torch.randn(2), torch.randn(2), torch.randn(3)
    assert convert(Echo(), (x, y.clone(), unused), "--target", "ios15").returncode == 0
    z = x + y + 1
    agree(run(x, y, unused), [x, z, z, torch.ones(2), y + 1])
