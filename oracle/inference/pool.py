"""Pooling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .language import IOS15, IOS16, IOS17, IOS18, REFUSED, Instance, Operand, const, filled, instance, tensor

OPERATIONS = ("avg_pool", "l2_pool", "max_pool")

VALID, SAME, SAME_LOWER, CUSTOM = (const("string", name) for name in ("valid", "same", "same_lower", "custom"))
TRUE = const("bool", True)


def instances() -> Iterator[Instance]:
    for operation in OPERATIONS:
        yield from _pool(operation)
    image = tensor("fp32", 1, 4, 9, 11)
    excluding = {"pad_type": SAME, "exclude_padding_from_average": TRUE}
    yield instance("avg_pool", IOS15, "excluding", x=image, kernel_sizes=ints(2, 3), **excluding)
    yield instance("max_pool", IOS15, "excluding", x=image, kernel_sizes=ints(2, 3), **excluding)
    space = tensor("fp32", 1, 2, 5, 6, 7)
    yield instance("l2_pool", IOS15, "space", x=space, kernel_sizes=ints(2, 2, 2), pad_type=VALID)
    for operation in ("avg_pool", "max_pool"):
        space = tensor("fp16", 1, 2, 5, 6, 7)
        yield instance(operation, IOS16, "space", x=space, kernel_sizes=ints(2, 3, 4), pad_type=VALID)
        yield instance(
            operation, IOS16, "space-rounded-up", x=space, kernel_sizes=ints(2, 3, 4), pad_type=VALID, ceil_mode=TRUE
        )
        pad = {"pad_type": CUSTOM, "pad": ints(1, 0, 1, 1, 0, 2)}
        yield instance(operation, IOS18, "space-padded", x=space, kernel_sizes=ints(2, 3, 4), **pad)


def ints(*values: int) -> Operand:
    return const("int32", list(values)) if values else filled("int32", 0)


def _pool(operation: str) -> Iterator[Instance]:
    def pool(label: str, x: Operand, sizes: Operand | None, pad_type: Operand | None, **more: Any) -> Instance:
        opset = more.pop("opset", IOS15)
        return instance(operation, opset, label, x=x, kernel_sizes=sizes, pad_type=pad_type, **more)

    for dtype in ("fp16", "fp32"):
        yield pool(f"line-{dtype}", tensor(dtype, 2, 4, 9), ints(3), VALID)
        yield pool(f"plane-{dtype}", tensor(dtype, 1, 4, 9, 11), ints(3, 2), VALID, strides=ints(2, 3))
    image = tensor("fp32", 1, 4, 9, 11)
    yield pool("same", image, ints(3, 2), SAME, strides=ints(2, 4))
    yield pool("same-far", image, ints(2, 2), SAME, strides=ints(5, 6))
    yield pool("custom", image, ints(3, 2), CUSTOM, pad=ints(1, 0, 1, 1), strides=ints(2, 2))
    yield pool("upper-case", image, ints(3, 2), const("string", "SAME"), strides=ints(2, 2))
    yield pool("unused-pad", image, ints(3, 2), VALID, pad=ints(1, 0, 1, 1))
    for size in range(1, 4):
        for stride in range(1, 5):
            for pad in range(0, 4):
                more = {"strides": ints(stride, stride), "pad": ints(pad, pad, pad, pad), "ceil_mode": TRUE}
                yield pool(f"rounded-up-{size}-{stride}-{pad}", image, ints(size, size + 1), CUSTOM, **more)
    yield pool("rounded-up-valid", image, ints(2, 3), VALID, strides=ints(2, 2), ceil_mode=TRUE)
    yield pool("rounded-up-line", tensor("fp16", 1, 4, 10), ints(3), VALID, strides=ints(2), ceil_mode=TRUE)
    open_image = tensor("fp32", "s0", 4, "s1", 11)
    yield pool("open", open_image, ints(3, 2), VALID, strides=ints(2, 2))
    yield pool("open-same", open_image, ints(3, 2), SAME, strides=ints(2, 2))
    yield pool("open-custom", open_image, ints(3, 2), CUSTOM, pad=ints(1, 1, 1, 1), strides=ints(2, 2))
    rounded_up = {"strides": ints(2, 2), "ceil_mode": TRUE}
    yield pool("open-rounded-up", open_image, ints(3, 2), CUSTOM, pad=ints(1, 1, 1, 1), **rounded_up)
    yield pool("open-rounded-up-wide", open_image, ints(1, 2), CUSTOM, pad=ints(2, 2, 1, 1), **rounded_up)
    yield pool("open-channels", tensor("fp16", 1, "s0", 9), ints(3), VALID)
    for opset in (IOS15, IOS16, IOS17):
        yield pool("same-lower", image, ints(3, 2), SAME_LOWER, strides=ints(2, 2), opset=opset)

    yield pool("sizes-short", image, ints(3), VALID)
    yield pool("sizes-long", image, ints(3, 2, 2), VALID)
    yield pool("strides-short", image, ints(3, 2), VALID, strides=ints(2))
    yield pool("strides-zero", image, ints(3, 2), VALID, strides=ints(2, 0))
    yield pool("pad-short", image, ints(3, 2), CUSTOM, pad=ints(2, 2))
    yield pool("too-large", image, ints(10, 2), VALID)
    yield pool("pad-type", image, ints(3, 2), const("string", "full"))
    yield pool("rounded-up-same", image, ints(3, 2), SAME, ceil_mode=TRUE)
    yield pool("rounded-up-uneven", image, ints(3, 2), CUSTOM, pad=ints(1, 0, 1, 1), ceil_mode=TRUE)
    yield pool("int32", tensor("int32", 1, 4, 9), ints(3), VALID)
    yield pool("open-sizes", image, tensor("int32", 2), VALID)
    yield pool("no-pad-type", image, ints(3, 2), None)
    yield pool("rank1", tensor("fp32", 4), ints(3), VALID)
    unchecked = "coremltools does not check it"
    yield pool("rank2", tensor("fp32", 1, 4), ints(), VALID)
    yield pool("sizes-zero", image, ints(3, 0), VALID, because=unchecked, instead=REFUSED)
    yield pool("strides-negative", image, ints(3, 2), VALID, strides=ints(2, -1))
    yield pool(
        "rounded-up-same-lower",
        image,
        ints(3, 2),
        SAME_LOWER,
        ceil_mode=TRUE,
        opset=IOS16,
        because="coremltools refuses this of `same` only, of which `same_lower` is the mirror image",
        instead=REFUSED,
    )
