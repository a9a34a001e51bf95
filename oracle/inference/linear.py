"""Matrix products and attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .language import (
    IOS15,
    IOS16,
    IOS17,
    IOS18,
    REFUSED,
    Instance,
    Operand,
    const,
    filled,
    gives,
    instance,
    tensor,
    values,
)

OPERATIONS = ("einsum", "linear", "matmul", "scaled_dot_product_attention")

DTYPES = ("fp16", "fp32", "int32")
TRUE = const("bool", True)
UNCHECKED = "coremltools does not check it"
OPEN = "the open dimension may well be the right one"


def instances() -> Iterator[Instance]:
    for opset in (IOS15, IOS17):
        yield from _linear(opset)
        yield from _matmul(opset)
    yield from _of_mixed_types()
    yield from _einsum()
    yield from _attention()


def outputs(dtype: str, *shape: Any) -> dict[str, Any]:
    return {"outputs": [{"dtype": dtype, "shape": list(shape)}]}


def _linear(opset: str) -> Iterator[Instance]:
    def linear(label: str, x: Operand, weight: Operand | None, **more: Any) -> Instance:
        return instance("linear", opset, label, x=x, weight=weight, **more)

    for dtype in DTYPES:
        yield linear(f"rank1-{dtype}", tensor(dtype, 3), filled(dtype, 5, 3))
        yield linear(f"rank2-{dtype}", tensor(dtype, 2, 3), filled(dtype, 5, 3), bias=filled(dtype, 5))
        yield linear(f"rank3-{dtype}", tensor(dtype, "s0", 2, 3), filled(dtype, 5, 3))
    weight = filled("fp32", 5, 3)
    yield linear("open-last", tensor("fp32", 2, "s1"), weight)
    yield linear("rank5", tensor("fp32", 1, 2, 3, 4, 3), weight)
    ints = const("int32", [[1, 2, 3], [4, 5, 6]])
    yield linear("known", const("int32", [1, -2, 3]), ints)
    yield linear("known-bias", const("int32", [[1, -2, 3], [0, 1, 0]]), ints, bias=const("int32", [10, 20]))
    yield linear("known-shape", gives("shape", x=tensor("fp32", 4, 5, 6)), ints)
    yield linear("width", tensor("fp32", 2, 4), weight)
    yield linear("bias-length", tensor("fp32", 2, 3), weight, bias=filled("fp32", 4))
    yield linear("bias-rank", tensor("fp32", 2, 3), weight, bias=filled("fp32", 5, 1))
    yield linear("bias-scalar", tensor("fp32", 2, 3), weight, bias=const("fp32", 1.0))
    yield linear("weight-rank1", tensor("fp32", 2, 3), filled("fp32", 3))
    yield linear("weight-rank3", tensor("fp32", 2, 3), filled("fp32", 1, 5, 3))
    yield linear("computed-weight", tensor("fp32", 2, 3), tensor("fp32", 5, 3))
    yield linear("rank0", tensor("fp32"), filled("fp32", 5, 1))
    yield linear("bool", tensor("bool", 2, 3), filled("bool", 5, 3))
    yield linear("missing", tensor("fp32", 2, 3), None)


def _matmul(opset: str) -> Iterator[Instance]:
    def matmul(label: str, x: Operand, y: Operand | None, **more: Any) -> Instance:
        return instance("matmul", opset, label, x=x, y=y, **more)

    for dtype in DTYPES:
        yield matmul(f"rank2-{dtype}", tensor(dtype, 2, 3), tensor(dtype, 3, 4))
        yield matmul(f"vector-{dtype}", tensor(dtype, 3), tensor(dtype, 3, 4))
        yield matmul(f"batches-{dtype}", tensor(dtype, 5, 1, 2, 3), tensor(dtype, 6, 3, 4))
    left, right = tensor("fp32", 1, 2, 3), tensor("fp32", 1, 3, 4)
    for label, (x, y) in {"left": (0, 1), "right": (1, 0), "both": (1, 1)}.items():
        turned = {"transpose_x": const("bool", bool(x)), "transpose_y": const("bool", bool(y))}
        x_shape, y_shape = (5, 2)[::-1] if x else (5, 2), (2, 7)[::-1] if y else (2, 7)
        yield matmul(f"turned-{label}", tensor("fp32", 3, *x_shape), tensor("fp32", *y_shape), **turned)
        yield matmul(f"turned-open-{label}", tensor("fp32", "s0", *x_shape), tensor("fp32", 3, *y_shape), **turned)
    yield matmul("open-batch", tensor("fp32", "s0", 2, 3), tensor("fp32", "s0", 3, 4))
    yield matmul("open-batches", tensor("fp32", "s0", 2, 3), tensor("fp32", "s1", 3, 4))
    yield matmul("open-rows", tensor("fp32", 1, "s0", 3), tensor("fp32", 1, 3, "s1"))
    yield matmul("open-inner", tensor("fp32", 2, "s0"), tensor("fp32", "s1", 4))
    yield matmul("open-inner-known", tensor("fp32", 2, "s0"), tensor("fp32", 3, 4))
    two = const("int32", [[1, 2], [3, 4], [5, 6]])
    yield matmul("known", const("int32", [[1, -2, 3], [0, 1, 0]]), two)
    yield matmul("known-vector", const("int32", [1, -2, 3]), two)
    yield matmul("known-turned", two, two, transpose_x=TRUE)
    yield matmul("known-turned-right", two, const("int32", [[1, 2], [0, -1]]), transpose_y=TRUE)
    yield matmul("known-shape", gives("shape", x=tensor("fp32", 4, 5, 6)), two)
    yield matmul("inner", left, tensor("fp32", 1, 4, 3))
    yield matmul("batch", tensor("fp32", 2, 2, 3), tensor("fp32", 3, 3, 4))
    yield matmul("turned-vector", tensor("fp32", 3), tensor("fp32", 3, 4), transpose_x=TRUE)
    yield matmul("vector-right", left, tensor("fp32", 3))
    yield matmul("vectors", tensor("fp32", 3), tensor("fp32", 3))
    yield matmul("scalar", tensor("fp32"), right)
    yield matmul("mixed", tensor("fp16", 2, 3), tensor("fp32", 3, 4))
    yield matmul("bool", tensor("bool", 2, 3), tensor("bool", 3, 4))
    yield matmul("missing", left, None)
    yield matmul(
        "vector-batch",
        tensor("fp32", 3),
        tensor("fp32", 5, 3, 4),
        because="coremltools takes the batch for the dimension that it had added",
        instead=outputs("fp32", 5, 4),
    )


def _of_mixed_types() -> Iterator[Instance]:
    for opset in (IOS16, IOS17, IOS18):
        x, weight = tensor("fp16", 2, 3), filled("fp32", 5, 3)
        yield instance("linear", opset, "mixed", x=x, weight=weight, bias=filled("fp32", 5))
        yield instance("linear", opset, "mixed-bias", x=x, weight=weight, bias=filled("fp16", 5))
        yield instance("matmul", opset, "mixed-const-right", x=x, y=filled("fp32", 3, 4))
        yield instance("matmul", opset, "mixed-const-left", x=filled("fp32", 5, 2), y=x)
        yield instance("matmul", opset, "mixed-consts", x=filled("fp32", 5, 2), y=filled("fp16", 2, 3))
        computed = gives("abs", x=filled("fp32", 3, 4))
        yield instance("matmul", opset, "mixed-of-const", x=x, y=computed)


def _einsum() -> Iterator[Instance]:
    def einsum(label: str, x: Operand, y: Operand, equation: str = "nchw,nwhu->nchu", **more: Any) -> Instance:
        bound = {"values": values(x, y), "equation": const("string", equation)}
        return instance("einsum", more.pop("opset", IOS15), label, inputs=bound, **more)

    for dtype in ("fp16", "fp32"):
        yield einsum(f"rank4-{dtype}", tensor(dtype, 2, 3, 4, 5), tensor(dtype, 2, 5, 4, 6))
        yield einsum(f"rank3-{dtype}", tensor(dtype, 3, 4, 5), tensor(dtype, 5, 4, 6), "chw,whr->chr", opset=IOS17)
    x, y = tensor("fp32", 2, 3, 4, 5), tensor("fp32", 2, 5, 4, 6)
    yield einsum("letters", x, y, "abcd,adce->abce")
    yield einsum("one", tensor("fp32", 1, 3, 1, 5), y)
    yield einsum("one-right", x, tensor("fp32", 1, 5, 1, 6))
    yield einsum("open-inner", tensor("fp32", 2, 3, 4, "s0"), y)
    yield einsum("open-outer", tensor("fp32", 2, "s0", 4, 5), tensor("fp32", 2, 5, 4, "s1"))
    yield einsum("open-batch", tensor("fp32", "s0", 3, 4, 5), tensor("fp32", "s0", 5, 4, 6))
    yield einsum("open-batch-one", tensor("fp32", "s0", 3, 4, 5), tensor("fp32", 1, 5, 4, 6))
    yield einsum("inner", x, tensor("fp32", 2, 4, 4, 6))
    yield einsum("batch", x, tensor("fp32", 3, 5, 4, 6))
    yield einsum("heads", x, tensor("fp32", 2, 5, 3, 6))
    yield einsum("mixed", x, tensor("fp16", 2, 5, 4, 6))
    yield einsum("ranks", x, tensor("fp32", 5, 4, 6))
    yield einsum("equation", x, y, "nchw,nwhu->nhcu")
    yield einsum("equation-spaces", x, y, "nchw, nwhu -> nchu")
    yield einsum("equation-dots", x, y, "...hw,...wu->...hu")
    yield einsum("equation-arrow", x, y, "nchw,nwhu")
    yield einsum("equation-twice", x, y, "nchh,nhhu->nchu")
    yield einsum("equation-third", x, y, "nchw,nwhu,a->nchu")
    yield einsum("matmul", tensor("fp32", 2, 3), tensor("fp32", 3, 4), "ij,jk->ik")
    three = {"values": values(x, y, y), "equation": const("string", "nchw,nwhu->nchu")}
    yield instance("einsum", IOS15, "three", inputs=three)
    yield instance("einsum", IOS15, "one-value", inputs={**three, "values": values(x)})
    yield einsum(
        "open-batch-known",
        tensor("fp32", "s0", 3, 4, 5),
        tensor("fp32", 2, 5, 4, 6),
        because=OPEN,
        instead=outputs("fp32", 2, 3, 4, 6),
    )
    yield einsum(
        "open-heads-differ",
        tensor("fp32", 2, 3, "s0", 5),
        tensor("fp32", 2, 5, "s1", 6),
        because=OPEN,
        instead=outputs("fp32", 2, 3, "?", 6),
    )
    ints = tensor("int32", 2, 3, 4, 5), tensor("int32", 2, 5, 4, 6)
    yield einsum("int32", *ints, because="coremltools documents fp16 and fp32, and does not check", instead=REFUSED)
    rank = tensor("fp32", 2, 3, 4, 5), tensor("fp32", 2, 5, 4, 6), "chw,whr->chr"
    yield einsum("equation-of-rank3", *rank, because=UNCHECKED, instead=REFUSED)


def _attention() -> Iterator[Instance]:
    def attend(label: str, query: Operand, key: Operand, value: Operand, mask: Operand | None = None, **more: Any):
        bound = {"query": query, "key": key, "value": value, "attn_mask": mask}
        opset = more.pop("opset", IOS18)
        return instance("scaled_dot_product_attention", opset, label, inputs=bound, **more)

    for dtype in ("fp16", "fp32"):
        yield attend(f"rank3-{dtype}", tensor(dtype, 2, 4, 8), tensor(dtype, 2, 5, 8), tensor(dtype, 2, 5, 6))
        rank4 = tensor(dtype, 1, 3, 4, 8), tensor(dtype, 1, 3, 5, 8), tensor(dtype, 1, 3, 5, 6)
        yield attend(f"rank4-{dtype}", *rank4)
        yield attend(f"mask-{dtype}", *rank4, tensor(dtype, 1, 1, 4, 5))
        yield attend(f"mask-bool-{dtype}", *rank4, tensor("bool", 4, 5))
    query, key, value = tensor("fp32", 1, 3, 4, 8), tensor("fp32", 1, 3, 5, 8), tensor("fp32", 1, 3, 5, 6)
    yield attend("rank5", tensor("fp32", 1, 2, 3, 4, 8), tensor("fp32", 1, 2, 3, 5, 8), tensor("fp32", 1, 2, 3, 5, 6))
    yield attend("mask-rank1", query, key, value, tensor("fp32", 5))
    yield attend("mask-one", query, key, value, tensor("fp16", 3, 1, 5))
    opened = tensor("fp32", "s0", 3, "s1", 8), tensor("fp32", "s0", 3, "s2", 8), tensor("fp32", "s0", 3, "s2", 6)
    yield attend("open", *opened)
    yield attend("open-mask", *opened, tensor("bool", 1, 1, "s1", "s2"))
    yield attend("open-embedding", tensor("fp32", 1, 3, 4, "s0"), key, value)
    yield attend("ranks", query, tensor("fp32", 3, 5, 8), value)
    yield attend("rank2", tensor("fp32", 4, 8), tensor("fp32", 5, 8), tensor("fp32", 5, 6))
    yield attend("batch", tensor("fp32", 2, 3, 4, 8), key, value)
    yield attend("heads", tensor("fp32", 1, 6, 4, 8), key, value)
    yield attend("embedding", tensor("fp32", 1, 3, 4, 7), key, value)
    yield attend("sequence", query, key, tensor("fp32", 1, 3, 6, 6))
    yield attend("mask-sequence", query, key, value, tensor("fp32", 4, 4))
    yield attend("mask-rows", query, key, value, tensor("fp32", 3, 5))
    yield attend("mask-scalar", query, key, value, tensor("fp32"))
    yield attend("mask-int32", query, key, value, tensor("int32", 4, 5))
    yield attend("mixed", query, tensor("fp16", 1, 3, 5, 8), value)
    yield attend("before", query, key, value, opset=IOS17)
    wide = "coremltools does not check it; the mask is broadcast to the scores, not the scores to the mask"
    yield attend("mask-rank5", query, key, value, tensor("fp32", 2, 1, 3, 4, 5), because=wide, instead=REFUSED)
    one = tensor("fp32", 1, 3, 1, 8)
    yield attend("mask-more-rows", one, key, value, tensor("fp32", 4, 5), because=wide, instead=REFUSED)
    yield attend("open-batch-known", tensor("fp32", "s0", 3, 4, 8), key, value)
