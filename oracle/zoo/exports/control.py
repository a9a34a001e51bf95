"""Control flow that survives the export: branches, loops, scans, maps, and combinations of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from .entry import Call, Function, Row, Source


def branch(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A branch between two linear layers."""

    def yes(a: torch.Tensor) -> torch.Tensor:
        return a @ module.left

    def no(a: torch.Tensor) -> torch.Tensor:
        return (a @ module.right).tanh()

    return torch.cond(x.mean() > 0, yes, no, (x,))


def nested(module: nn.Module, x: torch.Tensor, flag: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Nested branches with several results; one condition is an input."""

    def inner(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cond(a.sum() > 1, lambda b: (b * 2, b + 1), lambda b: (b - 1, b.exp()), (a,))

    return torch.cond(flag, inner, lambda a: (a.cos(), a.sin()), (x,))


def loop(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A loop with a fixed number of steps."""
    return while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, (a @ module.left).tanh()), (torch.tensor(0), x))


def until(module: nn.Module, x: torch.Tensor, limit: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A loop until a condition on the data holds."""
    return while_loop(lambda i, a: a.abs().sum() < limit, lambda i, a: (i + 1, a * 1.5), (torch.tensor(0), x))


def branch_in_loop(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A branch in a loop."""

    def step(i: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return i + 1, torch.cond(a.mean() > 0, lambda b: b.sin() - 0.3, lambda b: b.cos() + 0.1, (a,))

    return while_loop(lambda i, a: i < 4, step, (torch.tensor(0), x))


def sums(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A scan over rows that returns each step's result."""

    def step(carry: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        following = (carry @ module.left + row).tanh()
        return following, following * row

    return scan(step, torch.zeros(4), x)


def rows(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A map over rows."""
    return map_over(lambda row, other: (row @ other).sin(), x, module.left)


def accumulated(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A branch on a size, which the export resolves, and one on data."""
    folded = x * 2 if x.shape[0] > 3 else x - 1
    return torch.cond((folded > 1).any(), lambda a: a.cumsum(0), lambda a: a.flip(0), (folded,))


def weights() -> dict[str, torch.Tensor]:
    """Two matrices."""
    return {"left": nn.Parameter(torch.randn(4, 4) * 0.6), "right": nn.Parameter(torch.randn(4, 4) * 0.6)}


def sample(
    function: Callable[..., Any], *arguments: torch.Tensor, further: list[tuple[torch.Tensor, ...]] | None = None
) -> Callable[[], Source]:
    """A function with further calls that take other branches."""

    def calls() -> list[Call]:
        return [(values, {}) for values in further or []]

    return lambda: Source(Function(function, **weights()), arguments, further=calls, redrawn=False)


X = torch.linspace(-1, 2, 12).reshape(3, 4)

ROWS = [
    Row("cond", "control flow", sample(branch, X, further=[(-X,)]), dialects=True, everyday=True),
    Row(
        "cond_nested",
        "control flow",
        sample(
            nested,
            X,
            torch.tensor(True),
            further=[(-X, torch.tensor(True)), (X, torch.tensor(False))],
        ),
        "a bool input of rank 0",
    ),
    Row("while_loop", "control flow", sample(loop, X, further=[(X.flip(1),)]), dialects=True, everyday=True),
    Row("while_data", "control flow", sample(until, X, torch.tensor(50.0), further=[(X, torch.tensor(3.0))])),
    Row("cond_in_loop", "control flow", sample(branch_in_loop, X, further=[(-X,)])),
    Row("scan", "control flow", sample(sums, X), everyday=True),
    Row("map", "control flow", sample(rows, X.reshape(3, 2, 2).repeat(1, 1, 2)), everyday=True),
    Row("cond_any", "control flow", sample(accumulated, X, further=[(-X.abs(),)])),
]
