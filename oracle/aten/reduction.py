"""Sums, means, extremes, norms and cumulative reductions."""

import itertools
from collections.abc import Iterator

import torch
from torch._higher_order_ops.associative_scan import associative_scan

from .case import FLOATS, Case, case, flags, free, of, positive, program, real, unit, whole

#: Shape and dimensions.
OVER = [
    ((5,), [0]),
    ((3, 4), [1]),
    ((3, 4), [0, 1]),
    ((2, 3, 4), [-1]),
    ((2, 3, 4), [0, 2]),
    ((2, 3, 4, 2), [2, 3]),
    ((2, 1, 3, 2, 2), [1, -1]),
]
WIDE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

Pair = tuple[torch.Tensor, torch.Tensor]


def over_many() -> Iterator[Case]:
    """Reductions over a list of dimensions."""
    for name in ("sum.dim_IntList", "mean.dim", "amax.default", "amin.default", "logsumexp.default"):
        target = f"aten.{name}"
        for (shape, dims), keep in itertools.product(OVER, (False, True)):
            yield case(target, real(*shape), dims, keep)
        for kind in FLOATS[1:]:
            yield case(target, real(3, 4, kind=kind), [1])
        yield case(target, free(real, (3, 4), (5, 4)), [0])
        yield case(target, free(real, (3, 4), (5, 4)), [1], True)
    for name in ("sum.dim_IntList", "amax.default", "amin.default"):
        for kind in WIDE:
            yield case(f"aten.{name}", whole(3, 4, kind=kind), [1])
    yield case("aten.sum.dim_IntList", real(3, 4), [], True)
    yield case("aten.sum.dim_IntList", flags(3, 4), [1])
    yield case("aten.sum.dim_IntList", real(3, 4), [1], dtype=torch.float64)
    yield case("aten.sum.dim_IntList", whole(3, 4), [1], dtype=torch.float32)
    yield case("aten.mean.dim", whole(3, 4), [1], dtype=torch.float32)
    yield case("aten.mean.dim", real(3, 4), None)
    yield case("aten.amax.default", real(3, 4))
    yield case("aten.amax.default", flags(3, 4), [1])


def whole_tensor() -> Iterator[Case]:
    """Reductions over all dimensions."""
    for name in (
        "sum",
        "mean",
        "max",
        "min",
        "prod",
        "any",
        "all",
        "std",
        "var",
        "norm.Scalar",
        "median",
        "count_nonzero",
        "argmax",
        "argmin",
    ):
        target = f"aten.{name}" if "." in name else f"aten.{name}.default"
        for shape in ((5,), (3, 4), (2, 3, 2, 2)):
            yield case(target, flags(*shape) if name in ("any", "all") else real(*shape))
        if name not in ("norm.Scalar", "std", "var", "count_nonzero"):
            yield case(target, flags() if name in ("any", "all") else real())
        yield case(target, free(flags if name in ("any", "all") else real, (3, 4), (6, 4)))
    for kind in WIDE:
        for name in ("sum", "max", "min"):
            yield case(f"aten.{name}.default", whole(3, 4, kind=kind))
    for name in ("any", "all"):
        yield case(f"aten.{name}.default", torch.zeros(3, dtype=torch.bool))
        yield case(f"aten.{name}.default", torch.ones(3, dtype=torch.bool))
        yield case(f"aten.{name}.default", (real(3, 4) * (real(3, 4) > 2)))
        yield case(f"aten.{name}.default", whole(3, 4, low=0, high=1))
    yield case("aten.prod.default", whole(5, low=1, high=4))
    yield case("aten.sum.default", real(3, 4), dtype=torch.float64)
    yield case("aten.sum.default", flags(3, 4))
    yield case("aten.trace.default", real(4, 4))
    yield case("aten.norm.ScalarOpt_dim", real(3, 4), 2, [1], True)
    yield case("aten.norm.ScalarOpt_dim", real(3, 4), 1, [0])
    yield case("aten.frobenius_norm.dim", real(3, 4), [0, 1])


def over_one() -> Iterator[Case]:
    """Reductions over one dimension."""
    for name in ("max.dim", "min.dim", "median.dim", "mode.default"):
        for (shape, axis), keep in itertools.product((((5,), 0), ((3, 4), 1), ((2, 3, 4), -2)), (False, True)):
            values = torch.randperm(60)[: torch.Size(shape).numel()].reshape(shape) / 8 - 3
            yield case(f"aten.{name}", values, axis, keep)
    for name in ("max.dim", "min.dim"):
        yield case(f"aten.{name}", torch.randperm(12).reshape(3, 4), 1)
        yield case(f"aten.{name}", torch.randperm(12).reshape(3, 4).int(), 0)
        yield case(f"aten.{name}", real(3, 4), 1, taken=slice(0, 1))
    for name, (shape, axis), keep in itertools.product(
        ("argmax", "argmin"), (((5,), 0), ((3, 4), 1), ((3, 4), 0), ((2, 3, 4), -2), ((2, 3, 2, 2), 1)), (False, True)
    ):
        values = torch.randperm(60)[: torch.Size(shape).numel()].reshape(shape) / 8 - 3
        yield case(f"aten.{name}.default", values, axis, keep)
    for name in ("argmax", "argmin"):
        yield case(f"aten.{name}.default", torch.randperm(12).reshape(3, 4), 1)
        yield case(f"aten.{name}.default", torch.randperm(12).reshape(3, 4) / 4, None, True)
        yield case(f"aten.{name}.default", torch.tensor([1.0, 3.0, 3.0, 1.0]), 0)
        yield case(f"aten.{name}.default", free(real, (3, 4), (6, 4)), 1)
    for name in ("any", "all"):
        for (shape, axis), keep in itertools.product((((5,), 0), ((3, 4), 1), ((2, 3, 4), -2)), (False, True)):
            yield case(f"aten.{name}.dim", flags(*shape), axis, keep)
        yield case(f"aten.{name}.dims", flags(2, 3, 4), [0, 2])
        yield case(f"aten.{name}.dims", flags(2, 3, 4), None)
        yield case(f"aten.{name}.dim", whole(3, 4, low=0, high=1), 1)
        yield case(f"aten.{name}.dim", real(3, 4), 0)
    for (shape, axis), keep in itertools.product((((5,), 0), ((3, 4), 1), ((2, 3, 4), -2)), (False, True)):
        yield case("aten.prod.dim_int", real(*shape), axis, keep)
    yield case("aten.prod.dim_int", whole(3, 4, low=1, high=3), 1)
    yield case("aten.count_nonzero.dim_IntList", whole(3, 4, low=-1, high=1), [1])
    yield case("aten.nansum.default", torch.tensor([1.0, float("nan"), 2.0]))
    yield case("aten.aminmax.default", real(3, 4), dim=1)
    yield case("aten.aminmax.default", real(3, 4))
    yield case("aten.kthvalue.default", torch.randperm(12).reshape(3, 4) / 4, 2)


def moments() -> Iterator[Case]:
    """Variances and norms."""
    for name in ("var", "std"):
        for (shape, dims), keep, correction in itertools.product(OVER[1:5], (False, True), (0, 1)):
            yield case(f"aten.{name}.correction", real(*shape), dims, correction=correction, keepdim=keep)
        yield case(f"aten.{name}.correction", real(3, 4), None, correction=2)
        for unbiased in (False, True):
            yield case(f"aten.{name}.dim", real(3, 4), [1], unbiased, True)
            yield case(f"aten.{name}.default", real(3, 4), unbiased)
        yield case(f"aten.{name}.correction", free(real, (3, 4), (6, 4)), [0], correction=1)
        yield case(f"aten.{name}_mean.correction", real(3, 4), [1], correction=1)
        yield case(f"aten.{name}_mean.dim", real(3, 4), [0], False, True)
    for order in (1, 2, 3, 0.5, 0, float("inf"), float("-inf")):
        yield case("aten.linalg_vector_norm.default", real(3, 4), order)
        yield case("aten.linalg_vector_norm.default", real(2, 3, 4), order, [1], True)
        yield case("aten.linalg_vector_norm.default", real(2, 3, 4), order, [0, -1])
    yield case("aten.linalg_vector_norm.default", free(real, (3, 4), (6, 4)), 2, [1])
    yield case("aten.linalg_norm.default", real(2, 3, 4))
    yield case("aten.linalg_norm.default", real(2, 3, 4), None, [2, 0], True)
    yield case("aten.linalg_norm.default", real(2, 3, 4), 2, [-1], True)
    yield case("aten.linalg_norm.default", real(5), 3)
    for order in (1, -1, float("inf"), -float("inf")):
        yield case("aten.linalg_norm.default", real(3, 4), order)
        yield case("aten.linalg_matrix_norm.default", real(2, 3, 4), order, [2, 0], True)
    yield case("aten.linalg_norm.ord_str", real(2, 3, 4), "fro", [0, 2])
    yield case("aten.linalg_matrix_norm.str_ord", real(2, 3, 4))
    yield case("aten.renorm.default", real(3, 4), 2, 0, 1.0)


def cumulative() -> Iterator[Case]:
    """Cumulative sums and products."""
    for shape, axis in (((5,), 0), ((3, 4), 1), ((3, 4), 0), ((2, 3, 4), -2), ((2, 3, 2, 2), 1)):
        yield case("aten.cumsum.default", real(*shape), axis)
        yield case("aten.cumprod.default", unit(*shape), axis)
        yield case("aten.cummax.default", torch.randperm(60)[: torch.Size(shape).numel()].reshape(shape) / 4, axis)
        yield case("aten.cummin.default", torch.randperm(60)[: torch.Size(shape).numel()].reshape(shape) / 4, axis)
        yield case("aten.logcumsumexp.default", real(*shape), axis)
    for kind in (torch.int64, torch.int32, torch.bool, torch.float16, torch.float64, torch.uint8):
        yield case("aten.cumsum.default", of(kind, 3, 4), 1)
    yield case("aten.cumsum.default", whole(3, 4), 1, dtype=torch.float32)
    yield case("aten.cumsum.default", free(real, (3, 4), (3, 9)), 1)
    yield case("aten.cumsum.default", free(whole, (3, 4), (3, 9)), 1)
    yield case("aten.cumsum.default", real(), 0)
    yield case("aten.cumsum_.default", real(3, 4), 1)
    for shape, axis in (((5,), 0), ((3, 5), -1), ((4, 2, 3), 0)):
        yield case("aten.diff.default", real(*shape), 1, axis)
        yield case("aten.diff.default", real(*shape), 2, axis)
    yield case("aten.diff.default", whole(3, 5), 1, -1, whole(3, 1))
    yield case("aten.trapezoid.dx", real(3, 5), dx=0.5)
    yield case("aten.cumulative_trapezoid.dx", real(3, 5), dx=0.5)
    yield case("aten.cumulative_trapezoid.dx", real(4, 5, 2), dim=1)
    yield case("aten.cumulative_trapezoid.x", real(3, 5), real(5))
    yield case("aten.cumulative_trapezoid.x", real(4, 3), real(4, 3), dim=0)
    yield case("aten.histc.default", positive(20, low=0, high=4), 4, 0, 4)
    yield case(
        "aten.bincount.default", whole(12, low=0, high=4), None, 6, settings={"impossible": {"*": "not known before"}}
    )


def bounded() -> Iterator[Case]:
    """`renorm`: slices scaled down to a maximum norm."""
    for order, axis, bound in ((1, 1, 2.5), (3, -1, 1.0), (float("inf"), 0, 1.5), (2, 1, 100.0), (2, 0, 0.0)):
        yield case("aten.renorm.default", real(2, 3, 4), order, axis, bound)
    yield case("aten.renorm.default", torch.tensor([[0.0, 0.0], [3.0, 4.0]]), 2, 0, 2.0)
    yield case("aten.renorm.default", free(real, (3, 4), (6, 4)), 2, 0, 1.0)
    yield case("aten.renorm_.default", real(3, 4), 2, 0, 1.0)


def scans() -> Iterator[Case]:
    """Associative scans."""

    def line(first: Pair, second: Pair) -> Pair:
        return first[0] * second[0], first[1] * second[0] + second[1]

    for shape, axis, backward in (((5,), 0, True), ((3, 4), 1, True), ((7, 2, 3), 0, False)):
        yield program(
            "aten.associative_scan.sum",
            lambda x, a=axis, b=backward: associative_scan(lambda left, right: left + right, x, a, b),
            real(*shape),
        )
        yield program(
            "aten.associative_scan.line",
            lambda x, y, a=axis, b=backward: associative_scan(line, (x, y), a, b),
            unit(*shape),
            real(*shape),
        )
    # Functions that do not commute, integers, and a function that captures a tensor.
    yield program(
        "aten.associative_scan.last",
        lambda x: associative_scan(lambda left, right: torch.where(right == 0, left, right), x, 0),
        whole(9, 3, low=0, high=2),
    )
    yield program(
        "aten.associative_scan.bounded",
        lambda x, y: associative_scan(lambda left, right: torch.minimum(torch.maximum(left, right), y), x, 0),
        real(6, 4),
        real(4) + 1,
    )


def cases() -> Iterator[Case]:
    yield from over_many()
    yield from whole_tensor()
    yield from over_one()
    yield from moments()
    yield from cumulative()
    yield from bounded()
    yield from scans()
