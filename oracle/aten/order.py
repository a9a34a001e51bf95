"""Sorting and selecting the largest."""

import itertools
from collections.abc import Iterator
from functools import partial

import torch

from .case import Case, case, free, program, real, whole


def distinct(*shape: int) -> torch.Tensor:
    """Random numbers without duplicates, so that the indices are unambiguous."""
    count = torch.Size(shape).numel()
    return torch.randperm(count).reshape(shape) / 4 - count / 8


def without_repetitions() -> Iterator[Case]:
    """Unique elements, sorted or in order of appearance."""
    options = [(True, False), (False, True)]
    for inverse, counts in options:
        for values in (whole(9, low=-2, high=2), whole(3, 4, low=0, high=5), real(2, 5).round()):
            yield program(
                "aten._unique2.default", lambda x, i=inverse, c=counts: torch.unique(x, True, i, c), values
            )
            yield program(
                "aten.unique_consecutive.default",
                lambda x, i=inverse, c=counts: torch.unique_consecutive(x, return_inverse=i, return_counts=c),
                values,
            )
        for axis, values in (
            (0, whole(6, 2, low=0, high=1)),
            (1, whole(2, 7, low=0, high=1)),
            (2, real(2, 2, 5, scale=0.5).round()),
            (0, whole(9, low=-2, high=2)),
        ):
            yield program(
                "aten.unique_dim.default",
                lambda x, a=axis, i=inverse, c=counts: torch.unique(x, True, i, c, dim=a),
                values,
            )
            yield program(
                "aten.unique_consecutive.default",
                lambda x, a=axis, i=inverse, c=counts: torch.unique_consecutive(x, return_inverse=i, return_counts=c, dim=a),
                values,
            )
    for kind in (torch.int32, torch.uint8, torch.float16, torch.float64):
        yield case("aten._unique2.default", whole(8, low=0, high=3).to(kind), True, True, True)
    yield case("aten._unique2.default", torch.tensor([True, False, True, True]), True, True, True)
    yield case("aten._unique2.default", torch.tensor([False, False]), taken=slice(0, 1))
    yield case("aten._unique.default", whole(8, low=0, high=3), True, True)
    yield case("aten._unique2.default", torch.tensor([3.0]), True, True, True)
    yield case("aten._unique2.default", torch.tensor(3.0), True, True, True)
    yield case("aten.unique_consecutive.default", torch.tensor([[3.0, 4.0]]), True, True, 0)
    # Numbers that fp16 cannot distinguish.
    yield case("aten._unique2.default", torch.tensor([1.0001, 1.0, 1.0001, 1.0002]), True, True, True)
    small = partial(whole, low=0, high=3)
    yield case("aten._unique2.default", free(small, (6,), (11,), least=2), True, True, True)
    yield case("aten.unique_dim.default", free(small, (6, 2), (11, 2), least=2), 0, True, True, True)
    yield case("aten.unique_consecutive.default", free(small, (6,), (11,), least=2), True, True)
    yield program("aten._unique2.default", lambda x: torch.unique(x).float().mean(), whole(9, low=-2, high=2))


def cases() -> Iterator[Case]:
    for (shape, axis), falling in itertools.product(
        (((7,), 0), ((3, 5), 1), ((3, 5), 0), ((2, 3, 4), -2), ((2, 2, 3, 4), 1)), (False, True)
    ):
        yield case("aten.sort.default", distinct(*shape), axis, falling)
        yield case("aten.sort.stable", distinct(*shape), stable=True, dim=axis, descending=falling)
        yield case("aten.argsort.default", distinct(*shape), axis, falling)
        yield case("aten.msort.default", distinct(*shape))
        for count in (1, 2):
            yield case("aten.topk.default", distinct(*shape), count, axis, falling)
            # With `sorted=False` only the set of selected elements is defined, so the sum is compared.
            yield program(
                "aten.topk.default",
                lambda x, c=count, a=axis, f=falling: x.topk(c, a, f, sorted=False)[0].sum(a),
                distinct(*shape),
            )
    for kind in (torch.int64, torch.int32, torch.float16, torch.float64, torch.uint8, torch.int16):
        values = torch.randperm(15).reshape(3, 5).to(kind)
        yield case("aten.sort.default", values, 1)
        yield case("aten.topk.default", values, 2)
        yield case("aten.argsort.default", values, 1)
    yield case("aten.topk.default", torch.tensor([3.0, 3.0, 1.0]), 2, taken=slice(0, 1))
    yield case("aten.sort.default", torch.tensor([float("inf"), 1.0, float("-inf"), 0.0]))
    yield case("aten.topk.default", free(distinct, (3, 5), (6, 5)), 2)
    yield case("aten.topk.default", free(distinct, (3, 5), (3, 9), least=3), 2)
    yield case("aten.sort.default", free(distinct, (3, 5), (6, 5)), 1)
    yield case("aten.sort.default", whole(3, 5), 1, taken=slice(0, 1))
    yield case("aten.sort.default", distinct(1, 1))
    for axis, index in ((1, 1), (1, 3), (0, 2)):
        yield case("aten.kthvalue.default", distinct(3, 5), index, axis)
    yield from without_repetitions()
