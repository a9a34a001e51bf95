"""Conversions between element types, and operators that query a type."""

import itertools
from collections.abc import Iterator

import torch

from .case import ALL, FLOATS, Case, case, free, of, program, real, whole


def cases() -> Iterator[Case]:
    for source, target in itertools.product(ALL, ALL):
        if source == target:
            continue
        # The conversion of negative and out-of-range numbers to uint8 is undefined.
        value = of(source, 3, 4)
        value = value.abs() if target == torch.uint8 and source != torch.bool else value
        yield case("aten._to_copy.default", value, dtype=target)
    for source, target in (
        (torch.float32, torch.float16),
        (torch.float32, torch.int64),
        (torch.int64, torch.float32),
        (torch.bool, torch.float32),
        (torch.float32, torch.bool),
        (torch.int32, torch.bool),
        (torch.float64, torch.float32),
        (torch.uint8, torch.float32),
    ):
        yield case("aten.to.dtype", of(source, 3, 4), target)
        yield case("aten.to.dtype_layout", of(source, 3, 4), dtype=target)
        yield case("aten.type_as.default", of(source, 3, 4), of(target, 2))
        yield case("aten.to.other", of(source, 3, 4), of(target, 2))
    for kind in ALL[:6]:
        yield case("aten.to.dtype", of(kind, 3, 4), kind)
        yield case("aten.to.device", of(kind, 3, 4), torch.device("cpu"), torch.float32)
    yield case("aten._to_copy.default", free(real, (3, 4), (5, 4)), dtype=torch.int32)
    yield case("aten._to_copy.default", torch.tensor([1.9, -1.9, 0.5, -0.5, 2.5]), dtype=torch.int64)
    yield case("aten._to_copy.default", torch.tensor([0.0, -0.0, 0.25, float("nan"), -3.0]), dtype=torch.bool)
    yield case("aten._to_copy.default", torch.tensor([60000.0, -60000.0, 1e-9]), dtype=torch.float16)
    yield case("aten._to_copy.default", torch.tensor([2**31 - 1, -(2**31), 0]), dtype=torch.int32)
    for first, second in itertools.combinations(FLOATS, 2):
        yield program("aten.mul.Tensor", lambda x, y: x * y, of(first, 3, 4), of(second, 3, 4))
    for kind in FLOATS:
        # Results of a narrow type are rounded to that type.
        yield program(
            "aten.linear.default", lambda x, w: torch.nn.functional.linear(x, w), of(kind, 3, 4), of(kind, 5, 4)
        )
        yield program("aten.layer_norm.default", lambda x: torch.nn.functional.layer_norm(x, [4]), of(kind, 3, 4))
    yield program("aten.item.default", lambda x, n: x * n.item(), real(3, 4), torch.tensor(3))
    yield program("aten.item.default", lambda x, n: x * n.item(), real(3, 4), torch.tensor(1.5))
    for kind in (torch.int64, torch.int32):

        def checked(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            count = n.item()
            torch._check(count >= 0)
            torch._check(count < 9)
            return x + count

        yield program("aten._assert_scalar.default", checked, real(3, 4), torch.tensor(3, dtype=kind))
    yield program("aten.numel.default", lambda x: x * x.numel(), real(3, 4))
    yield program("aten.sym_size.int", lambda x: x * x.shape[0], free(real, (3, 4), (5, 4)))
    yield program("aten.sym_numel.default", lambda x: x.sum() / x.numel(), free(real, (3, 4), (5, 4)))
    yield program("aten.to.dtype", lambda n: n.float() / 3, whole(3, 4))
    yield program("aten.to.dtype", lambda n: (n.float() * 0.5).long(), whole(3, 4))
    yield program("aten._assert_tensor_metadata.default", lambda x: x.to(torch.float32) + 1, real(3, 4))
