"""Small networks, each with one kind of input, output, state or function."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import coremltools as ct
import numpy
import torch
from torch import nn

from .entry import Call, Source, varied
from .weights import enliven

#: Writes a package itself, and returns the sources of its functions.
Writer = Callable[[Path], dict[str, Source]]


class Compact(nn.Module):
    """A small network with all kinds of weights: plain, grouped and transposed convolutions, and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 32, 3, padding=1)
        self.separable = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.second = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.back = nn.ConvTranspose2d(64, 32, 2, stride=2)
        self.hidden = nn.Linear(512, 64)
        self.head = nn.Linear(64, 32)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        wide = self.back(torch.relu(self.second(torch.relu(self.separable(torch.relu(self.first(picture)))))))
        pooled = nn.functional.adaptive_avg_pool2d(wide, 4).flatten(1)
        return self.head(torch.relu(self.hidden(pooled)))


def compact() -> Source:
    """The network of the compressed packages."""
    return Source(Compact(), (torch.rand(1, 4, 16, 16),))


class Convolutions(nn.Module):
    """Accepts images of any size and returns one vector."""

    def __init__(self, channels: int = 3, classes: int = 4, unit: float = 1.0) -> None:
        super().__init__()
        #: Magnitude of the image's values; the softmax needs small ones.
        self.unit = unit
        self.body = nn.Sequential(nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))
        self.head = nn.Linear(16, classes)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        if self.unit != 1.0:
            picture = picture / self.unit
        return self.head(self.body(picture).mean((2, 3))).softmax(-1)


def picture(channels: int = 3, size: int = 32) -> torch.Tensor:
    """An example image for tracing."""
    return torch.rand(1, channels, size, size)


def ranged(upper: int) -> Callable[[], Source]:
    """Batch, height and width within bounds; coremltools refuses unbounded dimensions in an ML Program."""

    def build() -> Source:
        side = ct.RangeDim(16, upper, default=32)
        shape = ct.Shape((ct.RangeDim(1, 4), 3, side, ct.RangeDim(16, upper, default=32)))
        inputs = [ct.TensorType("picture", shape)]
        return Source(Convolutions(), (picture(),), arguments={"inputs": inputs}, calls=sized(*SIZES))

    return build


#: Shapes for the calls of flexible packages: the default, others, and the default again.
SIZES = [(1, 3, 32, 32), (1, 3, 16, 47), (4, 3, 33, 16), (1, 3, 32, 32)]


def sized(*shapes: tuple[int, ...]) -> Callable[[], list[Call]]:
    """Calls with one input of these shapes."""
    return lambda: [(varied(*shape),) for shape in shapes]


def shared_range() -> Source:
    """Two inputs that share a symbolic dimension, since they are added."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(24, 16), nn.Linear(24, 16)

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            total = self.left(left) + self.right(right)
            return total.reshape(1, total.shape[1] * 4, 4)

    length = ct.RangeDim(1, 128, default=8, symbol="length")
    inputs = [ct.TensorType("left", (1, length, 24)), ct.TensorType("right", (1, length, 24))]
    example = (torch.rand(1, 8, 24), torch.rand(1, 8, 24))
    calls = lambda: [(varied(1, length, 24), varied(1, length, 24)) for length in (8, 1, 128)]  # noqa: E731
    return Source(Sum(), example, arguments={"inputs": inputs}, calls=calls)


def exported_range() -> Source:
    """A symbolic length from the export instead of a `RangeDim`."""

    class Exported(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(24, 16)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.layer(rows).mean(1)

    inputs = [ct.TensorType("rows", (1, ct.RangeDim(2, 64, default=8), 24))]
    return Source(Exported(), (torch.rand(1, 8, 24),), arguments={"inputs": inputs})


def enumerated() -> Source:
    """One input with enumerated shapes."""
    shapes = ct.EnumeratedShapes([(1, 3, 32, 32), (1, 3, 48, 32), (1, 3, 64, 64)], default=(1, 3, 48, 32))
    calls = sized((1, 3, 48, 32), (1, 3, 64, 64), (1, 3, 32, 32))
    return Source(Convolutions(), (picture(),), arguments={"inputs": [ct.TensorType("picture", shapes)]}, calls=calls)


def enumerated_twice() -> Source:
    """Two inputs with enumerated shapes."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(24, 16), nn.Linear(12, 16)

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return self.left(left).mean(1) + self.right(right).mean(1)

    inputs = [
        ct.TensorType("left", ct.EnumeratedShapes([(1, 8, 24), (1, 16, 24), (1, 32, 24)])),
        ct.TensorType("right", ct.EnumeratedShapes([(1, 4, 12), (1, 8, 12), (1, 16, 12)])),
    ]
    example = (torch.rand(1, 8, 24), torch.rand(1, 4, 12))
    calls = lambda: [(varied(1, 8, 24), varied(1, 4, 12)), (varied(1, 32, 24), varied(1, 16, 12))]  # noqa: E731
    return Source(Sum(), example, arguments={"inputs": inputs}, calls=calls)


def image(layout: str, flexible: str = "fixed", **options: Any) -> Callable[[], Source]:
    """An image input, with a scale and a bias before the network."""

    def build() -> Source:
        channels = 1 if layout.startswith("GRAYSCALE") else 3
        side: Any = 32
        shape: Any = (1, channels, side, side)
        if flexible == "ranged":
            shape = (1, channels, ct.RangeDim(16, 64, default=32), ct.RangeDim(16, 64, default=32))
        if flexible == "enumerated":
            shape = ct.EnumeratedShapes([(1, channels, 32, 32), (1, channels, 64, 48)])
        given = ct.ImageType("picture", shape, color_layout=getattr(ct.colorlayout, layout), **options)
        module = Convolutions(channels, unit=48.0 if options.get("scale", 1.0) > 0.1 else 1.0)
        return Source(module, (picture(channels),), arguments={"inputs": [given]})

    return build


def image_to_image(layout: str) -> Callable[[], Source]:
    """An image input and an image output."""

    def build() -> Source:
        channels = 1 if layout.startswith("GRAYSCALE") else 3
        module = nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, channels, 3, padding=1))
        color = getattr(ct.colorlayout, layout)
        arguments = {
            "inputs": [ct.ImageType("before", (1, channels, 32, 32), color_layout=color, scale=1 / 255)],
            "outputs": [ct.ImageType("after", color_layout=color)],
        }
        return Source(module, (picture(channels),), arguments=arguments)

    return build


def classifier(labels: list[Any], picture_input: bool) -> Callable[[], Source]:
    """A class label and a dictionary of probabilities as outputs."""

    def build() -> Source:
        shape = (1, 3, 32, 32)
        given = ct.ImageType("picture", shape, scale=1 / 127.5, bias=[-1, -1, -1])
        if not picture_input:
            given = ct.TensorType("picture", shape)
        config = ct.ClassifierConfig(labels, predicted_feature_name="label")
        arguments = {"inputs": [given], "classifier_config": config}
        return Source(Convolutions(classes=len(labels)), (picture(),), arguments=arguments)

    return build


def half_inputs() -> Source:
    """fp16 inputs and outputs."""
    arguments = {
        "inputs": [ct.TensorType("rows", (1, 8, 24), dtype=numpy.float16)],
        "outputs": [ct.TensorType("sums", dtype=numpy.float16)],
    }
    return Source(nn.Linear(24, 16), (torch.rand(1, 8, 24),), arguments=arguments)


class Lookup(nn.Module):
    """Integer inputs; integer and vector outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)

    def forward(self, numbers: torch.Tensor, shift: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.table(numbers + shift)
        return found.mean(1), found.argmax(-1)


def whole_numbers() -> Source:
    """int32 inputs and outputs, several of them."""
    arguments = {
        "inputs": [
            ct.TensorType("numbers", (1, 8), dtype=numpy.int32),
            ct.TensorType("shift", (1, 1), dtype=numpy.int32),
        ],
        "outputs": [ct.TensorType("mean"), ct.TensorType("best", dtype=numpy.int32)],
    }
    example = (torch.randint(0, 40, (1, 8)), torch.ones(1, 1, dtype=torch.int64))
    return Source(Lookup(), example, arguments=arguments)


def small_numbers() -> Source:
    """int8 inputs and outputs, which iOS26 supports."""

    class Shift(nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return (rows.float() * 0.5).to(torch.int8)

    arguments = {
        "inputs": [ct.TensorType("rows", (2, 8), dtype=numpy.int8)],
        "outputs": [ct.TensorType("halves", dtype=numpy.int8)],
    }
    example = (torch.randint(-128, 128, (2, 8), dtype=torch.int8),)
    return Source(Shift(), example, arguments=arguments)


def defaults() -> Source:
    """Optional inputs with default values."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(12, 6)

        def forward(self, rows: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
            return self.layer(rows) * scale + offset

    arguments = {
        "inputs": [
            ct.TensorType("rows", (2, 12)),
            ct.TensorType("scale", (2, 6), default_value=numpy.full((2, 6), 1.5, numpy.float32)),
            ct.TensorType("offset", (1,), dtype=numpy.int32, default_value=numpy.array([3], numpy.int32)),
        ]
    }
    example = (torch.rand(2, 12), torch.rand(2, 6), torch.ones(1, dtype=torch.int32))
    return Source(Scaled(), example, arguments=arguments)


class Accumulator(nn.Module):
    """Accumulates its inputs in states."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 32))
        self.register_buffer("count", torch.zeros(1, 32))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.total.add_(rows)
        self.count.add_(torch.ones_like(rows))
        return self.total / self.count


def accumulator() -> Source:
    """Two states."""
    held = [ct.StateType(ct.TensorType(shape=(1, 32), dtype=numpy.float16), name=name) for name in ("total", "count")]
    inputs = [ct.TensorType("rows", (1, 32), dtype=numpy.float16)]
    arguments = {"inputs": inputs, "states": held}
    return Source(Accumulator(), (torch.rand(1, 32),), arguments=arguments, calls=sized(*[(1, 32)] * 4))


class CachedAttention(nn.Module):
    """Decodes one token at a time: keys and values are states, written at the given position."""

    def __init__(self, width: int = 64, heads: int = 4, length: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.heads, self.size, self.layers = heads, width // heads, layers
        self.embed = nn.Embedding(320, width)
        self.qkv = nn.ModuleList([nn.Linear(width, 3 * width) for _ in range(layers)])
        self.out = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        self.head = nn.Linear(width, 320)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(layers, 1, heads, length, self.size))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        stop = mask.shape[-1]
        start = stop - ids.shape[-1]
        hidden = self.embed(ids)
        for layer in range(self.layers):
            parts = self.qkv[layer](hidden).view(1, ids.shape[-1], 3 * self.heads, self.size).transpose(1, 2)
            query, key, value = parts.split(self.heads, 1)
            self.keys[layer : layer + 1, :, :, start:stop, :] = key.unsqueeze(0)
            self.values[layer : layer + 1, :, :, start:stop, :] = value.unsqueeze(0)
            keys = self.keys[layer : layer + 1, :, :, :stop, :].squeeze(0)
            values = self.values[layer : layer + 1, :, :, :stop, :].squeeze(0)
            mixed = nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
            hidden = hidden + self.out[layer](mixed.transpose(1, 2).reshape(1, ids.shape[-1], -1))
        return self.head(hidden)


def cached_decoder() -> Source:
    """A decoder with its cache in states and a ranged length."""
    query, stop = ct.RangeDim(1, 32, default=1), ct.RangeDim(1, 32, default=8)
    arguments = {
        "inputs": [
            ct.TensorType("ids", (1, query), dtype=numpy.int32),
            ct.TensorType("mask", (1, 1, query, stop), dtype=numpy.float16),
        ],
        "outputs": [ct.TensorType("logits", dtype=numpy.float16)],
        "states": [
            ct.StateType(ct.TensorType(shape=(2, 1, 4, 32, 16), dtype=numpy.float16), name=name)
            for name in ("keys", "values")
        ],
    }
    example = (torch.zeros(1, 2, dtype=torch.int32), torch.zeros(1, 1, 2, 8))
    return Source(CachedAttention(), example, arguments=arguments, calls=prompt_and_tokens)


def prompt_and_tokens() -> list[Call]:
    """A prompt of five tokens, then one at a time, then two at once. Each token attends to itself and earlier ones."""
    calls, stop = [], 0
    for length in (5, 1, 1, 2, 1):
        stop += length
        mask = torch.full((length, stop), -10000.0).triu(stop - length + 1)
        calls.append((torch.randint(0, 320, (1, length), dtype=torch.int32), mask[None, None]))
    return calls


def writes(function: Writer) -> Callable[[], Writer]:
    """Wraps a function that writes the package itself as a builder."""
    return lambda: function


class Adapted(nn.Module):
    """A shared trunk and one of several small adapters."""

    def __init__(self, trunk: nn.Module, adapter: nn.Module) -> None:
        super().__init__()
        self.trunk, self.adapter = trunk, adapter

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.adapter(torch.relu(self.trunk(rows)))


def converted(module: nn.Module, inputs: list[Any], example: torch.Tensor, **options: Any) -> ct.models.MLModel:
    """One function of a multifunction package."""
    traced = torch.jit.trace(module.eval(), example, check_trace=False)
    return ct.convert(traced, inputs=inputs, minimum_deployment_target=ct.target.iOS18, skip_model_load=True, **options)


@writes
def adapters(out: Path) -> dict[str, Source]:
    """Several functions that share most of their weights."""
    trunk = nn.Linear(64, 128)
    description = ct.utils.MultiFunctionDescriptor()
    sources = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("first", "second", "third"):
            module = Adapted(trunk, nn.Linear(128, 16))
            path = str(Path(scratch) / f"{name}.mlpackage")
            converted(module, [ct.TensorType("rows", (1, 64))], torch.rand(1, 64)).save(path)
            description.add_function(path, "main", name)
            sources[name] = Source(module, (torch.rand(1, 64),))
        description.default_function_name = "second"
        ct.utils.save_multifunction(description, str(out))
    return sources


@writes
def prompt_and_step(out: Path) -> dict[str, Source]:
    """Two functions with different inputs and shared weights and states, as in published language models."""
    description = ct.utils.MultiFunctionDescriptor()
    module = Accumulator()
    held = [ct.StateType(ct.TensorType(shape=(1, 32), dtype=numpy.float16), name=name) for name in ("total", "count")]
    sources = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, rows in (("prompt", 4), ("step", 1)):
            path = str(Path(scratch) / f"{name}.mlpackage")
            inputs = [ct.TensorType("rows", (rows, 32), dtype=numpy.float16)]
            stepper = Stepper(module, rows)
            converted(stepper, inputs, torch.rand(rows, 32), states=held).save(path)
            description.add_function(path, "main", name)
            # Tracing ran the module and changed its states.
            sources[name] = Source(Stepper(module, rows), (torch.rand(rows, 32),))
        description.default_function_name = "step"
        ct.utils.save_multifunction(description, str(out))
    return sources


class Stepper(nn.Module):
    """Processes rows one at a time. It has its own buffers, because a trace finds states by their names."""

    def __init__(self, accumulator: Accumulator, rows: int) -> None:
        super().__init__()
        self.register_buffer("total", accumulator.total.clone())
        self.register_buffer("count", accumulator.count.clone())
        self.rows = rows
        generator = torch.Generator().manual_seed(7)
        self.weight = nn.Parameter(torch.rand(32, 32, generator=generator))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for row in range(self.rows):
            self.total.add_(rows[row : row + 1] @ self.weight)
            self.count.add_(torch.ones_like(self.count))
        return self.total / self.count


@writes
def materialized(out: Path) -> dict[str, Source]:
    """A flexible package converted to one function per shape."""
    shape = (1, 3, ct.RangeDim(16, 64, default=32), ct.RangeDim(16, 64, default=32))
    module = Convolutions()
    enliven(module, [])
    dynamic = converted(module, [ct.TensorType("picture", shape)], picture())
    sizes = {"small": {"picture": (1, 3, 16, 16)}, "large": {"picture": (1, 3, 64, 64)}}
    ct.utils.materialize_dynamic_shape_mlmodel(dynamic, sizes, str(out))
    return {name: Source(module, (torch.rand(size["picture"]),)) for name, size in sizes.items()}
