"""Prepared programs are functional, and agree with eager torch in results and in changes of buffers and inputs.

The programs are small and contain many writes; `oracle.checkers.interpret` runs the prepared programs.
"""

import copy
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree

from oracle.checkers.interpret import Interpreter, flat_inputs
from oracle.support.cargo import ROOT, TARGET
from oracle.support.distance import within

T = torch.randn


class Sample(nn.Module):
    """A module that calls a function; it has a cache, a counter, flags, a parameter and two layers."""

    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("cache", torch.arange(24.0).reshape(4, 6))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("flags", torch.tensor([True, False, True, False]))
        self.register_buffer("passing", torch.linspace(-1, 1, 6), persistent=False)
        self.scale = nn.Parameter(torch.linspace(0.5, 2, 6))
        self.linear = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, *arguments: object) -> object:
        return self.function(self, *arguments)


#: By name: function, arguments, whether the module is in training mode, dynamic shapes.
CASES: dict[str, tuple] = {}


def case(*arguments: Any, training: bool = False, dynamic: Any = None) -> Callable:
    """Adds a function to the cases."""

    def add(function: Callable) -> Callable:
        CASES[function.__name__] = (function, arguments or (T(4, 6),), training, dynamic)
        return function

    return add


def cases(table: dict[str, Callable]) -> None:
    """Adds one-line cases: they write to a copy of the input, and return it with its views."""
    for name, write in table.items():

        def run(self: nn.Module, x: torch.Tensor, write: Callable = write) -> tuple:
            y = x.clone()
            early = y.view(2, 12)
            row = y[1]
            result = write(y)
            return y, early * 2, row, y.sum(), result if isinstance(result, torch.Tensor) else y.t()

        CASES[name] = (run, (T(4, 6),), False, None)
        batch = Dim("batch", min=4, max=9)

        def run_dynamic(self: nn.Module, x: torch.Tensor, write: Callable = write) -> tuple:
            y = torch.cat([x, x])[: x.shape[0]].clone()
            early = y.unsqueeze(0)
            row = y[1]
            result = write(y)
            return y, early * 2, row, y.sum(), result if isinstance(result, torch.Tensor) else y.t()

        if name not in STATIC:
            CASES[f"{name}_dynamic"] = (run_dynamic, (T(4, 6),), False, ({0: batch},))


#: Cases that only work with the exported sizes.
STATIC = {
    "diagonal_of_view", "strided", "strided_of_view", "unbind_all", "split_sizes", "chunks", "flat_steps", "resize_in_place", "fill_diagonal",
    "index_put_many", "index_copy", "unflatten_rows", "movedim", "masked_fill_tensor", "scatter_src", "put", "masked_scatter", "tensor_split",
    "fill_diagonal_scaled", "of_real_part", "of_imaginary_part", "through_complex", "conjugate", "bits", "view_as_other", "ravel", "split_even",
    "transpose_view", "index_put_mask", "reshape_that_copies", "reshape_that_views", "index_put_accumulate",
}  # fmt: skip

cases(
    {
        "slice_add": lambda y: y[1:3].add_(1),
        "slice_steps": lambda y: y[::2, 1::3].mul_(2),
        "slice_from_end": lambda y: y[-2:, :-1].sub_(3),
        "slice_of_slice": lambda y: y[1:4][1:][:, 2:5].mul_(-1),
        "augmented": lambda y: y[:, 1:3].__iadd__(y[:, 3:5]),
        "transposed": lambda y: y.t().add_(1),
        "transpose_view": lambda y: y.t()[1:3].view(2, 4).add_(torch.arange(4.0)),
        "flat_steps": lambda y: y.view(-1)[::2].mul_(2),
        "twice": lambda y: (y[0].add_(1), y[0].mul_(y[1]), y[1].copy_(y[0]))[0],
        "chained_views": lambda y: y.unsqueeze(0).transpose(1, 2)[0, 1:].squeeze(0).neg_(),
        "select_last": lambda y: y.select(1, -1).zero_(),
        "fill": lambda y: y[:, 2].fill_(7),
        "fill_tensor": lambda y: y[2:].fill_(torch.tensor(3)),
        "fill_all": lambda y: y.fill_(0.25),
        "zero": lambda y: y[0, 1:4].zero_(),
        "assign_row": lambda y: y.__setitem__(1, y[2] * 2),
        "assign_number": lambda y: y.__setitem__((slice(None), 0), 5),
        "assign_broadcast": lambda y: y[:, 1:4].copy_(torch.tensor([1, 2, 3])),
        "assign_reversed": lambda y: y[:2].copy_(y[2:4].flip(0)),
        "diagonal": lambda y: y.diagonal().fill_(1),
        "diagonal_offset": lambda y: y.diagonal(1).mul_(3),
        "diagonal_of_view": lambda y: y.view(2, 3, 4).diagonal(-1, 1, 2).add_(2),
        "strided": lambda y: y.as_strided((2, 2), (1, 2)).zero_(),
        "strided_of_view": lambda y: y[1:].as_strided((3,), (5,), 2).neg_(),
        "unbind_all": lambda y: [part.add_(index) for index, part in enumerate(y.unbind(0))][0],
        "unbind_last": lambda y: y.unbind(1)[-1].mul_(2),
        "split_even": lambda y: y.split(2)[1].add_(1),
        "split_columns": lambda y: y.split(4, dim=1)[1].sigmoid_(),
        "split_sizes": lambda y: y.split([1, 3], 0)[1].exp_(),
        "chunks": lambda y: y.chunk(3)[1].sub_(y[0]),
        "chunk_columns": lambda y: y.chunk(4, 1)[2].add_(1),
        "tensor_split": lambda y: torch.tensor_split(y, (1, 3))[1].add_(1),
        "hsplit": lambda y: y.hsplit(2)[0].add_(1),
        "unflatten": lambda y: y.unflatten(1, (2, 3))[:, 1].__setitem__(slice(None), 3),
        "unflatten_rows": lambda y: y.unflatten(0, (2, 2))[1, :, ::2].mul_(4),
        "flattened": lambda y: y.unsqueeze(1).flatten(0, 1)[1].add_(1),
        "ravel": lambda y: y.ravel()[5:7].fill_(3),
        "permuted": lambda y: y.view(-1, 2, 3).permute(2, 0, 1)[1].add_(1),
        "movedim": lambda y: y.view(2, 2, 6).movedim((0, 2), (2, 0))[3].mul_(2),
        "swapped": lambda y: y.swapaxes(0, 1)[2].abs_(),
        "numpy_t": lambda y: y.T[1].add_(1),
        "matrix_t": lambda y: y.mT[0].add_(2),
        "narrow": lambda y: y.narrow(1, 2, 3).clamp_(-0.1, 0.2),
        "narrow_rows": lambda y: y.narrow(0, -2, 1).mul_(2),
        "expand_same": lambda y: y.expand(1, -1, -1)[0, 1].add_(1),
        "view_as_other": lambda y: y.view_as(torch.empty(2, 12))[1, :5].add_(1),
        "reshape_that_views": lambda y: y.reshape(3, 8)[1].add_(1),
        "reshape_that_copies": lambda y: y.t().reshape(24)[3:5].add_(1),
        "contiguous_that_views": lambda y: y.contiguous().add_(1),
        "contiguous_that_copies": lambda y: y.t().contiguous().add_(1),
        "to_that_views": lambda y: y.to(torch.float32)[0].add_(1),
        "to_that_copies": lambda y: y.to(torch.float64)[0].add_(1),
        "detached": lambda y: y.detach()[0].mul_(5),
        "bits": lambda y: y.view(torch.int32)[1, :3].bitwise_xor_(1 << 20),
        "of_real_part": lambda y: torch.view_as_complex(y.view(4, 3, 2)).real.add_(1),
        "of_imaginary_part": lambda y: torch.view_as_complex(y.view(4, 3, 2)).imag[1:].mul_(3),
        "through_complex": lambda y: torch.view_as_real(torch.view_as_complex(y.view(4, 3, 2)).mul_(2j)).add_(1),
        "conjugate": lambda y: torch.view_as_complex(y.view(4, 3, 2)).conj().mul_(1j).resolve_conj(),
        "index_put_mask": lambda y: y.__setitem__(y > 0, -1.0),
        "index_put_rows": lambda y: y.__setitem__(torch.tensor([0, 2]), y[1] * 2),
        "index_put_many": lambda y: y.index_put_((torch.tensor([0, 1]), torch.tensor([2, 3])), torch.tensor([8.0, 9.0])),
        "index_put_accumulate": lambda y: y.index_put_((torch.tensor([0, 0]),), torch.ones(6), accumulate=True),
        "index_add_view": lambda y: y[:, 1:].__setitem__((slice(None), torch.tensor([0, 1])), 0.0),
        "index_copy": lambda y: y.index_copy_(0, torch.tensor([3, 1]), torch.ones(2, 6)),
        "index_fill": lambda y: y[:, :4].index_fill_(1, torch.tensor([0, 2]), 6.0),
        "index_add": lambda y: y.index_add_(1, torch.tensor([0, 0, 5]), y[:, :3], alpha=2),
        "masked_fill": lambda y: y[1:].masked_fill_(y[1:] < 0, 0.5),
        "masked_fill_tensor": lambda y: y.masked_fill_(torch.tensor([True, False, False, True])[:, None], torch.tensor(2.0)),
        "masked_scatter": lambda y: y.masked_scatter_(y > 0, torch.arange(24.0).reshape(4, 6)),
        "scatter_src": lambda y: y.scatter_(1, torch.tensor([[0, 1], [2, 3], [4, 5], [0, 5]]), torch.ones(4, 2)),
        "scatter_value": lambda y: y[:2].scatter_(0, torch.zeros(1, 6, dtype=torch.int64), 4.0),
        "scatter_add": lambda y: y.scatter_add_(1, torch.zeros(2, 6, dtype=torch.int64), y[:2] + 1),
        "put": lambda y: y.put_(torch.tensor([1, 23]), torch.tensor([5.0, 6.0])),
        "relu": lambda y: y[:, 3:].relu_(),
        "activations": lambda y: [f(y[i]) for i, f in enumerate([nn.functional.hardswish, torch.sigmoid])][0] + nn.functional.silu(y[:2], inplace=True),
        "hardtanh": lambda y: nn.functional.hardtanh(y[0], -0.5, 0.5, inplace=True),
        "leaky": lambda y: nn.functional.leaky_relu(y, 0.2, inplace=True),
        "power": lambda y: y[1:].abs_().pow_(1.5),
        "power_tensor": lambda y: y[1].abs_().pow_(y[0].abs()),
        "divide": lambda y: y.div_(y.abs() + 1, rounding_mode="floor"),
        "floor_divide": lambda y: y[:2].floor_divide_(0.3),
        "compare_in_place": lambda y: y[0].gt_(0),
        "logical_in_place": lambda y: y.logical_not_(),
        "add_wider": lambda y: y[0].add_(torch.ones(6, dtype=torch.float64)),
        "lerp": lambda y: y[0].lerp_(y[1], 0.3),
        "addcmul": lambda y: y.addcmul_(y, y, value=0.5),
        "addmm": lambda y: y[:, :4].addmm_(y.clone()[:, :3], torch.ones(3, 4), beta=0.5),
        "cumsum": lambda y: y[:, 1:].cumsum_(1),
        "triangle": lambda y: y.tril_(),
        "fill_diagonal": lambda y: y.fill_diagonal_(3),
        "fill_diagonal_scaled": lambda y: y.view(6, 4).t().fill_diagonal_(-1).mul_(2),
        "squeeze_in_place": lambda y: y[:, :1].squeeze_(1).add_(1),
        "unsqueeze_in_place": lambda y: y.detach().unsqueeze_(0)[0, 0].add_(1),
        "transpose_in_place": lambda y: y.detach().transpose_(0, 1)[1].add_(1),
        "resize_in_place": lambda y: y.clone().resize_(2, 12)[0].add_(1),
        "out_add": lambda y: torch.add(y, 1, out=torch.empty_like(y)),
        "out_into_view": lambda y: torch.mul(y[0], 2, out=y[1]),
        "out_of_other_type": lambda y: torch.add(y[0], y[1], out=torch.empty(6, dtype=torch.float64)),
        "out_of_factory": lambda y: torch.arange(6, out=y[0]),
        "bool_in_place": lambda y: (y > 0).logical_and_(y < 1).__ior__(y > 2)[0].__iand__(torch.tensor(True)),
        "dropout_in_place": lambda y: nn.functional.dropout(y[0], 0.5, training=False, inplace=True).add_(1),
        "dropout_that_views": lambda y: nn.functional.dropout(y, 0.5, training=False).mul_(2),
        "read_between": lambda y: (y[0].add_(1), y.sum(), y[0].add_(1))[1],
        "copy_of_itself": lambda y: y.copy_(y.flip(1)),
        "atleast": lambda y: torch.atleast_3d(y)[0].add_(1),
        "broadcast_read": lambda y: [torch.broadcast_tensors(y, torch.zeros(2, 1, 6))[0], y[0].add_(1)][0],
        "expanded_read": lambda y: [y[:1].expand(3, 6), y[0].add_(1)][0],
        "unfold_read": lambda y: [y.unfold(1, 3, 1), y[0].add_(1)][0],
    }
)  # fmt: skip


@case()
def buffer_slice(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    self.cache[:, 1:3] = x[:, 1:3]
    return self.cache.sum(0) + self.cache[1]


@case(T(1, 2, 6), torch.tensor(1))
def key_value_cache(self: nn.Module, new: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    at = position.item()
    torch._check(at >= 0)
    torch._check(at <= 2)
    self.cache.narrow(0, at, 2).copy_(new[0])
    self.count.add_(2)
    return self.cache * 2


@case(T(2, 6), torch.tensor([1, 3]))
def cache_by_index(self: nn.Module, new: torch.Tensor, positions: torch.Tensor) -> tuple:
    self.cache.index_copy_(0, positions, new)
    before = self.cache.clone()
    self.cache[positions] += 1
    return self.cache, before


@case()
def counters(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    self.count += 1
    self.flags[0] = x.sum() > 0
    self.flags.logical_not_()
    self.passing.mul_(2)
    return x * self.count * self.passing


@case()
def input_written(self: nn.Module, x: torch.Tensor) -> tuple:
    view = x.view(3, 8)
    x.relu_()
    x[0] += self.cache[0]
    return x, view, x + 1


@case(T(4, 6), T(4, 6))
def inputs_written(self: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.t().copy_(y.t())
    y.add_(x)
    return x


@case()
def returned_twice(self: nn.Module, x: torch.Tensor) -> tuple:
    y = x + 1
    z = y.add_(1)
    return y, z, x, x, self.cache, y[0]


@case()
def parameter_written(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        self.scale.mul_(0.5)
    return x * self.scale


@case()
def without_gradients(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        a = self.linear(x)
        a[0].add_(1)
        with torch.enable_grad():
            b = a * 2
        b.view(-1)[3:5].zero_()
    return a + b


@case()
def lower_precision(self: nn.Module, x: torch.Tensor) -> tuple:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a = self.linear(x)
        b = torch.matmul(a, a.t()).softmax(-1)
        c = torch.cat([x, a], 1)
        with torch.autocast("cpu", enabled=False):
            d = a.float() @ x.t()
        e = nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])
    return a, b, c, d, e, x @ x.t()


@case()
def other_device(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cuda", dtype=torch.float16):
        return self.linear(x).softmax(-1)


@case(T(5, 6), training=True)
def batch_statistics(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return self.norm(self.norm(x) + 1)


@case(T(5, 6), training=True)
def statistics_read(self: nn.Module, x: torch.Tensor) -> tuple:
    view = self.norm.running_mean[1:3]
    y = self.norm(x)
    self.norm.running_var.add_(1)
    return y, view, self.norm.running_var * 2


@case()
def branch(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    def yes(a: torch.Tensor) -> torch.Tensor:
        b = a.clone()
        b[0].add_(1)
        b.t()[1].mul_(2)
        return b

    x = x.clone()
    x[1] += 1
    return torch.cond(x.sum() > 0, yes, lambda a: a.cos(), (x,))


@case()
def loop(self: nn.Module, x: torch.Tensor) -> tuple:
    from torch._higher_order_ops.while_loop import while_loop

    def body(i: torch.Tensor, a: torch.Tensor) -> tuple:
        b = a.clone()
        b[:, 0] = 1
        return i + 1, b.mul_(1.5)

    y = x.clone()
    y[2].zero_()
    return while_loop(lambda i, a: i < 3, body, (torch.tensor(0), y))


@case()
def scanned(self: nn.Module, x: torch.Tensor) -> tuple:
    from torch._higher_order_ops.scan import scan

    def step(carry: torch.Tensor, row: torch.Tensor) -> tuple:
        total = carry + row
        out = total.clone()
        out[1:3].relu_()
        return total, out

    return scan(step, torch.zeros(6), x)


@case(T(4, 6), dynamic=({0: Dim("rows", min=4, max=30), 1: Dim("columns", min=4, max=30)},))
def two_unknown_sizes(self: nn.Module, x: torch.Tensor) -> tuple:
    y = x * 2
    y.view(-1)[:4].add_(1)
    y.unsqueeze(1).transpose(0, 2)[0].zero_()
    y.reshape(y.shape[1] * y.shape[0], 1)[2].fill_(9)
    a, b = torch.cat([y, y]).split_with_sizes((y.shape[0], y.shape[0]))
    b.add_(a)
    return y, a + b


@case(T(3, 6), dynamic=({0: Dim("rows", min=3, max=4)},))
def cache_of_unknown_length(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    self.cache[: x.shape[0]] = x
    whole = torch.cat([x, x])
    first, second = whole.split_with_sizes((x.shape[0], x.shape[0]))
    second.copy_(self.cache[: x.shape[0]])
    return whole + first.repeat(2, 1)


@case()
def assertions(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x.abs().sum() >= 0).all())
    torch._check(x.shape[0] > 1)
    return x.to("cpu") * 2


@case(torch.arange(12).reshape(3, 4), dynamic=None)
def integers(self: nn.Module, x: torch.Tensor) -> tuple:
    y = x.clone()
    y[0] *= 2
    y[1:].bitwise_and_(5)
    y[:, 1] <<= 1
    y.remainder_(7)
    return y, y.float().div_(2)


@case(T(4, 6), T(4, 6, dtype=torch.float64))
def wider_operand(self: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple:
    z = x.half()
    z.add_(x)
    w = x.clone()
    w[1:].mul_(y[1:])
    w.copy_(y)
    return z, w


@case(T(2, 3, 4, 4))
def images(self: nn.Module, x: torch.Tensor) -> tuple:
    y = x.to(memory_format=torch.channels_last)
    z = y + 1
    z[:, 1].add_(1)
    z.permute(0, 2, 3, 1)[..., 0].mul_(2)
    return z, z.flatten(2).add_(1)


@case(T(3, 1, 6))
def squeezed(self: nn.Module, x: torch.Tensor) -> tuple:
    y = x + 0
    y.squeeze()[1].add_(1)
    y.squeeze(1).t()[0].mul_(2)
    y.squeeze((0, 1))[2].zero_()
    return y, y.squeeze(0)


@case()
def constant_written(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = torch.tensor([1.0, 2, 3, 4, 5, 6])
    y[2:4] += 1
    y.mul_(x[0])
    return y + x


@case()
def random_in_place(self: nn.Module, x: torch.Tensor) -> tuple:
    a, b, c = x.clone(), x.clone(), x.clone()
    a[0].normal_(3, 0)
    b.uniform_(1, 1 + 1e-9)
    c.bernoulli_(1.0)
    return a, b.round(), c


@case(torch.arange(5), torch.tensor([[True, True, True, True, False], [True, True, False, True, True]]))
def attention_mask(self: nn.Module, positions: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    """The mask as transformers builds it."""

    def seen(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= query) & (key > query - 3) & padding[batch, key] & (head >= 0)

    for dims in [(None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)]:
        seen = torch.vmap(seen, in_dims=dims, out_dims=0)
    return seen(torch.arange(2), torch.arange(3), positions, torch.arange(5))


@case()
def mapped_rows(self: nn.Module, x: torch.Tensor) -> tuple:
    def row(a: torch.Tensor, b: torch.Tensor) -> tuple:
        c = self.linear(a) + a.sum() * b.flip(0)
        return c.view(2, 3).t().cumsum(-1), torch.cat([a, b, self.scale]), c[1:3].amax(), a.new_ones(2)

    first = torch.vmap(row, in_dims=(0, 0))(x, x * 2)
    second = torch.vmap(lambda a: torch.vmap(lambda b: (b.sin() + a.sum(), b.unsqueeze(0).expand(3, 6)))(x))(x)
    return first, second


@case(T(4, 3, 6), torch.tensor([0, 2, 1, 1]), torch.tensor([0, 1, 2, 1, 1, 0]))
def mapped_index(self: nn.Module, x: torch.Tensor, rows: torch.Tensor, others: torch.Tensor) -> tuple:
    a = torch.vmap(lambda one, row: one[row])(x, rows)
    b = torch.vmap(lambda one, row: one[:, row], in_dims=(2, 0))(x, others)
    c = torch.vmap(lambda row: x[:, row] * x[row, row])(rows)
    return a, b, c, torch.vmap(lambda one: one.half() + one.float().mean())(x)


@case()
def mapped_write(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    def row(a: torch.Tensor) -> torch.Tensor:
        b = a.clone()
        b[1:3].mul_(2)
        return b.add_(a.sum())

    return torch.vmap(row)(x)


@case(T(4, 6), dynamic=({0: Dim("rows", min=4, max=30), 1: Dim("columns", min=4, max=30)},))
def mapped_unknown_sizes(self: nn.Module, x: torch.Tensor) -> tuple:
    rows, columns = torch.arange(x.shape[0]), torch.arange(x.shape[1])
    at = torch.vmap(torch.vmap(lambda i, j: x[i, j] * (i >= j), in_dims=(None, 0)), in_dims=(0, None))(rows, columns)
    return at, torch.vmap(lambda a: a.reshape(-1, 1) + x.sum())(x)


def dump(path: Path) -> dict:
    """Prepares an archive and returns the dump; raises an error with the message of a failure."""
    done = subprocess.run([TARGET / "debug/xtask", "pt2-dump", "--prepared", path], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(done.stdout + done.stderr)
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def built() -> None:
    subprocess.run(["cargo", "build", "--quiet", "--package", "xtask"], cwd=ROOT, check=True)


def leaves(value: Any) -> list[Any]:
    return _pytree.tree_leaves(value, is_leaf=lambda leaf: leaf is None)


#: Cases that torch itself cannot functionalize: `as_strided` of a view refers to the storage.
UNSUPPORTED_BY_TORCH = {"strided_of_view", "fill_diagonal_scaled"}


@pytest.mark.parametrize("name", CASES)
def test_functionalized_programs_match_eager_torch(name: str, tmp_path: Path, built: None) -> None:
    function, arguments, training, dynamic = CASES[name]
    torch.manual_seed(len(name))
    arguments = tuple(torch.randn_like(a) if a.is_floating_point() else a.clone() for a in arguments)
    module = Sample(function).train(training)
    shapes = None if dynamic is None else (dynamic,)
    program = torch.export.export(copy.deepcopy(module), copy.deepcopy(arguments), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "program.pt2")
    prepared = dump(tmp_path / "program.pt2")

    tensors = {**program.state_dict, **program.constants}
    user_inputs = [spec for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    if dynamic is not None:
        # Other sizes than the exported ones.
        arguments = tuple(torch.randn(a.shape[0] + 1, *(n + 1 if 1 in dynamic[i] else n for n in a.shape[1:])) for i, a in enumerate(arguments))
    eager = copy.deepcopy(arguments)
    want = leaves(module(*eager))
    found = Interpreter(prepared, tensors).run(flat_inputs(copy.deepcopy(arguments), {}))

    results = [value for kind, _, value in found if kind == "user"]
    assert len(results) == len(want)
    for ours, theirs in zip(results, want, strict=True):
        assert within(ours, theirs, relative=1e-4, absolute=1e-5)
    written = {(kind, name): value for kind, name, value in found if kind != "user"}
    state = dict(module.named_parameters()) | dict(module.named_buffers())
    kinds = {"parameter_mutation": dict(module.named_parameters()), "buffer_mutation": dict(module.named_buffers())}
    for key, theirs in state.items():
        ours = next((value for (kind, target), value in written.items() if target == key and key in kinds.get(kind, {})), tensors[key])
        assert within(ours.detach(), theirs.detach(), relative=1e-4, absolute=1e-5)
    for spec, theirs in zip(user_inputs, leaves(eager), strict=True):
        ours = written.get(("user_input_mutation", spec.arg.name))
        before = arguments[user_inputs.index(spec)]
        assert within(before if ours is None else ours, theirs, relative=1e-4, absolute=1e-5)

    if name in UNSUPPORTED_BY_TORCH:
        return
    # torch's own functionalization mutates the same buffers and inputs.
    signature = program.run_decompositions({}).graph_signature
    theirs = sorted(signature.buffers_to_mutate.values()) + sorted(signature.user_inputs_to_mutate.values())
    theirs += sorted(getattr(signature, "parameters_to_mutate", {}).values())
    assert sorted(target for _, target in written) == sorted(theirs)


REFUSED = {
    "expanded": (lambda self, x: x.clone()[:1].expand(3, 6)[0].add_(1), "writes through `expand`"),
    "unfolded": (lambda self, x: x.clone().unfold(1, 2, 2)[0].add_(1), "writes through `aten.unfold.default`"),
    "set": (lambda self, x: x.clone().set_(x + 1) * 2, "replaces the storage"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rejects_unsupported_aliasing_writes(name: str, tmp_path: Path, built: None) -> None:
    function, reason = REFUSED[name]
    program = torch.export.export(Sample(function), (T(4, 6),))
    torch.export.save(program, tmp_path / "program.pt2")
    with pytest.raises(ValueError, match=reason):
        dump(tmp_path / "program.pt2")


@pytest.mark.parametrize("kind", ["int8", "int4", "int8_dynamic", "float8"])
def test_torchao_subclass_weights_become_tensor_inputs(kind: str, tmp_path: Path, built: None) -> None:
    """torchao's weights are Python objects in the archive; their tensors become inputs."""
    from torchao import quantization

    config = {
        "int8": quantization.Int8WeightOnlyConfig,
        "int4": lambda: quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4),
        "int8_dynamic": quantization.Int8DynamicActivationInt8WeightConfig,
        "float8": quantization.Float8WeightOnlyConfig,
    }[kind]()
    module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    quantization.quantize_(module, config)
    x = T(3, 64)
    program = torch.export.export(module, (x,))
    torch.export.save(program, tmp_path / "program.pt2")
    prepared = dump(tmp_path / "program.pt2")
    tensors = dict(program.state_dict)
    for kind, name, _, _ in prepared["inputs"]:
        if kind == "parameter" and name not in tensors:
            whole, attribute = name.rsplit(".", 1)
            tensors[name] = getattr(tensors[whole], attribute)
    assert {name for _, name, _, _ in prepared["inputs"]} >= {"0.weight.qdata", "0.weight.scale"}
    assert "0.weight" not in {name for _, name, _, _ in prepared["inputs"]}
    assert prepared["tensors"]["0.weight.qdata"]["sizes"] == [32, 64]
    [(_, _, found)] = Interpreter(prepared, tensors).run([x])
    assert within(found, module(x), relative=1e-4, absolute=1e-5)
