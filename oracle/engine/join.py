"""`concat`, `split`, `stack`, judged by numpy: they only move elements."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .language import IOS15, IOS16, IOS17, IOS18, Case, case, const, draw


def cases() -> Iterator[Case]:
    yield from _concat()
    yield from _split()
    yield from _stack()


def _concat() -> Iterator[Case]:
    def concat(label, opset, arrays, axis, **more):
        expected = np.concatenate(arrays, axis=axis)
        inputs = {"values": arrays, "axis": const(axis), "interleave": const(False)} | more
        return case(label, "concat", opset, inputs, [expected])

    for dtype in ("fp32", "fp16", "int32", "bool"):
        x, y = draw("concat-x", 2, 3, dtype=dtype), draw("concat-y", 2, 1, dtype=dtype)
        yield concat(f"{dtype}-last", IOS15, [x, y], 1)
        yield concat(f"{dtype}-negative", IOS16, [x, y, x], -1)
    for dtype in ("int8", "uint8", "int16", "uint16"):
        yield concat(f"{dtype}", IOS17, [draw("a", 3, dtype=dtype, low=0, high=9), draw("b", 2, dtype=dtype, low=0, high=9)], 0)
    yield concat("rank1", IOS15, [draw("r", 4), draw("s", 1)], 0)
    yield concat("one", IOS15, [draw("r", 2, 2)], 1)
    yield concat("two", IOS17, [draw("r", 2, 2), draw("t", 1, 2)], 0)
    for axis in range(-5, 5):
        shape = [2, 1, 2, 3, 2]
        other = list(shape)
        other[axis] += 1
        yield concat(f"rank5-axis{axis}", IOS18, [draw("x", *shape), draw("y", *other)], axis)
    x, y, z = (draw(f"interleave-{at}", 2, 3, 2) for at in range(3))
    interleaved = np.stack([x, y, z], axis=2).reshape(2, 9, 2)
    inputs = {"values": [x, y, z], "axis": const(1), "interleave": const(True)}
    yield case("interleave", "concat", IOS15, inputs, [interleaved])
    yield case("default", "concat", IOS15, {"values": [x, y], "axis": const(0)}, [np.concatenate([x, y])])


def _split() -> Iterator[Case]:
    for dtype in ("fp32", "fp16", "int32", "bool"):
        x = draw("split", 4, 6, dtype=dtype)
        inputs = {"x": x, "num_splits": const(3), "axis": const(-1)}
        yield case(f"{dtype}-even", "split", IOS15, inputs, np.split(x, 3, -1))
        inputs = {"x": x, "split_sizes": const([1, 3]), "axis": const(0)}
        yield case(f"{dtype}-sizes", "split", IOS16, inputs, np.split(x, [1], 0))


def _stack() -> Iterator[Case]:
    for dtype in ("fp32", "fp16", "int32", "bool"):
        x, y = (draw(f"stack-{at}", 2, 3, dtype=dtype) for at in range(2))
        for axis in (0, 1, 2, -1, -2, -3):
            inputs = {"values": [x, y], "axis": const(axis)}
            yield case(f"{dtype}-axis{axis}", "stack", IOS15, inputs, [np.stack([x, y], axis)])
