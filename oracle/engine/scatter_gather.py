"""Gathers, compared with numpy's `take` and `take_along_axis` and with coremltools' value inference; scatters,
compared with numpy's `ufunc.at`, which applies repeated indices one after the other.

coremltools is no reference for `scatter_along_axis`, since its value inference ignores the mode. `gather_nd` and
`scatter_nd` are numpy's indexing with tuples of arrays, following TensorFlow's documentation, to which MIL's refers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .language import IOS15, IOS16, IOS17, IOS18, Case, case, const, draw

_FLOATS_INT32 = ("fp32", "fp16", "int32")
_SHORT = ("int8", "uint8", "int16", "uint16")
_MODES = ("add", "sub", "mul", "div", "max", "min", "update")


def cases() -> Iterator[Case]:
    yield from _gather()
    yield from _gather_along_axis()
    yield from _gather_nd()
    yield from _scatter()
    yield from _scatter_along_axis()
    yield from _scatter_nd()


def _numbers(label: str, *shape: int, dtype: str = "fp32") -> np.ndarray:
    """Distinct elements; floats include NaN and infinities."""
    array = draw(label, *shape, dtype=dtype, low=0 if dtype.startswith("u") else -99, high=99)
    if dtype.startswith("fp") and array.size > 3:
        array.reshape(-1)[1:4] = np.nan, np.inf, -np.inf
    return array


def _gather() -> Iterator[Case]:
    def gather(label, opset, x, indices, axis=None, batch_dims=0, validate=None):
        indices = np.asarray(indices)
        at = 0 if axis is None else axis % x.ndim
        if batch_dims:
            # One batch at a time, as `tf.gather` does.
            places = list(np.ndindex(x.shape[:batch_dims]))
            parts = [np.take(x[place], indices[place], axis=at - batch_dims) for place in places]
            expected = np.stack(parts).reshape(x.shape[:batch_dims] + parts[0].shape)
        else:
            expected = np.take(x, indices, axis=at)
        inputs = {"x": x, "indices": indices}
        if axis is not None:
            inputs["axis"] = const(axis)
        if batch_dims:
            inputs["batch_dims"] = const(batch_dims)
        if validate is not None:
            inputs["validate_indices"] = const(validate)
        return case(label, "gather", opset, inputs, [expected])

    def i32(*values):
        return np.array(values, np.int32)

    for dtype in _FLOATS_INT32:
        x = _numbers("gather", 3, 4, 2, dtype=dtype)
        yield gather(f"{dtype}", IOS15, x, i32(2, 0, 2), 0)
        yield gather(f"{dtype}-middle", IOS16, x, i32(3, 0), 1)
        yield gather(f"{dtype}-last", IOS17, x, i32(1, 1, 0), -1)
    for dtype in _SHORT:
        yield gather(f"{dtype}", IOS17, _numbers("gather", 3, 4, dtype=dtype), i32(2, 2, 1), 1)
    x = _numbers("gather", 3, 4, 2)
    for dtype in ("int16", "uint16"):
        yield _constant_indices(dtype, x)
    for dtype in _SHORT:
        yield gather(f"indices-{dtype}", IOS17, x, np.array([3, 0, 3], dtype), 1)
    yield gather("default-axis", IOS15, x, i32(1))
    yield gather("scalar", IOS15, x, np.int32(2), 1)
    yield gather("scalar-to-scalar", IOS15, _numbers("gather", 5), np.int32(3), 0)
    yield gather("matrix", IOS15, x, i32([0, 1], [3, 3], [2, 0]), 1)
    yield gather("matrix", IOS17, x, i32([0, 1], [3, 3], [2, 0]), -2)
    yield gather("rank3-indices", IOS16, _numbers("gather", 4), draw("g", 2, 1, 3, low=0, high=3, dtype="int32"), 0)
    # Up to iOS16 negative indices count from the end.
    yield gather("negative", IOS15, x, i32(-1, -3, 1), 0)
    yield gather("negative", IOS16, x, i32(-4, 3, -1), 1)
    yield gather("empty-indices", IOS15, x, np.zeros((0,), np.int32), 1)
    yield gather("empty", IOS15, np.zeros((3, 0), np.float32), i32(2, 1), 0)
    yield gather("one", IOS15, _numbers("gather", 1, 1), i32(0), -1)
    yield gather("rank5", IOS18, _numbers("gather", 2, 2, 3, 2, 2), i32(2, 0), 2)
    yield gather("validated", IOS17, x, i32(0, 2), 0, validate=True)
    yield gather("not-validated", IOS17, x, i32(0, 2), 0, validate=False)
    y = _numbers("batches", 2, 3, 4, 2)
    one = draw("batch-1", 2, 3, low=0, high=3, dtype="int32")
    two = draw("batch-2", 2, 3, 5, low=0, high=3, dtype="int32")
    for opset in (IOS16, IOS17):
        yield gather("batch-1", opset, y, one, 2, 1)
        yield gather("batch-1-next", opset, y, one % 3, 1, 1)
        yield gather("batch-1-last", opset, y, one % 2, -1, 1)
        yield gather("batch-2", opset, y, two, 2, 2)
        yield gather("batch-2-last", opset, y, two % 2, 3, 2)
        yield gather("batch-whole-indices", opset, y, draw("w", 2, 3, low=0, high=3, dtype="int32"), 2, 2)
    yield gather("batch-negative", IOS16, y, one - 4, 2, 1)


def _constant_indices(dtype: str, x: np.ndarray) -> Case:
    """Functions before iOS17 cannot have short integers as inputs, so the indices are constants."""
    elements = np.array([2, 0, 1])
    return case(f"indices-{dtype}", "gather", IOS16, {"x": x, "indices": const(elements, dtype), "axis": const(0)}, [x[elements]])


def _gather_along_axis() -> Iterator[Case]:
    def gather(label, opset, x, indices, axis=None, **more):
        at = 0 if axis is None else axis
        expected = np.take_along_axis(x, indices.astype(np.int64), axis=at)
        inputs = {"x": x, "indices": indices} | ({} if axis is None else {"axis": const(axis)}) | more
        return case(label, "gather_along_axis", opset, inputs, [expected])

    def places(label, extent, *shape, dtype="int32"):
        return draw(label, *shape, low=0, high=extent - 1, dtype=dtype)

    for dtype in _FLOATS_INT32:
        x = _numbers("along", 3, 4, dtype=dtype)
        yield gather(f"{dtype}", IOS15, x, places("a", 3, 5, 4), 0)
        yield gather(f"{dtype}", IOS16, x, places("b", 4, 3, 2), 1)
        yield gather(f"{dtype}", IOS17, x, places("c", 4, 3, 6), -1)
    for dtype in _SHORT:
        yield gather(dtype, IOS17, _numbers("along", 3, 4, dtype=dtype), places("d", 4, 3, 2), 1)
    x = _numbers("along", 3, 4, 2)
    for dtype in _SHORT:
        yield gather(f"indices-{dtype}", IOS17, x, places("e", 4, 3, 2, 2, dtype=dtype), 1)
    for dtype in ("int16", "uint16"):
        indices = places("e", 4, 3, 2, 2)
        inputs = {"x": x, "indices": const(indices, dtype), "axis": const(1)}
        yield case(f"indices-{dtype}", "gather_along_axis", IOS16, inputs, [np.take_along_axis(x, indices, axis=1)])
    yield gather("default-axis", IOS15, x, places("f", 3, 1, 4, 2))
    for axis in range(-3, 3):
        shape = list(x.shape)
        shape[axis] = 3
        yield gather(f"axis{axis}", IOS15, x, places(f"g{axis}", x.shape[axis], *shape), axis)
    yield gather("negative", IOS15, x, places("h", 4, 3, 2, 2) - 4, 1)
    yield gather("negative", IOS16, x, places("h", 2, 3, 4, 5) - 2, 2)
    for axis in (-3, 1, 2):
        shape = list(x.shape)
        shape[axis] = 4
        yield gather(f"axis{axis}", IOS16, x, places(f"g{axis}", x.shape[axis], *shape), axis)
    yield gather("rank1", IOS15, _numbers("along", 6), places("i", 6, 9), 0)
    yield gather("rank5", IOS18, _numbers("along", 2, 1, 3, 2, 2), places("j", 3, 2, 1, 4, 2, 2), 2)
    yield gather("empty-indices", IOS15, x, np.zeros((3, 0, 2), np.int32), 1)
    yield gather("one", IOS16, _numbers("along", 1, 1), np.zeros((1, 1), np.int32), 0)
    yield gather("validated", IOS17, x, places("k", 3, 2, 4, 2), 0, validate_indices=const(True))


def _gather_nd() -> Iterator[Case]:
    def gather(label, opset, x, indices, batch_dims=0, **more):
        indices = np.asarray(indices)
        wide = indices.astype(np.int64)
        if batch_dims:
            places = list(np.ndindex(x.shape[:batch_dims]))
            parts = [x[place][tuple(np.moveaxis(wide[place], -1, 0))] for place in places]
            expected = np.stack(parts).reshape(x.shape[:batch_dims] + parts[0].shape)
        else:
            expected = x[tuple(np.moveaxis(wide, -1, 0))]
        inputs = {"x": x, "indices": indices} | ({"batch_dims": const(batch_dims)} if batch_dims else {}) | more
        return case(label, "gather_nd", opset, inputs, [expected])

    def tuples(label, extents, *shape, dtype="int32"):
        columns = [draw(f"{label}{at}", *shape, low=0, high=extent - 1, dtype="int32") for at, extent in enumerate(extents)]
        return np.stack(columns, axis=-1).astype(dtype)

    for dtype in _FLOATS_INT32:
        x = _numbers("nd", 3, 4, 2, dtype=dtype)
        yield gather(f"{dtype}", IOS15, x, tuples("a", (3, 4), 5))
        yield gather(f"{dtype}", IOS16, x, tuples("b", (3,), 4))
        yield gather(f"{dtype}", IOS17, x, tuples("c", (3, 4, 2), 2, 3))
    for dtype in _SHORT:
        yield gather(dtype, IOS17, _numbers("nd", 3, 4, dtype=dtype), tuples("d", (3, 4), 6))
    x = _numbers("nd", 3, 4, 2)
    for dtype in _SHORT:
        yield gather(f"indices-{dtype}", IOS17, x, tuples("e", (3, 4), 3, dtype=dtype))
    for dtype in ("int16", "uint16"):
        indices = tuples("e", (3, 4), 3)
        yield case(f"indices-{dtype}", "gather_nd", IOS16, {"x": x, "indices": const(indices, dtype)}, [x[indices[:, 0], indices[:, 1]]])
    yield gather("elements", IOS15, x, tuples("f", (3, 4, 2), 7))
    yield gather("rows", IOS15, x, tuples("g", (3,), 2, 2))
    yield gather("one-tuple", IOS15, x, np.array([1, 3, 0], np.int32))
    yield gather("rank1", IOS15, _numbers("nd", 5), tuples("h", (5,), 4))
    yield gather("rank5", IOS15, _numbers("nd", 2, 3, 2, 2, 2), tuples("i", (2, 3, 2), 3))
    # Before iOS17 negative indices count from the end.
    yield gather("negative", IOS15, x, tuples("j", (3, 4), 5) - np.array([3, 4], np.int32))
    yield gather("negative", IOS16, x, tuples("j", (3,), 5) - np.array([3], np.int32))
    yield gather("no-tuples", IOS15, x, np.zeros((0, 2), np.int32))
    yield gather("validated", IOS17, x, tuples("k", (3, 3), 4), validate_indices=const(True))
    y = _numbers("nd-batches", 2, 3, 4, 2)
    for opset in (IOS16, IOS17):
        yield gather("batch-1", opset, y, tuples("l", (3, 4), 2, 5), 1)
        yield gather("batch-1-rows", opset, y, tuples("m", (3,), 2, 4), 1)
        yield gather("batch-2", opset, y, tuples("n", (4, 2), 2, 3, 2), 2)
        yield gather("batch-2-one", opset, y, tuples("o", (4,), 2, 3), 2)


_AT = {
    "add": np.add.at,
    "sub": np.subtract.at,
    "mul": np.multiply.at,
    "div": np.divide.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


def _written(data: np.ndarray, place, updates: np.ndarray, mode: str) -> np.ndarray:
    """`data` combined with the updates, in fp32; repeated indices apply one after the other."""
    exact = data.astype(np.float32) if data.dtype.kind == "f" else data.copy()
    updates = updates.astype(exact.dtype)
    if mode == "update":
        exact[place] = updates
    elif mode == "div" and exact.dtype.kind == "i":
        # Only exact quotients, for which all kinds of division agree.
        np.floor_divide.at(exact, place, updates)
    else:
        with np.errstate(all="ignore"):
            _AT[mode](exact, place, updates)
    return exact


def _operands(label: str, mode: str, dtype: str, data_shape, updates_shape):
    """Data and updates for which a mode's results are exact in every type."""
    if dtype == "int32" and mode == "div":
        # Multiples of every product of the divisors.
        return draw(f"{label}-data", *data_shape, low=-9, high=9, dtype=dtype) * 1296, draw(f"{label}-updates", *updates_shape, low=1, high=3, dtype=dtype)
    low, high = (-9, 9) if dtype == "int32" else (-2, 2)
    updates = draw(f"{label}-updates", *updates_shape, low=low, high=high, dtype=dtype)
    if mode == "div":
        updates = np.where(np.abs(updates) < 0.25, updates.dtype.type(0.5), updates)
    return draw(f"{label}-data", *data_shape, low=low, high=high, dtype=dtype), updates


def _scatter() -> Iterator[Case]:
    def scatter(label, opset, data, indices, updates, axis=None, mode=None, **more):
        at = 0 if axis is None else axis % data.ndim
        place = (slice(None),) * at + (np.asarray(indices),)
        expected = _written(data, place, updates, mode or "add")
        inputs = {"data": data, "indices": indices, "updates": updates}
        inputs |= {} if axis is None else {"axis": const(axis)}
        inputs |= {} if mode is None else {"mode": const(mode)}
        dtype = {"float32": "fp32", "float16": "fp16", "int32": "int32"}[data.dtype.name]
        return case(label, "scatter", opset, inputs | more, [expected], dtypes=[dtype], rel=1e-4)

    def i32(*values):
        return np.array(values, np.int32)

    for opset in (IOS15, IOS17):
        for mode in _MODES:
            for dtype in _FLOATS_INT32:
                data, updates = _operands(f"scatter-{mode}", mode, dtype, (3, 4), (4, 4))
                yield scatter(f"{mode}-{dtype}", opset, data, i32(2, 0, 2, 2), updates, 0, mode)
    data, updates = _operands("scatter", "add", "fp32", (2, 3, 4), (2, 3, 2))
    yield scatter("last", IOS15, data, i32(3, 1), updates, -1, "update")
    yield scatter("middle", IOS15, data, i32(2, 2), updates[:, :2].repeat(2, 2), 1, "add")
    yield scatter("default", IOS15, data, i32(1), draw("u", 1, 3, 4))
    yield scatter("default", IOS17, data, i32(1), draw("u", 1, 3, 4))
    yield scatter("negative", IOS15, data, i32(-1, -2), draw("u", 2, 3, 4), 0, "sub")
    yield scatter("documented", IOS15, np.array([[1, 2, 3], [4, 5, 6]], np.int32), i32(1, 0), np.array([[5, 6, 7], [8, 9, 10]], np.int32), 0, "add")
    yield scatter("no-indices", IOS15, data, np.zeros((0,), np.int32), np.zeros((0, 3, 4), np.float32), 0, "update")
    special = np.array([np.nan, 1, np.inf, -np.inf], np.float32)
    yield scatter("max-special", IOS15, special, i32(0, 1, 2, 3), np.array([1, np.nan, 5, 7], np.float32), 0, "max")
    yield scatter("min-special", IOS15, special, i32(0, 1, 2, 3), np.array([1, np.nan, 5, 7], np.float32), 0, "min")
    yield scatter("div-by-zero", IOS15, special, i32(1, 1, 2), np.array([0, 1, -2], np.float32), 0, "div")
    big = np.array([2**31 - 1, -(2**31), 70000], np.int32)
    yield scatter("add-wraps", IOS15, big, i32(0, 1), i32(1, -1), 0, "add")
    yield scatter("mul-wraps", IOS17, big, i32(2, 2), i32(70000, 3), 0, "mul")
    yield scatter("validated", IOS17, data, i32(1, 0), draw("u", 2, 3, 4), 0, "add", validate_indices=const(True))
    yield scatter("rank5", IOS18, draw("d", 2, 1, 3, 2, 2), i32(2, 0), draw("u", 2, 1, 2, 2, 2), 2, "update")


def _scatter_along_axis() -> Iterator[Case]:
    def scatter(label, opset, data, indices, updates, axis=None, mode=None, **more):
        at = 0 if axis is None else axis % data.ndim
        place = list(np.indices(indices.shape))
        place[at] = indices
        expected = _written(data, tuple(place), updates, mode or "add")
        inputs = {"data": data, "indices": indices, "updates": updates}
        inputs |= {} if axis is None else {"axis": const(axis)}
        inputs |= {} if mode is None else {"mode": const(mode)}
        dtype = {"float32": "fp32", "float16": "fp16", "int32": "int32"}[data.dtype.name]
        return case(label, "scatter_along_axis", opset, inputs | more, [expected], dtypes=[dtype], rel=1e-4)

    for opset in (IOS15, IOS17):
        for mode in _MODES:
            for dtype in _FLOATS_INT32:
                data, updates = _operands(f"beside-{mode}", mode, dtype, (3, 4), (3, 5))
                indices = draw(f"beside-{mode}-indices", 3, 5, low=0, high=3, dtype="int32")
                yield scatter(f"{mode}-{dtype}", opset, data, indices, updates, 1, mode)
    data = draw("beside", 2, 3, 4)
    for axis in range(-3, 3):
        shape = list(data.shape)
        shape[axis] = 2
        indices = draw(f"beside{axis}", *shape, low=0, high=data.shape[axis] - 1, dtype="int32")
        yield scatter(f"axis{axis}", IOS15, data, indices, draw(f"updates{axis}", *shape), axis, "add")
    first = draw("beside-first", 1, 3, 4, low=0, high=1, dtype="int32")
    for opset in (IOS15, IOS17):
        yield scatter("default", opset, data, first, draw("u", 1, 3, 4))
    yield scatter("negative", IOS15, data, first - 2, draw("u", 1, 3, 4), 0, "update")
    yield scatter("no-indices", IOS15, data, np.zeros((2, 0, 4), np.int32), np.zeros((2, 0, 4), np.float32), 1, "add")
    yield scatter("validated", IOS17, data, first, draw("u", 1, 3, 4), 0, "max", validate_indices=const(True))
    yield scatter("rank1", IOS15, draw("r", 4), np.array([3, 3, 0], np.int32), draw("s", 3), 0, "mul")


def _scatter_nd() -> Iterator[Case]:
    def scatter(label, opset, data, indices, updates, mode=None, **more):
        place = tuple(np.moveaxis(np.asarray(indices), -1, 0))
        expected = _written(data, place, updates, mode or "add")
        inputs = {"data": data, "indices": indices, "updates": updates}
        inputs |= {} if mode is None else {"mode": const(mode)}
        dtype = {"float32": "fp32", "float16": "fp16", "int32": "int32"}[data.dtype.name]
        return case(label, "scatter_nd", opset, inputs | more, [expected], dtypes=[dtype], rel=1e-4)

    repeated = np.array([[0, 3], [2, 1], [0, 3], [2, 2]], np.int32)
    for opset in (IOS15, IOS17):
        for mode in _MODES:
            for dtype in _FLOATS_INT32:
                data, updates = _operands(f"nd-{mode}", mode, dtype, (3, 4, 2), (4, 2))
                yield scatter(f"{mode}-{dtype}", opset, data, repeated, updates, mode)
    data = draw("nd", 3, 4, 2)
    for opset in (IOS15, IOS17):
        yield scatter("default", opset, data, np.array([[1], [1]], np.int32), draw("u", 2, 4, 2))
        yield scatter("elements", opset, data, np.array([[1, 3, 0], [1, 3, 0], [0, 0, 1]], np.int32), draw("u", 3), "sub")
    yield scatter("one-tuple", IOS15, data, np.array([2, 3], np.int32), draw("u", 2), "update")
    yield scatter("negative", IOS15, data, np.array([[-1, -4], [-3, 3]], np.int32), draw("u", 2, 2), "add")
    yield scatter("matrix-of-tuples", IOS15, data, np.array([[[0, 1], [2, 3]], [[1, 1], [0, 1]]], np.int32), draw("u", 2, 2, 2), "add")
    yield scatter("no-tuples", IOS15, data, np.zeros((0, 2), np.int32), np.zeros((0, 2), np.float32), "add")
    yield scatter("validated", IOS17, data, np.array([[2, 1]], np.int32), draw("u", 1, 2), "min", validate_indices=const(True))
    yield scatter("rank1", IOS15, draw("r", 5), np.array([[4], [4]], np.int32), draw("s", 2), "update")
    yield scatter("rank5", IOS18, draw("d", 2, 2, 3, 1, 2), np.array([[1, 0, 2], [0, 1, 1]], np.int32), draw("u", 2, 1, 2), "update")
