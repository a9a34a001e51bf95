"""Convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .language import IOS15, IOS16, IOS17, IOS18, REFUSED, Instance, Operand, const, filled, gives, instance, tensor

OPERATIONS = ("conv", "conv_transpose")

FLOATS = ("fp16", "fp32")


def instances() -> Iterator[Instance]:
    for opset in (IOS15, IOS17):
        yield from _conv(opset)
        yield from _conv_transpose(opset)
    yield from _conv_of_later_opsets()
    yield from _conv_transpose_of_later_opsets()


def ints(*values: int) -> Operand:
    return const("int32", list(values)) if values else filled("int32", 0)


def pad_type(name: str) -> Operand:
    return const("string", name)


def _conv(opset: str) -> Iterator[Instance]:
    def conv(label: str, x: Operand, weight: Operand | None, **more: Any) -> Instance:
        return instance("conv", opset, label, x=x, weight=weight, **more)

    for dtype in FLOATS:
        yield conv(f"line-{dtype}", tensor(dtype, 2, 4, 9), filled(dtype, 6, 4, 3))
        yield conv(
            f"plane-{dtype}",
            tensor(dtype, 1, 4, 9, 11),
            filled(dtype, 6, 4, 3, 2),
            bias=filled(dtype, 6),
            strides=ints(2, 3),
            pad_type=pad_type("custom"),
            pad=ints(1, 0, 2, 1),
        )
        yield conv(f"space-{dtype}", tensor(dtype, 1, 2, 5, 6, 7), filled(dtype, 3, 2, 2, 3, 4))
    image, weight = tensor("fp32", 1, 4, 9, 11), filled("fp32", 6, 4, 3, 2)
    grouped = filled("fp32", 8, 1, 3, 3)
    yield conv("depthwise", image, grouped, groups=const("int32", 4), strides=ints(2, 2))
    yield conv("groups", image, filled("fp32", 6, 2, 3, 3), groups=const("int32", 2))
    yield conv("same", image, weight, pad_type=pad_type("same"), strides=ints(2, 4))
    yield conv("same-far", image, weight, pad_type=pad_type("same"), strides=ints(4, 6))
    yield conv("same-dilated", image, weight, pad_type=pad_type("same"), dilations=ints(2, 3), strides=ints(2, 2))
    yield conv("dilated", image, weight, dilations=ints(2, 4), strides=ints(1, 2))
    yield conv("pad-without-custom", image, weight, pad_type=pad_type("valid"), pad=ints(1, 1, 1, 1))
    yield conv("negative-pad", image, weight, pad_type=pad_type("custom"), pad=ints(-1, 0, 0, -2))
    yield conv("open-batch", tensor("fp32", "s0", 4, 9, 11), weight)
    yield conv("open-plane", tensor("fp32", "s0", 4, "s1", "s2"), weight, strides=ints(2, 1))
    yield conv("open-same", tensor("fp32", 1, 4, "s1", 11), weight, strides=ints(2, 3), pad_type=pad_type("same"))
    yield conv("open-channels", tensor("fp32", 1, "s0", 9, 11), weight)
    yield conv("computed-weight", image, tensor("fp32", 6, 4, 3, 2))
    yield conv("from-constants", filled("fp32", 1, 4, 9, 11), weight)
    yield conv("of-constant", image, gives("abs", x=filled("fp32", 6, 4, 3, 2)), dilations=ints(2, 2))

    yield conv("dilated-computed", image, tensor("fp32", 6, 4, 3, 2), dilations=ints(2, 2))
    yield conv("open-groups", image, weight, groups=tensor("int32"))
    yield conv("groups-do-not-divide", image, weight, groups=const("int32", 3))
    yield conv("groups-zero", image, weight, groups=const("int32", 0))
    yield conv("channels", image, filled("fp32", 6, 3, 3, 2))
    yield conv("channels-of-groups", image, weight, groups=const("int32", 2))
    yield conv("bias", image, weight, bias=filled("fp32", 5))
    yield conv("bias-rank0", image, weight, bias=const("fp32", 1.0))
    yield conv("bias-rank2", image, weight, bias=filled("fp32", 6, 1))
    yield conv("kernel-too-large", image, filled("fp32", 6, 4, 10, 2))
    yield conv("kernel-rank", image, filled("fp32", 6, 4, 3))
    yield conv("strides-short", image, weight, strides=ints(2))
    yield conv("strides-zero", image, weight, strides=ints(1, 0))
    yield conv("dilations-short", image, weight, dilations=ints(2))
    yield conv("pad-short", image, weight, pad_type=pad_type("custom"), pad=ints(1, 1))
    yield conv("pad-type", image, weight, pad_type=pad_type("full"))
    yield conv("pad-type-upper", image, weight, pad_type=pad_type("SAME"))
    yield conv("int32", tensor("int32", 1, 4, 9), filled("int32", 6, 4, 3))
    yield conv("missing", image, None)
    yield conv("rank1", tensor("fp32", 4), weight)
    yield conv(
        "open-channels-of-weight",
        image,
        tensor("fp32", 6, "s0", 3, 2),
        because="the open dimension may well be the right one",
        instead={"outputs": [{"dtype": "fp32", "shape": [1, 6, 7, 10]}]},
    )
    lax = "coremltools does not check it; Core ML convolves over one to three dimensions"
    yield conv("rank2", tensor("fp32", 1, 4), filled("fp32", 6, 4))
    yield conv(
        "rank6", tensor("fp32", 1, 2, 3, 3, 3, 3), filled("fp32", 6, 2, 1, 1, 1, 1), because=lax, instead=REFUSED
    )
    yield conv(
        "groups-do-not-divide-outputs",
        image,
        filled("fp32", 7, 2, 3, 2),
        groups=const("int32", 2),
        because="coremltools does not check it; each group gives as many output channels",
        instead=REFUSED,
    )
    backwards = "coremltools computes on with it; a window can only move forwards"
    yield conv("strides-negative", image, weight, strides=ints(1, -1))
    yield conv("dilations-zero", image, weight, dilations=ints(0, 1), because=backwards, instead=REFUSED)


def _conv_of_later_opsets() -> Iterator[Instance]:
    image, weight = tensor("fp32", 1, 4, 9, 11), filled("fp32", 6, 4, 3, 2)
    for opset in (IOS15, IOS16, IOS17):
        yield instance("conv", opset, "same-lower", x=image, weight=weight, pad_type=pad_type("same_lower"))
    half = tensor("fp16", 1, 4, 9, 11)
    for opset in (IOS16, IOS17, IOS18):
        yield instance("conv", opset, "mixed", x=half, weight=weight, bias=filled("fp32", 6))
        yield instance("conv", opset, "mixed-bias", x=half, weight=filled("fp16", 6, 4, 3, 2), bias=filled("fp32", 6))
        yield instance("conv", opset, "computed-bias", x=image, weight=weight, bias=tensor("fp32", 6))
        yield instance("conv", opset, "int8", x=tensor("int8", 1, 4, 9), weight=filled("int8", 6, 4, 3))
    yield instance(
        "conv",
        IOS17,
        "open-bias",
        x=image,
        weight=weight,
        bias=tensor("fp32", "s0"),
        because="the open dimension may well be the right one",
        instead={"outputs": [{"dtype": "fp32", "shape": [1, 6, 7, 10]}]},
    )


def _conv_transpose(opset: str) -> Iterator[Instance]:
    def conv(label: str, x: Operand, weight: Operand | None, **more: Any) -> Instance:
        return instance("conv_transpose", opset, label, x=x, weight=weight, **more)

    for dtype in FLOATS:
        yield conv(f"line-{dtype}", tensor(dtype, 2, 4, 9), filled(dtype, 4, 6, 3))
        yield conv(
            f"plane-{dtype}",
            tensor(dtype, 1, 4, 9, 11),
            filled(dtype, 4, 6, 3, 2),
            bias=filled(dtype, 6),
            strides=ints(2, 3),
            pad_type=pad_type("custom"),
            pad=ints(1, 0, 2, 1),
        )
        yield conv(f"space-{dtype}", tensor(dtype, 1, 2, 5, 6, 7), filled(dtype, 2, 3, 2, 3, 4))
    image, weight = tensor("fp32", 1, 4, 9, 11), filled("fp32", 4, 6, 3, 2)
    yield conv("groups", image, weight, groups=const("int32", 2), strides=ints(2, 2))
    yield conv("depthwise", image, filled("fp32", 4, 1, 3, 3), groups=const("int32", 4), bias=filled("fp32", 4))
    yield conv("same", image, weight, pad_type=pad_type("same"), strides=ints(2, 3))
    yield conv("dilated", image, weight, dilations=ints(2, 3), strides=ints(3, 2))
    yield conv("pad-without-custom", image, weight, pad=ints(1, 1, 1, 1))
    yield conv("open-batch", tensor("fp32", "s0", 4, 9, 11), weight)
    yield conv("open-plane", tensor("fp32", "s0", 4, "s1", "s2"), weight, strides=ints(2, 1), dilations=ints(1, 3))
    yield conv("open-same", tensor("fp32", 1, 4, "s1", 11), weight, strides=ints(2, 3), pad_type=pad_type("same"))
    custom = {"pad_type": pad_type("custom"), "pad": ints(1, 2, 0, 3)}
    yield conv("open-custom", tensor("fp32", 1, 4, "s1", "s0"), weight, strides=ints(2, 3), **custom)
    yield conv("output-shape", image, weight, output_shape=ints(1, 6, 18, 22), strides=ints(2, 2))
    grouped = {"output_shape": ints(1, 12, 18, 22), "groups": const("int32", 2)}
    yield conv("output-shape-groups", image, weight, **grouped)

    yield conv("output-batch", image, weight, output_shape=ints(2, 6, 18, 22))
    yield conv("output-channels", image, weight, output_shape=ints(1, 5, 18, 22))
    yield conv("bias", image, weight, bias=filled("fp32", 5))
    yield conv("pad-type", image, weight, pad_type=pad_type("same_lower"))
    yield conv("strides-short", image, weight, strides=ints(2))
    yield conv("pad-short", image, weight, pad_type=pad_type("custom"), pad=ints(1, 1))
    yield conv("kernel-rank", image, filled("fp32", 4, 6, 3))
    yield conv("int32", tensor("int32", 1, 4, 9), filled("int32", 4, 6, 3))
    yield conv("open-strides", image, weight, strides=tensor("int32", 2))
    yield conv("missing", image, None)
    unchecked = "coremltools does not check it"
    yield conv("channels", image, filled("fp32", 5, 6, 3, 2), because=unchecked, instead=REFUSED)
    yield conv("groups-do-not-divide", image, weight, groups=const("int32", 3), because=unchecked, instead=REFUSED)
    yield conv("strides-long", image, weight, strides=ints(2, 2, 2), because=unchecked, instead=REFUSED)
    yield conv("strides-zero", image, weight, strides=ints(0, 1), because=unchecked, instead=REFUSED)
    yield conv("output-rank", image, weight, output_shape=ints(1, 6, 18), because=unchecked, instead=REFUSED)
    yield conv("output-negative", image, weight, output_shape=ints(1, 6, 18, -1), because=unchecked, instead=REFUSED)
    padded_away = {"pad_type": pad_type("custom"), "pad": ints(9, 9, 0, 0)}
    yield conv("padded-away", image, weight, **padded_away, because=unchecked, instead=REFUSED)
    yield conv(
        "output-open-batch",
        tensor("fp32", "s0", 4, 9, 11),
        weight,
        output_shape=ints(3, 6, 18, 22),
        because="the open dimension may well be the right one",
        instead={"outputs": [{"dtype": "fp32", "shape": [3, 6, 18, 22]}]},
    )


def _conv_transpose_of_later_opsets() -> Iterator[Instance]:
    image, weight = tensor("fp32", 1, 4, 9, 11), filled("fp32", 4, 6, 3, 2)
    half = tensor("fp16", 1, 4, 9, 11)
    for opset in (IOS16, IOS17, IOS18):
        yield instance("conv_transpose", opset, "mixed", x=half, weight=weight, bias=filled("fp32", 6))
        yield instance("conv_transpose", opset, "computed-weight", x=image, weight=tensor("fp32", 4, 6, 3, 2))
    yield instance(
        "conv_transpose",
        IOS17,
        "computed-bias",
        x=image,
        weight=weight,
        bias=tensor("fp32", 6),
        because="coremltools looks at the elements of a bias that needs none from iOS17 on",
        instead={"outputs": [{"dtype": "fp32", "shape": [1, 6, 11, 12]}]},
    )
