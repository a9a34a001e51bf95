"""Reductions, compared with coremltools' value inference.

Differences between value inference and the definition: `reduce_log_sum_exp` of infinities returns NaN, because it
subtracts them; the reference for these is torch. Reductions of integers keep their type, so fractions are truncated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from .elementwise import half, single
from .judge import value_of
from .language import IOS15, IOS16, IOS17, IOS18, Case, case, const, draw, numpy_type

AXES = (
    "reduce_l1_norm",
    "reduce_l2_norm",
    "reduce_log_sum",
    "reduce_log_sum_exp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "reduce_sum_square",
)

#: Shape and axes; `None` leaves the axes to the default.
CHOICES: tuple[tuple[tuple[int, ...], list[int] | None], ...] = (
    ((6,), None),
    ((6,), [0]),
    ((3, 4), [1]),
    ((3, 4), [-2]),
    ((2, 3, 4), None),
    ((2, 3, 4), [0, 2]),
    ((2, 3, 4), [-1, 0, 1]),
    ((2, 1, 3, 2), [1, 3]),
    ((2, 1, 3, 2), [2]),
    ((1, 2, 2, 3, 2), [0, 2, -1]),
    ((1, 2, 2, 3, 2), [-4]),
    ((1, 1), [0, 1]),
)


def cases() -> Iterator[Case]:
    for operation in AXES:
        yield from _along_axes(operation)
    for operation in ("reduce_argmax", "reduce_argmin"):
        yield from _position(operation)


def _along_axes(operation: str) -> Iterator[Case]:
    low = 0.2 if operation == "reduce_log_sum" else -3

    def made(label: str, opset: str, x: np.ndarray, axes: list[int] | None, keep: bool | None, **more: Any) -> Case:
        dtype = {np.dtype(np.float16): "fp16", np.dtype(np.int32): "int32"}.get(x.dtype, "fp32")
        wide = x if dtype == "int32" else x.astype(np.float32)
        stated: dict[str, Any] = {}
        if axes is not None:
            stated["axes"] = axes
        if keep is not None:
            stated["keep_dims"] = keep
        [expected] = value_of(operation, opset, x=wide, **stated)
        inputs = {"x": x, **{name: const(value) for name, value in stated.items()}}
        return case(label, operation, opset, inputs, [expected], dtypes=[dtype], **more)

    for at, (shape, axes) in enumerate(CHOICES):
        opset = (IOS15, IOS16, IOS17, IOS18)[at % 4]
        x = draw(f"{operation}-{at}", *shape, low=low, high=3)
        keep = (None, True, False)[at % 3]
        yield made(f"fp32-{at}", opset, x, axes, keep, rel=2e-5, abs=1e-5)
        if at % 3 == 0:
            yield made(f"fp16-{at}", opset, x.astype(np.float16), axes, keep, rel=2e-5, abs=1e-5)
        if at % 4 == 1:
            integers = draw(f"{operation}-int-{at}", *shape, low=1 if low > 0 else -5, high=5, dtype="int32")
            yield made(f"int32-{at}", opset, integers, axes, keep)
    # Reductions of no elements, as numpy computes them, if it does.
    if operation not in ("reduce_max", "reduce_min", "reduce_log_sum_exp"):
        yield made("of-nothing", IOS16, np.zeros((2, 0, 3), np.float32), [1], True)
        yield made("of-nothing-at-all", IOS17, np.zeros((0,), np.float32), None, None)
    yield made("to-nothing", IOS16, np.zeros((0, 3), np.float32), [1], None)
    yield made("keep-all", IOS15, draw(f"{operation}-keep", 2, 3, low=low, high=3), None, True, abs=1e-5)
    if operation != "reduce_log_sum_exp":
        specials = single([[np.nan, 1, 2], [np.inf, 1, 2], [-np.inf, 1, 2], [0, 0, 0], [-0.0, 1e-30, -1]])
        yield made("specials", IOS15, specials, [1], None)
    else:
        specials = single([[np.nan, 1], [np.inf, 1], [-np.inf, 1], [-np.inf, -np.inf], [1000, 999], [-1000, -999]])
        expected = torch.logsumexp(torch.from_numpy(specials), 1).numpy()
        yield case("specials", operation, IOS15, {"x": specials, "axes": const([1])}, [expected])
    if operation in ("reduce_sum", "reduce_sum_square", "reduce_l2_norm", "reduce_prod"):
        large = half([[60000, 60000, -60000], [300, 300, 300]])
        yield made("fp16-overflow", IOS16, large, [1], None, rel=1e-4)
    if operation in ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_sum_square"):
        large_ints = np.array([[2**31 - 1, 2**31 - 1, 7], [-(2**31), 65537, 3]], np.int32)
        yield made("int32-large", IOS15, large_ints, [1], None)
    if operation == "reduce_mean":
        yield made("int32-fraction", IOS15, np.array([[1, 2], [-1, -2], [7, -2]], np.int32), [1], None)
        yield made("long", IOS15, np.full((1, 4000), 0.1, np.float32), [1], None)


def _position(operation: str) -> Iterator[Case]:
    def made(label: str, opset: str, x: np.ndarray, axis: int | None, keep: bool | None, output: str | None = None) -> Case:
        stated: dict[str, Any] = {}
        if axis is not None:
            stated["axis"] = axis
        if keep is not None:
            stated["keep_dims"] = keep
        [expected] = value_of(operation, opset, x=x, **stated)
        if output is not None:
            stated["output_dtype"] = output
        inputs = {"x": x, **{name: const(value) for name, value in stated.items()}}
        return case(label, operation, opset, inputs, [expected], dtypes=[output or "int32"])

    for opset in (IOS15, IOS17):
        at = 0
        for shape in ((7,), (3, 4), (2, 3, 4), (2, 1, 3, 2), (1, 2, 2, 3, 2)):
            for axis in {0, -1, len(shape) // 2}:
                at += 1
                dtype = ("fp32", "fp16", "int32")[at % 3]
                x = draw(f"{operation}-{opset}-{at}", *shape, low=-3, high=3, dtype=dtype)
                output = (None, "int32", "uint16")[at % 3] if opset == IOS17 else None
                yield made(f"{dtype}-rank{len(shape)}-axis{axis}", opset, x, axis, (None, True, False)[at // 2 % 3], output)
        yield made("default", opset, draw(f"{operation}-default", 3, 5), None, None)
        ties = single([[1, 3, 3, 1], [2, 2, 2, 2], [-0.0, 0.0, 0.0, -0.0]])
        yield made("ties", opset, ties, 1, None)
        nan = single([[1, np.nan, 9, np.nan], [np.inf, np.inf, -np.inf, -np.inf], [-np.inf, np.nan, np.inf, 0]])
        yield made("nan", opset, nan, 1, None)
        yield made("one-element", opset, single([[5.0]]), 0, True)
        inputs = {"x": np.zeros((0, 3), np.float32), "axis": const(1), "keep_dims": const(False)}
        yield case("to-nothing", operation, opset, inputs, [np.zeros((0,), np.int32)])
        large = np.array([[2**31 - 1, 2**31 - 2, -(2**31)], [16777217, 16777216, 16777217]], numpy_type("int32"))
        yield made("int32-large", opset, large, -1, False)
