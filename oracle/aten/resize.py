"""Interpolation and grid sampling."""

import itertools
from collections.abc import Iterator

import torch
from torch.nn import functional

from .case import Case, case, free, of, positive, program, real

#: Rounding selects edges and neighbors there, so fp16 is not tested.
JUMPS = {"precisions": ("fp32",)}


def grids(*shape: int) -> torch.Tensor:
    """Sampling coordinates inside the image and slightly outside it."""
    return positive(*shape, 2, low=-1.25, high=1.25)


def cases() -> Iterator[Case]:
    for size, scales in (
        ([13, 9], None),
        ([4, 3], None),
        (None, [2.0, 2.0]),
        (None, [1.5, 2.5]),
        (None, [0.5, 0.5]),
        ([12, 18], None),
    ):
        yield case("aten.upsample_nearest2d.vec", real(2, 3, 6, 9), size, scales)
        yield case("aten._upsample_nearest_exact2d.vec", real(2, 3, 6, 9), size, scales)
        for corners in (False, True):
            yield case("aten.upsample_bilinear2d.vec", real(2, 3, 6, 9), size, corners, scales)
            yield case("aten.upsample_bicubic2d.vec", real(2, 3, 6, 9), size, corners, scales)
            yield case("aten._upsample_bilinear2d_aa.vec", real(2, 3, 6, 9), size, corners, scales)
            yield case("aten._upsample_bicubic2d_aa.vec", real(2, 3, 6, 9), size, corners, scales)
    for size, scales in (([13], None), (None, [2.0]), ([4], None), (None, [1.5])):
        yield case("aten.upsample_nearest1d.vec", real(2, 3, 7), size, scales)
        for corners in (False, True):
            yield case("aten.upsample_linear1d.vec", real(2, 3, 7), size, corners, scales)
    for size, scales in (([6, 8, 10], None), (None, [2.0, 2.0, 2.0])):
        yield case("aten.upsample_nearest3d.vec", real(1, 2, 3, 4, 5), size, scales)
        for corners in (False, True):
            yield case("aten.upsample_trilinear3d.vec", real(1, 2, 3, 4, 5), size, corners, scales)
    yield case("aten.upsample_nearest2d.default", real(1, 2, 4, 5), [8, 10])
    yield case("aten.upsample_bilinear2d.default", real(1, 2, 4, 5), [8, 10], False)
    for kind in (torch.float16, torch.uint8, torch.float64):
        yield case("aten.upsample_nearest2d.vec", of(kind, 1, 2, 4, 5), None, [2.0, 2.0])
    yield case("aten.upsample_nearest2d.vec", free(real, (1, 2, 4, 5), (1, 2, 6, 7), least=2), None, [2.0, 2.0])
    yield case("aten.upsample_bilinear2d.vec", free(real, (1, 2, 4, 5), (1, 2, 6, 7), least=2), None, False, [2.0, 2.0])
    yield case("aten.upsample_bilinear2d.vec", free(real, (1, 2, 4, 5), (1, 2, 6, 7), least=2), [8, 8], False, None)
    for mode in ("area", "nearest", "bilinear", "bicubic"):
        yield program(
            "aten.interpolate", lambda x, m=mode: functional.interpolate(x, size=(5, 7), mode=m), real(1, 2, 8, 9)
        )
    for mode, padding, corners in itertools.product((0, 1, 2), (0, 1, 2), (False, True)):
        settings = JUMPS if mode == 1 else {}
        yield case(
            "aten.grid_sampler.default", real(2, 3, 5, 6), grids(2, 4, 3), mode, padding, corners, settings=settings
        )
        if mode < 2:
            yield case(
                "aten.grid_sampler_2d.default",
                real(1, 2, 5, 6),
                grids(1, 4, 3),
                mode,
                padding,
                corners,
                settings=settings,
            )
    yield case(
        "aten.grid_sampler_3d.default", real(1, 2, 3, 4, 5), positive(1, 2, 3, 4, 3, low=-1, high=1), 0, 0, False
    )
    for corners in (False, True):
        yield case("aten.affine_grid_generator.default", real(2, 2, 3), [2, 3, 4, 5], corners)
