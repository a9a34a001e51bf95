"""Padding in all modes."""

import itertools
from collections.abc import Iterator

import torch

from .case import Case, case, free, of, real

KINDS = (torch.float16, torch.float64, torch.int64, torch.int32, torch.bool, torch.uint8)


def cases() -> Iterator[Case]:
    for shape, pads in (
        ((5,), [1, 2]),
        ((3, 4), [1, 2]),
        ((3, 4), [1, 0, 0, 2]),
        ((2, 3, 4), [1, 1, 2, 0, 0, 1]),
        ((2, 3, 4, 5), [1, 2, 3, 4]),
        ((2, 2, 3, 4, 2), [1, 0, 0, 1]),
    ):
        for value in (0.0, 1.5, float("-inf"), -1):
            yield case("aten.constant_pad_nd.default", real(*shape), pads, value)
        yield case("aten.pad.default", real(*shape), pads)
        yield case("aten.pad.default", real(*shape), pads, "constant", 2.5)
    for shape, pads in (
        ((3, 4), [-1, 1]),
        ((3, 4), [-1, -1]),
        ((3, 4), [0, 0, -1, 0]),
        ((2, 3, 4, 5), [-1, 2, 1, -2]),
        ((3, 4), [0, 0]),
    ):
        yield case("aten.constant_pad_nd.default", real(*shape), pads)
    for kind in KINDS:
        yield case("aten.constant_pad_nd.default", of(kind, 3, 4), [1, 2], 1)
    yield case("aten.constant_pad_nd.default", free(real, (3, 4), (6, 4)), [1, 2, 0, 1])
    sizes = {1: (6,), 2: (5, 6), 3: (4, 5, 6)}
    for rank, batched in itertools.product((1, 2, 3), (True, False)):
        shape = (2, 3, *sizes[rank]) if batched else (3, *sizes[rank])
        for pads in ([1, 2] * rank, [2, 0] * rank, [0, 1] * rank):
            yield case(f"aten.reflection_pad{rank}d.default", real(*shape), pads)
            yield case(f"aten.replication_pad{rank}d.default", real(*shape), pads)
            for mode in ("reflect", "replicate", "circular"):
                yield case("aten.pad.default", real(*shape), pads, mode)
    for mode in ("reflect", "replicate", "circular"):
        yield case("aten.pad.default", free(real, (1, 3, 5, 6), (1, 3, 8, 6), least=3), [1, 1, 1, 1], mode)
