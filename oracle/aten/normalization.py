"""Normalizations, as layers and as the operators that decomposition leaves."""

import itertools
from collections.abc import Iterator

import torch

from .case import FLOATS, Case, Weight, case, free, of, positive, real

FIRST = slice(0, 1)


def cases() -> Iterator[Case]:
    for shape, affine in itertools.product(((4, 6), (2, 6, 5), (2, 6, 4, 5), (2, 6, 3, 4, 2)), (True, False)):
        weights = (Weight(positive(6)), Weight(real(6))) if affine else (None, None)
        statistics = (Weight(real(6)), Weight(positive(6)))
        yield case("aten.batch_norm.default", real(*shape), *weights, *statistics, False, 0.1, 1e-5, False)
        yield case(
            "aten._native_batch_norm_legit_no_training.default",
            real(*shape),
            *weights,
            *statistics,
            0.1,
            1e-3,
            taken=FIRST,
        )
        yield case(
            "aten._native_batch_norm_legit.default", real(*shape), *weights, *statistics, False, 0.1, 1e-3, taken=FIRST
        )
        yield case("aten._native_batch_norm_legit.no_stats", real(*shape), *weights, True, 0.1, 1e-3, taken=FIRST)
    yield case(
        "aten.batch_norm.default",
        free(real, (2, 6, 4), (3, 6, 4)),
        Weight(positive(6)),
        Weight(real(6)),
        Weight(real(6)),
        Weight(positive(6)),
        False,
        0.1,
        1e-5,
        False,
    )
    yield case(
        "aten.batch_norm.default", real(2, 6, 4), positive(6), real(6), real(6), positive(6), False, 0.1, 1e-5, False
    )
    for shape, over, affine in itertools.product(((3, 6), (2, 3, 6), (2, 2, 3, 6)), (1, 2), (True, False)):
        over_shape = list(shape[-over:])
        weights = (Weight(positive(*over_shape)), Weight(real(*over_shape))) if affine else (None, None)
        yield case("aten.layer_norm.default", real(*shape), over_shape, *weights, 1e-5)
        yield case("aten.native_layer_norm.default", real(*shape), over_shape, *weights, 1e-5, taken=FIRST)
    yield case("aten.native_layer_norm.default", real(3, 6), [6], None, None, 1e-5)
    yield case("aten.layer_norm.default", real(3, 6), [6], Weight(positive(6)), None)
    yield case("aten.layer_norm.default", free(real, (3, 6), (7, 6)), [6], Weight(positive(6)), Weight(real(6)))
    yield case("aten.layer_norm.default", real(3, 6), [6], positive(6), real(6))
    yield case("aten.layer_norm.default", real(3, 6), [6], Weight(positive(6)), Weight(real(6)), 1e-12)
    yield case("aten.layer_norm.default", real(3, 6, scale=80), [6], Weight(positive(6)), Weight(real(6)), 1e-5)
    for shape, groups, affine in itertools.product(
        ((2, 6), (2, 6, 4), (2, 6, 4, 5), (1, 6, 2, 3, 4)), (1, 2, 6), (True, False)
    ):
        if len(shape) == 2 and groups == 6:
            continue
        weights = (Weight(positive(6)), Weight(real(6))) if affine else (None, None)
        yield case("aten.group_norm.default", real(*shape), groups, *weights, 1e-5)
        if len(shape) > 2:
            inner = torch.Size(shape[2:]).numel()
            yield case(
                "aten.native_group_norm.default", real(*shape), *weights, shape[0], 6, inner, groups, 1e-5, taken=FIRST
            )
    for shape, affine in itertools.product(((2, 6, 5), (2, 6, 4, 5), (1, 6, 2, 3, 4)), (True, False)):
        weights = (Weight(positive(6)), Weight(real(6))) if affine else (None, None)
        yield case("aten.instance_norm.default", real(*shape), *weights, None, None, True, 0.1, 1e-5, False)
    yield case(
        "aten.instance_norm.default",
        real(2, 6, 4),
        None,
        None,
        Weight(real(6)),
        Weight(positive(6)),
        False,
        0.1,
        1e-5,
        False,
    )
    for shape, epsilon in itertools.product(((3, 6), (2, 3, 6)), (1e-6, None)):
        yield case("aten.rms_norm.default", real(*shape), [6], Weight(positive(6)), epsilon)
        yield case("aten.rms_norm.default", real(*shape), [6], None, epsilon)
    yield case("aten.rms_norm.default", real(3, 6, scale=300), [6], Weight(positive(6)), 1e-6)
    for kind in FLOATS[1:]:
        yield case("aten.layer_norm.default", of(kind, 3, 6), [6], Weight(positive(6, kind=kind)), Weight(of(kind, 6)))
        yield case("aten.group_norm.default", of(kind, 2, 6, 4), 2, Weight(positive(6, kind=kind)), Weight(of(kind, 6)))
        yield case("aten.rms_norm.default", of(kind, 3, 6), [6], Weight(positive(6, kind=kind)))
    yield case("aten._weight_norm.default", Weight(real(5, 4)), Weight(positive(5, 1)), 0)
    yield case("aten._weight_norm.default", Weight(real(5, 4, 3)), Weight(positive(1, 1, 3)), 2)
    yield case("aten._weight_norm.default", real(5, 4), positive(5, 1), 0)
    for size in (3, 5):
        yield case(
            "aten.batch_norm.default",
            real(2, 6),
            None,
            None,
            Weight(real(6)),
            Weight(positive(6)),
            False,
            0.1,
            10.0**-size,
            False,
        )
