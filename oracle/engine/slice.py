"""`slice_by_index`, `slice_by_size`, `slice_update`, compared with numpy's slices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .language import IOS15, IOS16, IOS17, IOS18, Case, Program, case, const, draw

_OLD = ("fp32", "fp16", "int32", "bool")
_SHORT = ("int8", "uint8", "int16", "uint16")


def cases() -> Iterator[Case]:
    yield from _slice_by_index()
    yield from _slice_by_size()
    yield from _slice_update()


def _numbers(label: str, *shape: int, dtype: str = "fp32") -> np.ndarray:
    """Distinct elements; floats include NaN and infinities."""
    array = draw(label, *shape, dtype=dtype, low=0 if dtype.startswith("u") else -99, high=99)
    if dtype.startswith("fp") and array.size > 3:
        array.reshape(-1)[1:4] = np.nan, np.inf, -np.inf
    return array


def _index(begin, end, stride=None, begin_mask=None, end_mask=None, squeeze_mask=None):
    """Converts MIL's slice parameters to a numpy index and to operands."""
    rank = len(begin)
    index = []
    for at in range(rank):
        first = None if begin_mask and begin_mask[at] else begin[at]
        last = None if end_mask and end_mask[at] else end[at]
        if squeeze_mask and squeeze_mask[at]:
            index.append(first or 0)
            continue
        index.append(slice(first, last, stride[at] if stride else 1))
    named = {"stride": stride, "begin_mask": begin_mask, "end_mask": end_mask, "squeeze_mask": squeeze_mask}
    return tuple(index), {name: const(value) for name, value in named.items() if value is not None}


def _slice_by_index() -> Iterator[Case]:
    def sliced(label, opset, x, begin, end, bounds="int32", **more):
        index, operands = _index(begin, end, **more)
        if "stride" in operands:
            operands["stride"] = const(more["stride"], bounds)
        inputs = {"x": x, "begin": const(begin, bounds), "end": const(end, bounds), **operands}
        return case(label, "slice_by_index", opset, inputs, [x[index]])

    yes, no = True, False
    for dtype in _OLD:
        x = _numbers("slice", 4, 5, dtype=dtype)
        yield sliced(f"{dtype}", IOS15, x, [1, 2], [3, 5])
        yield sliced(f"{dtype}-strides", IOS16, x, [0, 4], [4, 1], stride=[2, -1])
        yield sliced(f"{dtype}-squeeze", IOS17, x, [1, 0], [0, 5], squeeze_mask=[yes, no])
    for dtype in _SHORT:
        yield sliced(dtype, IOS17, _numbers("slice", 4, 5, dtype=dtype), [-3, 1], [4, -1])
    x = _numbers("slice", 4, 5)
    for bounds in ("int8", "int16"):
        yield sliced(f"bounds-{bounds}", IOS17, x, [3, -5], [0, 5], bounds, stride=[-2, 3])
    yield sliced("begin-mask", IOS15, x, [3, 1], [2, 4], begin_mask=[yes, no])
    yield sliced("end-mask", IOS15, x, [1, 2], [0, 3], end_mask=[yes, no])
    yield sliced("both-masks", IOS15, x, [9, 9], [-9, -9], begin_mask=[yes, yes], end_mask=[yes, yes])
    yield sliced("backwards-open", IOS15, x, [0, 0], [0, 0], stride=[-1, -2], begin_mask=[yes] * 2, end_mask=[yes] * 2)
    yield sliced("backwards-from", IOS15, x, [2, 3], [0, 0], stride=[-1, -1], end_mask=[yes, yes])
    yield sliced("backwards-to", IOS15, x, [0, 0], [1, 1], stride=[-1, -3], begin_mask=[yes, yes])
    yield sliced("negative", IOS15, x, [-3, -4], [-1, -1])
    yield sliced("negative-backwards", IOS15, x, [-1, -2], [-4, -5], stride=[-1, -2])
    yield sliced("clamped", IOS15, x, [-99, 1], [99, 99])
    yield sliced("clamped-backwards", IOS15, x, [99, 99], [-99, -99], stride=[-1, -2])
    yield sliced("long-stride", IOS15, x, [1, 0], [4, 5], stride=[99, 4])
    yield sliced("nothing", IOS15, x, [1, 2], [1, 5])
    yield sliced("nothing-beyond", IOS15, x, [4, 0], [9, 5])
    yield sliced("squeeze-both", IOS15, x, [2, 1], [0, 0], squeeze_mask=[yes, yes])
    yield sliced("squeeze-negative", IOS15, x, [-1, 0], [0, 3], squeeze_mask=[yes, no])
    yield sliced("squeeze-masked", IOS15, x, [3, 1], [0, 5], squeeze_mask=[yes, no], begin_mask=[yes, no])
    yield sliced("squeeze-last", IOS17, x, [0, 4], [4, 0], squeeze_mask=[no, yes], stride=[2, 1])
    yield sliced("rank1", IOS15, _numbers("slice", 7), [1], [6], stride=[2])
    yield sliced("extent-1", IOS15, _numbers("slice", 1, 3), [0, 0], [1, 2])
    y = _numbers("slice", 2, 3, 2, 4, 2)
    yield sliced("rank5", IOS15, y, [0, 2, 0, 1, 0], [2, 0, 2, 4, 1], stride=[1, -1, 1, 2, 1])
    yield sliced("rank5-squeeze", IOS18, y, [1, 0, 1, 0, 0], [0, 3, 0, 4, 2], squeeze_mask=[yes, no, yes, no, no])
    yield sliced("whole", IOS17, y, [0] * 5, list(y.shape))
    for opset in (IOS15, IOS17):
        program = Program(opset)
        inputs = {"x": x, "begin": np.array([1, -2], np.int32), "end": np.array([9, 5], np.int32)}
        taken = program.op("slice_by_index", inputs, ("fp32", ["?", "?"]))
        yield program.case("slice_by_index", "computed", [taken], [x[1:, -2:]])


def _slice_by_size() -> Iterator[Case]:
    def sized(label, opset, x, begin, size, bounds="int32"):
        starts = [at + extent if at < 0 else at for at, extent in zip(begin, x.shape, strict=True)]
        index = tuple(slice(at, None if count == -1 else at + count) for at, count in zip(starts, size, strict=True))
        inputs = {"x": x, "begin": const(begin, bounds), "size": const(size, bounds)}
        return case(label, "slice_by_size", opset, inputs, [x[index]])

    for dtype in _OLD:
        x = _numbers("sized", 4, 5, dtype=dtype)
        yield sized(f"{dtype}", IOS15, x, [1, 2], [2, 3])
        yield sized(f"{dtype}-rest", IOS17, x, [1, 0], [-1, 2])
    for dtype in _SHORT:
        yield sized(dtype, IOS17, _numbers("sized", 4, 5, dtype=dtype), [0, 3], [4, 1])
    x = _numbers("sized", 4, 5)
    for bounds in ("int8", "int16"):
        yield sized(f"bounds-{bounds}", IOS17, x, [2, 1], [-1, 3], bounds)
    yield sized("negative", IOS15, x, [-3, -1], [2, 1])
    yield sized("negative-rest", IOS15, x, [-3, -5], [-1, -1])
    yield sized("rest", IOS16, x, [3, 4], [-1, -1])
    yield sized("whole", IOS15, x, [0, 0], [4, 5])
    yield sized("nothing", IOS15, x, [1, 1], [0, 2])
    yield sized("nothing-left", IOS15, x, [4, 0], [-1, 5])
    yield sized("rank1", IOS15, _numbers("sized", 6), [2], [3])
    yield sized("rank5", IOS18, _numbers("sized", 2, 3, 2, 2, 3), [1, 0, 0, 1, 1], [1, -1, 2, 1, 2])
    for opset in (IOS15, IOS17):
        program = Program(opset)
        inputs = {"x": x, "begin": np.array([1, 2], np.int32), "size": np.array([-1, 2], np.int32)}
        taken = program.op("slice_by_size", inputs, ("fp32", ["?", "?"]))
        yield program.case("slice_by_size", "computed", [taken], [x[1:, 2:4]])


def _slice_update() -> Iterator[Case]:
    def updated(label, x, begin, end, update=None, bounds="int32", **more):
        index, operands = _index(begin, end, **more)
        if "stride" in operands:
            operands["stride"] = const(more["stride"], bounds)
        dtype = {"f": f"fp{8 * x.itemsize}", "b": "bool"}.get(x.dtype.kind, x.dtype.name)
        if update is None:
            update = _numbers(f"{label}-update", *x[index].shape, dtype=dtype)
        expected = x.copy()
        expected[index] = update
        inputs = {"x": x, "update": update, "begin": const(begin, bounds), "end": const(end, bounds), **operands}
        return case(label, "slice_update", IOS18, inputs, [expected])

    yes, no = True, False
    for dtype in (*_OLD, *_SHORT):
        x = _numbers("update", 4, 5, dtype=dtype)
        yield updated(f"{dtype}", x, [1, 2], [3, 5])
        yield updated(f"{dtype}-strides", x, [0, 4], [4, 0], stride=[2, -3])
    x = _numbers("update", 4, 5)
    for bounds in ("int8", "int16"):
        yield updated(f"bounds-{bounds}", x, [3, -5], [0, 5], bounds=bounds, stride=[-2, 3])
    yield updated("masks", x, [3, 1], [2, 0], begin_mask=[yes, no], end_mask=[no, yes])
    yield updated("squeeze", x, [-2, 1], [0, 4], squeeze_mask=[yes, no])
    yield updated("squeeze-last", x, [0, 3], [4, 0], squeeze_mask=[no, yes], stride=[3, 1])
    yield updated("whole", x, [0, 0], [4, 5])
    yield updated("backwards", x, [0, 0], [0, 0], stride=[-1, -1], begin_mask=[yes, yes], end_mask=[yes, yes])
    yield updated("clamped", x, [-99, 3], [99, 99])
    yield updated("nothing", x, [2, 0], [2, 5])
    yield updated("one", x, [3, 4], [4, 5])
    yield updated("rank1", _numbers("update", 7), [-1], [0], stride=[-2])
    yield updated("rank4", _numbers("update", 1, 2, 6, 3), [0, 0, 2, 0], [1, 2, 4, 3])
    yield updated("rank5", _numbers("update", 2, 2, 2, 3, 2), [1, 0, 0, 2, 1], [0, 2, 1, 0, 2], stride=[1, 1, 1, -1, 1], squeeze_mask=[yes, no, no, no, no])
    program = Program(IOS18)
    update = draw("computed-update", 2, 5)
    inputs = {"x": x, "update": update, "begin": np.array([1, 0], np.int32), "end": np.array([3, 5], np.int32)}
    taken = program.op("slice_update", inputs, ("fp32", [4, 5]))
    expected = x.copy()
    expected[1:3] = update
    yield program.case("slice_update", "computed", [taken], [expected])
