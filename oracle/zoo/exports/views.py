"""In-place operations and views of views, in the form in which the default export keeps them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .entry import Function, Row, Source


def in_place(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A chain of in-place operations on a copy."""
    y = x.clone()
    y.add_(1).mul_(0.5).clamp_(-1, 1).neg_()
    y += x
    y *= module.scale
    return y.tanh_()


def through_views(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Writes to a view change its base and other views of it."""
    base = x * 1
    row, column = base[1], base[:, 2]
    row.add_(10)
    column.mul_(-1)
    base.view(-1)[::3] = 0.5
    base.transpose(0, 1)[0].copy_(torch.arange(4.0))
    return base, row + 0, column * 1, base.diagonal()


def indexed(module: nn.Module, x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Reads and writes at indices."""
    y, z, w = x.clone(), x.clone(), x.clone()
    y[places] = 0.25
    z[:, places] += 1
    w[w < 0] = 3.0
    return y, z, w, x[places], x[places, places], x[:, [0, 2]], x[torch.tensor([-1, 0])], x[None, places, 1:]


def sliced(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Slices of all kinds."""
    return x[1:3], x[::2], x[..., -1], x[:, 1:-1:2], x[None, 0], x[-2:, None], x.narrow(1, 1, 2), x.select(0, -1)


def reshaped(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Reshapes that are views, and reshapes that need a copy."""
    return (
        x.view(2, 2, 5), x.t().reshape(-1), x.unflatten(1, (-1, 5)), x.flatten(), x.unsqueeze(0).expand(3, -1, -1),
        x.as_strided((3, 4), (5, 1)), x.unfold(1, 3, 1), x.movedim(0, 1), x.swapaxes(0, 1), x.t(), x.ravel(), x.mT,
        x.view(4, 5, 1).squeeze(-1), x.reshape(4, 1, 5).permute(2, 1, 0), torch.broadcast_to(x, (2, 4, 5)),
    )  # fmt: skip


def divided(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Splits and concatenation."""
    return [
        *x.split(2, 1), *x.chunk(3, 1), *x.tensor_split(3, 1), *x.unbind(0), *x.split([1, 4], 1), torch.stack([x, x + 1], 1),
        torch.cat([x, -x], 0), torch.hstack([x, x * 2]), torch.roll(x, (1, -2), (0, 1)), torch.rot90(x), x.repeat(2, 1),
        x.repeat_interleave(2, 0), torch.tile(x, (2, 2)),
    ]  # fmt: skip


def wide_ranks(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Intermediate ranks 6, 7 and 8, as in window partitions."""
    b, c, h, w = x.shape
    blocks = x.view(b, c, h // 4, 2, 2, w // 4, 2, 2).permute(0, 2, 5, 3, 6, 1, 4, 7)
    return blocks.reshape(b * (h // 4) * (w // 4), 4, c * 4).softmax(-1)


def rank_six(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A computation at rank 6."""
    six = x.view(2, 2, 3, 2, 2, 2)
    return (six * 2 + six.mean((1, 4), keepdim=True)).transpose(1, 4).reshape(4, -1)


def rank_none(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Inputs and outputs of rank 0."""
    return x * 2, x.exp().reshape(1), x.expand(3) * torch.arange(3.0)


def passed(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """An input that is an output, an output that occurs twice, and an unused input."""
    z = x * 2
    return x, z, z, z.view(-1)


def nothing(module: nn.Module) -> torch.Tensor:
    """No inputs."""
    return module.scale * torch.arange(5.0) + 1


def constant(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Outputs that do not depend on inputs."""
    return x + 1, module.scale, torch.ones(2, 3) * torch.tensor([1.0, 2.0, 3.0])


def structured(module: nn.Module, x: torch.Tensor) -> dict[str, Any]:
    """A dictionary of outputs."""
    return {"b": [x + 1, (x * 2, x.sum(1))], "a": x.amax(0)}


def changed_input(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A function that writes to its input."""
    x.mul_(2)
    return x + module.scale


def positions(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Scatters, gathers and related operators."""
    index = torch.tensor([[0, 2, 1], [1, 0, 3], [2, 2, 0], [0, 1, 2]])
    return (
        x.gather(1, index), x.scatter(1, index[:, :2], 0.5), x.scatter(1, index[:, 1:], x[:, :2] + 3),
        x.scatter_add(1, index, x[:, :3]), x.index_select(1, torch.tensor([3, 0])), torch.take_along_dim(x, index, 1),
        x.index_add(0, torch.tensor([0, 2]), x[:2]), x.index_fill(1, torch.tensor([1]), -1.0), x.masked_fill(x > 1, 0.0),
        x.scatter_reduce(1, index, x[:, :3], "amax"), x.index_copy(0, torch.tensor([3, 1]), x[:2]), x.masked_scatter(x > 0, x * 2),
        nn.functional.one_hot(index, 5).float() * x[:, :3, None],
    )  # fmt: skip


def sample(function: Callable[..., Any], *arguments: torch.Tensor, **state: torch.Tensor) -> Callable[[], Source]:
    """A function with example inputs and constants."""
    return lambda: Source(Function(function, **state), arguments, redrawn=False)


GRID = torch.randn(4, 5, generator=torch.Generator().manual_seed(7)) * 2
SCALE = torch.tensor([0.5, 2.0, -1.0, 1.5, 0.7])

ROWS = [
    Row("in_place", "views", sample(in_place, GRID, scale=SCALE), dialects=True, everyday=True),
    Row("through_views", "views", sample(through_views, GRID[:, :4] + 0), dialects=True, everyday=True),
    Row("indexed", "views", sample(indexed, GRID[:, :4] + 0, torch.tensor([2, 0])), everyday=True),
    Row("sliced", "views", sample(sliced, GRID)),
    Row("reshaped", "views", sample(reshaped, GRID)),
    Row("divided", "views", sample(divided, GRID)),
    Row("rank_eight", "views", sample(wide_ranks, torch.randn(1, 3, 8, 8)), "rank 8 on the way"),
    Row("rank_six", "views", sample(rank_six, torch.randn(2, 2, 3, 2, 4)), "rank 6 on the way"),
    Row("rank_none", "views", sample(rank_none, torch.tensor(1.5)), "inputs and outputs of rank 0"),
    Row("passed_through", "views", sample(passed, GRID, GRID * 2), "inputs as outputs, one that is not used"),
    Row("no_inputs", "views", sample(nothing, scale=SCALE), "needs iOS18"),
    Row("constant_outputs", "views", sample(constant, GRID, scale=SCALE)),
    Row("structured_outputs", "views", sample(structured, GRID)),
    Row("changed_input", "views", sample(changed_input, GRID, scale=SCALE), "an input that is written to"),
    Row("positions", "views", sample(positions, GRID), everyday=True),
]
