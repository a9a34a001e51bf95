"""Sorting and choosing the largest."""

import itertools
from collections.abc import Iterator

import torch

from .case import Case, case, free, program, whole


def distinct(*shape: int) -> torch.Tensor:
    """Numbers of which no two are equal, so that places are certain."""
    count = torch.Size(shape).numel()
    return torch.randperm(count).reshape(shape) / 4 - count / 8


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
            # In any order only what is chosen is certain, which its sum shows.
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
