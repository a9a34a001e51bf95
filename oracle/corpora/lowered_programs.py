"""Small programs for `coremill lower`, with all kinds of inputs, states and outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torchvision
from functorch.experimental.control_flow import map as map_over
from torch import nn
from torch.export import Dim

from oracle.checkers.lowering import Call


@dataclass
class Row:
    """A program."""

    name: str
    make: Callable[[], nn.Module]
    #: Inputs of consecutive calls on the same buffers.
    calls: list[tuple[Any, ...]]
    dynamic: Any = None
    #: Operators to keep outside delegates in the partitioned form, and the number of delegates then.
    skip: str = ""
    parts: int = 0
    #: Number of delegates by default.
    delegates: int = 1
    #: Whether ExecuTorch's kernels support all operators.
    portable: bool = True
    options: list[str] = field(default_factory=list)


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any], **buffers: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)
        torch.manual_seed(11)
        self.linear = nn.Linear(4, 4)

    def forward(self, *values: Any) -> Any:
        return self.function(self, *values)


class Named(nn.Module):
    """Nested inputs and outputs, by position and by name."""

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor], *, scales: dict[str, torch.Tensor]) -> dict[str, Any]:
        return {"sum": pair[0] + pair[1], "products": [pair[0] * scales["a"], pair[1] * scales["b"]]}


def of(function: Callable[..., Any], **buffers: torch.Tensor) -> Callable[[], nn.Module]:
    return lambda: Apply(function, **{name: buffer.clone() for name, buffer in buffers.items()}).eval()


def diamond(self: Any, x: torch.Tensor) -> torch.Tensor:
    """A partition that would depend on itself if all delegated nodes were in one."""
    left = x.relu()
    right = torch.sinh(left)
    return left * right + torch.tanh(right)


def chain(self: Any, x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = torch.sinh(self.linear(x)) * 0.1
    return x


def count(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.total.add_(x)
    self.calls.add_(1)
    return self.total * self.calls


def swap(self: Any, x: torch.Tensor) -> torch.Tensor:
    before = self.first.clone()
    self.first.copy_(self.second + x)
    self.second.copy_(before)
    return before - x


def old_value(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    before = self.total.clone()
    self.total.add_(x)
    return before, self.total + 0


def cache(self: Any, place: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    self.keys[:, place] = key
    return self.keys.sum(1)


def write_input(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    x.add_(1)
    return y


def sizes(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, int]:
    return torch.sinh(x).reshape(x.shape[0] * 2, -1) + x.shape[0], x.shape[0] * 3 + 1


def branch(self: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x,))


def mapped(self: Any, xs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return map_over(lambda x, y: x.sin() + y * 2, xs, y)


def scanned(self: Any, start: torch.Tensor, xs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    from torch._higher_order_ops.scan import scan

    def step(carry: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        following = carry * 0.5 + x
        return following, following.sin()

    return scan(step, start, xs)


def repeated(self: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A loop that exchanges its variables."""
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(lambda x, y: x.sum() < 50, lambda x, y: (y + 1, x * 2), (x, y))


def mixed(self: Any, x: torch.Tensor, flag: bool, scale: int, shift: float, nothing: None) -> Any:
    return (x * scale + shift if flag else x), 7, None, True, 2.5


def rotated(self: Any, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    turns = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(torch.view_as_complex(x.reshape(3, 2, 2)) * turns * self.turn).flatten(1) + 1


def spectrum(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A Fourier transform and its inverse."""
    waves = torch.stft(x.sinh(), 8, 2, window=self.window, return_complex=True)
    return waves.abs().sinh(), torch.istft(waves, 8, 2, window=self.window, length=24)


def boxes(self: Any, x: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    return torchvision.ops.roi_align(x * 2, boxes, 2, 0.5, 2, True) + 1


def deformed(self: Any, x: torch.Tensor, offset: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weight = self.linear.weight[:, :, None, None].expand(4, 4, 3, 3)
    return torchvision.ops.deform_conv2d(x * 2, offset, weight, self.linear.bias, 2, 1, 1, mask) + 1


def together(self: Any, x: torch.Tensor) -> torch.Tensor:
    z = torch.complex(x, x * 2)
    return torch.cond(x.sum() > 0, lambda z: z * z, lambda z: z * 2j, (z,)).real + 1


rows = Dim("rows", min=1, max=9)
x = torch.randn
torch.manual_seed(5)
ROWS = [
    Row("linear", of(lambda self, x: self.linear(x).relu()), [(x(3, 4),)], skip="aten.linear.default", parts=1),
    Row("diamond", of(diamond), [(x(3, 4),)], skip="aten.sinh.default", parts=2),
    Row("chain", of(chain), [(x(3, 4),)], skip="aten.sinh.default", parts=4),
    Row("nested", Named, [((x(3), x(3)), {"scales": {"a": x(3), "b": x(3)}})], skip="aten.mul.Tensor", parts=1),
    Row("mixed", of(mixed), [(x(3, 4), True, 3, 0.5, None)], skip="aten.mul.Tensor", parts=1),
    Row("twice", of(lambda self, x: (y := x + 1, y, x.sin())), [(x(3),)], skip="aten.sin.default", parts=1),
    Row("unchanged", of(lambda self, x, y: (x, y + 1, x)), [(x(3), x(2))], skip="aten.add.Tensor"),
    Row("untouched", of(lambda self, x: x), [(x(3),)], delegates=0),
    Row("no_inputs", of(lambda self: torch.arange(4) * 2 + self.linear.bias), [()], skip="aten.add.Tensor", parts=1),
    Row("weight", of(lambda self, x: (self.linear.weight, x + self.linear.bias)), [(x(4),)], skip="aten.add.Tensor"),
    Row("views", of(lambda self, x: (x.view(6, 2), (x * 2).view(12).view(4, 3))), [(x(3, 4),)], skip="aten.mul.Tensor"),
    Row("count", of(count, total=torch.ones(3), calls=torch.zeros((), dtype=torch.int64)),
        [(x(3),), (x(3),), (x(3),)], skip="aten.mul.Tensor", parts=1),
    Row("swap", of(swap, first=x(3), second=x(3)), [(x(3),), (x(3),), (x(3),)], skip="aten.sub.Tensor", parts=1),
    Row("old_value", of(old_value, total=x(3)), [(x(3),), (x(3),)], skip="aten.add.Tensor"),
    Row("cache", of(cache, keys=torch.zeros(1, 4, 2)), [(torch.tensor([at]), x(1, 1, 2)) for at in (1, 3, 0)],
        skip="aten.sum.dim_IntList", parts=1),
    Row("write_input", of(write_input), [(x(3),), (x(3),)], skip="aten.mul.Tensor", parts=1),
    Row("rows", of(lambda self, x: torch.sinh(self.linear(x)) @ x.T), [(x(n, 4),) for n in (4, 9, 1, 5)],
        ({0: rows},), skip="aten.sinh.default", parts=2),
    Row("sizes", of(sizes), [(x(n, 4),) for n in (4, 9, 3)], ({0: rows},), skip="aten.sinh.default", parts=1),
    Row("several_sizes", of(lambda self, x, y: torch.cat([x, y]).sinh().reshape(-1) * 2),
        [(x(n, 4), x(2, 4)) for n in (4, 9, 3)], ({0: rows}, None), skip="aten.sinh.default", parts=2),
    Row("branch", of(branch), [(torch.ones(3),), (-torch.ones(3),), (torch.ones(3),)], skip="cond", parts=1),
    Row("mapped", of(mapped), [(x(4, 3), x(3)), (x(4, 3), x(3))]),
    Row("scanned", of(scanned), [(x(3), x(5, 3)), (x(3), x(5, 3))]),
    Row("repeated", of(repeated), [(torch.ones(3), torch.zeros(3)), (x(3).abs(), torch.zeros(3))]),
    Row("bytes", of(lambda self, x: (x + 1, (x * 2).sum())), [(torch.randint(0, 255, (5,), dtype=torch.uint8),)],
        skip="aten.mul.Tensor", parts=1),
    Row("small", of(lambda self, x: (x + 1).abs() * 2), [(torch.randint(-100, 100, (5,), dtype=torch.int8),)],
        skip="aten.abs.default", parts=2),
    Row("longs", of(lambda self, x: (x + 1).abs() * 2), [(torch.randint(-100, 100, (5,)),)], skip="aten.abs.default", parts=2),
    Row("truths", of(lambda self, x, y: torch.logical_and(x > y, y > 0).logical_not()), [(x(5), x(5))],
        skip="aten.logical_and.default", parts=2),
    Row("doubles", of(lambda self, x: torch.sinh(x * 3) + 1), [(x(5, dtype=torch.float64),)], skip="aten.sinh.default", parts=2),
    Row("halves", of(lambda self, x: torch.sinh(x * 3) + 1), [((x(5) / 2).half(),)], skip="aten.sinh.default", parts=2),
    Row("brains", of(lambda self, x: torch.sinh(x * 3) + 1), [((x(5) / 2).bfloat16(),)], skip="aten.sinh.default", parts=2),
    Row("channels_last", of(lambda self, x: torch.sinh(x.mean(1)) + x[:, 0]),
        [(x(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),)], skip="aten.sinh.default", parts=2),
    Row("crumb", of(lambda self, x: torch.sinh(torch.sinh(x).reshape(4, 3).t())), [(x(3, 4),)], skip="aten.sinh.default"),
    Row("rotated", of(rotated, turn=torch.complex(x(2), x(2))), [(x(3, 4), x(3, 2))], skip="aten.mul.Tensor", parts=2),
    Row("spectrum", of(spectrum, window=torch.hann_window(8)), [(x(24),)], skip="aten.sinh.default", parts=1),
    Row("transform", of(lambda self, x: torch.fft.irfft(torch.fft.rfft(x * 2)).sinh() + 1), [(x(3, 8),)],
        skip="aten.fft_rfft.default", parts=2),
    # Branches with pairs of values as inputs and outputs.
    Row("together", of(together), [(x(5),), (x(5),)], skip="aten.complex.default,aten.add.Tensor", parts=1),
    Row("boxes", of(boxes), [(x(2, 3, 8, 8), torch.tensor([[0.0, 1, 1, 9, 7], [1, 0, 2, 12, 15]]))],
        skip="torchvision.roi_align.default", parts=2),
    Row("deformed", of(deformed), [(x(2, 4, 6, 5), x(2, 18, 3, 3), x(2, 9, 3, 3))],
        skip="torchvision.deform_conv2d.default", parts=2),
    Row("gammas", of(lambda self, x: torch.lgamma(x * 2) + torch.special.i0(x)), [(x(8),)],
        skip="aten.lgamma.default,aten.special_i0.default", parts=2),
    Row("distances", of(lambda self, x: torch.cdist(x + 1, x) * 2), [(x(1, 1, 2, 3, 4),)]),
]


def flat(result: Any) -> list[Any]:
    """The leaves of nested results."""
    if isinstance(result, dict):
        return [part for one in result.values() for part in flat(one)]
    return [part for one in result for part in flat(one)] if isinstance(result, (tuple, list)) else [result]


def export(row: Row) -> tuple[Any, list[Call]]:
    """The exported program, and what eager torch computes."""
    keywords = row.name == "nested"

    def split(values: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return ((values[0],), values[1]) if keywords else (values, {})

    arguments, named = split(row.calls[0])
    dynamic = {"values": row.dynamic} if row.dynamic else None
    program = torch.export.export(row.make(), copies(arguments), named, dynamic_shapes=dynamic)
    model = row.make()
    calls = []
    with torch.no_grad():
        for values in row.calls:
            arguments, named = split(values)
            given = copies(arguments)
            results = flat(model(*given, **named))
            results = [one.detach().clone() if isinstance(one, torch.Tensor) else one for one in results]
            calls.append(Call(flat(copies(arguments)) + flat(named), results))
    return program, calls


def copies(values: Any) -> Any:
    """Copies the tensors, which may be written to."""
    if isinstance(values, tuple):
        return tuple(copies(one) for one in values)
    return values.clone() if isinstance(values, torch.Tensor) else values
