"""`concat`, `split`, `stack`, compared with numpy: they only move elements."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .elementwise import single
from .language import IOS15, IOS16, IOS17, IOS18, OPSETS, Case, case, const, draw

DTYPES = (
    ("fp32", IOS15),
    ("fp16", IOS15),
    ("int32", IOS16),
    ("bool", IOS16),
    ("int8", IOS17),
    ("uint8", IOS17),
    ("int16", IOS18),
    ("uint16", IOS18),
)


def cases() -> Iterator[Case]:
    yield from _concat()
    yield from _split()
    yield from _stack()


def _concat() -> Iterator[Case]:
    def concat(label: str, opset: str, arrays: list[np.ndarray], axis: int) -> Case:
        inputs = {"values": arrays, "axis": const(axis), "interleave": const(False)}
        return case(label, "concat", opset, inputs, [np.concatenate(arrays, axis=axis)])

    for dtype, opset in DTYPES:
        x, y = (draw(f"concat-{shape}", *shape, low=0, high=9, dtype=dtype) for shape in ((2, 3), (2, 1)))
        yield concat(f"{dtype}-last", opset, [x, y], 1)
        yield concat(f"{dtype}-negative", opset, [x, y, x], -1)
    yield concat("rank1", IOS15, [draw("r", 4), draw("s", 1)], 0)
    yield concat("one", IOS15, [draw("r", 2, 2)], 1)
    yield concat("many", IOS17, [draw(f"many{at}", 1 + at % 3, 2) for at in range(9)], 0)
    yield concat("empty-part", IOS17, [draw("r", 2, 2), np.zeros((2, 0), np.float32), draw("s", 2, 1)], 1)
    yield concat("empty-whole", IOS17, [np.zeros((0, 3), np.float32), np.zeros((0, 2), np.float32)], 1)
    yield concat("specials", IOS17, [single([np.nan, 1]), single([-np.inf]), single([-0.0])], 0)
    for axis in range(-5, 5):
        shape = [2, 1, 2, 3, 2]
        other = list(shape)
        other[axis] += 1
        yield concat(f"rank5-axis{axis}", IOS18, [draw("x", *shape), draw("y", *other)], axis)
    for axis in range(3):
        parts = [draw(f"interleave-{at}", 2, 3, 2) for at in range(3)]
        # Index 0 of each operand, then index 1 of each, and so on.
        shape = [2, 3, 2]
        shape[axis] *= 3
        interleaved = np.stack(parts, axis=axis + 1).reshape(shape)
        inputs = {"values": parts, "axis": const(axis), "interleave": const(True)}
        yield case(f"interleave-axis{axis}", "concat", OPSETS[axis], inputs, [interleaved])
    x, y = draw("default-x", 2, 3), draw("default-y", 1, 3)
    yield case("default", "concat", IOS15, {"values": [x, y], "axis": const(0)}, [np.concatenate([x, y])])
    inputs = {"values": [const(x), y], "axis": const(0)}
    yield case("const-part", "concat", IOS16, inputs, [np.concatenate([x, y])])


def _split() -> Iterator[Case]:
    for dtype, opset in DTYPES[:4]:
        x = draw("split", 4, 6, low=0, high=9, dtype=dtype)
        inputs = {"x": x, "num_splits": const(3), "axis": const(-1)}
        yield case(f"{dtype}-even", "split", opset, inputs, np.split(x, 3, -1))
        inputs = {"x": x, "split_sizes": const([1, 3]), "axis": const(0)}
        yield case(f"{dtype}-sizes", "split", opset, inputs, np.split(x, [1], 0))
    for axis in range(-5, 5):
        x = draw(f"split{axis}", 2, 2, 2, 2, 4)
        inputs = {"x": x, "num_splits": const(2), "axis": const(axis)}
        yield case(f"rank5-axis{axis}", "split", OPSETS[axis % 4], inputs, np.split(x, 2, axis))
    x = draw("split-many", 7, 3)
    inputs = {"x": x, "split_sizes": const([2, 1, 1, 3]), "axis": const(0)}
    yield case("four", "split", IOS17, inputs, np.split(x, [2, 3, 4], 0))
    inputs = {"x": x, "num_splits": const(2), "split_sizes": const([3, 4]), "axis": const(0)}
    yield case("both-stated", "split", IOS17, inputs, np.split(x, [3], 0))
    inputs = {"x": np.zeros((0, 4), np.float32), "num_splits": const(2), "axis": const(1)}
    yield case("empty", "split", IOS17, inputs, [np.zeros((0, 2), np.float32)] * 2)
    inputs = {"x": x, "num_splits": const(7), "axis": const(0)}
    yield case("into-ones", "split", IOS15, inputs, np.split(x, 7, 0))
    yield case("rank1", "split", IOS15, {"x": single([1, np.nan, 3]), "num_splits": const(3), "axis": const(0)}, single([[1], [np.nan], [3]]))


def _stack() -> Iterator[Case]:
    for dtype, opset in DTYPES:
        x, y = (draw(f"stack-{at}", 2, 3, low=0, high=9, dtype=dtype) for at in range(2))
        for axis in (0, 1, 2, -1, -2, -3) if dtype in ("fp32", "int32") else (1, -1):
            inputs = {"values": [x, y], "axis": const(axis)}
            yield case(f"{dtype}-axis{axis}", "stack", opset, inputs, [np.stack([x, y], axis)])
    for count in (1, 5):
        parts = [draw(f"stack-{at}", 4) for at in range(count)]
        yield case(f"rank1-{count}", "stack", IOS17, {"values": parts, "axis": const(0)}, [np.stack(parts)])
    parts = [draw(f"stack4-{at}", 1, 2, 3, 2) for at in range(3)]
    for axis in range(5):
        yield case(f"rank4-axis{axis}", "stack", IOS18, {"values": parts, "axis": const(axis)}, [np.stack(parts, axis)])
    inputs = {"values": [np.zeros((2, 0), np.float32)] * 3, "axis": const(1)}
    yield case("empty", "stack", IOS17, inputs, [np.zeros((2, 3, 0), np.float32)])
    scalars = [draw(f"scalar{at}") for at in range(3)]
    yield case("scalars", "stack", IOS15, {"values": scalars, "axis": const(0)}, [np.stack(scalars)])
    inputs = {"values": [const(parts[0]), parts[1]], "axis": const(2)}
    yield case("const-part", "stack", IOS16, inputs, [np.stack(parts[:2], 2)])
