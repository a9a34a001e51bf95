"""Operations that read or write elements at indices that are data."""

from __future__ import annotations

from collections.abc import Iterator

from .language import IOS15, IOS16, IOS17, IOS18, REFUSED, Instance, const, filled, gives, instance, tensor

OPERATIONS = ("gather", "gather_along_axis", "gather_nd", "scatter", "scatter_along_axis", "scatter_nd")

NUMBERS = ("fp16", "fp32", "int32")
SMALL = ("int16", "uint16", "int8", "uint8")
OPSETS = (IOS15, IOS16, IOS17, IOS18)

NO_MODE = "coremltools does not look at the mode; there is no such mode"
NOT_SHARED = "coremltools does not compare the batch axes of both"


def int32(*elements: int) -> dict:
    return const("int32", list(elements)) if elements else filled("int32", 0)


def scalar(value: int) -> dict:
    return const("int32", value)


def shape_of(*dims: int | str) -> dict:
    return gives("shape", x=tensor("fp32", *dims))


def output(dtype: str, *dims: int | str | dict, value: list | None = None) -> dict:
    made = {"dtype": dtype, "shape": list(dims)}
    return made if value is None else {**made, "value": value}


def expr(text: str, *at: int) -> dict:
    return {"expr": text, "at": list(at)}


VALIDATE = {"validate_indices": const("bool", True)}


def data_dtypes(opset: str) -> tuple[str, ...]:
    return (*NUMBERS, *SMALL) if opset in (IOS17, IOS18) else NUMBERS


def index_dtypes(opset: str) -> tuple[str, ...]:
    return {IOS15: ("int32",), IOS16: ("int32", "int16", "uint16")}.get(opset, ("int32", *SMALL))


def instances() -> Iterator[Instance]:
    for opset in OPSETS:
        yield from _gather(opset)
        yield from _gather_along_axis(opset)
        yield from _gather_nd(opset)
        yield from _scatter(opset)
        yield from _scatter_along_axis(opset)
        yield from _scatter_nd(opset)
    for opset in (IOS16, IOS17):
        yield from _batches(opset)
    for opset in (IOS17, IOS18):
        yield from _validated(opset)


def _gather(opset: str) -> Iterator[Instance]:
    def gather(label: str, x: dict, indices: dict, axis: int | None = None, **more: object) -> Instance:
        given = {} if axis is None else {"axis": scalar(axis)}
        return instance("gather", opset, label, x=x, indices=indices, **given, **more)

    for dtype in data_dtypes(opset):
        yield gather(f"rank1-{dtype}", tensor(dtype, 5), tensor("int32", 2))
        yield gather(f"rank5-{dtype}", tensor(dtype, 1, 2, "s0", 4, 5), tensor("int32", 7), -2)
        yield gather(f"item-{dtype}", tensor(dtype, 5), tensor("int32"))
    for dtype in index_dtypes(opset):
        yield gather(f"by-{dtype}", tensor("fp32", 4, 5), tensor(dtype, 2, "s1"), 1)
        yield gather(f"const-by-{dtype}", const("int32", [10, 20, 30]), const(dtype, [2, 0]))
    x = tensor("fp32", "s0", 3, 4)
    for axis in (0, 1, 2, -1, -3):
        yield gather(f"at{axis}", x, tensor("int32", 2, 6), axis)
        yield gather(f"item-at{axis}", x, tensor("int32"), axis)
    data = const("int32", [[1, 2, 3], [4, 5, 6]])
    yield gather("const", data, int32(1, 0, 1))
    yield gather("const-last", data, int32(2, 0), -1)
    yield gather("const-item", data, scalar(1), 1)
    yield gather("const-matrix", data, const("int32", [[0, 1], [1, 0]]))
    yield gather("const-from-end", data, int32(-1))
    yield gather("const-one", int32(7, 8), scalar(-1))
    yield gather("const-float", const("fp32", [1.5, 2.5]), int32(1))
    yield gather("of-shape", shape_of("s0", 3, "s1"), int32(2, 1, 0))
    yield gather("of-shape-item", shape_of("s0", 3, "s1"), scalar(0))
    yield gather("of-shape-known", shape_of("s0", 3, "s1"), scalar(1))
    yield gather("of-shape-last", shape_of("s0", 3, "s1"), scalar(-1))
    yield gather("of-shape-computed", shape_of("s0", 3, "s1"), tensor("int32"))
    yield gather("beyond", x, tensor("int32", 2), 3)
    yield gather("before", x, tensor("int32", 2), -4)
    yield gather("rank0", tensor("fp32"), tensor("int32", 2))
    yield gather("const-outside", data, int32(2))
    yield gather("of-shape-outside", shape_of("s0", 3), scalar(2))
    yield gather("bool", tensor("bool", 5), tensor("int32", 2))
    yield gather("by-float", x, tensor("fp32", 2))
    yield gather("small-index", x, tensor("int8", 2))
    yield gather("early-batch", x, tensor("int32", "s0", 2), 1, batch_dims=scalar(1))
    yield instance("gather", opset, "missing", x=x)


def _batches(opset: str) -> Iterator[Instance]:
    x = tensor("fp32", 2, 3, "s0", 5)
    one, two = {"batch_dims": scalar(1)}, {"batch_dims": scalar(2)}

    def gather(label: str, x: dict, indices: dict, axis: int, **more: object) -> Instance:
        return instance("gather", opset, f"batch-{label}", x=x, indices=indices, axis=scalar(axis), **more)

    yield gather("one", x, tensor("int32", 2, 7), 1, **one)
    yield gather("one-later", x, tensor("int32", 2, 7), -1, **one)
    yield gather("two", x, tensor("int32", 2, 3, 7, "s1"), 2, **two)
    yield gather("all", tensor("fp32", 2, 3), tensor("int32", 2), 1, **one)
    yield gather("open", tensor("fp32", "s0", 3), tensor("int32", "s0", 2), 1, **one)
    yield gather("const", const("int32", [[1, 2, 3], [4, 5, 6]]), const("int32", [[2, 0], [1, 1]]), 1, **one)
    yield gather("const-later", const("int32", [[[1, 2]], [[4, 5]]]), const("int32", [[1], [0]]), 2, **one)
    yield gather("rank", tensor("fp32", 2, 3), tensor("int32", 2, 3, 4), 1, **two)
    yield gather("indices", x, tensor("int32", 2), 2, **two)
    yield gather("mismatch", x, tensor("int32", 4, 7), 1, **one, because=NOT_SHARED, instead=REFUSED)
    yield gather(
        "axis", x, tensor("int32", 2, 7), 0, **one, instead=REFUSED,
        because="coremltools does not ask that the axis comes after the batch axes",
    )  # fmt: skip

    def gather_nd(label: str, x: dict, indices: dict, **more: object) -> Instance:
        return instance("gather_nd", opset, f"batch-{label}", x=x, indices=indices, **more)

    yield gather_nd("one", x, tensor("int32", 2, 7, 2), **one)
    yield gather_nd("two", x, tensor("int32", 2, 3, 1), **two)
    yield gather_nd("open", tensor("fp32", "s0", 3, 4), tensor("int32", "s0", 2), **one)
    yield gather_nd("deep", x, tensor("int32", 2, 7, 4), **one)
    yield gather_nd("mismatch", x, tensor("int32", 4, 7, 2), **one, because=NOT_SHARED, instead=REFUSED)


def _gather_along_axis(opset: str) -> Iterator[Instance]:
    def gather(label: str, x: dict, indices: dict, axis: int | None = None, **more: object) -> Instance:
        given = {} if axis is None else {"axis": scalar(axis)}
        return instance("gather_along_axis", opset, label, x=x, indices=indices, **given, **more)

    for dtype in data_dtypes(opset):
        yield gather(f"rank1-{dtype}", tensor(dtype, 5), tensor("int32", 2))
        yield gather(f"rank5-{dtype}", tensor(dtype, 1, 2, "s0", 4, 5), tensor("int32", 1, 2, "s0", 9, 5), -2)
    for dtype in index_dtypes(opset):
        yield gather(f"by-{dtype}", tensor("fp32", 4, 5), tensor(dtype, 4, "s1"), 1)
    yield gather("open", tensor("fp32", "s0", 3), tensor("int32", "s0", "s1"), 1)
    yield gather("open-other", tensor("fp32", 4, 3), tensor("int32", "s0", 2), 0)
    data = const("int32", [[1, 2, 3], [4, 5, 6]])
    yield gather("const", data, const("int32", [[1, 0, 1]]))
    yield gather("const-last", data, const("int32", [[2, -1], [0, 0]]), -1)
    yield gather("const-outside", data, const("int32", [[2, 0, 0]]))
    yield gather("ranks", tensor("fp32", 4, 5), tensor("int32", 4))
    yield gather("mismatch", tensor("fp32", 4, 5), tensor("int32", 3, 5), 1)
    yield gather("beyond", tensor("fp32", 4, 5), tensor("int32", 4, 5), 2)
    yield gather("bool", tensor("bool", 5), tensor("int32", 2))
    yield gather("by-float", tensor("fp32", 5), tensor("fp32", 2))
    yield gather("small-index", tensor("fp32", 5), tensor("int8", 2))


def _gather_nd(opset: str) -> Iterator[Instance]:
    def gather(label: str, x: dict, indices: dict, **more: object) -> Instance:
        return instance("gather_nd", opset, label, x=x, indices=indices, **more)

    for dtype in data_dtypes(opset):
        yield gather(f"rank1-{dtype}", tensor(dtype, 5), tensor("int32", 1))
        yield gather(f"rank5-{dtype}", tensor(dtype, 1, 2, "s0", 4, 5), tensor("int32", "s1", 3))
    for dtype in index_dtypes(opset):
        yield gather(f"by-{dtype}", tensor("fp32", 4, 5), tensor(dtype, 7, 2, 2))
    yield gather("item", tensor("fp32", 4, 5), tensor("int32", 2))
    yield gather("rows", tensor("fp32", "s0", 5), tensor("int32", 3, 1))
    yield gather("none", tensor("fp32", "s0", 5), tensor("int32", 3, 0))
    yield gather("deep", tensor("fp32", 4, 5), tensor("int32", 7, 3))
    yield gather("open-depth", tensor("fp32", 4, 5), tensor("int32", 7, "s0"))
    yield gather("rank0", tensor("fp32", 4, 5), tensor("int32"))
    yield gather("bool", tensor("bool", 5), tensor("int32", 1))
    yield gather("by-float", tensor("fp32", 5), tensor("fp32", 1))
    yield gather("of-shape", shape_of("s0", 3), const("int32", [[1], [0]]))


def _scatter(opset: str) -> Iterator[Instance]:
    def scatter(label: str, data: dict, indices: dict, updates: dict, **more: object) -> Instance:
        return instance("scatter", opset, label, data=data, indices=indices, updates=updates, **more)

    for dtype in NUMBERS:
        yield scatter(f"rank1-{dtype}", tensor(dtype, 5), tensor("int32", 2), tensor(dtype, 2))
        yield scatter(
            f"rank5-{dtype}",
            tensor(dtype, 1, 2, "s0", 4, 5),
            tensor("int32", 7),
            tensor(dtype, 1, 2, "s0", 7, 5),
            axis=scalar(-2),
        )
    data, indices, updates = tensor("fp32", "s0", 4), tensor("int32", 3), tensor("fp32", 3, 4)
    for mode in ("add", "div", "max", "min", "mul", "sub", "update"):
        yield scatter(f"mode-{mode}", data, indices, updates, mode=const("string", mode))
    yield scatter("open", tensor("fp32", 5, 4), tensor("int32", "s1"), tensor("fp32", "s1", 4))
    yield scatter("const", int32(1, 2, 3), int32(1), int32(9))
    yield scatter("shape", data, indices, tensor("fp32", 2, 4))
    yield scatter("rank", data, indices, tensor("fp32", 3))
    yield scatter("types", data, indices, tensor("fp16", 3, 4))
    yield scatter("beyond", data, indices, updates, axis=scalar(2))
    yield scatter("bool", tensor("bool", 5), tensor("int32", 2), tensor("bool", 2))
    yield scatter("by-int16", data, tensor("int16", 3), updates)
    yield scatter("mode", data, indices, updates, mode=const("string", "mean"), because=NO_MODE, instead=REFUSED)
    yield instance("scatter", opset, "missing", data=data, indices=indices)


def _scatter_along_axis(opset: str) -> Iterator[Instance]:
    def scatter(label: str, data: dict, indices: dict, updates: dict, **more: object) -> Instance:
        return instance("scatter_along_axis", opset, label, data=data, indices=indices, updates=updates, **more)

    for dtype in NUMBERS:
        yield scatter(f"rank1-{dtype}", tensor(dtype, 5), tensor("int32", 2), tensor(dtype, 2))
        five = ((1, 2, "s0", 4, 5), (1, 2, "s0", 7, 5))
        yield scatter(
            f"rank5-{dtype}",
            tensor(dtype, *five[0]),
            tensor("int32", *five[1]),
            tensor(dtype, *five[1]),
            axis=scalar(-2),
        )
    data, indices, updates = tensor("fp32", "s0", 4), tensor("int32", 3, 4), tensor("fp32", 3, 4)
    for mode in ("add", "div", "max", "min", "mul", "sub", "update"):
        yield scatter(f"mode-{mode}", data, indices, updates, mode=const("string", mode))
    fixed = const("int32", [[1, 2], [3, 4]])
    update = {"mode": const("string", "update")}
    yield scatter("const", fixed, const("int32", [[1, 0]]), const("int32", [[8, 9]]), **update)
    yield scatter(
        "const-last", fixed, const("int32", [[1], [0]]), const("int32", [[8], [9]]), axis=scalar(-1), **update
    )
    yield scatter("shape", data, indices, tensor("fp32", 2, 4))
    yield scatter("rank", data, tensor("int32", 3), tensor("fp32", 3))
    yield scatter("others", tensor("fp32", 5, 4), tensor("int32", 3, 2), tensor("fp32", 3, 2))
    yield scatter("types", data, indices, tensor("fp16", 3, 4))
    yield scatter("beyond", data, indices, updates, axis=scalar(2))
    yield scatter("bool", tensor("bool", 5), tensor("int32", 2), tensor("bool", 2))
    yield scatter("mode", data, indices, updates, mode=const("string", "mean"), because=NO_MODE, instead=REFUSED)
    yield scatter(
        "open-others", tensor("fp32", 5, "s0"), tensor("int32", 3, 4), tensor("fp32", 3, 4),
        instead={"outputs": [output("fp32", 5, expr("s0", 7, 12, 37))]},
        because="coremltools takes an open extent for another one than the fixed extent; it may be the same",
    )  # fmt: skip


def _scatter_nd(opset: str) -> Iterator[Instance]:
    def scatter(label: str, data: dict, indices: dict, updates: dict, **more: object) -> Instance:
        return instance("scatter_nd", opset, label, data=data, indices=indices, updates=updates, **more)

    for dtype in NUMBERS:
        yield scatter(f"rank1-{dtype}", tensor(dtype, 5), tensor("int32", 2, 1), tensor(dtype, 2))
        yield scatter(
            f"rank5-{dtype}", tensor(dtype, 1, 2, "s0", 4, 5), tensor("int32", "s1", 3), tensor(dtype, "s1", 4, 5)
        )
    data, indices, updates = tensor("fp32", "s0", 4), tensor("int32", 3, 1), tensor("fp32", 3, 4)
    for mode in ("add", "div", "max", "min", "mul", "sub", "update"):
        yield scatter(f"mode-{mode}", data, indices, updates, mode=const("string", mode))
    yield scatter("item", tensor("fp32", 5, 4), tensor("int32", 2), tensor("fp32"))
    yield scatter("shape", data, indices, tensor("fp32", 2, 4))
    yield scatter("rank", data, indices, tensor("fp32", 3))
    yield scatter("deep", data, tensor("int32", 7, 3), tensor("fp32", 7))
    yield scatter("open-depth", data, tensor("int32", 7, "s0"), tensor("fp32", 7))
    yield scatter("rank0", data, tensor("int32"), updates)
    yield scatter("types", data, indices, tensor("fp16", 3, 4))
    yield scatter("bool", tensor("bool", 5), tensor("int32", 2, 1), tensor("bool", 2))
    yield scatter("mode", data, indices, updates, mode=const("string", "mean"), because=NO_MODE, instead=REFUSED)


def _validated(opset: str) -> Iterator[Instance]:
    """Indices that must be within the axis and must not be negative."""
    x = tensor("fp32", 4, 5)
    for label, picked in (("fits", (0, 3)), ("past", (0, 4)), ("from-end", (0, -1))):
        rows, places = int32(*picked), const("int32", [[index] * 5 for index in picked])
        yield instance("gather", opset, f"valid-{label}", x=x, indices=rows, **VALIDATE)
        yield instance("gather_along_axis", opset, f"valid-{label}", x=x, indices=places, **VALIDATE)
        given = {"data": x, "updates": tensor("fp32", 2, 5), **VALIDATE}
        yield instance("scatter", opset, f"valid-{label}", indices=rows, **given)
        yield instance("scatter_along_axis", opset, f"valid-{label}", indices=places, **given)
        pairs = const("int32", [[index, 4] for index in picked])
        yield instance("gather_nd", opset, f"valid-{label}", x=x, indices=pairs, **VALIDATE)
        yield instance(
            "scatter_nd", opset, f"valid-{label}", data=x, indices=pairs, updates=tensor("fp32", 2), **VALIDATE
        )
    yield instance("gather", opset, "valid-computed", x=x, indices=tensor("int32", 2), **VALIDATE)
    yield instance("gather", opset, "not-valid", x=x, indices=int32(9), validate_indices=const("bool", False))
    one = const("int32", [[[0, 4], [1, 1]], [[2, 0], [2, 4]], [[3, 3], [0, 0]]])
    broadcast = "coremltools compares indices with the whole shape, which fails unless there is one for each axis"
    yield instance(
        "gather_nd", opset, "valid-part", x=tensor("fp32", 4, 5, 6), indices=one, **VALIDATE, because=broadcast,
        instead={"outputs": [output("fp32", 3, 2, 6)]},
    )  # fmt: skip
    yield instance(
        "scatter_nd", opset, "valid-part", data=tensor("fp32", 4, 5, 6), indices=one, updates=tensor("fp32", 3, 2, 6),
        **VALIDATE, because=broadcast, instead={"outputs": [output("fp32", 4, 5, 6)]},
    )  # fmt: skip
