"""Operations that create, join, split and search tensors."""

from __future__ import annotations

from collections.abc import Iterator

from .language import IOS15, IOS16, IOS17, IOS18, REFUSED, Instance, const, filled, gives, instance, tensor, values

FLOATS = ("fp16", "fp32")
NUMBERS = (*FLOATS, "int32")
OLDER = (*NUMBERS, "bool")
SMALL = ("int8", "uint8", "int16", "uint16")

OPERATIONS = (
    "argsort", "band_part", "concat", "cumsum", "fill", "fill_like", "flatten2d", "identity",
    "non_maximum_suppression", "non_zero", "one_hot", "pad", "range_1d", "shape", "split", "stack", "tile", "topk",
)  # fmt: skip

UNCHECKED_AXIS = "coremltools does not look at the axis; there is no such axis"
NEGATIVE = "coremltools gives negative extents"
NO_RANK = "coremltools gives a type without a rank, which no operation can take"


def int32(*elements: int) -> dict:
    return const("int32", list(elements)) if elements else filled("int32", 0)


def scalar(value: int) -> dict:
    return const("int32", value)


def bool_(value: bool) -> dict:
    return const("bool", value)


def shape_of(*dims: int | str) -> dict:
    return gives("shape", x=tensor("fp32", *dims))


def element_of(shape: dict, index: int) -> dict:
    return gives("gather", x=shape, indices=scalar(index))


def output(dtype: str, *dims: int | str | dict, value: list | None = None) -> dict:
    made = {"dtype": dtype, "shape": list(dims)}
    return made if value is None else {**made, "value": value}


def expr(text: str, *at: int) -> dict:
    return {"expr": text, "at": list(at)}


S0 = expr("s0", 7, 12, 37)

WRONG_WHEN_FIXED = {
    f"split/{opset}/open-sizes/fixed": ("coremltools does not add up the sizes", REFUSED) for opset in (IOS15, IOS17)
}


def instances() -> Iterator[Instance]:
    yield from _argsort()
    yield from _topk()
    yield from _band_part()
    yield from _cumsum()
    yield from _concat()
    yield from _stack()
    yield from _split()
    yield from _fill()
    yield from _fill_like()
    yield from _flatten2d()
    yield from _identity()
    yield from _suppression()
    yield from _non_zero()
    yield from _one_hot()
    yield from _pad()
    yield from _range()
    yield from _shape()
    yield from _tile()


def _argsort() -> Iterator[Instance]:
    for opset in (IOS15, IOS17):
        for dtype in NUMBERS:
            yield instance("argsort", opset, f"rank1-{dtype}", x=tensor(dtype, 5))
            yield instance("argsort", opset, f"rank5-{dtype}", x=tensor(dtype, 1, 2, "s0", 4, 5), axis=scalar(-2))
    data = const("int32", [[3, 1, 2], [4, 6, 5]])
    yield instance("argsort", IOS16, "const", x=data)
    yield instance("argsort", IOS16, "const-up", x=data, ascending=bool_(True))
    yield instance("argsort", IOS16, "const-first", x=data, axis=scalar(0), ascending=bool_(True))
    yield instance("argsort", IOS16, "const-float", x=const("fp32", [0.5, -1.5, 7.0]))
    yield instance("argsort", IOS16, "const-equal", x=const("int32", [2, 1, 2, 1]))
    yield instance("argsort", IOS16, "bool", x=tensor("bool", 5))
    yield instance("argsort", IOS16, "computed", x=tensor("fp32", 5), axis=tensor("int32"))
    yield instance("argsort", IOS16, "const-beyond", x=data, axis=scalar(2))
    yield instance(
        "argsort", IOS16, "beyond", x=tensor("fp32", 5), axis=scalar(1), because=UNCHECKED_AXIS, instead=REFUSED
    )


def _topk() -> Iterator[Instance]:
    for opset in (IOS15, IOS16, IOS17, IOS18):
        for dtype in NUMBERS if opset in (IOS15, IOS16) else (*NUMBERS, *SMALL):
            yield instance("topk", opset, f"rank1-{dtype}", x=tensor(dtype, 5))
            yield instance(
                "topk", opset, f"rank5-{dtype}", x=tensor(dtype, 1, 2, "s0", 4, 5), k=scalar(3), axis=scalar(-2)
            )
            yield instance("topk", opset, f"open-{dtype}", x=tensor(dtype, "s0", 4), k=scalar(2), axis=scalar(0))
        data = const("int32", [[3, 1, 2], [4, 6, 5]])
        yield instance("topk", opset, "const", x=data, k=scalar(2))
        yield instance("topk", opset, "const-up", x=data, k=scalar(2), ascending=bool_(True))
        yield instance("topk", opset, "const-first", x=data, axis=scalar(0))
        yield instance("topk", opset, "const-float", x=const("fp32", [0.5, -1.5, 7.0]), k=scalar(3))
        yield instance("topk", opset, "too-many", x=tensor("fp32", 2, 3), k=scalar(4))
        yield instance("topk", opset, "beyond", x=tensor("fp32", 2, 3), axis=scalar(2))
        yield instance("topk", opset, "computed", x=tensor("fp32", 2, 3), k=tensor("int32"))
        yield instance(
            "topk", opset, "all", x=tensor("fp32", 2, 3), k=scalar(-1),
            because="-1 is documented to stand for all; coremltools takes it for an extent",
            instead={"outputs": [output("fp32", 2, 3), output("int32", 2, 3)]},
        )  # fmt: skip
        yield instance(
            "topk", opset, "negative", x=tensor("fp32", 2, 3), k=scalar(-2), because=NEGATIVE, instead=REFUSED
        )
        alone = {"return_indices": bool_(False)}
        yield instance("topk", opset, "alone", x=tensor("fp32", 2, 3), **alone)
        yield instance("topk", opset, "alone-const", x=data, sort=bool_(False), **alone)
        uint16 = {"output_indices_dtype": const("string", "uint16")}
        yield instance("topk", opset, "indices", x=tensor("fp32", 2, 3), **uint16)
        yield instance("topk", opset, "indices-alone", x=tensor("fp32", 2, 3), **uint16, **alone)
        yield instance(
            "topk", opset, "indices-other", x=tensor("fp32", 2, 3), output_indices_dtype=const("string", "int16")
        )
    for dtype in ("int8", "int16"):
        for opset in (IOS16, IOS17):
            yield instance("topk", opset, f"k-{dtype}", x=tensor("fp32", 2, 3), k=const(dtype, 2))


def _band_part() -> Iterator[Instance]:
    for opset in (IOS15, IOS17):
        for dtype in OLDER:
            yield instance("band_part", opset, f"rank2-{dtype}", x=tensor(dtype, 3, "s0"))
            yield instance(
                "band_part", opset, f"rank5-{dtype}", x=tensor(dtype, 1, 2, 3, 4, 5), lower=scalar(1), upper=scalar(0)
            )
    data = const("int32", [[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    for lower, upper in ((0, -1), (-1, 0), (0, 0), (1, 1), (2, 0)):
        yield instance("band_part", IOS16, f"const({lower},{upper})", x=data, lower=scalar(lower), upper=scalar(upper))
    yield instance("band_part", IOS16, "const-batch", x=const("fp32", [[[1.0, 2.0], [3.0, 4.0]]]), lower=scalar(0))
    yield instance("band_part", IOS16, "int8", x=tensor("int8", 3, 3))
    yield instance("band_part", IOS16, "computed", x=tensor("fp32", 3, 3), lower=tensor("int32"))
    yield instance("band_part", IOS16, "const-rank1", x=int32(1, 2))
    yield instance(
        "band_part", IOS16, "rank1", x=tensor("fp32", 3),
        because="coremltools refuses vectors only if they are constants",
        instead=REFUSED,
    )  # fmt: skip


def _cumsum() -> Iterator[Instance]:
    for opset in (IOS15, IOS17):
        for dtype in NUMBERS:
            yield instance("cumsum", opset, f"rank1-{dtype}", x=tensor(dtype, 5))
            yield instance("cumsum", opset, f"rank5-{dtype}", x=tensor(dtype, 1, 2, "s0", 4, 5), axis=scalar(-1))
    data = const("int32", [[3, 1, 2], [4, 6, 5]])
    yield instance("cumsum", IOS16, "const", x=data)
    yield instance("cumsum", IOS16, "const-last", x=data, axis=scalar(-1))
    yield instance("cumsum", IOS16, "const-reverse", x=data, axis=scalar(1), reverse=bool_(True))
    yield instance("cumsum", IOS16, "const-float", x=const("fp32", [0.5, -1.5, 7.25]))
    yield instance("cumsum", IOS16, "const-half", x=const("fp16", [0.5, -1.5, 7.25]))
    yield instance(
        "cumsum", IOS16, "const-exclusive", x=data, axis=scalar(1), exclusive=bool_(True),
        because="coremltools fails on it: it takes the elements for a type",
        instead={"outputs": [output("int32", 2, 3, value=[0, 3, 4, 0, 4, 10])]},
    )  # fmt: skip
    yield instance(
        "cumsum", IOS16, "const-exclusive-reverse", x=data, axis=scalar(1), exclusive=bool_(True), reverse=bool_(True),
        because="coremltools fails on it: it takes the elements for a type",
        instead={"outputs": [output("int32", 2, 3, value=[3, 2, 0, 11, 5, 0])]},
    )  # fmt: skip
    yield instance("cumsum", IOS16, "beyond", x=tensor("fp32", 2, 3), axis=scalar(2))
    yield instance("cumsum", IOS16, "from-end", x=tensor("fp32", 2, 3), axis=scalar(-2))
    yield instance("cumsum", IOS16, "bool", x=tensor("bool", 3))
    yield instance("cumsum", IOS16, "of-shape", x=shape_of("s0", 3, "s1"))


def _concat() -> Iterator[Instance]:
    def concat(opset: str, label: str, *parts: dict, axis: int = 0, **more: object) -> Instance:
        return instance("concat", opset, label, values=values(*parts), axis=scalar(axis), **more)

    for opset in (IOS15, IOS17):
        for dtype in (*OLDER, *SMALL):
            yield concat(opset, f"rank1-{dtype}", tensor(dtype, 2), tensor(dtype, 3))
            yield concat(opset, f"rank0-{dtype}", tensor(dtype), tensor(dtype), tensor(dtype))
            yield concat(
                opset, f"rank5-{dtype}", tensor(dtype, 1, 2, "s0", 4, 5), tensor(dtype, 1, 2, "s0", 3, 5), axis=-2
            )
        yield concat(opset, "one", tensor("fp32", 2, "s0"), axis=1)
        yield concat(opset, "open", tensor("fp32", 2, "s0"), tensor("fp32", 2, "s1"), axis=1)
        yield concat(opset, "open-same", tensor("fp32", 2, "s0"), tensor("fp32", 2, 3), axis=1)
        yield concat(opset, "open-others", tensor("fp32", "s0", 2), tensor("fp32", "s1", 3), axis=1)
        yield concat(opset, "open-fixed", tensor("fp32", 4, 2), tensor("fp32", "s1", 3), axis=1)
        yield concat(opset, "const", const("int32", [[1, 2]]), const("int32", [[3, 4], [5, 6]]))
        yield concat(opset, "const-last", const("fp32", [[1.5], [2.5]]), const("fp32", [[3.5], [4.5]]), axis=-1)
        yield concat(opset, "const-scalars", scalar(4), scalar(-1), axis=-1)
        yield concat(opset, "const-partly", scalar(4), tensor("int32"), scalar(8))
        yield concat(opset, "const-vectors", int32(4), tensor("int32", 2), int32(8))
        yield concat(opset, "const-large", int32(4), tensor("int32", 20))
        yield concat(opset, "of-shape", shape_of("s0", 3), int32(-1), shape_of(5, "s1"))
        yield concat(
            opset, "of-elements", element_of(shape_of("s0", 3), 0), element_of(shape_of("s0", 3), 1), scalar(2)
        )
        yield concat(opset, "ranks", tensor("fp32", 2), tensor("fp32", 2, 1))
        yield concat(opset, "types", tensor("fp32", 2), tensor("fp16", 2))
        yield concat(opset, "beyond", tensor("fp32", 2), tensor("fp32", 2), axis=1)
        yield concat(opset, "beyond-rank0", tensor("fp32"), tensor("fp32"), axis=1)
        yield concat(opset, "mismatch", tensor("fp32", 2, 3), tensor("fp32", 2, 4))
        yield concat(opset, "nothing")
        interleave = {"interleave": bool_(True)}
        yield concat(opset, "interleave", tensor("fp32", 2, 3), tensor("fp32", 2, 3), axis=1, **interleave)
        yield concat(opset, "interleave-open", tensor("fp32", 2, "s0"), tensor("fp32", 2, "s0"), axis=1, **interleave)
        yield concat(opset, "interleave-mismatch", tensor("fp32", 2, 3), tensor("fp32", 2, 4), axis=1, **interleave)
        yield concat(
            opset, "interleave-const", int32(1, 2, 3), int32(4, 5, 6), **interleave,
            because="coremltools does not interleave constants",
            instead={"outputs": [output("int32", 6, value=[1, 4, 2, 5, 3, 6])]},
        )  # fmt: skip
    yield instance("concat", IOS16, "computed", values=values(tensor("fp32", 2)), axis=tensor("int32"))


def _stack() -> Iterator[Instance]:
    def stack(opset: str, label: str, *parts: dict, axis: int = 0, **more: object) -> Instance:
        return instance("stack", opset, label, values=values(*parts), axis=scalar(axis), **more)

    for opset in (IOS15, IOS17):
        for dtype in (*OLDER, *SMALL):
            yield stack(opset, f"rank0-{dtype}", tensor(dtype), tensor(dtype), tensor(dtype))
            yield stack(opset, f"rank4-{dtype}", tensor(dtype, 1, 2, "s0", 4), tensor(dtype, 1, 2, "s0", 4), axis=-2)
        for axis in (0, 1, 2, -1, -3):
            yield stack(opset, f"at{axis}", tensor("fp32", 3, "s0"), tensor("fp32", 3, "s0"), axis=axis)
        yield stack(opset, "one", tensor("fp32", 3), axis=1)
        yield stack(opset, "open-fixed", tensor("fp32", 3, "s0"), tensor("fp32", 3, 5))
        yield stack(opset, "open-others", tensor("fp32", 3, "s0"), tensor("fp32", 3, "s1"))
        yield stack(opset, "const", int32(1, 2), int32(3, 4), axis=1)
        yield stack(opset, "const-scalars", scalar(4), scalar(-1))
        yield stack(opset, "const-partly", scalar(4), tensor("int32"), scalar(8))
        yield stack(opset, "of-elements", element_of(shape_of("s0", 3), 0), element_of(shape_of("s0", 3), 1), scalar(2))
        yield stack(opset, "shapes", tensor("fp32", 2), tensor("fp32", 3))
        yield stack(opset, "ranks", tensor("fp32", 2), tensor("fp32", 2, 1))
        yield stack(opset, "types", tensor("fp32", 2), tensor("fp16", 2))
        yield stack(opset, "beyond", tensor("fp32", 2), tensor("fp32", 2), axis=2)
        yield stack(opset, "nothing")
        yield stack(
            opset, "before", tensor("fp32", 2), tensor("fp32", 2), axis=-3, because=UNCHECKED_AXIS, instead=REFUSED
        )


def _split() -> Iterator[Instance]:
    def split(opset: str, label: str, x: dict, axis: int = 0, **more: object) -> Instance:
        return instance("split", opset, label, x=x, axis=scalar(axis), **more)

    for opset in (IOS15, IOS17):
        for dtype in OLDER:
            yield split(opset, f"rank1-{dtype}", tensor(dtype, 6), num_splits=scalar(3))
            yield split(opset, f"rank5-{dtype}", tensor(dtype, 1, 2, "s0", 6, 5), axis=-2, split_sizes=int32(1, 2, 3))
        yield split(opset, "both", tensor("fp32", 2, 6), axis=1, num_splits=scalar(2), split_sizes=int32(2, 4))
        yield split(opset, "open-sizes", tensor("fp32", 2, "s0"), axis=1, split_sizes=int32(2, 4))
        yield split(opset, "open-half", tensor("fp32", "s1", 4), num_splits=scalar(2))
        yield split(opset, "one", tensor("fp32", 2, "s0"), axis=1, num_splits=scalar(1))
        yield split(opset, "const", const("int32", [[1, 2, 3], [4, 5, 6]]), axis=1, split_sizes=int32(1, 2))
        yield split(opset, "const-equal", int32(1, 2, 3, 4), num_splits=scalar(2))
        yield split(opset, "of-shape", shape_of("s0", 3, "s1", 2), num_splits=scalar(2))
        yield split(opset, "of-shape-sizes", shape_of("s0", 3, "s1", 2), split_sizes=int32(1, 3))
        yield split(opset, "neither", tensor("fp32", 6))
        yield split(opset, "rest", tensor("fp32", 5), num_splits=scalar(2))
        yield split(opset, "beyond", tensor("fp32", 6), axis=1, num_splits=scalar(2))
        yield split(
            opset, "no-part", tensor("fp32", 6), num_splits=scalar(0), because="coremltools splits into no parts",
            instead=REFUSED,
        )  # fmt: skip
        yield split(opset, "computed", tensor("fp32", 6), split_sizes=tensor("int32", 2))
        wrong = "coremltools does not add the sizes up"
        yield split(opset, "sum", tensor("fp32", 6), split_sizes=int32(1, 2), because=wrong, instead=REFUSED)
        yield split(opset, "negative", tensor("fp32", 6), split_sizes=int32(7, -1), because=NEGATIVE, instead=REFUSED)
        yield split(
            opset, "count", tensor("fp32", 6), num_splits=scalar(3), split_sizes=int32(2, 4),
            because="coremltools does not compare the count of the sizes", instead=REFUSED,
        )  # fmt: skip
    yield split(IOS17, "int8", tensor("int8", 6), num_splits=scalar(2))


def _fill() -> Iterator[Instance]:
    for opset in (IOS15, IOS17):
        for dtype in OLDER:
            yield instance("fill", opset, f"fixed-{dtype}", shape=int32(2, 3), value=const(dtype, 1))
            yield instance("fill", opset, f"computed-{dtype}", shape=tensor("int32", 3), value=const(dtype, 0))
            yield instance("fill", opset, f"open-{dtype}", shape=shape_of("s0", 4), value=const(dtype, 0))
        yield instance("fill", opset, "plain", shape=int32(1, 2, 1, 2, 1))
        yield instance("fill", opset, "rank0", shape=int32())
        yield instance(
            "fill", opset, "partly", shape=gives("concat", values=values(tensor("int32"), scalar(3)), axis=scalar(0))
        )
        yield instance("fill", opset, "fixed-shape", shape=shape_of(2, 2), value=scalar(7))
        yield instance("fill", opset, "scalar", shape=scalar(3))
        yield instance("fill", opset, "float", shape=const("fp32", [3.0]))
        yield instance("fill", opset, "computed-value", shape=int32(3), value=tensor("fp32"))
        yield instance("fill", opset, "open-length", shape=tensor("int32", "s0"), because=NO_RANK, instead=REFUSED)
        yield instance("fill", opset, "int8", shape=int32(3), value=const("int8", 1))
        yield instance("fill", opset, "negative", shape=int32(-3))


def _fill_like() -> Iterator[Instance]:
    for opset in (IOS16, IOS17):
        for dtype in OLDER:
            yield instance(
                "fill_like", opset, f"open-{dtype}", ref_tensor=tensor(dtype, 2, "s0"), value=const("int32", 1)
            )
            yield instance(
                "fill_like", opset, f"rank5-{dtype}", ref_tensor=tensor("fp32", 1, 2, 3, 4, 5), value=const(dtype, 1)
            )
            yield instance("fill_like", opset, f"rank0-{dtype}", ref_tensor=tensor(dtype))
        yield instance("fill_like", opset, "const", ref_tensor=int32(1, 2, 3), value=scalar(7))
        yield instance("fill_like", opset, "const-plain", ref_tensor=const("fp32", [[1.0, 2.0]]))
        yield instance("fill_like", opset, "int8", ref_tensor=tensor("int8", 3))
        yield instance("fill_like", opset, "value-int8", ref_tensor=tensor("fp32", 3), value=const("int8", 1))
        yield instance("fill_like", opset, "computed", ref_tensor=tensor("fp32", 3), value=tensor("fp32"))
        yield instance("fill_like", opset, "missing", value=scalar(7))
    yield instance("fill_like", IOS15, "early", ref_tensor=tensor("fp32", 3))


def _flatten2d() -> Iterator[Instance]:
    for opset in (IOS15, IOS17):
        for dtype in OLDER:
            yield instance("flatten2d", opset, f"rank1-{dtype}", x=tensor(dtype, 3))
            yield instance("flatten2d", opset, f"rank5-{dtype}", x=tensor(dtype, 1, 2, "s0", 4, 5), axis=scalar(-2))
    x = tensor("fp32", 2, "s0", 4, "s1")
    for axis in (0, 1, 2, 3, -1, -4, 4):
        yield instance("flatten2d", IOS16, f"at{axis}", x=x, axis=scalar(axis))
    yield instance("flatten2d", IOS16, "const", x=const("int32", [[1, 2], [3, 4]]))
    yield instance(
        "flatten2d", IOS16, "of-shape", x=shape_of("s0", 3), instead={"outputs": [output("int32", 2, 1,
        value=[S0, 3])]},
        because="coremltools fails on it: it takes elements for numbers that are not",
    )  # fmt: skip
    yield instance("flatten2d", IOS16, "int8", x=tensor("int8", 3))
    yield instance("flatten2d", IOS16, "computed", x=x, axis=tensor("int32"))
    yield instance("flatten2d", IOS16, "beyond", x=x, axis=scalar(5), because=UNCHECKED_AXIS, instead=REFUSED)
    yield instance("flatten2d", IOS16, "before", x=x, axis=scalar(-5), because=UNCHECKED_AXIS, instead=REFUSED)


def _identity() -> Iterator[Instance]:
    for opset in (IOS15, IOS18):
        for dtype in (*OLDER, *SMALL):
            yield instance("identity", opset, f"rank0-{dtype}", x=tensor(dtype))
            yield instance("identity", opset, f"rank5-{dtype}", x=tensor(dtype, 1, 2, "s0", 4, 5))
    yield instance("identity", IOS16, "const", x=const("fp32", [[1.5, 2.5]]))
    yield instance("identity", IOS16, "const-int", x=int32(3, 4))
    yield instance("identity", IOS16, "of-shape", x=shape_of("s0", 3))
    yield instance("identity", IOS16, "text", x=const("string", "same"))
    items = gives("make_list", elem_shape=values(scalar(2), scalar(3)), dtype=const("string", "fp32"))
    yield instance("identity", IOS16, "list", x=items)
    yield instance("identity", IOS16, "missing")
    yield instance("identity", IOS16, "unknown", x=tensor("fp32", 2), y=tensor("fp32", 2))


def _suppression() -> Iterator[Instance]:
    def suppress(opset: str, label: str, boxes: dict, scores: dict, dtype: str = "fp32", **more: object) -> Instance:
        given = {"iou_threshold": const(dtype, 0.5), "max_boxes": scalar(10), **more}
        if opset in (IOS15, IOS16):
            given.setdefault("score_threshold", const(dtype, 0.25))
        return instance("non_maximum_suppression", opset, label, boxes=boxes, scores=scores, **given)

    for opset in (IOS15, IOS16, IOS17, IOS18):

        def sized(dtype: str, batch: int | str, width: int | str, boxes: int | str, opset: str = opset) -> dict:
            return tensor(dtype, batch, boxes, width) if opset in (IOS15, IOS16) else tensor(dtype, batch, width, boxes)

        for dtype in FLOATS:
            yield suppress(opset, f"fixed-{dtype}", sized(dtype, 2, 4, 100), sized(dtype, 2, 7, 100), dtype)
            yield suppress(opset, f"open-{dtype}", sized(dtype, "s0", 4, "s1"), sized(dtype, "s0", 7, "s1"), dtype)
        boxes, scores = sized("fp32", 2, 4, 100), sized("fp32", 2, 7, 100)
        yield suppress(opset, "classes", boxes, sized("fp32", 2, "s0", 100), per_class_suppression=bool_(True))
        yield suppress(opset, "scores-rank2", boxes, tensor("fp32", 2, 100))
        yield suppress(opset, "mixed", boxes, sized("fp16", 2, 7, 100))
        yield suppress(opset, "int32", sized("int32", 2, 4, 100), sized("int32", 2, 7, 100))
        yield suppress(opset, "missing", boxes, scores, iou_threshold=None)
        yield suppress(opset, "computed", boxes, scores, max_boxes=tensor("int32"))
        unseen = "coremltools does not look at the boxes"
        yield suppress(opset, "boxes-rank2", tensor("fp32", 100, 4), scores, because=unseen, instead=REFUSED)
        yield suppress(opset, "corners", sized("fp32", 2, 5, 100), scores, because=unseen, instead=REFUSED)
        yield suppress(opset, "count", sized("fp32", 2, 4, 99), scores, because=unseen, instead=REFUSED)
        yield suppress(opset, "batch", sized("fp32", 3, 4, 100), scores, because=unseen, instead=REFUSED)
        yield suppress(opset, "negative", boxes, scores, max_boxes=scalar(-1), because=NEGATIVE, instead=REFUSED)
    yield suppress(
        IOS17, "threshold", tensor("fp32", 2, 4, 9), tensor("fp32", 2, 7, 9), score_threshold=const("fp32", 0.5)
    )
    yield suppress(IOS16, "no-threshold", tensor("fp32", 2, 9, 4), tensor("fp32", 2, 9, 7), score_threshold=None)


def _non_zero() -> Iterator[Instance]:
    for opset in (IOS15, IOS17):
        for dtype in OLDER:
            yield instance("non_zero", opset, f"rank1-{dtype}", x=tensor(dtype, 5))
            yield instance("non_zero", opset, f"rank5-{dtype}", x=tensor(dtype, 1, 2, "s0", 4, 5))
    yield instance("non_zero", IOS16, "const", x=const("int32", [[0, 7, 0], [8, 0, -1]]))
    yield instance("non_zero", IOS16, "const-bool", x=const("bool", [True, False, True]))
    yield instance("non_zero", IOS16, "const-float", x=const("fp32", [0.0, 0.5]))
    yield instance("non_zero", IOS16, "const-none", x=const("int32", [0, 0]))
    yield instance("non_zero", IOS16, "int8", x=tensor("int8", 5))
    yield instance("non_zero", IOS16, "missing")


def _one_hot() -> Iterator[Instance]:
    for opset in (IOS15, IOS17):
        for dtype in OLDER:
            given = {"on_value": const(dtype, 1), "off_value": const(dtype, 0), "one_hot_vector_size": scalar(9)}
            yield instance("one_hot", opset, f"rank0-{dtype}", indices=tensor("int32"), **given)
            yield instance(
                "one_hot", opset, f"rank4-{dtype}", indices=tensor("int32", 1, 2, "s0", 4), axis=scalar(1), **given
            )
    indices, nine = tensor("int32", 2, "s0"), {"one_hot_vector_size": scalar(9)}
    for axis in (0, 1, 2, -1, -2, -3):
        yield instance("one_hot", IOS16, f"at{axis}", indices=indices, axis=scalar(axis), **nine)
    yield instance("one_hot", IOS16, "plain", indices=tensor("int32", 3), **nine)
    yield instance("one_hot", IOS16, "computed", indices=indices, one_hot_vector_size=tensor("int32"))
    yield instance("one_hot", IOS16, "symbolic", indices=indices, one_hot_vector_size=element_of(shape_of("s1", 3), 0))
    yield instance("one_hot", IOS16, "of-shape", indices=indices, one_hot_vector_size=element_of(shape_of("s1", 3), 1))
    yield instance("one_hot", IOS16, "const", indices=int32(0, 2), one_hot_vector_size=scalar(3))
    yield instance("one_hot", IOS16, "negative", indices=indices, one_hot_vector_size=scalar(-1))
    yield instance("one_hot", IOS16, "beyond", indices=indices, axis=scalar(3), **nine)
    yield instance("one_hot", IOS16, "before", indices=indices, axis=scalar(-4), **nine)
    yield instance("one_hot", IOS16, "only-on", indices=indices, on_value=const("fp32", 1.0), **nine)
    yield instance(
        "one_hot", IOS16, "mixed", indices=indices, on_value=const("fp32", 1.0), off_value=const("fp16", 0.0), **nine
    )
    yield instance("one_hot", IOS16, "float", indices=tensor("fp32", 2), **nine)


def _pad() -> Iterator[Instance]:
    for opset in (IOS15, IOS17):
        for dtype in FLOATS:
            yield instance("pad", opset, f"rank1-{dtype}", x=tensor(dtype, 5), pad=int32(1, 2))
            yield instance("pad", opset, f"rank5-{dtype}", x=tensor(dtype, 1, 2, 3, "s0", 5), pad=int32(0, 1, 2, 3))
            yield instance(
                "pad",
                opset,
                f"value-{dtype}",
                x=tensor(dtype, 2, 3),
                pad=int32(0, 0, 1, 1),
                constant_val=const(dtype, 7),
            )
    x = tensor("fp32", 2, "s0", 4)
    for mode in ("constant", "reflect", "replicate"):
        text = const("string", mode)
        yield instance("pad", IOS16, mode, x=x, pad=int32(0, 1, 2, 3), mode=text)
        data = const("fp32", [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        yield instance("pad", IOS16, f"const-{mode}", x=data, pad=int32(1, 0, 2, 1), mode=text)
        yield instance("pad", IOS16, f"const-last-{mode}", x=data, pad=int32(1, 2), mode=text)
    yield instance("pad", IOS16, "computed", x=x, pad=tensor("int32", 6))
    yield instance("pad", IOS16, "none", x=x, pad=int32())
    six = gives(
        "concat",
        values=values(int32(0, 0, 1, 2, 0), gives("gather", x=shape_of("s1"), indices=int32(0))),
        axis=scalar(0),
    )
    yield instance("pad", IOS16, "symbolic", x=x, pad=six)
    yield instance("pad", IOS16, "computed-short", x=x, pad=tensor("int32", 4))
    yield instance("pad", IOS16, "odd", x=x, pad=int32(1, 2, 3))
    yield instance("pad", IOS16, "long", x=x, pad=int32(1, 1, 1, 1, 1, 1, 1, 1))
    yield instance("pad", IOS16, "negative", x=x, pad=int32(0, -1))
    yield instance("pad", IOS16, "rank2", x=x, pad=const("int32", [[1, 1]]))
    yield instance("pad", IOS16, "wrap", x=x, pad=int32(1, 1), mode=const("string", "wrap"))
    yield instance("pad", IOS16, "mixed", x=x, pad=int32(1, 1), constant_val=const("fp16", 1.0))
    yield instance("pad", IOS16, "int32", x=tensor("int32", 3), pad=int32(1, 1))
    for mode, amount, most in (("reflect", 4, "one less than the extent"), ("replicate", 5, "the extent")):
        yield instance(
            "pad", IOS16, f"far-{mode}", x=x, pad=int32(amount, 0), mode=const("string", mode),
            because=f"documented: at most {most}; coremltools does not look", instead=REFUSED,
        )  # fmt: skip


def _range() -> Iterator[Instance]:
    for opset in (IOS15, IOS17):
        for dtype in NUMBERS:
            bounds = {"start": const(dtype, 0), "step": const(dtype, 2)}
            yield instance("range_1d", opset, f"const-{dtype}", end=const(dtype, 9), **bounds)
            yield instance("range_1d", opset, f"computed-{dtype}", end=tensor(dtype), **bounds)
            computed = {"start": tensor(dtype), "step": tensor(dtype)}
            yield instance("range_1d", opset, f"all-computed-{dtype}", end=tensor(dtype), **computed)
    one = {"start": scalar(0), "step": scalar(1)}
    length = element_of(shape_of(2, "s0"), 1)
    yield instance("range_1d", IOS16, "symbolic", end=length, **one)
    yield instance(
        "range_1d", IOS16, "symbolic-start", end=gives("add", x=length, y=scalar(3)), start=length, step=scalar(1),
        because="coremltools does not compute with extents here", instead={"outputs": [output("int32", 3)]},
    )  # fmt: skip
    yield instance("range_1d", IOS16, "of-shape", end=element_of(shape_of(2, 5), 1), **one)
    yield instance("range_1d", IOS16, "down", end=scalar(-3), start=scalar(7), step=scalar(-4))
    yield instance(
        "range_1d", IOS16, "fraction", end=const("fp32", 1.0), start=const("fp32", 0.1), step=const("fp32", 0.3)
    )
    yield instance("range_1d", IOS16, "long", end=scalar(100_000), **one)
    yield instance("range_1d", IOS16, "longest", end=scalar(2_000_000_000), **one)
    yield instance("range_1d", IOS16, "stand", end=scalar(9), start=scalar(0), step=scalar(0))
    yield instance("range_1d", IOS16, "mixed", end=const("fp32", 9.0), **one)
    yield instance("range_1d", IOS16, "bool", end=bool_(True), start=bool_(False), step=bool_(True))
    yield instance("range_1d", IOS16, "missing", end=scalar(9), start=scalar(0))
    yield instance(
        "range_1d", IOS16, "nothing", end=scalar(-3), **one,
        because="coremltools gives a negative extent; there are no elements",
        instead={"outputs": [output("int32", 0)]},
    )  # fmt: skip


def _shape() -> Iterator[Instance]:
    for opset in (IOS15, IOS17):
        for dtype in OLDER:
            yield instance("shape", opset, f"rank0-{dtype}", x=tensor(dtype))
            yield instance("shape", opset, f"rank5-{dtype}", x=tensor(dtype, 1, 2, "s0", 4, "s1"))
            yield instance("shape", opset, f"fixed-{dtype}", x=tensor(dtype, 3, 4))
    yield instance("shape", IOS16, "const", x=const("fp32", [[1.5, 2.5]]))
    yield instance("shape", IOS16, "int8", x=tensor("int8", 3))
    yield instance("shape", IOS16, "missing")


def _tile() -> Iterator[Instance]:
    for opset in (IOS15, IOS17):
        for dtype in OLDER:
            yield instance("tile", opset, f"rank1-{dtype}", x=tensor(dtype, 3), reps=int32(2))
            yield instance(
                "tile", opset, f"rank5-{dtype}", x=tensor(dtype, 1, 2, "s0", 4, 5), reps=int32(3, 2, 1, 1, 2)
            )
    x = tensor("fp32", 2, "s0")
    yield instance("tile", IOS16, "open", x=x, reps=int32(2, 3))
    yield instance("tile", IOS16, "computed", x=x, reps=tensor("int32", 2))
    yield instance(
        "tile",
        IOS16,
        "symbolic",
        x=x,
        reps=gives("concat", values=values(element_of(shape_of("s1"), 0), scalar(1)), axis=scalar(0)),
    )
    yield instance("tile", IOS16, "const", x=const("int32", [[1, 2], [3, 4]]), reps=int32(2, 3))
    yield instance("tile", IOS16, "const-float", x=const("fp32", [1.5, 2.5]), reps=int32(2))
    yield instance("tile", IOS16, "short", x=x, reps=int32(2))
    yield instance("tile", IOS16, "zero", x=x, reps=int32(2, 0))
    yield instance("tile", IOS16, "negative", x=x, reps=int32(-1, 1))
    yield instance("tile", IOS16, "rank0", x=tensor("fp32"), reps=int32())
    yield instance("tile", IOS16, "missing", x=x)
    yield instance(
        "tile", IOS16, "computed-short", x=x, reps=tensor("int32", 3), instead=REFUSED,
        because="coremltools counts repetitions only if they are known",
    )  # fmt: skip
