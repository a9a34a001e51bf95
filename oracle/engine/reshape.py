"""`reshape`, `reshape_like`, `squeeze`, `expand_dims`, `flatten2d`, compared with numpy: elements keep their order."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from .language import IOS15, IOS16, IOS17, IOS18, Case, Program, case, const, draw

_OLD = ("fp32", "fp16", "int32", "bool")
_SHORT = ("int8", "uint8", "int16", "uint16")


def cases() -> Iterator[Case]:
    yield from _reshape()
    yield from _reshape_like()
    yield from _squeeze()
    yield from _expand_dims()
    yield from _flatten2d()


def _numbers(label: str, *shape: int, dtype: str = "fp32") -> np.ndarray:
    """Distinct elements; floats include NaN and infinities."""
    array = draw(label, *shape, dtype=dtype, low=0 if dtype.startswith("u") else -99, high=99)
    if dtype.startswith("fp") and array.size > 3:
        array.reshape(-1)[1:4] = np.nan, np.inf, -np.inf
    return array


def _reshape() -> Iterator[Case]:
    def reshape(label, opset, x, shape, to, **more):
        return case(label, "reshape", opset, {"x": x, "shape": const(shape, **more)}, [x.reshape(to)])

    for dtype in _OLD:
        x = _numbers("reshape", 2, 3, 4, dtype=dtype)
        yield reshape(f"{dtype}-flat", IOS15, x, [24], (24,))
        yield reshape(f"{dtype}-inferred", IOS15, x, [4, -1], (4, 6))
        yield reshape(f"{dtype}-inferred", IOS17, x, [3, -1, 2], (3, 4, 2))
    for dtype in _SHORT:
        x = _numbers("reshape", 2, 6, dtype=dtype)
        yield reshape(f"{dtype}", IOS17, x, [3, 4], (3, 4))
    x = _numbers("reshape", 2, 3, 4)
    for length in ("int8", "int16"):
        yield reshape(f"shape-{length}", IOS17, x, [6, -1], (6, 4), dtype=length)
    # Up to iOS16 a zero copies the dimension at the same index; from iOS17 on, the one at the same distance from the
    # end.
    yield reshape("zeros", IOS15, x, [0, -1, 0], (2, 3, 4))
    yield reshape("zeros-and-swap", IOS16, x, [0, 4, 3], (2, 4, 3))
    yield reshape("zeros", IOS17, x, [0, -1, 0], (2, 3, 4))
    y = _numbers("zeros", 2, 50)
    yield reshape("zeros-beyond", IOS17, y, [1, 0, -1, 0], (1, 1, 2, 50))
    yield reshape("zeros-beyond", IOS18, y, [0, 0, 0, 0], (1, 1, 2, 50))
    yield reshape("zeros-fewer", IOS17, x, [-1, 0], (6, 4))
    yield reshape("same", IOS16, x, [2, 3, 4], (2, 3, 4))
    yield reshape("ones", IOS16, x, [1, 2, 1, 12, 1], (1, 2, 1, 12, 1))
    yield reshape("of-scalar", IOS15, np.float32(1.5), [1, 1], (1, 1))
    yield reshape("one-element", IOS17, _numbers("one", 1, 1), [-1], (1,))
    program = Program(IOS17)
    taken = program.op("reshape", {"x": x, "shape": np.array([4, 6], np.int32)}, ("fp32", ["?", "?"]))
    yield program.case("reshape", "computed-shape", [taken], [x.reshape(4, 6)])
    program = Program(IOS15)
    taken = program.op("reshape", {"x": x, "shape": np.array([3, -1], np.int32)}, ("fp32", ["?", "?"]))
    yield program.case("reshape", "computed-shape", [taken], [x.reshape(3, 8)])


def _reshape_like() -> Iterator[Case]:
    def like(label, opset, x, references, parts):
        shape = []
        for reference, (begin, end, open_ended) in zip(references, parts, strict=True):
            shape += reference.shape[begin:] if open_ended else reference.shape[begin:end]
        begins, ends, masks = ([const(part[at]) for part in parts] for at in range(3))
        inputs = {"x": x, "ref_tensors": references, "begins": begins, "ends": ends, "end_masks": masks}
        return case(label, "reshape_like", opset, inputs, [x.reshape(shape)])

    references = [draw("reference", 2, 3, 4), draw("reference", 1, 5, 6)]
    for dtype in _OLD:
        x = _numbers("like", 6, 30, dtype=dtype)
        yield like(f"{dtype}-documented", IOS16, x, references, [(0, 2, False), (1, 0, True)])
        yield like(f"{dtype}-all", IOS17, _numbers("like", 24, dtype=dtype), references[:1], [(0, 9, True)])
    for dtype in _SHORT:
        yield like(f"{dtype}", IOS17, _numbers("like", 6, 4, dtype=dtype), references[:1], [(0, 3, False)])
        reference = draw("reference", 3, 4, dtype=dtype, low=0, high=3)
        yield like(f"{dtype}-reference", IOS17, _numbers("like", 12), [reference], [(0, 0, True)])
    x = _numbers("like", 12)
    yield like("negative", IOS16, x, references[:1], [(-2, 3, False)])
    yield like("negative-end", IOS16, _numbers("like", 6), references[:1], [(0, -1, False)])
    yield like("beyond", IOS16, x, references[:1], [(-2, 99, False)])
    yield like("none-of-one", IOS16, x, references, [(1, 3, False), (2, 2, False)])
    yield like("same-twice", IOS18, _numbers("like", 8), [references[0]] * 3, [(0, 1, False)] * 3)
    yield like("to-scalar", IOS16, _numbers("like", 1), references[:1], [(3, 0, True)])
    integers = draw("reference", 4, 3, dtype="int32")
    yield like("reference-int32", IOS16, x, [integers], [(0, 2, False)])


def _squeeze() -> Iterator[Case]:
    def squeeze(label, opset, x, axes):
        # Listed axes longer than 1 are kept, as in torch.
        gone = range(x.ndim) if axes is None else [axis % x.ndim for axis in axes]
        shape = [extent for axis, extent in enumerate(x.shape) if extent != 1 or axis not in gone]
        inputs = {"x": x} | ({} if axes is None else {"axes": const(axes)})
        return case(label, "squeeze", opset, inputs, [x.reshape(shape)])

    for dtype in _OLD:
        x = _numbers("squeeze", 1, 3, 1, 2, dtype=dtype)
        yield squeeze(f"{dtype}", IOS15, x, [0])
        yield squeeze(f"{dtype}-all", IOS16, x, None)
        yield squeeze(f"{dtype}-negative", IOS17, x, [-2, 0])
    for dtype in _SHORT:
        yield squeeze(dtype, IOS17, _numbers("squeeze", 2, 1, 3, dtype=dtype), [1])
    x = _numbers("squeeze", 1, 3, 1, 2)
    yield squeeze("longer-stay", IOS15, x, [0, 1])
    yield squeeze("longer-stay", IOS17, x, [1])
    yield squeeze("out-of-order", IOS15, x, [2, 0])
    yield squeeze("nothing", IOS15, _numbers("squeeze", 3, 2), None)
    yield squeeze("to-scalar", IOS15, _numbers("one", 1, 1), None)
    yield squeeze("to-scalar", IOS17, _numbers("one", 1), [0])
    yield squeeze("rank5", IOS18, _numbers("squeeze", 1, 1, 4, 1, 1), [0, 1, 3, 4])


def _expand_dims() -> Iterator[Case]:
    def expand(label, opset, x, axes):
        return case(label, "expand_dims", opset, {"x": x, "axes": const(axes)}, [np.expand_dims(x, tuple(axes))])

    for dtype in _OLD:
        x = _numbers("expand", 2, 3, dtype=dtype)
        yield expand(f"{dtype}-first", IOS15, x, [0])
        yield expand(f"{dtype}-last", IOS16, x, [-1])
        yield expand(f"{dtype}-both", IOS17, x, [0, 3])
    for dtype in _SHORT:
        yield expand(dtype, IOS17, _numbers("expand", 4, dtype=dtype), [1])
    x = _numbers("expand", 2, 3)
    yield expand("middle", IOS15, x, [1])
    yield expand("negative", IOS15, x, [-2])
    yield expand("several", IOS15, x, [0, 2, 4])
    yield expand("out-of-order", IOS15, x, [4, 0, 1])
    yield expand("mixed", IOS17, x, [-1, 0])
    yield expand("scalar", IOS15, np.float32(2.5), [0])
    yield expand("scalar", IOS17, np.float32(2.5), [0, 1])


def _flatten2d() -> Iterator[Case]:
    def flatten(label, opset, x, axis=None):
        at = 1 if axis is None else axis
        shape = (math.prod(x.shape[:at]), math.prod(x.shape[at:]))
        inputs = {"x": x} | ({} if axis is None else {"axis": const(axis)})
        return case(label, "flatten2d", opset, inputs, [x.reshape(shape)])

    for dtype in _OLD:
        x = _numbers("flatten", 2, 3, 4, dtype=dtype)
        yield flatten(f"{dtype}", IOS15, x)
        yield flatten(f"{dtype}", IOS17, x, 2)
    for axis in range(-3, 4):
        yield flatten(f"axis{axis}", IOS16, _numbers("flatten", 2, 3, 4), axis)
    yield flatten("documented-1", IOS15, _numbers("flatten", 3), -1)
    yield flatten("documented-2", IOS15, _numbers("flatten", 3), 1)
    yield flatten("documented-5", IOS15, _numbers("flatten", 5, 5, 2), 1)
    yield flatten("rank5", IOS18, _numbers("flatten", 2, 1, 3, 2, 2), 3)
