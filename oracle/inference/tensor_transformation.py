"""Operations that move or reshape the elements of a tensor."""

from __future__ import annotations

from collections.abc import Iterator

from .language import IOS15, IOS16, IOS17, IOS18, REFUSED, Instance, const, filled, gives, instance, tensor, values

FLOATS = ("fp16", "fp32")
OLDER = (*FLOATS, "int32", "bool")
NEWER = (*OLDER, "int8", "uint8", "int16", "uint16")

IMAGES = ("depth_to_space", "pixel_shuffle", "pixel_unshuffle", "space_to_depth")

OPERATIONS = (
    *IMAGES, "batch_to_space", "expand_dims", "reshape", "reshape_like", "reverse", "reverse_sequence",
    "slice_by_index", "slice_by_size", "slice_update", "sliding_windows", "space_to_batch", "squeeze", "transpose",
)  # fmt: skip

UNCHECKED_AXIS = "coremltools does not look at the axis; there is no such axis"
TWICE = "coremltools takes an axis twice; what that means differs from one to the next of its functions"
NO_RANK = "coremltools gives a type without a rank, which no operation can take"
ZERO_OF_OPEN = "coremltools leaves the 0, which stands for the extent of the input, in the shape if an extent is open"
NOT_DIVISIBLE = "coremltools rounds the extent, or leaves a fraction; elements would be lost"
NUMPY = "coremltools' type and its value differ; the value, which is Python's, is right"


def int32(*elements: int) -> dict:
    return const("int32", list(elements)) if elements else filled("int32", 0)


def ints(dtype: str, *elements: int) -> dict:
    return const(dtype, list(elements))


def bools(*elements: bool | int) -> dict:
    return const("bool", [bool(element) for element in elements])


def shape_of(*dims: int | str) -> dict:
    return gives("shape", x=tensor("fp32", *dims))


def part_of(shape: dict, *indices: int) -> dict:
    return gives("gather", x=shape, indices=int32(*indices))


def element_of(shape: dict, index: int) -> dict:
    return gives("gather", x=shape, indices=const("int32", index))


def joined(*parts: dict) -> dict:
    return gives("concat", values=values(*parts), axis=const("int32", 0))


def instead(dtype: str, *dims: int | str, value: list | None = None) -> dict:
    output = {"dtype": dtype, "shape": list(dims)}
    return {"outputs": [output if value is None else {**output, "value": value}]}


def expr(text: str, *at: int) -> dict:
    return {"expr": text, "at": list(at)}


def dtypes_of(opset: str) -> tuple[str, ...]:
    return NEWER if opset in (IOS17, IOS18) else OLDER

WRONG_WHEN_FIXED = {
    "depth_to_space/iOS16/open-channels/fixed": (NOT_DIVISIBLE, REFUSED),
    "pixel_shuffle/iOS16/open-channels/fixed": (NOT_DIVISIBLE, REFUSED),
    "space_to_depth/iOS16/open-size/fixed": (NOT_DIVISIBLE, REFUSED),
    **{
        f"slice_by_size/{opset}/symbolic/fixed": ("coremltools does not look for the end of the tensor", REFUSED)
        for opset in (IOS15, IOS16, IOS17, IOS18)
    },
}


def instances() -> Iterator[Instance]:
    yield from _images()
    yield from _blocks()
    yield from _expand_dims()
    yield from _squeeze()
    yield from _reshape()
    yield from _reshape_chains()
    yield from _reshape_like()
    yield from _reverse()
    yield from _reverse_sequence()
    yield from _transpose()
    yield from _sliding_windows()
    yield from _slice_by_index()
    yield from _slice_by_index_open()
    yield from _slice_by_size()
    yield from _slice_update()


def _images() -> Iterator[Instance]:
    names = {"pixel_shuffle": "upscale_factor", "pixel_unshuffle": "downscale_factor"}
    for operation in IMAGES:
        name = names.get(operation, "block_size")
        dtype = "uint32" if operation == "pixel_unshuffle" else "int32"
        two, three = {name: const(dtype, 2)}, {name: const(dtype, 3)}
        for opset in (IOS16, IOS18):
            for element in FLOATS:
                yield instance(operation, opset, f"fixed-{element}", x=tensor(element, 1, 36, 12, 6), **two)
                yield instance(operation, opset, f"open-{element}", x=tensor(element, "s0", 36, 12, 6), **three)
        yield instance(operation, IOS17, "by-one", x=tensor("fp32", 2, 3, 5, 7), **{name: const(dtype, 1)})
        yield instance(operation, IOS17, "rank3", x=tensor("fp32", 36, 12, 6), **two)
        yield instance(operation, IOS17, "rank5", x=tensor("fp32", 1, 36, 12, 6, 6), **two)
        yield instance(operation, IOS17, "int32", x=tensor("int32", 1, 36, 12, 6), **two)
        yield instance(operation, IOS17, "missing", x=tensor("fp32", 1, 36, 12, 6))
        yield instance(operation, IOS17, "computed", x=tensor("fp32", 1, 36, 12, 6), **{name: tensor(dtype)})
        yield instance(
            operation, IOS17, "rest", x=tensor("fp32", 1, 35, 11, 7), **two, because=NOT_DIVISIBLE, instead=REFUSED
        )
        nothing = (
            {}
            if operation == "pixel_unshuffle"
            else {"because": "coremltools takes 0, and divides by it", "instead": REFUSED}
        )
        yield instance(operation, IOS17, "zero", x=tensor("fp32", 1, 36, 12, 6), **{name: const(dtype, 0)}, **nothing)
    for operation in ("depth_to_space", "pixel_shuffle"):
        name = names.get(operation, "block_size")
        yield instance(operation, IOS16, "open-size", x=tensor("fp32", 1, 36, "s0", "s1"), **{name: const("int32", 3)})
        yield instance(operation, IOS16, "open-channels", x=tensor("fp32", 1, "s1", 4, 4), **{name: const("int32", 2)})
        yield instance(
            operation, IOS16, "negative", x=tensor("fp32", 1, 36, 4, 4), **{name: const("int32", -2)},
            because="coremltools gives negative extents", instead=REFUSED,
        )  # fmt: skip
    for operation, name, dtype in (
        ("space_to_depth", "block_size", "int32"),
        ("pixel_unshuffle", "downscale_factor", "uint32"),
    ):
        yield instance(operation, IOS16, "open-channels", x=tensor("fp32", 1, "s0", 8, 6), **{name: const(dtype, 2)})
    yield instance(
        "space_to_depth", IOS16, "open-size", x=tensor("fp32", 1, 3, "s0", "s1"), block_size=const("int32", 2)
    )


def _blocks() -> Iterator[Instance]:
    none, two = const("int32", [[0, 0], [0, 0]]), int32(2, 2)
    for opset in (IOS15, IOS17):
        for dtype in FLOATS:
            x = tensor(dtype, 4, 3, 8, 6)
            open_batch = tensor(dtype, "s0", 3, 8, 6)
            margins = const("int32", [[1, 1], [2, 4]])
            for label, given in (
                ("fixed", x),
                ("open-batch", open_batch),
                ("open-channels", tensor(dtype, 4, "s2", 8, 6)),
            ):
                label = f"{label}-{dtype}"
                yield instance("space_to_batch", opset, label, x=given, block_shape=two, paddings=none)
                yield instance("batch_to_space", opset, label, x=given, block_shape=two, crops=none)
            yield instance("space_to_batch", opset, f"padded-{dtype}", x=x, block_shape=two, paddings=margins)
            yield instance("batch_to_space", opset, f"cropped-{dtype}", x=x, block_shape=two, crops=margins)
            yield instance("batch_to_space", opset, f"oblong-{dtype}", x=x, block_shape=int32(1, 4), crops=none)
            yield instance("space_to_batch", opset, f"oblong-{dtype}", x=x, block_shape=int32(4, 1), paddings=none)
    x = tensor("fp32", 4, 3, 8, 6)
    for operation, margin in (("space_to_batch", "paddings"), ("batch_to_space", "crops")):
        yield instance(operation, IOS16, "rank3", x=tensor("fp32", 4, 8, 6), block_shape=two, **{margin: none})
        yield instance(operation, IOS16, "rank5", x=tensor("fp32", 4, 3, 8, 6, 2), block_shape=two, **{margin: none})
        yield instance(
            operation, IOS16, "three", x=x, block_shape=int32(2, 2, 2), **{margin: const("int32", [[0, 0]] * 3)}
        )
        yield instance(operation, IOS16, "uneven", x=x, block_shape=two, **{margin: const("int32", [[0, 0]])})
        yield instance(operation, IOS16, "int32", x=tensor("int32", 4, 3, 8, 6), block_shape=two, **{margin: none})
        yield instance(operation, IOS16, "missing", x=x, block_shape=two)
    yield instance(
        "space_to_batch", IOS16, "rest", x=tensor("fp32", 4, 3, 7, 6), block_shape=two, paddings=none,
        because=NOT_DIVISIBLE, instead=REFUSED,
    )  # fmt: skip
    yield instance(
        "space_to_batch", IOS16, "cut", x=x, block_shape=two, paddings=const("int32", [[-2, 0], [0, 0]]),
        because="coremltools takes negative paddings, which are no paddings", instead=REFUSED,
    )  # fmt: skip
    yield instance("batch_to_space", IOS16, "rest", x=tensor("fp32", 3, 3, 7, 6), block_shape=two, crops=none)
    yield instance(
        "batch_to_space", IOS16, "all", x=x, block_shape=two, crops=const("int32", [[9, 9], [0, 0]]),
        because="coremltools gives negative extents", instead=REFUSED,
    )  # fmt: skip
    yield instance(
        "batch_to_space", IOS16, "open-size", x=tensor("fp32", 4, 3, "s0", "s1"), block_shape=two, crops=none
    )


def _expand_dims() -> Iterator[Instance]:
    for opset in (IOS15, IOS16, IOS17, IOS18):
        for dtype in dtypes_of(opset):
            yield instance("expand_dims", opset, f"rank0-{dtype}", x=tensor(dtype), axes=int32(0))
            yield instance("expand_dims", opset, f"ends-{dtype}", x=tensor(dtype, 2, "s0"), axes=int32(-1, 0))
        x = tensor("fp32", 2, "s1", 4)
        for axes in ((1,), (-1,), (-4,), (0, 2), (1, -2), (4, 0, 2)):
            yield instance("expand_dims", opset, f"at{axes}", x=x, axes=int32(*axes))
        yield instance("expand_dims", opset, "none", x=x, axes=int32())
        yield instance("expand_dims", opset, "const", x=const("fp32", [1.5, 2.5]), axes=int32(0, 2))
        yield instance("expand_dims", opset, "const-rank0", x=const("int32", 7), axes=int32(0))
        yield instance("expand_dims", opset, "beyond", x=x, axes=int32(4))
        yield instance("expand_dims", opset, "before", x=x, axes=int32(-5))
        yield instance("expand_dims", opset, "computed", x=x, axes=tensor("int32", 1))
        yield instance("expand_dims", opset, "scalar", x=x, axes=const("int32", 0))
        yield instance("expand_dims", opset, "twice", x=x, axes=int32(0, -5), because=TWICE, instead=REFUSED)
    yield instance("expand_dims", IOS16, "int8", x=tensor("int8", 3), axes=int32(0))
    yield instance("expand_dims", IOS16, "of-shape", x=shape_of("s0", 3), axes=int32(0))


def _squeeze() -> Iterator[Instance]:
    for opset in (IOS15, IOS16, IOS17, IOS18):
        for dtype in dtypes_of(opset):
            yield instance("squeeze", opset, f"all-{dtype}", x=tensor(dtype, 1, 2, 1, "s0"))
            yield instance("squeeze", opset, f"rank5-{dtype}", x=tensor(dtype, 1, 2, 1, "s0", 1), axes=int32(0, -1))
            yield instance("squeeze", opset, f"rank0-{dtype}", x=tensor(dtype, 1, 1))
        x = tensor("fp32", 1, "s1", 1, 4)
        for axes in ((0,), (2,), (-2,), (0, 2), (1,), (3, 0), (-4, -1)):
            yield instance("squeeze", opset, f"at{axes}", x=x, axes=int32(*axes))
        yield instance("squeeze", opset, "const", x=const("fp32", [[1.5, 2.5]]), axes=int32(0))
        yield instance("squeeze", opset, "const-all", x=const("int32", [[[1], [2]]]))
        yield instance("squeeze", opset, "const-rank0", x=const("int32", [7]))
        yield instance("squeeze", opset, "beyond", x=x, axes=int32(4))
        yield instance("squeeze", opset, "computed", x=x, axes=tensor("int32", 1))
        yield instance("squeeze", opset, "before", x=x, axes=int32(-6), because=UNCHECKED_AXIS, instead=REFUSED)
        yield instance(
            "squeeze", opset, "twice", x=tensor("fp32", 1, 1, 3), axes=int32(0, -3), because=TWICE, instead=REFUSED
        )
    yield instance("squeeze", IOS15, "int8", x=tensor("int8", 1, 3))


def _reshape() -> Iterator[Instance]:
    for opset in (IOS15, IOS16, IOS17, IOS18):
        for dtype in dtypes_of(opset):
            yield instance("reshape", opset, f"flat-{dtype}", x=tensor(dtype, 2, 3, 4), shape=int32(-1))
            yield instance("reshape", opset, f"rank5-{dtype}", x=tensor(dtype, 2, "s0"), shape=int32(1, -1, 1, 2, 1))
            yield instance("reshape", opset, f"rank0-{dtype}", x=tensor(dtype), shape=int32(1, 1))
        x, partly = tensor("fp32", 2, 3, 4), tensor("fp32", "s0", 3, 4)
        for shape in ((6, 4), (2, -1), (-1, 8), (0, -1, 2), (0, 0, 0), (4, 3, 2), (-1, 0, 0), (1, 24, 1, 1, 1)):
            yield instance("reshape", opset, f"to{shape}", x=x, shape=int32(*shape))
        for shape in ((-1, 12), (3, -1), (-1,), (2, 3), (-1, 2, 6), (12, -1), (4, 3, -1)):
            yield instance("reshape", opset, f"open-to{shape}", x=partly, shape=int32(*shape))
        open_extent, newer = expr("s0", 7, 12, 37), opset in (IOS17, IOS18)
        aligned = {
            (0, 3, -1): instead("fp32", open_extent, 3, 4),
            (0, 12): instead("fp32", 3, 12) if newer else REFUSED,
            (0, -1): instead("fp32", 3, expr("4*s0", 28, 48, 148)) if newer else REFUSED,
            (0, 0, 2, 2): REFUSED,
            (2, 0, -1, 6): instead("fp32", 2, open_extent, 1, 6) if newer else REFUSED,
        }
        for shape, right in aligned.items():
            label = f"open-zero{shape}"
            yield instance("reshape", opset, label, x=partly, shape=int32(*shape), because=ZERO_OF_OPEN, instead=right)
        yield instance("reshape", opset, "computed", x=partly, shape=tensor("int32", 2))
        yield instance("reshape", opset, "computed-fixed", x=x, shape=tensor("int32", 3))
        yield instance("reshape", opset, "to-rank0", x=tensor("fp32", 1, 1), shape=int32())
        yield instance("reshape", opset, "const", x=const("fp32", [1.5, 2.5, 3.5, 4.5]), shape=int32(2, -1))
        yield instance("reshape", opset, "const-rank0", x=const("int32", 7), shape=int32(1))
        yield instance("reshape", opset, "two-open", x=tensor("fp32", "s0", "s1", 4), shape=int32(-1, 4))
        yield instance("reshape", opset, "of-shape", x=shape_of("s0", 3, "s1", 2), shape=int32(2, 2))
        yield instance("reshape", opset, "of-fixed-shape", x=shape_of(5, 3, 7, 2), shape=int32(2, -1))
        yield instance("reshape", opset, "wrong", x=x, shape=int32(5, 5))
        yield instance("reshape", opset, "wrong-rest", x=x, shape=int32(5, -1))
        yield instance("reshape", opset, "two-rests", x=x, shape=int32(-1, -1))
        yield instance("reshape", opset, "open-two-rests", x=partly, shape=int32(-1, -1))
        yield instance("reshape", opset, "scalar-shape", x=x, shape=const("int32", 24))
        yield instance("reshape", opset, "missing", x=x)
        yield instance("reshape", opset, "float-shape", x=x, shape=const("fp32", [6.0, 4.0]))
        yield instance(
            "reshape", opset, "negative", x=x, shape=int32(-2, -12), because="coremltools gives negative extents",
            instead=REFUSED,
        )  # fmt: skip
        yield instance(
            "reshape", opset, "open-length", x=x, shape=tensor("int32", "s0"), because=NO_RANK, instead=REFUSED
        )
    for shape in ((1, 0, -1, 0), (0, 0, 0, 0, 24), (0, 2, 12)):
        for opset in (IOS15, IOS17, IOS18):
            yield instance("reshape", opset, f"zeros{shape}", x=tensor("fp32", 2, 12), shape=int32(*shape))
    for dtype in ("int8", "int16"):
        yield instance("reshape", IOS17, f"shape-{dtype}", x=tensor("fp32", 2, "s0", 4), shape=ints(dtype, 8, -1))
        yield instance("reshape", IOS15, f"shape-{dtype}", x=tensor("fp32", 2, 3, 4), shape=ints(dtype, 8, -1))


def _reshape_chains() -> Iterator[Instance]:
    for opset in (IOS16, IOS18):
        x = tensor("fp32", "s0", "s1", 8)
        shape = shape_of("s0", "s1", 8)
        first, second = part_of(shape, 0), part_of(shape, 1)
        doubled = gives("mul", x=second, y=int32(2))
        halved = gives("floor_div", x=second, y=int32(2))
        heads = {
            "split-heads": (first, second, int32(2, 4)),
            "merge": (first, int32(-1)),
            "rest": (gives("mul", x=first, y=second), int32(8)),
            "trade": (first, doubled, int32(4)),
            "rest-of-half": (first, halved, int32(-1)),
            "unknown": (first, tensor("int32", 1), int32(8)),
            "two-unknown": (tensor("int32", 2), int32(8)),
            "unknown-rest": (first, tensor("int32", 1), int32(-1)),
            "same": (shape,),
        }
        for label, parts in heads.items():
            yield instance("reshape", opset, f"chain-{label}", x=x, shape=joined(*parts))
        yield instance(
            "reshape", opset, "chain-trade-rest", x=x, shape=joined(first, doubled, int32(-1)),
            because="coremltools does not compute with extents here",
            instead=instead("fp32", expr("s0", 7, 12, 37), expr("2*s1", 22, 40, 82), 4),
        )  # fmt: skip
        batch = gives("slice_by_index", x=shape, begin=int32(0), end=int32(1))
        yield instance("reshape", opset, "chain-slice", x=x, shape=joined(batch, int32(-1, 4)))
        item = gives(
            "slice_by_index", x=shape, begin=int32(1), end=int32(2), squeeze_mask=bools(1),
        )  # fmt: skip
        items = joined(element_of(shape, 0), item, const("int32", 2), const("int32", 4))
        yield instance("reshape", opset, "chain-scalars", x=x, shape=items)
        stacked = gives("stack", values=values(item, const("int32", -1)), axis=const("int32", 0))
        yield instance("reshape", opset, "chain-stack", x=x, shape=stacked)
        split = gives("split", x=shape, num_splits=const("int32", 3), axis=const("int32", 0))
        yield instance("reshape", opset, "chain-split", x=x, shape=joined({**split, "output": 1}, int32(-1)))
        yield instance(
            "reshape", opset, "other-symbol", x=tensor("fp32", 4, 6), shape=joined(part_of(shape, 0), int32(6))
        )
        yield instance(
            "reshape",
            opset,
            "chain-fixed",
            x=tensor("fp32", 5, 8),
            shape=joined(part_of(shape_of(5, 8), 0), int32(2, 4)),
        )
        yield instance(
            "reshape",
            opset,
            "chain-long",
            x=tensor("fp32", 5, 8),
            shape=joined(part_of(shape_of(5, 8), 0), int32(3, 4)),
        )
        nested = gives("reshape", x=x, shape=joined(first, int32(-1)))
        yield instance("reshape", opset, "chain-again", x=nested, shape=joined(first, second, int32(8)))


def _reshape_like() -> Iterator[Instance]:
    def given(begins: tuple, ends: tuple, masks: tuple) -> dict:
        return {
            "begins": values(*(const("int32", begin) for begin in begins)),
            "ends": values(*(const("int32", end) for end in ends)),
            "end_masks": values(*(const("bool", mask) for mask in masks)),
        }

    for opset in (IOS16, IOS17, IOS18):
        two = given((0, 1), (2, 0), (False, True))
        for dtype in dtypes_of(opset):
            refs = values(tensor(dtype, 2, 3, 4), tensor(dtype, 1, 5, 6))
            yield instance("reshape_like", opset, f"fixed-{dtype}", x=tensor(dtype, 30, 6), ref_tensors=refs, **two)
            yield instance("reshape_like", opset, f"open-{dtype}", x=tensor(dtype, "s0", 6), ref_tensors=refs, **two)
        refs = values(tensor("fp32", "s0", 3, 4), tensor("fp32", 1, 5))
        one = values(tensor("fp32", 2, 3, 4))
        x = tensor("fp32", 12)
        yield instance("reshape_like", opset, "part", x=x, ref_tensors=refs, **given((1, 0), (3, 1), (False, False)))
        yield instance("reshape_like", opset, "from-end", x=x, ref_tensors=one, **given((-2,), (9,), (False,)))
        yield instance(
            "reshape_like", opset, "to-rank0", x=tensor("fp32", 1), ref_tensors=one, **given((2,), (1,), (False,))
        )
        yield instance(
            "reshape_like", opset, "open-ref", x=x, ref_tensors=refs, **given((0, 0), (2, 1), (False, False))
        )
        yield instance("reshape_like", opset, "wrong", x=x, ref_tensors=one, **given((0,), (3,), (False,)))
        yield instance("reshape_like", opset, "missing", x=x, ref_tensors=one, begins=values(const("int32", 0)))
        vectors = {**given((0,), (3,), (False,)), "begins": values(int32(0))}
        yield instance("reshape_like", opset, "vectors", x=tensor("fp32", 24), ref_tensors=one, **vectors)
        floats = {**given((0,), (3,), (False,)), "ends": values(const("fp32", 3.0))}
        yield instance("reshape_like", opset, "floats", x=tensor("fp32", 24), ref_tensors=one, **floats)
        yield instance(
            "reshape_like", opset, "lengths", x=tensor("fp32", 2, 3), ref_tensors=one,
            **given((0, 0), (2, 1), (False, False)),
            because="coremltools forms the message, but forgets to raise it", instead=REFUSED,
        )  # fmt: skip
        computed = {**given((0,), (3,), (False,)), "begins": values(tensor("int32"))}
        yield instance(
            "reshape_like", opset, "computed", x=tensor("fp32", 24), ref_tensors=one, **computed,
            because="coremltools takes a bound that is computed for none at all", instead=REFUSED,
        )  # fmt: skip
    yield instance(
        "reshape_like", IOS16, "int8", x=tensor("int8", 6), ref_tensors=values(tensor("int8", 2, 3)),
        **given((0,), (2,), (False,)),
    )  # fmt: skip


def _reverse() -> Iterator[Instance]:
    for opset in (IOS15, IOS16, IOS17, IOS18):
        for dtype in dtypes_of(opset):
            yield instance("reverse", opset, f"all-{dtype}", x=tensor(dtype, 2, "s0"))
            yield instance("reverse", opset, f"rank5-{dtype}", x=tensor(dtype, 1, 2, 3, "s0", 5), axes=int32(-1, 1))
            yield instance("reverse", opset, f"rank0-{dtype}", x=tensor(dtype))
        yield instance("reverse", opset, "const", x=const("int32", [[1, 2, 3], [4, 5, 6]]), axes=int32(-1))
        yield instance("reverse", opset, "const-all", x=const("int32", [[1, 2, 3], [4, 5, 6]]))
        yield instance("reverse", opset, "const-twice", x=const("fp32", [1.5, 2.5]), axes=int32(0, 0))
        yield instance("reverse", opset, "const-beyond", x=const("fp32", [1.5, 2.5]), axes=int32(1))
        yield instance("reverse", opset, "computed", x=tensor("fp32", 2), axes=tensor("int32", 1))
        yield instance(
            "reverse", opset, "beyond", x=tensor("fp32", 2, 3), axes=int32(2), because=UNCHECKED_AXIS, instead=REFUSED
        )
    yield instance("reverse", IOS15, "int8", x=tensor("int8", 3))
    yield instance("reverse", IOS17, "of-shape", x=shape_of("s0", 3), axes=int32(0))


def _reverse_sequence() -> Iterator[Instance]:
    for opset in (IOS15, IOS16, IOS17, IOS18):
        for dtype in dtypes_of(opset):
            x = tensor(dtype, 4, 2, "s0")
            axes = {"seq_axis": const("int32", 2), "batch_axis": const("int32", -3)}
            yield instance("reverse_sequence", opset, f"axes-{dtype}", x=x, lengths=tensor("int32", 4), **axes)
            yield instance("reverse_sequence", opset, f"plain-{dtype}", x=x, lengths=int32(1, 2, 3, 4))
        x = tensor("fp32", "s0", 5)
        yield instance(
            "reverse_sequence", opset, "open", x=x, lengths=tensor("int32", "s0"), seq_axis=const("int32", 1)
        )
        yield instance(
            "reverse_sequence",
            opset,
            "const",
            x=const("fp32", [[1.0, 2.0]]),
            lengths=int32(1),
            seq_axis=const("int32", 1),
        )
        yield instance("reverse_sequence", opset, "missing", x=x)
        yield instance("reverse_sequence", opset, "float", x=x, lengths=tensor("fp32", 4))
        yield instance(
            "reverse_sequence", opset, "beyond", x=x, lengths=tensor("int32", "s0"), seq_axis=const("int32", 2),
            because=UNCHECKED_AXIS, instead=REFUSED,
        )  # fmt: skip
        yield instance(
            "reverse_sequence", opset, "lengths", x=tensor("fp32", 4, 5), lengths=tensor("int32", 3),
            seq_axis=const("int32", 1), because="coremltools does not count the lengths, one for each sequence",
            instead=REFUSED,
        )  # fmt: skip
    for dtype in ("int8", "int16"):
        for opset in (IOS15, IOS17):
            yield instance(
                "reverse_sequence", opset, f"lengths-{dtype}", x=tensor("fp32", 4, 5), lengths=tensor(dtype, 4)
            )


def _transpose() -> Iterator[Instance]:
    for opset in (IOS15, IOS16, IOS17, IOS18):
        for dtype in dtypes_of(opset):
            yield instance("transpose", opset, f"rank1-{dtype}", x=tensor(dtype, 3), perm=int32(0))
            yield instance(
                "transpose", opset, f"rank5-{dtype}", x=tensor(dtype, 1, 2, 3, "s0", 5), perm=int32(4, -2, 0, 2, 1)
            )
        x = tensor("fp32", 2, "s1", 4)
        for perm in ((0, 1, 2), (2, 1, 0), (-1, -3, -2), (1, 0, -1)):
            yield instance("transpose", opset, f"by{perm}", x=x, perm=int32(*perm))
        yield instance("transpose", opset, "const", x=const("int32", [[1, 2, 3], [4, 5, 6]]), perm=int32(1, 0))
        yield instance("transpose", opset, "rank0", x=tensor("fp32"), perm=int32())
        yield instance("transpose", opset, "short", x=x, perm=int32(1, 0))
        yield instance("transpose", opset, "beyond", x=x, perm=int32(1, 0, 3))
        yield instance("transpose", opset, "computed", x=x, perm=tensor("int32", 3))
        yield instance("transpose", opset, "missing", x=x)
        yield instance("transpose", opset, "twice", x=x, perm=int32(0, 0, 1), because=TWICE, instead=REFUSED)
        yield instance("transpose", opset, "const-twice", x=const("fp32", [[1.0, 2.0]]), perm=int32(0, -2))
    yield instance("transpose", IOS16, "int8", x=tensor("int8", 3), perm=int32(0))


def _sliding_windows() -> Iterator[Instance]:
    for opset in (IOS15, IOS16, IOS17, IOS18):
        dtypes = NEWER if opset in (IOS17, IOS18) else (*FLOATS, "int32")
        for dtype in dtypes:
            x = tensor(dtype, 2, 9, "s0")
            yield instance(
                "sliding_windows", opset, f"plain-{dtype}", x=x, axis=const("int32", 1), size=const("int32", 3)
            )
            yield instance(
                "sliding_windows", opset, f"stride-{dtype}", x=tensor(dtype, 9), axis=const("int32", -1),
                size=const("int32", 4), stride=const("int32", 2),
            )  # fmt: skip
        x = tensor("fp32", 2, 9, 5, 6)
        yield instance("sliding_windows", opset, "whole", x=x, axis=const("int32", -3), size=const("int32", 9))
        yield instance("sliding_windows", opset, "beyond", x=x, axis=const("int32", 4), size=const("int32", 2))
        yield instance("sliding_windows", opset, "missing", x=x, axis=const("int32", 1))
        yield instance("sliding_windows", opset, "computed", x=x, axis=const("int32", 1), size=tensor("int32"))
        yield instance(
            "sliding_windows", opset, "stand", x=x, axis=const("int32", 1), size=const("int32", 2),
            stride=const("int32", 0), because="coremltools divides by the stride", instead=REFUSED,
        )  # fmt: skip
        yield instance(
            "sliding_windows", opset, "large", x=x, axis=const("int32", 1), size=const("int32", 12),
            because="coremltools gives an extent below one", instead=REFUSED,
        )  # fmt: skip
        open_x = tensor("fp32", "s0", 4)
        yield instance(
            "sliding_windows",
            opset,
            "open",
            x=open_x,
            axis=const("int32", 0),
            size=const("int32", 3),
            stride=const("int32", 2),
        )
    yield instance(
        "sliding_windows", IOS15, "bool", x=tensor("bool", 9), axis=const("int32", 0), size=const("int32", 2)
    )


def _slice_by_index() -> Iterator[Instance]:
    def sliced(opset: str, label: str, x: dict, begin: dict, end: dict, **more: dict) -> Instance:
        return instance("slice_by_index", opset, label, x=x, begin=begin, end=end, **more)

    for opset in (IOS15, IOS16, IOS17, IOS18):
        for dtype in dtypes_of(opset):
            yield sliced(opset, f"rank1-{dtype}", tensor(dtype, 9), int32(2), int32(7))
            yield sliced(
                opset, f"rank5-{dtype}", tensor(dtype, 1, 2, 3, 4, 5), int32(0, -1, 0, 1, -3), int32(0, 2, -1, 4, -1),
                begin_mask=bools(1, 0, 1, 0, 0), end_mask=bools(1, 0, 0, 0, 0), squeeze_mask=bools(0, 0, 0, 0, 0),
            )  # fmt: skip
            yield sliced(opset, f"item-{dtype}", tensor(dtype, 9), int32(2), int32(3), squeeze_mask=bools(1))
        x = tensor("fp32", 9, 5)
        bounds = {
            "plain": ((1, 0), (4, 5)),
            "from-end": ((-4, -5), (-1, -2)),
            "far": ((2, 1), (100, 50)),
            "far-back": ((-100, 0), (4, 5)),
            "empty": ((4, 2), (4, 2)),
            "mixed": ((3, -2), (-2, 5)),
            "crossing": ((-2, 0), (3, 5)),
            "one": ((8, 4), (9, 5)),
        }
        for label, (begin, end) in bounds.items():
            yield sliced(opset, label, x, int32(*begin), int32(*end))
        strides = {
            "two": ((0, 0), (9, 5), (2, 3)),
            "two-odd": ((1, 1), (8, 5), (4, 2)),
            "back": ((8, 4), (0, 1), (-1, -1)),
            "back-two": ((7, -1), (1, -4), (-2, -2)),
            "back-from-end": ((-1, -1), (-8, -2), (-3, -1)),
            "back-nothing": ((1, 0), (5, 2), (-1, -1)),
        }
        for label, (begin, end, stride) in strides.items():
            yield sliced(opset, f"stride-{label}", x, int32(*begin), int32(*end), stride=int32(*stride))
        masks = {
            "begin": ((1, 0), (0, 0), (1, 1)),
            "end": ((0, 0), (1, 0), (1, 1)),
            "both": ((1, 1), (1, 1), (1, 1)),
            "both-strided": ((1, 1), (1, 1), (2, -3)),
            "begin-back": ((1, 0), (0, 0), (-1, 1)),
            "end-back": ((0, 0), (1, 1), (-2, -1)),
        }
        for label, (begin_mask, end_mask, stride) in masks.items():
            yield sliced(
                opset, f"mask-{label}", x, int32(3, 2), int32(6, 4), stride=int32(*stride),
                begin_mask=bools(*begin_mask), end_mask=bools(*end_mask),
            )  # fmt: skip
        for label, squeeze in (("first", (1, 0)), ("second", (0, 1)), ("both", (1, 1))):
            yield sliced(opset, f"squeeze-{label}", x, int32(3, -2), int32(4, 0), squeeze_mask=bools(*squeeze))
            yield sliced(
                opset, f"squeeze-const-{label}", const("int32", [[1, 2, 3], [4, 5, 6]]), int32(1, -2), int32(2, 3),
                squeeze_mask=bools(*squeeze),
            )  # fmt: skip
        data = const("int32", [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]])
        yield sliced(opset, "const", data, int32(0, 1), int32(2, 4))
        yield sliced(opset, "const-stride", data, int32(2, 0), int32(0, 4), stride=int32(-1, 2))
        yield sliced(opset, "const-mask", data, int32(1, -1), int32(0, 0), stride=int32(1, -2), end_mask=bools(1, 1))
        yield sliced(opset, "const-float", const("fp32", [1.5, 2.5, 3.5]), int32(-2), int32(3))
        yield sliced(
            opset, "const-float-item", const("fp32", [1.5, 2.5, 3.5]), int32(-2), int32(3), squeeze_mask=bools(1)
        )
        yield sliced(opset, "short-begin", x, int32(0), int32(1, 1))
        yield sliced(opset, "short-end", x, int32(0, 0), int32(1))
        yield sliced(opset, "wrong-way", x, int32(4, 0), int32(2, 5))
        yield sliced(opset, "wrong-way-back", x, int32(-6, 0), int32(-2, 5), stride=int32(-1, 1))
        yield sliced(opset, "computed-stride", x, int32(0, 0), int32(1, 1), stride=tensor("int32", 2))
        yield sliced(opset, "computed-mask", x, int32(0, 0), int32(1, 1), end_mask=tensor("bool", 2))
        yield instance("slice_by_index", opset, "missing", x=x, begin=int32(0, 0))
        yield sliced(opset, "float-begin", x, const("fp32", [0.0, 0.0]), int32(1, 1))
        yield sliced(
            opset, "past-end", tensor("fp32", 3), int32(5), int32(6), because=NUMPY, instead=instead("fp32", 0)
        )
        yield sliced(
            opset, "past-one", tensor("fp32", 1), int32(1), int32(9), because=NUMPY, instead=instead("fp32", 0)
        )
        yield sliced(
            opset, "back-to-start", tensor("fp32", 4), int32(3), int32(-5), stride=int32(-1), because=NUMPY,
            instead=instead("fp32", 4),
        )  # fmt: skip
        yield sliced(
            opset, "item-past-end", tensor("fp32", 3), int32(3), int32(4), squeeze_mask=bools(1),
            because="coremltools does not look at the index; there is no such element", instead=REFUSED,
        )  # fmt: skip
    for dtype in ("int8", "int16"):
        for opset in (IOS16, IOS17):
            yield sliced(
                opset, f"bounds-{dtype}", tensor("fp32", 9), ints(dtype, 2), ints(dtype, 7), stride=ints(dtype, 2)
            )
    yield sliced(IOS17, "bounds-mixed", tensor("fp32", 9), ints("int8", 2), ints("int16", 7))


def _slice_by_index_open() -> Iterator[Instance]:
    def sliced(opset: str, label: str, x: dict, begin: dict, end: dict, **more: dict) -> Instance:
        return instance("slice_by_index", opset, f"open-{label}", x=x, begin=begin, end=end, **more)

    whole = {"begin_mask": bools(1, 1), "end_mask": bools(1, 1)}
    for opset in (IOS15, IOS17):
        x = tensor("fp32", "s0", "s1")
        yield sliced(opset, "whole", x, int32(0, 0), int32(0, 0), **whole)
        yield sliced(opset, "whole-back", x, int32(0, 0), int32(0, 0), stride=int32(-1, 1), **whole)
        yield sliced(opset, "whole-strided", x, int32(0, 0), int32(0, 0), stride=int32(2, -3), **whole)
        yield sliced(opset, "head", x, int32(0, 0), int32(3, 2))
        yield sliced(opset, "first", x, int32(0, 2), int32(1, 3))
        yield sliced(opset, "none", x, int32(2, 2), int32(2, 2))
        yield sliced(opset, "last", x, int32(-1, -1), int32(0, 0), end_mask=bools(1, 1))
        yield sliced(opset, "first-back", x, int32(0, 0), int32(0, 0), stride=int32(-1, -2), end_mask=bools(1, 1))
        yield sliced(opset, "tail", x, int32(1, -3), int32(0, 0), end_mask=bools(1, 1))
        yield sliced(opset, "but-last", x, int32(0, 1), int32(-1, -2))
        yield sliced(opset, "from-end", x, int32(-3, -2), int32(-1, -1))
        yield sliced(opset, "back", x, int32(-1, -4), int32(-2, -8), stride=int32(-1, -2))
        yield sliced(opset, "item", x, int32(4, 0), int32(0, 0), squeeze_mask=bools(1, 0), end_mask=bools(0, 1))
        yield sliced(opset, "items", x, int32(4, 0), int32(0, 0), squeeze_mask=bools(1, 1))
        yield sliced(opset, "wrong-way", x, int32(3, 0), int32(1, 1))
        fixed = tensor("fp32", 9, 1)
        yield sliced(opset, "computed", fixed, tensor("int32", 2), tensor("int32", 2))
        yield sliced(opset, "computed-begin", fixed, tensor("int32", 2), int32(9, 1))
        yield sliced(opset, "computed-end", fixed, int32(0, 0), tensor("int32", 2))
        yield sliced(opset, "computed-masked", fixed, tensor("int32", 2), tensor("int32", 2), **whole)
        yield sliced(opset, "computed-item", fixed, tensor("int32", 2), int32(0, 0), squeeze_mask=bools(1, 0))
        yield sliced(opset, "computed-short", fixed, tensor("int32", 3), int32(0, 0),
                     because="coremltools does not count bounds that are computed", instead=REFUSED)  # fmt: skip
        length = joined(part_of(shape_of("s1", 4), 0), int32(4))
        partly = "coremltools takes all bounds for unknown if one of them is not a number"
        yield sliced(
            opset, "symbolic-end", tensor("fp32", "s0", 9), int32(0, 0), length, because=partly,
            instead=instead("fp32", expr("min(s0,s1)", 7, 12, 37), 4),
        )  # fmt: skip
        yield sliced(
            opset, "symbolic-begin", tensor("fp32", "s0", 9), length, int32(0, 9), end_mask=bools(1, 0), because=partly,
            instead=instead("fp32", expr("max(0,s0-s1)", 0, 0, 0), 5),
        )  # fmt: skip
        minus = gives("sub", x=length, y=int32(1, 1))
        yield sliced(
            opset, "symbolic-minus", tensor("fp32", "s1", 9), minus, length, because=partly,
            instead=instead("fp32", "?", 1),
        )  # fmt: skip
        shape = shape_of("s0", 4, "s1", 2)
        yield sliced(opset, "of-shape", shape, int32(1), int32(4))
        yield sliced(opset, "of-shape-back", shape, int32(-1), int32(0), stride=int32(-1), end_mask=bools(1))
        yield sliced(opset, "of-shape-item", shape, int32(2), int32(0), squeeze_mask=bools(1))
        yield sliced(opset, "of-shape-known-item", shape, int32(1), int32(0), squeeze_mask=bools(1))
        yield sliced(opset, "of-shape-last", shape, int32(-1), int32(0), end_mask=bools(1))


def _slice_by_size() -> Iterator[Instance]:
    def sliced(opset: str, label: str, x: dict, begin: dict, size: dict, **more: dict) -> Instance:
        return instance("slice_by_size", opset, label, x=x, begin=begin, size=size, **more)

    for opset in (IOS15, IOS16, IOS17, IOS18):
        for dtype in dtypes_of(opset):
            yield sliced(opset, f"rank1-{dtype}", tensor(dtype, 9), int32(2), int32(4))
            yield sliced(
                opset, f"rank5-{dtype}", tensor(dtype, 1, 2, 3, "s0", 5), int32(0, 1, 0, 1, 2), int32(1, -1, 2, 3, -1)
            )
        x, partly = tensor("fp32", 9, 5), tensor("fp32", "s0", 5)
        yield sliced(opset, "rest", x, int32(2, 1), int32(-1, -1))
        yield sliced(opset, "open-whole", partly, int32(0, 1), int32(-1, -1))
        yield sliced(opset, "computed-begin", partly, tensor("int32", 2), int32(3, -1))
        yield sliced(opset, "computed-size", partly, int32(0, 0), tensor("int32", 2))
        yield sliced(opset, "computed", x, tensor("int32", 2), tensor("int32", 2))
        yield sliced(opset, "symbolic", partly, int32(0, 0), joined(part_of(shape_of("s1"), 0), int32(5)))
        yield sliced(opset, "const", const("int32", [[1, 2, 3], [4, 5, 6]]), int32(1, 0), int32(1, 2))
        yield sliced(opset, "const-rest", const("fp32", [1.5, 2.5, 3.5]), int32(1), int32(-1))
        yield sliced(opset, "const-from-end", const("fp32", [1.5, 2.5, 3.5]), int32(-2), int32(1))
        yield sliced(opset, "short-begin", x, int32(0), int32(1, 1))
        yield sliced(opset, "short-size", x, int32(0, 0), int32(1))
        yield sliced(opset, "scalar", tensor("fp32", 9), const("int32", 0), int32(1))
        yield sliced(opset, "scalar-size", tensor("fp32", 9), int32(0), const("int32", 1))
        yield instance("slice_by_size", opset, "missing", x=x, begin=int32(0, 0))
        yield sliced(
            opset, "rest-from-end", x, int32(-2, 1), int32(-1, -1), instead=instead("fp32", 2, 4),
            because="coremltools takes the negative begin away from the extent; its value counts it from the end",
        )  # fmt: skip
        yield sliced(
            opset, "too-many", x, int32(6, 0), int32(4, 5),
            because="coremltools does not look whether there are as many",
            instead=REFUSED,
        )  # fmt: skip
        yield sliced(
            opset,
            "negative",
            x,
            int32(6, 0),
            int32(-2, 5),
            because="coremltools gives negative extents",
            instead=REFUSED,
        )
    for dtype in ("int8", "int16"):
        for opset in (IOS16, IOS17):
            yield sliced(opset, f"bounds-{dtype}", tensor("fp32", 9), ints(dtype, 2), ints(dtype, 4))
    yield instance("slice_by_size", IOS16, "of-shape", x=shape_of("s0", 4, "s1"), begin=int32(1), size=int32(2))


def _slice_update() -> Iterator[Instance]:
    def updated(label: str, x: dict, update: dict, begin: dict, end: dict, **more: dict) -> Instance:
        return instance("slice_update", IOS18, label, x=x, update=update, begin=begin, end=end, **more)

    for dtype in NEWER:
        yield updated(f"rank1-{dtype}", tensor(dtype, 9), tensor(dtype, 5), int32(2), int32(7))
        yield updated(
            f"rank3-{dtype}",
            tensor(dtype, 2, "s0", 4),
            tensor(dtype, 1, "s1", 4),
            int32(0, 1, 0),
            int32(1, 0, 4),
            end_mask=bools(0, 1, 0),
        )
    x = tensor("fp32", 9, 5)
    yield updated("strided", x, tensor("fp32", 5, 3), int32(0, 0), int32(9, 5), stride=int32(2, 2))
    yield updated("squeezed", x, tensor("fp32", 5), int32(3, 0), int32(4, 5), squeeze_mask=bools(1, 0))
    yield updated("computed", x, tensor("fp32", "s0", 5), tensor("int32", 2), tensor("int32", 2))
    yield updated(
        "computed-fixed",
        x,
        tensor("fp32", 3, 5),
        tensor("int32", 2),
        tensor("int32", 2),
        begin_mask=bools(0, 1),
        end_mask=bools(0, 1),
    )
    yield updated("const", const("int32", [1, 2, 3, 4]), const("int32", [8, 9]), int32(1), int32(3))
    yield updated(
        "const-strided",
        const("int32", [[1, 2], [3, 4], [5, 6]]),
        const("int32", [[7], [8]]),
        int32(2, 0),
        int32(0, 1),
        stride=int32(-2, 1),
        end_mask=bools(1, 0),
    )
    yield updated("int8-bounds", x, tensor("fp32", 1, 5), ints("int8", 0, 0), ints("int8", 1, 5))
    yield updated("shape", x, tensor("fp32", 2, 5), int32(0, 0), int32(1, 5))
    yield updated("rank", x, tensor("fp32", 5), int32(0, 0), int32(1, 5))
    yield updated("scalar", tensor("fp32", 9), tensor("fp32"), int32(0), int32(1), squeeze_mask=bools(1))
    yield updated("types", x, tensor("fp16", 1, 5), int32(0, 0), int32(1, 5))
    yield updated("short", x, tensor("fp32", 1, 5), int32(0), int32(1))
    yield instance("slice_update", IOS17, "early", x=x, update=x, begin=int32(0, 0), end=int32(9, 5))
