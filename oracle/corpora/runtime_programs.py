"""Complete programs created by ExecuTorch: dynamic shapes, control flow, state, several methods, external data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
from executorch.exir.passes import MemoryPlanningPass
from functorch.experimental.control_flow import map as map_over
from torch import nn


@dataclass
class Made:
    """A program, and runs of its methods with the outputs of eager torch."""

    path: Path
    runs: list[tuple[str, list[Any], list[Any]]]
    data: list[Path] = field(default_factory=list)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU6(),
            nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Hardswish(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(8, 5), nn.LayerNorm(5), nn.GELU(), nn.Softmax(-1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layer(self.embed(tokens))


class Growing(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        joined = torch.cat([x, y], 0)
        return joined.reshape(-1) * 2, joined @ joined.T, x.sum(0) / x.shape[0]


class Condition(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x,))


class Mapped(nn.Module):
    def forward(self, xs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return map_over(lambda x, y: x.sin() + y * 2, xs, y)


class Scanned(nn.Module):
    def forward(self, start: torch.Tensor, xs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        from torch._higher_order_ops.scan import scan

        def step(carry: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            following = carry * 0.5 + x
            return following, following.sin()

        return scan(step, start, xs)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 2


class Cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 4, 2))

    def forward(self, place: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        self.keys[:, place] = key
        return self.keys.sum(1)


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class Mixed(nn.Module):
    def forward(self, x: torch.Tensor, flag: bool, scale: int) -> tuple[torch.Tensor, int]:
        return (x * scale if flag else x), 7


class Spectrum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft(torch.fft.rfft(x), n=x.shape[-1])


def programs(folder: Path) -> dict[str, Callable[[], Made]]:
    """All programs, created on demand."""
    torch.manual_seed(3)

    def one(name: str, module: nn.Module, runs: list[tuple[Any, ...]], shapes: Any = None, **config: Any) -> Callable[[], Made]:
        def make() -> Made:
            model = module.eval()
            exported = torch.export.export(model, runs[0], dynamic_shapes=shapes, strict=True)
            edge = to_edge(exported, compile_config=EdgeCompileConfig(_check_ir_validity=False))
            made = edge.to_executorch(ExecutorchBackendConfig(**config))
            path = folder / f"{name}.pte"
            path.write_bytes(made.buffer)
            return Made(path, expected(model, runs))

        return make

    def expected(model: nn.Module, runs: list[tuple[Any, ...]], method: str = "forward") -> list[tuple[str, list[Any], list[Any]]]:
        results = []
        with torch.no_grad():
            for values in runs:
                result = model(*values)
                results.append((method, list(values), [one.clone() if isinstance(one, torch.Tensor) else one for one in flat(result)]))
        return results

    def flat(result: Any) -> list[Any]:
        return [part for one in result for part in flat(one)] if isinstance(result, (tuple, list)) else [result]

    def several() -> Made:
        model, other = Linear().eval(), Convolutions().eval()
        x, image = torch.randn(2, 3), torch.randn(1, 3, 16, 16)
        edge = to_edge(
            {"forward": torch.export.export(model, (x,)), "image": torch.export.export(other, (image,))},
            constant_methods={"answer": 42, "ratio": 0.5, "ready": True},
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
        )
        path = folder / "several.pte"
        path.write_bytes(edge.to_executorch().buffer)
        runs = expected(model, [(x,)]) + expected(other, [(image,)], "image")
        return Made(path, [*runs, ("answer", [], [42]), ("ratio", [], [0.5]), ("ready", [], [True])])

    def external() -> Made:
        model, x = Linear().eval(), torch.randn(2, 3)
        edge = to_edge(torch.export.export(model, (x,)))
        made = edge.to_executorch(ExecutorchBackendConfig(external_constants=True))
        path = folder / "external.pte"
        path.write_bytes(made.buffer)
        made.write_tensor_data_to_file(str(folder))
        return Made(path, expected(model, [(x,)]), [folder / "_default_external_constant.ptd"])

    rows = torch.export.Dim("rows", min=1, max=9)
    unplanned = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
    x = torch.randn
    return {
        "convolutions": one("convolutions", Convolutions(), [(x(2, 3, 16, 16),)] * 2),
        "attention": one("attention", Attention(), [(torch.randint(0, 11, (2, 5)),), (torch.randint(0, 11, (2, 5)),)]),
        "growing": one(
            "growing", Growing(), [(x(4, 3), x(2, 3)), (x(9, 3), x(2, 3)), (x(1, 3), x(2, 3)), (x(5, 3), x(2, 3))],
            {"x": {0: rows}, "y": None},
        ),
        "condition": one("condition", Condition(), [(torch.ones(3),), (-torch.ones(3),), (torch.ones(3),)]),
        "mapped": one("mapped", Mapped(), [(x(4, 3), x(3)), (x(4, 3), x(3))]),
        "scanned": one("scanned", Scanned(), [(x(3), x(5, 3)), (x(3), x(5, 3))]),
        "counter": one("counter", Counter(), [(torch.ones(3),)]),
        "cache": one("cache", Cache(), [(torch.tensor([1]), x(1, 1, 2))]),
        "unplanned": one("unplanned", Linear(), [(x(2, 3),), (x(2, 3),)], memory_planning_pass=unplanned),
        "mixed": one("mixed", Mixed(), [(x(2, 3), True, 3)]),
        "spectrum": one("spectrum", Spectrum(), [(x(2, 12),)]),
        "several": several,
        "external": external,
    }
