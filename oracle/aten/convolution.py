"""Convolutions with all their arguments, direct and transposed, in one to three dimensions."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from .case import FLOATS, Case, Weight, case, free, of, real

#: Stride, padding, dilation, groups.
DIRECT = [(1, 0, 1, 1), (2, 1, 1, 1), (1, 2, 2, 1), (1, 1, 1, 2), (3, 0, 1, 1), (2, 2, 2, 2), (1, 1, 1, 4)]
#: Stride, padding, output padding, groups, dilation.
TURNED = [
    (1, 0, 0, 1, 1),
    (2, 1, 1, 1, 1),
    (2, 0, 0, 2, 1),
    (3, 1, 2, 1, 1),
    (1, 1, 0, 1, 2),
    (2, 1, 1, 4, 1),
    (2, 0, 1, 1, 2),
]
SIZES = {1: (11,), 2: (8, 9), 3: (5, 6, 7)}


def each(value: int, rank: int) -> list[int]:
    """The same value for every spatial dimension."""
    return [value] * rank


def cases() -> Iterator[Case]:
    for rank in (1, 2, 3):
        size, kernel = SIZES[rank], (3,) * rank
        for (stride, padding, dilation, groups), bias in itertools.product(DIRECT, (True, False)):
            extra: tuple[Any, ...] = (Weight(real(8)),) if bias else (None,)
            weight = Weight(real(8, 4 // groups, *kernel))
            yield case(
                f"aten.conv{rank}d.default",
                real(2, 4, *size),
                weight,
                *extra,
                each(stride, rank),
                each(padding, rank),
                each(dilation, rank),
                groups,
            )
            if rank < 3 or bias:
                yield case(
                    "aten.convolution.default",
                    real(2, 4, *size),
                    weight,
                    *extra,
                    each(stride, rank),
                    each(padding, rank),
                    each(dilation, rank),
                    False,
                    each(0, rank),
                    groups,
                )
        for (stride, padding, more, groups, dilation), bias in itertools.product(TURNED, (True, False)):
            if rank == 3 and not bias:
                continue
            extra = (Weight(real(8)),) if bias else (None,)
            weight = Weight(real(4, 8 // groups, *kernel))
            name = f"aten.conv_transpose{rank}d.{'default' if rank == 1 else 'input'}"
            yield case(
                name,
                real(2, 4, *size),
                weight,
                *extra,
                each(stride, rank),
                each(padding, rank),
                each(more, rank),
                groups,
                each(dilation, rank),
            )
            yield case(
                "aten.convolution.default",
                real(2, 4, *size),
                weight,
                *extra,
                each(stride, rank),
                each(padding, rank),
                each(dilation, rank),
                True,
                each(more, rank),
                groups,
            )
        for how in ("same", "valid"):
            yield case(
                f"aten.conv{rank}d.padding",
                real(2, 4, *size),
                Weight(real(6, 4, *kernel)),
                Weight(real(6)),
                each(1, rank),
                how,
            )
            yield case(
                f"aten.conv{rank}d.padding",
                real(2, 4, *size),
                Weight(real(6, 4, *[4] * rank)),
                None,
                each(1, rank),
                how,
            )
        # An image without a batch dimension.
        yield case(f"aten.conv{rank}d.default", real(4, *size), Weight(real(6, 4, *kernel)))
        yield case(f"aten.conv{rank}d.default", real(2, 4, *size), real(6, 4, *kernel), real(6))
        yield case(f"aten.conv{rank}d.default", free(real, (2, 4, *size), (3, 4, *size)), Weight(real(6, 4, *kernel)))
    yield case("aten.conv2d.default", real(1, 4, 8, 9), Weight(real(6, 4, 3, 1)), None, [2, 1], [1, 0], [1, 2])
    yield case(
        "aten.conv2d.default", real(1, 4, 8, 9), Weight(real(6, 4, 1, 5)), Weight(real(6)), [1, 3], [0, 2], [1, 1]
    )
    yield case("aten.conv2d.default", real(1, 4, 8, 9), Weight(real(6, 4, 8, 9)))
    yield case("aten.conv2d.default", real(1, 4, 8, 9), Weight(real(6, 4, 1, 1)), Weight(real(6)))
    yield case(
        "aten.conv2d.default",
        free(real, (1, 3, 8, 9), (1, 3, 12, 9), least=4),
        Weight(real(6, 3, 3, 3)),
        None,
        [2, 2],
        [1, 1],
    )
    yield case("aten.conv1d.default", free(real, (1, 3, 9), (1, 3, 14), least=4), Weight(real(6, 3, 3)), None, [2], [1])
    yield case("aten.conv1d.default", real(1, 3, 100), Weight(real(2, 3, 70)))
    yield case("aten.conv_transpose2d.input", real(1, 4, 5, 6), Weight(real(4, 3, 2, 4)), None, [2, 3], [0, 1], [1, 0])
    yield case("aten.conv_transpose2d.input", real(1, 4, 5, 6), real(4, 3, 3, 3), real(3))
    for kind in FLOATS[1:]:
        yield case("aten.conv2d.default", of(kind, 1, 4, 8, 9), Weight(of(kind, 6, 4, 3, 3)), Weight(of(kind, 6)))
    yield case("aten.conv2d.default", real(1, 4, 8, 9).to(memory_format=torch.channels_last), Weight(real(6, 4, 3, 3)))
    yield case("aten.conv_tbc.default", real(9, 2, 4), Weight(real(3, 4, 5)), Weight(real(5)), 1)
