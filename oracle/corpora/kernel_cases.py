"""Calls of every kernel in ExecuTorch's runtime, over element types, shapes, dimension orders and arguments."""

import math
from collections.abc import Iterator
from typing import Any

import executorch.exir.passes.dim_order_ops_registry  # noqa: F401
import torch

from oracle.corpora.kernel_programs import Case

ATEN = torch.ops.aten
ORDER = torch.ops.dim_order_ops
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
NUMBERS = [*FLOATS, *INTEGERS]
ALL = [*NUMBERS, torch.bool]
F32, F16, I64, I32, BOOL = torch.float32, torch.float16, torch.int64, torch.int32, torch.bool

UNARY_FLOAT = {
    "acos": (-1, 1), "acosh": (1, 4), "asin": (-1, 1), "asinh": (-3, 3), "atan": (-3, 3), "atanh": (-0.9, 0.9),
    "cos": (-6, 6), "cosh": (-3, 3), "erf": (-3, 3), "exp": (-4, 4), "expm1": (-2, 2), "log": (0.1, 9),
    "log10": (0.1, 9), "log1p": (-0.5, 9), "log2": (0.1, 9), "reciprocal": (0.5, 4), "rsqrt": (0.1, 9),
    "sigmoid": (-6, 6), "sin": (-6, 6), "sinh": (-3, 3), "sqrt": (0, 9), "tan": (-1, 1), "tanh": (-3, 3),
}
UNARY_SAME = ["abs", "ceil", "floor", "neg", "relu", "round", "sign", "trunc"]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]


class Maker:
    """Creates random tensors, the same in every run."""

    def __init__(self) -> None:
        self.random = torch.Generator().manual_seed(7)

    def __call__(self, *shape: int, dtype: torch.dtype = F32, low: float = -4, high: float = 4) -> torch.Tensor:
        if dtype == torch.bool:
            return torch.randint(0, 2, shape, generator=self.random).bool()
        if dtype.is_floating_point:
            return (torch.rand(shape, generator=self.random) * (high - low) + low).to(dtype)
        if dtype == torch.uint8:
            low = max(low, 0)
        return torch.randint(math.ceil(low), math.floor(high) + 1, shape, generator=self.random).to(dtype)

    def distinct(self, *shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
        """A random tensor without duplicates, so that the indices of extrema are unambiguous."""
        count = math.prod(shape)
        return (torch.randperm(count, generator=self.random) - count // 2).to(dtype).reshape(shape)


def last(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements in channels-last memory format."""
    return tensor.to(memory_format=torch.channels_last)


def cases(family: str) -> list[Case]:
    """All cases of a family, with unique identifiers as names."""
    made: list[Case] = []
    seen: dict[str, int] = {}
    for case in FAMILIES[family](Maker()):
        number = seen.get(case.name, 0)
        seen[case.name] = number + 1
        case.name = f"{case.name}_{number}"
        made.append(case)
    return made


def call(operator: Any, *arguments: Any, **keywords: Any) -> Case:
    """A case with an operator and its arguments."""
    schema = operator._schema
    name = schema.name.split("::")[1] + "_" + (schema.overload_name or "default")
    return Case(name, operator, arguments, keywords)


def unary(x: Maker) -> Iterator[Case]:
    for name, (low, high) in UNARY_FLOAT.items():
        operator = getattr(ATEN, name).default
        for dtype in ALL:
            yield call(operator, x(3, 5, dtype=dtype, low=low, high=high))
        yield call(operator, last(x(2, 3, 4, 5, low=low, high=high)))
        yield call(operator, x(low=low, high=high))
    special = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 2.5, 3.5, -2.5, -0.5, 0.5])
    for name in UNARY_SAME:
        operator = getattr(ATEN, name).default
        for dtype in NUMBERS:
            yield call(operator, x(3, 5, dtype=dtype) + (0.25 if dtype.is_floating_point else 0))
        yield call(operator, special)
        yield call(operator, last(x(2, 3, 4, 5)))
    yield call(ATEN.sign.default, x(7, dtype=BOOL))
    for dtype in [*INTEGERS, BOOL]:
        yield call(ATEN.bitwise_not.default, x(3, 5, dtype=dtype))
    for dtype in ALL:
        yield call(ATEN.logical_not.default, x(3, 5, dtype=dtype, low=-1, high=1))
        yield call(ATEN.isnan.default, x(3, 5, dtype=dtype))
        yield call(ATEN.isinf.default, x(3, 5, dtype=dtype))
    yield call(ATEN.isnan.default, special)
    yield call(ATEN.isinf.default, special)
    for dtype in FLOATS:
        yield call(ATEN.elu.default, x(3, 5, dtype=dtype))
        yield call(ATEN.elu.default, x(3, 5, dtype=dtype), 1.5, 0.5, 2)
        yield call(ATEN.gelu.default, x(3, 5, dtype=dtype))
        yield call(ATEN.gelu.default, x(3, 5, dtype=dtype), approximate="tanh")
        yield call(ATEN.leaky_relu.default, x(3, 5, dtype=dtype))
        yield call(ATEN.leaky_relu.default, x(3, 5, dtype=dtype), 0.2)
        yield call(ATEN.glu.default, x(4, 6, dtype=dtype))
        yield call(ATEN.glu.default, x(4, 6, dtype=dtype), 0)
        yield call(ATEN.logit.default, x(3, 5, dtype=dtype, low=0.1, high=0.9))
    yield call(ATEN.glu.default, x(2, 4, 3), 1)
    yield call(ATEN.glu.default, last(x(2, 4, 3, 5)), 1)
    yield call(ATEN.logit.default, x(3, 5, low=-0.5, high=1.5), 0.25)
    for dtype in NUMBERS:
        yield call(ATEN.hardtanh.default, x(3, 5, dtype=dtype), 0, 2)
    yield call(ATEN.hardtanh.default, x(3, 5), -1.5, 0.75)
    yield call(ATEN.hardtanh.default, special)


def binary(x: Maker) -> Iterator[Case]:
    pairs = [(dtype, dtype) for dtype in ALL]
    pairs += [(F32, I64), (F16, F32), (I32, I64), (torch.uint8, torch.int8), (BOOL, F32), (F16, torch.bfloat16), (I64, BOOL)]
    shapes = [((3, 5), (3, 5)), ((3, 5), (5,)), ((2, 1, 4), (3, 1)), ((), (2, 3)), ((2, 3), ())]
    names = ["add", "mul", "maximum", "minimum", "logical_and", "logical_or", "logical_xor"]
    names += [f"{name}" for name in COMPARISONS]
    for name in names:
        packet = getattr(ATEN, name)
        operator = packet.Tensor if "Tensor" in packet.overloads() else packet.default
        for left, right in pairs:
            yield call(operator, x(3, 5, dtype=left, low=-2, high=2), x(3, 5, dtype=right, low=-2, high=2))
        for left, right in shapes:
            yield call(operator, x(*left), x(*right))
        yield call(operator, last(x(2, 3, 4, 5)), last(x(2, 3, 4, 5)))
        yield call(operator, last(x(2, 3, 4, 5)), last(x(1, 3, 1, 1)))
        yield call(operator, last(x(2, 3, 4, 5)), x())
    for dtype in NUMBERS:
        whole = 2 if not dtype.is_floating_point else 1.5
        yield call(ATEN.add.Tensor, x(3, 5, dtype=dtype), x(3, 5, dtype=dtype), alpha=whole)
        yield call(ATEN.sub.Tensor, x(3, 5, dtype=dtype), x(3, 5, dtype=dtype), alpha=whole)
        yield call(ATEN.sub.Tensor, x(3, 5, dtype=dtype), x(5, dtype=dtype))
        yield call(ATEN.add.Scalar, x(3, 5, dtype=dtype), whole)
        yield call(ATEN.sub.Scalar, x(3, 5, dtype=dtype), whole, 2)
        yield call(ATEN.rsub.Scalar, x(3, 5, dtype=dtype), whole)
        yield call(ATEN.mul.Scalar, x(3, 5, dtype=dtype), whole)
        yield call(ATEN.div.Scalar, x(3, 5, dtype=dtype), 3)
        positive = x(3, 5, dtype=dtype, low=1, high=4)
        yield call(ATEN.div.Tensor, x(3, 5, dtype=dtype), positive)
        for mode in (None, "trunc", "floor"):
            yield call(ATEN.div.Tensor_mode, x(3, 5, dtype=dtype, low=-9, high=9), positive, rounding_mode=mode)
            yield call(ATEN.div.Scalar_mode, x(3, 5, dtype=dtype, low=-9, high=9), 3, rounding_mode=mode)
        yield call(ATEN.floor_divide.default, x(3, 5, dtype=dtype, low=-9, high=9), positive)
        yield call(ATEN.fmod.Tensor, x(3, 5, dtype=dtype, low=-9, high=9), positive)
        yield call(ATEN.fmod.Scalar, x(3, 5, dtype=dtype, low=-9, high=9), 3)
        yield call(ATEN.remainder.Tensor, x(3, 5, dtype=dtype, low=-9, high=9), positive)
        yield call(ATEN.remainder.Scalar, x(3, 5, dtype=dtype, low=-9, high=9), 3)
        exponents = x(3, 5, dtype=dtype, low=0, high=3)
        yield call(ATEN.pow.Tensor_Tensor, x(3, 5, dtype=dtype, low=1, high=4), exponents)
        yield call(ATEN.pow.Tensor_Scalar, x(3, 5, dtype=dtype), 2)
        yield call(ATEN.pow.Scalar, 2, exponents)
        yield call(ATEN.atan2.default, x(3, 5, dtype=dtype), x(3, 5, dtype=dtype))
        for name in COMPARISONS:
            yield call(getattr(ATEN, name).Scalar, x(3, 5, dtype=dtype, low=-2, high=2), 1)
    yield call(ATEN.pow.Tensor_Scalar, x(3, 5, dtype=I64), 0.5)
    yield call(ATEN.pow.Tensor_Scalar, x(3, 5, low=0, high=4), 0.5)
    yield call(ATEN.div.Tensor, x(3, 5, dtype=I64), x(3, 5, dtype=F16, low=1, high=2))
    yield call(ATEN.atan2.default, x(2, 3), x(3, dtype=I32))
    yield call(ATEN.add.Scalar, x(3, dtype=I64), 1.5)
    yield call(ATEN.mul.Scalar, x(3, dtype=BOOL), 2)
    yield call(ATEN.add.Tensor, x(3, dtype=torch.uint8, low=0, high=200) + 120, x(3, dtype=torch.uint8, low=0, high=200) + 120)
    for name in COMPARISONS:
        yield call(getattr(ATEN, name).Scalar, x(7), 0.5)
        yield call(getattr(ATEN, name).Scalar, x(7, dtype=I64), 0.5)
        yield call(getattr(ATEN, name).Scalar, x(7, dtype=BOOL), True)
    for name in ("and", "or", "xor"):
        packet = getattr(ATEN, f"bitwise_{name}")
        for dtype in [*INTEGERS, BOOL]:
            yield call(packet.Tensor, x(3, 5, dtype=dtype), x(5, dtype=dtype))
            yield call(packet.Scalar, x(3, 5, dtype=dtype), 1 if dtype != BOOL else True)
        yield call(packet.Tensor, x(3, dtype=torch.uint8), x(3, dtype=torch.int16))
    for name in ("left", "right"):
        packet = getattr(ATEN, f"bitwise_{name}_shift")
        for dtype in INTEGERS:
            yield call(packet.Tensor, x(3, 5, dtype=dtype), x(3, 5, dtype=dtype, low=0, high=4))
            yield call(packet.Tensor_Scalar, x(3, 5, dtype=dtype), 2)


def choices(x: Maker) -> Iterator[Case]:
    for dtype in ALL:
        if dtype != BOOL:
            yield call(ATEN.clamp.default, x(3, 5, dtype=dtype), 1, 3)
            yield call(ATEN.clamp.default, x(3, 5, dtype=dtype), None, 2)
            yield call(ATEN.clamp.Tensor, x(3, 5, dtype=dtype), x(5, dtype=dtype), None)
            yield call(ATEN.clamp.Tensor, x(3, 5, dtype=dtype), x(3, 1, dtype=dtype, low=-2, high=0), x(5, dtype=dtype, low=0, high=2))
            yield call(ATEN.masked_fill.Scalar, x(3, 5, dtype=dtype), x(5, dtype=BOOL), 1)
        yield call(ATEN.where.self, x(3, 5, dtype=BOOL), x(3, 5, dtype=dtype), x(5, dtype=dtype))
        yield call(ATEN.masked_scatter.default, x(3, 5, dtype=dtype), x(3, 5, dtype=BOOL), x(4, 5, dtype=dtype))
        yield selected(x(3, 5, dtype=dtype), x(3, 5, dtype=BOOL))
        yield grown(call(ATEN.nonzero.default, x(3, 5, dtype=dtype, low=-1, high=1)))
    yield call(ATEN.clamp.default, x(3, 5, dtype=I64), 0.5, 2)
    yield call(ATEN.where.self, x(3, 1, dtype=BOOL), x(1, 5, dtype=I32), x(3, 5))
    yield call(ATEN.where.self, x(3, 1, dtype=torch.uint8, low=0, high=1), x(1, 5), x())
    yield call(ATEN.masked_fill.Scalar, last(x(2, 3, 4, 5)), last(x(2, 3, 4, 5, dtype=BOOL)), -1.5)
    yield call(ATEN.masked_scatter.default, x(5), x(3, 5, dtype=BOOL), x(20))
    yield selected(x(3, 5), x(5, dtype=BOOL))
    yield selected(x(3, 1), x(3, 5, dtype=BOOL))


def selected(tensor: torch.Tensor, mask: torch.Tensor) -> Case:
    return grown(call(ATEN.masked_select.default, tensor, mask))


def grown(case: Case) -> Case:
    """Marks outputs whose sizes depend on elements, which need memory for the maximum."""
    case.dynamic = True
    return case


def created(x: Maker) -> Iterator[Case]:
    for dtype in ALL:
        one = 1 if dtype != BOOL else True
        yield typed(call(ATEN.full.default, [2, 3], one, dtype=dtype))
        yield call(ATEN.full_like.default, x(2, 3, dtype=dtype), one)
        yield typed(call(ATEN.zeros.default, [2, 3], dtype=dtype))
        yield typed(call(ATEN.ones.default, [2, 3], dtype=dtype))
        yield typed(call(ATEN.scalar_tensor.default, one, dtype=dtype))
        yield call(ATEN.fill.Scalar, x(2, 3, dtype=dtype), one)
        yield call(ATEN.fill.Tensor, x(2, 3, dtype=dtype), x(dtype=dtype))
        if dtype != BOOL:
            yield typed(call(ATEN.arange.default, 7, dtype=dtype))
            yield typed(call(ATEN.arange.start_step, 2, 17, 3, dtype=dtype))
        yield undefined(typed(call(ATEN.empty.memory_format, [2, 3], dtype=dtype)))
        for name in ("alias_copy", "detach_copy", "lift_fresh_copy"):
            yield call(getattr(ATEN, name).default, x(2, 3, dtype=dtype))
        yield call(ATEN.clone.default, x(2, 3, dtype=dtype))
        yield call(ATEN.copy.default, x(2, 3, dtype=dtype), x(3, dtype=dtype))
        yield call(ATEN.copy.default, x(2, 3, dtype=dtype), x(2, 3, dtype=F32, low=0, high=3))
        for other in ALL:
            values = x(3, 4, dtype=other, low=0, high=3)
            yield Case("to_copy", ATEN._to_copy.default, [values], {"dtype": dtype})
            order = ORDER._to_dim_order_copy
            yield Case("to_dim_order_copy", order.default, [values], {"dtype": dtype, "dim_order": [0, 1]}, kernel=order.out)
    for order in ([0, 2, 3, 1], [0, 1, 2, 3]):
        for tensor in (x(2, 3, 4, 5), last(x(2, 3, 4, 5))):
            keywords = {"dim_order": order}
            yield Case("order", ORDER._to_dim_order_copy.default, [tensor], {**keywords, "dtype": F16}, kernel=ORDER._to_dim_order_copy.out)
            yield Case("order_clone", ORDER._clone_dim_order.default, [tensor], keywords, kernel=ORDER._clone_dim_order.out)
        yield undefined(Case("order_empty", ORDER._empty_dim_order.default, [[2, 3, 4, 5]], {"dim_order": order}, kernel=ORDER._empty_dim_order.out))
    yield typed(call(ATEN.arange.start_step, 0.5, 4, 0.25, dtype=F32))
    yield undefined(call(ATEN.rand.default, [3, 5]))
    yield undefined(call(ATEN.randn.default, [3, 5]))
    for dtype in FLOATS:
        yield call(ATEN.native_dropout.default, x(3, 5, dtype=dtype), 0.5, False)
    yield call(ATEN.native_dropout.default, x(3, 5), 0.0, True)


def typed(case: Case) -> Case:
    """The type of the created tensor is that of the output; kernels have no argument for it."""
    return case


def undefined(case: Case) -> Case:
    case.compare = "shape"
    return case


def shapes(x: Maker) -> Iterator[Case]:
    for dtype in ALL:
        a = x(2, 3, 4, dtype=dtype)
        yield call(ATEN.permute_copy.default, a, [2, 0, 1])
        yield call(ATEN.transpose_copy.int, a, 0, -1)
        yield call(ATEN.t_copy.default, x(3, 4, dtype=dtype))
        yield call(ATEN.expand_copy.default, x(3, 1, dtype=dtype), [2, -1, 4])
        yield call(ATEN.flip.default, a, [0, 2])
        yield call(ATEN.select_copy.int, a, 1, -2)
        yield call(ATEN.slice_copy.Tensor, a, 2, 1, 9, 2)
        yield call(ATEN.unsqueeze_copy.default, a, 1)
        yield call(ATEN.squeeze_copy.dim, x(2, 1, 4, dtype=dtype), 1)
        yield call(ATEN.squeeze_copy.dims, x(1, 2, 1, dtype=dtype), [0, 2])
        yield call(ATEN.view_copy.default, a, [6, -1])
        yield call(ATEN.cat.default, [a, x(2, 2, 4, dtype=dtype)], 1)
        yield call(ATEN.stack.default, [a, x(2, 3, 4, dtype=dtype)], 2)
        yield call(ATEN.split_copy.Tensor, a, 2, 1)
        yield call(ATEN.split_with_sizes_copy.default, a, [1, 3], 2)
        yield call(ATEN.unbind_copy.int, a, 1)
        yield call(ATEN.repeat.default, a, [2, 1, 2, 3])
        yield call(ATEN.roll.default, a, [1, -2], [0, 2])
        yield call(ATEN.narrow_copy.default, a, 1, 1, 2)
        yield call(ATEN.diagonal_copy.default, a, 1, 0, 2)
        yield call(ATEN.unfold_copy.default, a, 2, 2, 1)
        yield call(ATEN.as_strided_copy.default, a, [3, 2], [2, 5], 1)
        yield call(ATEN.pixel_shuffle.default, x(2, 8, 3, 2, dtype=dtype), 2)
        yield call(ATEN.pixel_unshuffle.default, x(2, 2, 4, 6, dtype=dtype), 2)
        yield call(ATEN.tril.default, x(2, 4, 5, dtype=dtype), 1)
    yield call(ATEN.tril.default, x(4, 4), -1)
    yield call(ATEN.roll.default, x(3, 4), [5])
    yield call(ATEN.flip.default, x(3, 4), [-1])
    yield call(ATEN.diagonal_copy.default, x(3, 5), -1)
    yield call(ATEN.slice_copy.Tensor, x(7, 3), 0, -3, None)
    yield call(ATEN.slice_copy.Tensor, x(7, 3), 0, 5, 2)
    yield call(ATEN.cat.default, [x(0), x(2, 3), x(1, 3)], 0)
    yield call(ATEN.cat.default, [x(2, 3), x(2, 3, dtype=F16)], 0)
    yield call(ATEN.cat.default, [last(x(2, 3, 4, 5)), last(x(2, 2, 4, 5))], 1)
    yield call(ATEN.repeat_interleave.Tensor, torch.tensor([2, 0, 3]))
    yield call(ATEN.repeat_interleave.Tensor, torch.tensor([2, 0, 3], dtype=I32), output_size=5)
    yield call(ATEN.repeat.default, x(), [2, 3])
    yield call(ATEN.view_copy.default, x(0, 3), [3, 0])
    yield call(ATEN.permute_copy.default, last(x(2, 3, 4, 5)), [0, 2, 3, 1])
    yield call(ATEN.unfold_copy.default, x(9), 0, 3, 2)
    yield call(ATEN.expand_copy.default, x(), [2, 2])


def indices(x: Maker) -> Iterator[Case]:
    def at(*shape: int, below: int, dtype: torch.dtype = I64) -> torch.Tensor:
        return x(*shape, dtype=dtype, low=0, high=below - 1)

    for dtype in ALL:
        a = x(4, 5, 3, dtype=dtype)
        yield call(ATEN.embedding.default, x(6, 3, dtype=dtype), at(2, 4, below=6))
        yield call(ATEN.gather.default, a, 1, at(4, 2, 3, below=5))
        yield call(ATEN.index_select.default, a, 1, at(7, below=5))
        yield call(ATEN.index.Tensor, a, [at(6, below=4)])
        yield call(ATEN.index.Tensor, a, [None, at(2, 1, below=5), at(3, below=3)])
        yield call(ATEN.index.Tensor, a, [at(2, below=4), None, at(2, below=3)])
        yield call(ATEN.index_put.default, a, [torch.tensor([2, 0])], x(2, 5, 3, dtype=dtype))
        yield call(ATEN.scatter.src, a, 1, torch.tensor([[[1, 0, 2]]]), x(4, 5, 3, dtype=dtype))
        yield call(ATEN.select_scatter.default, a, x(4, 3, dtype=dtype), 1, 2)
        yield call(ATEN.slice_scatter.default, a, x(4, 2, 3, dtype=dtype), 1, 1, 5, 2)
        if dtype != BOOL:
            yield call(ATEN.scatter.value, a, 2, at(2, 3, 2, below=3), 1)
            yield call(ATEN.scatter_add.default, a, 0, at(3, 5, 3, below=4), x(4, 5, 3, dtype=dtype))
            yield call(ATEN.index_put.default, a, [at(6, below=4)], x(6, 5, 3, dtype=dtype), True)
            yield call(ATEN.topk.default, x.distinct(4, 6, dtype=dtype if dtype != torch.uint8 else I32), 3)
    yield call(ATEN.embedding.default, x(6, 3), at(5, below=6, dtype=I32))
    yield call(ATEN.index.Tensor, x(4, 5), [x(4, 5, dtype=BOOL)])
    yield call(ATEN.index.Tensor, x(4, 5), [None, torch.tensor([True, False, True, True, False])])
    yield call(ATEN.index.Tensor, x(4, 5), [torch.tensor([-1, 0, -4])])
    yield call(ATEN.index.Tensor, x(4, 5), [at(2, 3, below=4), at(3, below=5)])
    yield call(ATEN.index.Tensor, x(2, 3, 4, 5), [None, at(2, below=3), None, at(2, below=5)])
    yield call(ATEN.index_put.default, x(4, 5), [None, torch.tensor([1, 3])], x(2))
    yield call(ATEN.index_put.default, x(4, 5), [torch.tensor([0, 1]), torch.tensor([3, 3])], x(1), True)
    yield call(ATEN.gather.default, x(5), 0, at(3, below=5))
    yield call(ATEN.topk.default, x.distinct(4, 6), 2, 0, False)
    yield call(ATEN.topk.default, x.distinct(2, 300), 2)
    yield call(ATEN.index_select.default, x(4, 5), -1, at(3, below=5, dtype=I32))


def padded(x: Maker) -> Iterator[Case]:
    for dtype in ALL:
        if dtype != BOOL:
            yield call(ATEN.constant_pad_nd.default, x(2, 3, 4, dtype=dtype), [1, 2, 0, 1], 1)
            yield call(ATEN.reflection_pad1d.default, x(2, 3, 6, dtype=dtype), [2, 3])
            yield call(ATEN.replication_pad1d.default, x(2, 3, 6, dtype=dtype), [2, 3])
    for dtype in (F32, I64, F16):
        yield call(ATEN.reflection_pad2d.default, x(2, 3, 5, 6, dtype=dtype), [2, 3, 1, 0])
        yield call(ATEN.replication_pad2d.default, x(2, 3, 5, 6, dtype=dtype), [2, 3, 1, 7])
        yield call(ATEN.reflection_pad3d.default, x(3, 4, 5, 6, dtype=dtype), [1, 2, 2, 1, 0, 3])
        yield call(ATEN.replication_pad3d.default, x(2, 3, 4, 5, 6, dtype=dtype), [1, 2, 2, 1, 0, 3])
    yield call(ATEN.constant_pad_nd.default, x(2, 3), [1, 1, 1, 1], -0.5)
    yield call(ATEN.constant_pad_nd.default, x(2, 3), [])


def reduced(x: Maker) -> Iterator[Case]:
    for dtype in ALL:
        a = x(3, 4, 5, dtype=dtype, low=-2, high=3)
        yield call(ATEN.sum.dim_IntList, a, [1])
        yield call(ATEN.sum.dim_IntList, a, [0, -1], True)
        yield call(ATEN.sum.dim_IntList, a, [], dtype=F32)
        yield call(ATEN.prod.default, x(6, dtype=dtype, low=1, high=2))
        yield call(ATEN.prod.dim_int, x(3, 4, dtype=dtype, low=1, high=2), 1)
        yield call(ATEN.amax.default, a, [1])
        yield call(ATEN.amin.default, a, [0, 2], True)
        yield call(ATEN.any.default, a)
        yield call(ATEN.any.dim, a, 1)
        yield call(ATEN.any.dims, a, [0, 2], True)
        yield call(ATEN.max.default, a)
        yield call(ATEN.min.default, a)
        yield call(ATEN.cumsum.default, a, 1)
        if dtype != BOOL:
            d = x.distinct(3, 4, 5, dtype=dtype if dtype != torch.uint8 else I32)
            yield call(ATEN.max.dim, d, 1)
            yield call(ATEN.min.dim, d, -1, True)
            yield call(ATEN.argmax.default, d, 1)
            yield call(ATEN.argmin.default, d, 0, True)
            yield call(ATEN.argmax.default, d)
    for dtype in FLOATS:
        a = x(3, 4, 5, dtype=dtype)
        yield call(ATEN.mean.dim, a, [1])
        yield call(ATEN.mean.dim, a, [0, 2], True)
        yield call(ATEN.mean.default, a)
        yield call(ATEN.var.correction, a, [1])
        yield call(ATEN.var.correction, a, [0, 2], correction=0, keepdim=True)
        yield call(ATEN.var.dim, a, [2], False)
        yield call(ATEN.var_mean.correction, a, [1, 2], correction=1)
        yield call(ATEN.cumsum.default, a, -1)
    yield call(ATEN.mean.dim, x(3, 4, dtype=I64), [1], dtype=F32)
    yield call(ATEN.sum.dim_IntList, x(3, 4), None)
    yield call(ATEN.sum.dim_IntList, x(0, 4), [0])
    yield call(ATEN.amax.default, torch.tensor([1.0, math.nan, 3.0]), [0])
    yield call(ATEN.max.dim, torch.tensor([[1.0, math.nan, 3.0, math.nan]]), 1)
    yield call(ATEN.argmin.default, torch.tensor([4.0, 1.0, 7.0, 1.0]), 0)
    yield call(ATEN.any.default, torch.zeros(0))
    yield call(ATEN.sum.dim_IntList, x(), [0])


def pooled(x: Maker) -> Iterator[Case]:
    for dtype in FLOATS:
        a = x.distinct(2, 3, 7, 8, dtype=dtype)
        yield call(ATEN.max_pool2d_with_indices.default, a, [3, 2], [2, 2], [1, 1])
        yield call(ATEN.avg_pool2d.default, a, [3, 2], [2, 2], [1, 1])
        yield call(ATEN._adaptive_avg_pool2d.default, a, [3, 4])
    for dtype in (torch.int32, torch.uint8, I64):
        yield Case("max_pool_integers", ATEN.max_pool2d_with_indices.default, [x.distinct(1, 1, 5, 5, dtype=dtype), [2, 2], [2, 2]])
    a = x.distinct(2, 3, 7, 8)
    yield call(ATEN.max_pool2d_with_indices.default, a, [2, 2], [], [0, 0], [2, 1])
    yield call(ATEN.max_pool2d_with_indices.default, a, [3, 3], [2, 2], [0, 0], [1, 1], True)
    yield call(ATEN.max_pool2d_with_indices.default, x.distinct(3, 7, 8), [3, 3])
    yield call(ATEN.max_pool2d_with_indices.default, last(a), [3, 3], [2, 2], [1, 1])
    yield call(ATEN.avg_pool2d.default, a, [3, 3], [2, 2], [1, 1], False, False)
    yield call(ATEN.avg_pool2d.default, a, [3, 3], [2, 2], [1, 1], True, True)
    yield call(ATEN.avg_pool2d.default, a, [3, 3], [2, 2], [1, 1], True, False)
    yield call(ATEN.avg_pool2d.default, a, [2, 2], [], [0, 0], False, True, 3)
    yield call(ATEN.avg_pool2d.default, x(3, 7, 8), [2, 3])
    yield call(ATEN._adaptive_avg_pool2d.default, x(3, 7, 8), [1, 1])
    values, places = ATEN.max_pool2d_with_indices.default(a, [3, 2], [2, 2], [1, 1])
    backward = ATEN.max_pool2d_with_indices_backward
    yield Case("max_pool_backward", backward.default, [x(*values.shape), a, [3, 2], [2, 2], [1, 1], [1, 1], False, places], kernel=backward.grad_input)


def complex_numbers(x: Maker) -> Iterator[Case]:
    for dtype in (torch.complex64, torch.complex128):
        a, b = torch.complex(x(3, 4), x(3, 4)).to(dtype), torch.complex(x(3, 4), x(3, 4)).to(dtype)
        yield call(ATEN._conj_physical.default, a)
        yield call(ATEN.view_as_real_copy.default, a)
        yield call(ATEN.abs.default, a)
        yield call(ATEN.add.Tensor, a, b)
        yield call(ATEN.mul.Tensor, a, b)
        yield call(ATEN.permute_copy.default, a, [1, 0])
        yield call(ATEN.cat.default, [a, b], 1)
        yield call(ATEN.mm.default, a, b.T.contiguous())
        yield call(ATEN.sum.dim_IntList, a, [1])


def normalized(x: Maker) -> Iterator[Case]:
    for dtype in FLOATS:
        a = x(2, 6, 4, 3, dtype=dtype)
        w, b = x(6, dtype=dtype), x(6, dtype=dtype)
        yield call(ATEN._softmax.default, x(3, 5, dtype=dtype), -1, False)
        yield call(ATEN._softmax.default, x(3, 5, 2, dtype=dtype), 1, False)
        yield call(ATEN._log_softmax.default, x(3, 5, dtype=dtype), 1, False)
        yield call(ATEN._log_softmax.default, x(3, 5, 2, dtype=dtype), 0, False)
        yield call(ATEN.native_layer_norm.default, x(2, 3, 5, dtype=dtype), [5], x(5, dtype=dtype), x(5, dtype=dtype), 1e-5)
        yield call(ATEN.native_layer_norm.default, x(2, 3, 5, dtype=dtype), [3, 5], None, None, 1e-5)
        yield call(ATEN.native_group_norm.default, a, w, b, 2, 6, 12, 3, 1e-5)
        yield call(ATEN.native_group_norm.default, a, None, None, 2, 6, 12, 2, 1e-5)
        mean, variance = x(6, dtype=dtype), x(6, dtype=dtype, low=0.5, high=2)
        yield call(ATEN._native_batch_norm_legit_no_training.default, a, w, b, mean, variance, 0.1, 1e-5)
        yield call(ATEN._native_batch_norm_legit_no_training.default, x(4, 6, dtype=dtype), None, None, mean, variance, 0.1, 1e-5)
        yield call(ATEN._native_batch_norm_legit.no_stats, a, w, b, True, 0.1, 1e-5)
    yield call(ATEN._softmax.default, torch.tensor([[0.0, -math.inf, 1.0], [2.0, 2.0, 2.0]]), -1, False)


def products(x: Maker) -> Iterator[Case]:
    for dtype in FLOATS:
        yield call(ATEN.mm.default, x(3, 5, dtype=dtype, low=-1, high=1), x(5, 4, dtype=dtype, low=-1, high=1))
        yield call(ATEN.bmm.default, x(2, 3, 5, dtype=dtype, low=-1, high=1), x(2, 5, 4, dtype=dtype, low=-1, high=1))
        yield call(ATEN.addmm.default, x(4, dtype=dtype), x(3, 5, dtype=dtype, low=-1, high=1), x(5, 4, dtype=dtype, low=-1, high=1))
        yield call(ATEN.addmm.default, x(3, 4, dtype=dtype), x(3, 5, dtype=dtype, low=-1, high=1), x(5, 4, dtype=dtype, low=-1, high=1), beta=0.5, alpha=2)
        yield call(ATEN.linear.default, x(2, 3, 5, dtype=dtype, low=-1, high=1), x(4, 5, dtype=dtype, low=-1, high=1), x(4, dtype=dtype))
        yield convolved(x(2, 3, 7, 8, dtype=dtype, low=-1, high=1), x(4, 3, 3, 2, dtype=dtype, low=-1, high=1), x(4, dtype=dtype), [2, 1], [1, 0], [1, 2])
        yield convolved(x(2, 4, 9, dtype=dtype, low=-1, high=1), x(6, 2, 3, dtype=dtype, low=-1, high=1), None, [1], [1], [1], groups=2)
        yield convolved(x(1, 4, 5, 6, dtype=dtype, low=-1, high=1), x(4, 3, 3, 2, dtype=dtype, low=-1, high=1), x(6, dtype=dtype), [2, 1], [1, 0], [1, 1], True, [1, 0], 2)
    for dtype in (I64, I32):
        yield call(ATEN.mm.default, x(3, 5, dtype=dtype), x(5, 4, dtype=dtype))
        yield call(ATEN.bmm.default, x(2, 3, 5, dtype=dtype), x(2, 5, 4, dtype=dtype))
    a, w = x(2, 6, 9, 8), x(12, 1, 3, 3)
    yield convolved(a, w, x(12), [1, 1], [1, 1], [1, 1], groups=6)
    yield convolved(last(a), w, None, [2, 2], [1, 1], [1, 1], groups=6)
    yield convolved(last(a), last(x(5, 6, 3, 3)), x(5), [1, 1], [1, 1], [1, 1])
    yield convolved(a, x(5, 6, 1, 1), x(5), [1, 1], [0, 0], [1, 1])
    yield convolved(x(2, 6, 9), x(6, 4, 3), x(4), [2], [1], [2], True, [1])
    yield call(ATEN.mm.default, x(1, 64), x(64, 33))
    yield call(ATEN.linear.default, x(64), x(7, 64))
    yield call(ATEN.mm.default, x(3, 0), x(0, 4))
    yield call(ATEN._cdist_forward.default, x(2, 3, 5), x(2, 4, 5), 2.0, None)
    yield call(ATEN._cdist_forward.default, x(3, 5), x(4, 5), 1.0, None)
    yield call(ATEN._cdist_forward.default, x(3, 5), x(4, 5), 3.0, None)
    yield call(ATEN._cdist_forward.default, x(3, 5), x(4, 5), math.inf, None)
    for norm in (0.0, 1.0, 2.0, 3.0, math.inf):
        yield call(ATEN._pdist_forward.default, x(5, 4), norm)
    gradient, i, w = x(2, 4, 4, 7), x(2, 6, 7, 8), x(4, 3, 3, 2)
    arguments = [gradient, i, w, [4], [2, 1], [1, 0], [1, 1], False, [0, 0], 2, [True, True, True]]
    yield Case("convolution_backward", ATEN.convolution_backward.default, arguments)


def convolved(i: Any, w: Any, b: Any, stride: Any, padding: Any, dilation: Any, transposed: bool = False, extra: Any = None, groups: int = 1) -> Case:
    """A convolution; its rank determines the length of each argument."""
    extra = extra or [0] * len(stride)
    return call(ATEN.convolution.default, i, w, b, stride, padding, dilation, transposed, extra, groups)


def resampled(x: Maker) -> Iterator[Case]:
    for dtype in FLOATS:
        a = x(2, 3, 4, 5, dtype=dtype)
        yield call(ATEN.upsample_bilinear2d.vec, a, [7, 9], False, None)
        yield call(ATEN.upsample_bilinear2d.vec, a, None, True, [2.0, 1.5])
        yield call(ATEN.upsample_nearest2d.vec, a, [7, 9], None)
        yield call(ATEN.upsample_nearest2d.vec, a, None, [2.0, 1.5])
        if dtype in (F32, torch.float64):
            yield call(ATEN._upsample_bilinear2d_aa.default, a, [7, 9], False)
    a = x(2, 3, 8, 9)
    yield call(ATEN.upsample_bilinear2d.vec, last(a), [5, 4], False, None)
    yield call(ATEN.upsample_nearest2d.vec, last(a), [5, 4], None)
    yield call(ATEN._upsample_bilinear2d_aa.default, a, [3, 5], False)
    yield call(ATEN._upsample_bilinear2d_aa.default, a, [3, 5], True)
    grid = x(2, 6, 7, 2, low=-1.3, high=1.3)
    for mode in range(3):
        for padding in range(3):
            for aligned in (False, True):
                yield call(ATEN.grid_sampler_2d.default, a, grid, mode, padding, aligned)
    for dtype in (torch.float64,):
        yield call(ATEN.grid_sampler_2d.default, a.to(dtype), grid.to(dtype), 0, 0, False)


def dynamic(x: Maker) -> Iterator[Case]:
    """Outputs whose planned maximum size is larger than the actual one."""
    for case in (
        call(ATEN.add.Tensor, x(3, 5), x(5)),
        call(ATEN.exp.default, x(3, 5)),
        call(ATEN.mm.default, x(3, 5), x(5, 4)),
        call(ATEN.sum.dim_IntList, x(3, 5), [1]),
        call(ATEN.cat.default, [x(2, 3), x(1, 3)], 0),
        call(ATEN.permute_copy.default, x(2, 3, 4), [2, 0, 1]),
        call(ATEN.slice_copy.Tensor, x(7, 3), 0, 1, 5, 2),
        call(ATEN.view_copy.default, x(2, 6), [3, 4]),
        call(ATEN.convolution.default, x(1, 2, 5, 5), x(3, 2, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        call(ATEN.native_layer_norm.default, x(2, 3, 5), [5], None, None, 1e-5),
        call(ATEN.topk.default, x.distinct(4, 6), 3),
        call(ATEN.embedding.default, x(6, 3), x(2, 4, dtype=I64, low=0, high=5)),
        call(ATEN.arange.start_step, 0, 5, 1),
        call(ATEN.full.default, [2, 3], 1.5),
        call(ATEN._softmax.default, x(3, 5), -1, False),
    ):
        yield grown(case)


#: The function that creates each family's cases.
FAMILIES = {
    made.__name__: made
    for made in (
        unary, binary, choices, created, shapes, indices, padded, reduced, pooled, complex_numbers, normalized, products,
        resampled, dynamic,
    )
}
