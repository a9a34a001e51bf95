"""Comparisons, `where` and masks."""

import itertools
from collections.abc import Iterator

import torch

from .case import Case, Weight, case, flags, free, of, program, real, whole

NAMES = ("eq", "ne", "lt", "le", "gt", "ge")
KINDS = (torch.float32, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8)


def cases() -> Iterator[Case]:
    for name in NAMES:
        for kind in KINDS:
            left = of(kind, 3, 4)
            yield case(f"aten.{name}.Tensor", left, torch.where(flags(3, 4), left, of(kind, 3, 4)))
            yield case(f"aten.{name}.Scalar", whole(3, 4, low=0, high=4).to(kind), 2)
        yield case(f"aten.{name}.Tensor", real(2, 1, 4), real(3, 1))
        yield case(f"aten.{name}.Tensor", real(3, 4), whole(3, 4, low=-2, high=2))
        yield case(
            f"aten.{name}.Tensor",
            torch.tensor([float("nan"), 1.0, float("inf")]),
            torch.tensor([float("nan"), 1.0, 2.0]),
        )
        yield case(f"aten.{name}.Scalar", real(3, 4), 0.5)
        yield case(f"aten.{name}.Scalar", whole(3, 4), 0.5)
        yield case(f"aten.{name}.Tensor", free(real, (3, 4), (6, 4)), real(4))
        yield case(f"aten.{name}.Tensor", real(), real())
    for name in ("eq", "ne"):
        yield case(f"aten.{name}.Tensor", flags(3, 4), flags(4))
        yield case(f"aten.{name}.Scalar", flags(3, 4), 1)
    for kind in (
        torch.float32,
        torch.float16,
        torch.float64,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.int8,
        torch.bool,
    ):
        yield case("aten.where.self", flags(3, 4), of(kind, 3, 4), of(kind, 4))
    yield case("aten.where.self", flags(3, 1), real(4), real(2, 3, 1))
    yield case("aten.where.self", flags(3, 4), real(3, 4), whole(3, 4))
    yield case("aten.where.self", flags(3, 4), real(), real(3, 4))
    yield case("aten.where.self", flags(3, 4), Weight(real(4)), real(4))
    yield case("aten.where.self", free(flags, (3, 4), (5, 4)), real(4), real(4))
    for value in (0.5, float("-inf"), float("nan"), 1):
        yield case("aten.where.ScalarOther", flags(3, 4), real(3, 4), value)
        yield case("aten.where.ScalarSelf", flags(3, 4), value, real(3, 4))
        yield case("aten.masked_fill.Scalar", real(3, 4), flags(3, 4), value)
        yield case("aten.masked_fill_.Scalar", real(3, 4), flags(4), value)
    yield case("aten.where.Scalar", flags(3, 4), 1.5, -0.5)
    yield case("aten.masked_fill.Tensor", real(3, 4), flags(3, 4), real())
    for kind in (torch.int64, torch.float16, torch.bool, torch.int8):
        yield case("aten.masked_fill.Scalar", of(kind, 3, 4), flags(3, 1), 1)
    yield case("aten.masked_fill.Scalar", free(real, (3, 4), (6, 4)), flags(4), -1.0)
    yield case("aten.isclose.default", real(3, 4), real(3, 4))
    yield case("aten.isin.Tensor_Tensor", whole(3, 4), torch.tensor([1, -3, 7]))
    for size, value in itertools.product((3, 4), (-5.0, 0.0)):
        # Comparisons that feed arithmetic, as masks do.
        yield program("aten.gt.Scalar", lambda x, v=value: (x > v).float() * x + (x <= v).to(x.dtype), real(size, 5))
    yield program("aten.where.self", lambda x: torch.where(x > 0, x, x * 0.1), real(3, 4))
    yield program("aten.bitwise_and.Tensor", lambda x: ((x > -1) & (x < 1)).sum(), real(3, 4))
