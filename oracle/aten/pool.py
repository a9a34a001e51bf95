"""Pooling, sliding windows and their inverses."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from .case import FLOATS, Case, case, free, of, real, whole

SIZES = {1: (11,), 2: (8, 9), 3: (5, 6, 7)}
#: Kernel, stride, padding, dilation, `ceil_mode`.
MAXIMA = [
    (2, 2, 0, 1, False),
    (3, 2, 1, 1, False),
    (3, 1, 1, 1, False),
    (3, 2, 0, 1, True),
    (2, 1, 0, 2, False),
    (3, 2, 1, 2, True),
]
#: Kernel, stride, padding, `ceil_mode`, `count_include_pad`.
MEANS = [
    (2, 2, 0, False, True),
    (3, 2, 1, False, True),
    (3, 2, 1, False, False),
    (3, 2, 0, True, True),
    (3, 2, 1, True, False),
    (3, 2, 1, True, True),
    (3, 1, 1, False, True),
]


def distinct(*shape: int) -> torch.Tensor:
    """Random numbers without duplicates, so that the indices are unambiguous."""
    count = torch.Size(shape).numel()
    return torch.randperm(count).reshape(shape) / 8 - count / 16


def each(value: int, rank: int) -> list[int]:
    """The same value for every spatial dimension."""
    return [value] * rank


def cases() -> Iterator[Case]:
    for rank in (1, 2, 3):
        size = SIZES[rank]
        for kernel, stride, padding, dilation, up in MAXIMA:
            arguments: tuple[Any, ...] = (
                each(kernel, rank),
                each(stride, rank),
                each(padding, rank),
                each(dilation, rank),
                up,
            )
            yield case(f"aten.max_pool{rank}d.default", real(2, 3, *size), *arguments)
            with_indices = f"aten.max_pool{rank}d_with_indices.default"
            yield case(with_indices, distinct(1, 3, *size), *arguments)
            yield case(with_indices, real(2, 3, *size), *arguments, taken=slice(0, 1))
        yield case(f"aten.max_pool{rank}d.default", real(2, 3, *size), each(2, rank))
        yield case(f"aten.max_pool{rank}d.default", real(3, *size), each(2, rank))
        for kernel, stride, padding, up, counts in MEANS:
            arguments = (each(kernel, rank), each(stride, rank), each(padding, rank), up, counts)
            yield case(f"aten.avg_pool{rank}d.default", real(2, 3, *size), *arguments)
            if rank > 1:
                yield case(f"aten.avg_pool{rank}d.default", real(2, 3, *size), *arguments, 5)
        yield case(f"aten.avg_pool{rank}d.default", real(2, 3, *size), each(2, rank))
        yield case(f"aten.avg_pool{rank}d.default", real(3, *size), each(3, rank), each(1, rank))
        for out in (1, 2, 3, tuple(range(2, 2 + rank)), size):
            wanted = list(out) if isinstance(out, tuple) else each(out, rank)
            yield case(f"aten.adaptive_avg_pool{rank}d.default", real(2, 3, *size), wanted)
            yield case(f"aten.adaptive_max_pool{rank}d.default", distinct(1, 3, *size), wanted)
            if rank > 1:
                yield case(f"aten._adaptive_avg_pool{rank}d.default", real(2, 3, *size), wanted)
        yield case(f"aten.adaptive_avg_pool{rank}d.default", free(real, (2, 3, *size), (4, 3, *size)), each(1, rank))
    yield case("aten.max_pool2d.default", real(1, 3, 8, 9), [3, 2], [2, 1], [1, 0])
    yield case("aten.avg_pool2d.default", real(1, 3, 8, 9), [3, 2], [2, 1], [1, 0])
    yield case("aten.max_pool2d.default", free(real, (1, 3, 8, 9), (1, 3, 12, 9), least=4), [2, 2])
    yield case("aten.avg_pool2d.default", free(real, (1, 3, 8, 9), (1, 3, 12, 9), least=4), [2, 2])
    yield case("aten.adaptive_avg_pool2d.default", free(real, (1, 3, 8, 9), (1, 3, 12, 9), least=4), [1, 1])
    for kind in FLOATS[1:]:
        yield case("aten.max_pool2d.default", of(kind, 1, 3, 8, 9), [2, 2])
        yield case("aten.avg_pool2d.default", of(kind, 1, 3, 8, 9), [2, 2])
    yield case("aten.max_pool2d.default", whole(1, 3, 8, 9), [2, 2])
    yield case(
        "aten.lp_pool2d.default" if hasattr(torch.ops.aten, "lp_pool2d") else "aten.avg_pool2d.default",
        real(1, 3, 8, 9),
        [3, 3],
    )
    for kernel, dilation, padding, stride in (
        ((2, 2), 1, 0, 1),
        ((3, 3), 1, 1, 2),
        ((2, 3), 2, 1, 1),
        ((1, 1), 1, 0, 1),
    ):
        yield case(
            "aten.im2col.default", real(2, 3, 6, 7), list(kernel), each(dilation, 2), each(padding, 2), each(stride, 2)
        )
    for size, kernel, padding, stride in itertools.product(((6, 8),), (2, 4), (0, 1), (1, 2)):
        rows, columns = ((one + 2 * padding - kernel) // stride + 1 for one in size)
        yield case(
            "aten.col2im.default",
            real(2, 3 * kernel * kernel, rows * columns),
            list(size),
            each(kernel, 2),
            each(1, 2),
            each(padding, 2),
            each(stride, 2),
        )
    pooled, places = torch.nn.functional.max_pool2d(distinct(1, 3, 8, 8), 2, return_indices=True)
    yield case("aten.max_unpool2d.default", pooled, places, [8, 8])
