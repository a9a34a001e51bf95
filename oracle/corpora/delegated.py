"""Creates `.pte` files with ExecuTorch's own Core ML backend, in all its forms, with the outputs of eager torch.

    python -m oracle.corpora.delegated OUTDIR [--only NAME ...] [--large]

Files of each row:
    `NAME.pte`          the result of `to_edge_transform_and_lower` with a `CoreMLPartitioner`;
    `NAME.METHOD.pt2`   the exported program of each method;
    `NAME.npz`          `METHOD.in0`, ... `METHOD.out0`, ...; for further calls `METHOD.in0@1`, `METHOD.out0@1`, ...

Calls of a method follow one another on the same buffers. `--large` adds a program with a payload above 1 GiB, which
ExecuTorch stores in another format.
"""

import argparse
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import coremltools as ct
import numpy
import torch
from executorch.backends.apple.coreml.compiler import CoreMLBackend
from executorch.backends.apple.coreml.compiler.coreml_preprocess import MULTIMETHOD_WEIGHT_SHARING_STRATEGY as STRATEGY
from executorch.backends.apple.coreml.partition import CoreMLPartitioner
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from torch import nn
from torch.export import Dim

from oracle.zoo import shims  # noqa: F401

Inputs = tuple[torch.Tensor, ...]


@dataclass
class Method:
    """A method with its export arguments and calls."""

    module: nn.Module
    calls: list[Inputs]
    dynamic: Any = None


@dataclass
class Row:
    """A file."""

    name: str
    make: Callable[[], dict[str, Method]]
    #: Options of the partitioner.
    options: dict[str, Any] = field(default_factory=dict)
    #: Returns further specs for the exported programs.
    specs: Callable[[dict[str, Any]], list[Any]] = lambda programs: []
    precision: ct.precision = ct.precision.FLOAT32
    target: ct.target | None = ct.target.iOS18
    large: bool = False


class Network(nn.Module):
    """A small network with convolution, normalization, attention and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.normalisation = nn.BatchNorm2d(16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.out = nn.Linear(16, 10)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.normalisation(self.convolution(picture))).flatten(2).transpose(1, 2)
        mixed, _ = self.attention(features, features, features, need_weights=False)
        return torch.softmax(self.out(mixed.mean(1)), -1)


class Counter(nn.Module):
    """Accumulates its inputs and counts the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2, 3))
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(self.linear(x))
        return self.total * 2


class Shared(nn.Module):
    """Layers that the methods share."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 128)
        self.second = nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.nn.functional.gelu(self.first(x)))


class Several(nn.Module):
    """Inputs and outputs of several types; some inputs are outputs, one twice."""

    def forward(self, x: torch.Tensor, index: torch.Tensor, flag: torch.Tensor) -> tuple[torch.Tensor, ...]:
        picked = torch.index_select(x, 0, index)
        return picked.sum(1), torch.where(flag, x, -x), index + 1, picked.argmax(1), x > 0


class Enumerated(nn.Module):
    """Two inputs with enumerated shapes that belong together."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(10, 5)
        self.right = nn.Linear(11, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.left(x).sum() + self.right(y)


def one(module: Callable[[], nn.Module], *shapes: tuple[int, ...], dynamic: Any = None) -> Callable[[], dict[str, Method]]:
    """A program of one method that is called with these shapes."""
    return lambda: {"forward": Method(module().eval(), [(torch.randn(shape),) for shape in shapes], dynamic)}


def shared(lengths: dict[str, int]) -> dict[str, Method]:
    """Methods for different lengths with the same weights."""
    module = Shared().eval()
    return {name: Method(module, [(torch.randn(1, length, 64),)] * 1) for name, length in lengths.items()}


def several() -> dict[str, Method]:
    flag = torch.tensor([[True], [False], [True], [False]])
    inputs = (torch.randn(4, 5), torch.tensor([3, 0, 2]), flag)
    return {"forward": Method(Several(), [inputs, (torch.randn(4, 5), torch.tensor([1, 1, 0]), ~flag)])}


def strategy(which: STRATEGY) -> Callable[[dict[str, Any]], list[Any]]:
    return lambda programs: [CoreMLBackend.generate_multimethod_weight_sharing_strategy_compile_spec(which)]


def enumerated() -> dict[str, Method]:
    calls = [(torch.randn(4, 6, 10), torch.randn(5, 11)), (torch.randn(1, 5, 10), torch.randn(3, 11))]
    dynamic = [{0: Dim.AUTO(min=1, max=4), 1: Dim.AUTO(min=5, max=6)}, {0: Dim.AUTO(min=3, max=5)}]
    return {"forward": Method(Enumerated().eval(), calls, dynamic)}


def enumeration(programs: dict[str, Any]) -> list[Any]:
    shapes = {"x": [[1, 5, 10], [4, 6, 10]], "y": [[3, 11], [5, 11]]}
    return [CoreMLBackend.generate_enumerated_shapes_compile_spec(programs["forward"], shapes)]


class Wide(nn.Module):
    """More than 1 GiB of fp16 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8192, 8192, bias=False) for _ in range(9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


SKIPPED = {"skip_ops_for_coreml_delegation": ["aten.relu.default", "aten.mean.dim"]}
ROWS = [
    Row("single", one(Network, (1, 3, 16, 24))),
    Row("halves", one(Network, (1, 3, 16, 24)), precision=ct.precision.FLOAT16),
    Row("no_target", one(Network, (1, 3, 16, 24)), target=None),
    Row("parts", one(Network, (1, 3, 16, 24)), options=SKIPPED),
    Row("weights_given", one(Network, (1, 3, 16, 24)), options={"take_over_constant_data": False}),
    Row("state", one(Counter, *[(2, 3)] * 3)),
    Row("state_given", one(Counter, *[(2, 3)] * 3), options={"take_over_mutable_buffer": False}),
    Row("dynamic", one(Shared, (2, 5, 64), (1, 9, 64), (4, 1, 64), dynamic=[{0: Dim("a", max=4), 1: Dim("b", max=12)}])),
    Row("enumerated", enumerated, specs=enumeration, options={"lower_full_graph": True}),
    Row("several", several),
    Row("multifunction", lambda: shared({"forward": 1, "prefill": 8}), specs=strategy(STRATEGY.POSITIONAL)),
    Row("three_functions", lambda: shared({"forward": 1, "four": 4, "nine": 9}), precision=ct.precision.FLOAT16),
    Row("multifunction_parts", lambda: shared({"forward": 1, "prefill": 8}),
        options={"skip_ops_for_coreml_delegation": ["aten.gelu.default"]}),
    Row("apart", lambda: shared({"forward": 1, "prefill": 8}), specs=strategy(STRATEGY.DISABLED)),
    Row("large", one(Wide, (1, 8192)), precision=ct.precision.FLOAT16, large=True),
]  # fmt: skip


def lower(row: Row, folder: Path) -> None:
    """Writes the files of a row."""
    torch.manual_seed(sum(map(ord, row.name)))
    methods = row.make()
    programs, arrays = {}, {}
    for name, method in methods.items():
        # ExecuTorch copies buffers in a mode that refuses tensors with gradients.
        method.module.requires_grad_(False)
        programs[name] = torch.export.export(method.module, method.calls[0], dynamic_shapes=method.dynamic)
        torch.export.save(programs[name], folder / f"{row.name}.{name}.pt2")
        for count, call in enumerate(method.calls):
            suffix = f"@{count}" if count else ""
            with torch.no_grad():
                outputs = method.module(*call)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            arrays |= {f"{name}.in{index}{suffix}": value.numpy().copy() for index, value in enumerate(call)}
            arrays |= {f"{name}.out{index}{suffix}": value.numpy().copy() for index, value in enumerate(outputs)}
    generated = CoreMLBackend.generate_compile_specs(minimum_deployment_target=row.target, compute_precision=row.precision)
    partitioner = CoreMLPartitioner(compile_specs=generated + row.specs(programs), **row.options)
    lowered = to_edge_transform_and_lower(
        programs,
        partitioner={name: [partitioner] for name in programs},
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    with open(folder / f"{row.name}.pte", "wb") as file:
        lowered.to_executorch().write_to_file(file)
    numpy.savez(folder / f"{row.name}.npz", **arrays)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m oracle.corpora.delegated", description="lower with ExecuTorch")
    parser.add_argument("folder", type=Path, metavar="OUTDIR", help="output directory for the files")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these rows")
    parser.add_argument("--large", action="store_true", help="also the program above 1 GiB")
    options = parser.parse_args()
    os.environ["TQDM_DISABLE"] = "1"
    logging.disable(logging.WARNING)
    options.folder.mkdir(parents=True, exist_ok=True)
    for row in ROWS:
        if row.name in options.only if options.only else options.large or not row.large:
            lower(row, options.folder)
            print(row.name, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
