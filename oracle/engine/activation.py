"""Activations, compared with coremltools' value inference, or with torch if that has none (`silu`) or is inexact
(`gelu`).

Differences between value inference and MIL: `clamped_relu` adds `beta` twice if `beta` is negative and `x` is not;
the documented `min(beta, x)` is expected instead. Intermediate values of `sigmoid` and `softplus_parametric`
overflow; torch's do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from .elementwise import HALF_SPECIALS, SPECIALS, half, single
from .judge import value_of
from .language import IOS15, IOS16, IOS17, IOS18, Case, case, const, draw, numpy_type

#: Operations without constants.
PLAIN = ("relu", "relu6", "sigmoid", "silu", "softplus", "softsign")

#: Scalar constants of the other operations.
WITH_CONSTANTS: dict[str, list[dict[str, float]]] = {
    "clamped_relu": [{"alpha": 0.25, "beta": 1.5}, {"alpha": -0.5, "beta": 6.0}, {"alpha": 1.0, "beta": 0.0}],
    "elu": [{"alpha": 1.0}, {"alpha": 0.3}, {"alpha": -1.5}],
    "leaky_relu": [{"alpha": 0.1}, {"alpha": 2.0}, {"alpha": -0.5}],
    "linear_activation": [{"alpha": 2.0, "beta": -1.0}, {"alpha": 0.0, "beta": 3.0}, {"alpha": -0.25, "beta": 0.5}],
    "scaled_tanh": [{"alpha": 1.7159, "beta": 0.6666}, {"alpha": -2.0, "beta": 3.0}],
    "sigmoid_hard": [{"alpha": 0.2, "beta": 0.5}, {"alpha": 0.1666, "beta": 0.5}, {"alpha": -1.0, "beta": 0.25}],
    "thresholded_relu": [{"alpha": 1.0}, {"alpha": 0.0}, {"alpha": -0.75}],
}

SHAPES = ((), (17,), (3, 5), (2, 3, 4), (1, 2, 3, 2), (2, 1, 2, 1, 3))


def cases() -> Iterator[Case]:
    for operation in PLAIN:
        yield from _plain(operation)
    for operation, choices in WITH_CONSTANTS.items():
        yield from _with_constants(operation, choices)
    yield from _gelu()
    yield from _softmax()
    yield from _prelu()
    yield from _softplus_parametric()


def _plain(operation: str) -> Iterator[Case]:
    by_torch: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "silu": torch.nn.functional.silu,
        "sigmoid": torch.sigmoid,
        "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    }

    def made(label: str, opset: str, x: np.ndarray) -> Case:
        wide = x.astype(np.float32)
        if operation in by_torch:
            expected: Any = by_torch[operation](torch.from_numpy(wide.copy())).numpy()
        else:
            [expected] = value_of(operation, opset, x=wide)
        return case(label, operation, opset, {"x": x}, [expected], dtypes=["fp16" if x.dtype == np.float16 else "fp32"])

    for at, shape in enumerate(SHAPES):
        opset = (IOS15, IOS16, IOS17, IOS18)[at % 4]
        yield made(f"rank{len(shape)}", opset, draw(f"{operation}-{at}", *shape, low=-8, high=8))
        if at % 2:
            yield made(f"fp16-rank{len(shape)}", opset, draw(f"{operation}-h{at}", *shape, low=-8, high=8, dtype="fp16"))
    yield made("fp16", IOS15, draw(f"{operation}-h", 4, 4, low=-8, high=8, dtype="fp16"))
    yield case("empty", operation, IOS16, {"x": np.zeros((0, 4), np.float32)}, [np.zeros((0, 4), np.float32)])
    yield made("specials", IOS15, single([*SPECIALS, 30.0, -30.0, 90.0, -90.0]))
    yield made("fp16-specials", IOS17, half([*HALF_SPECIALS, 30.0, -30.0]))


def _with_constants(operation: str, choices: list[dict[str, float]]) -> Iterator[Case]:
    def judge(opset: str, x: np.ndarray, constants: dict[str, Any]) -> np.ndarray:
        wide = x.astype(np.float32)
        with np.errstate(all="ignore"):
            if operation == "clamped_relu":
                alpha, beta = (np.float32(constants[name]) for name in ("alpha", "beta"))
                return np.minimum(np.where(wide < 0, wide * alpha, wide), beta)
            if operation == "scaled_tanh" and wide.ndim == 0:
                return np.float32(constants["alpha"]) * np.tanh(wide * np.float32(constants["beta"]))
        [expected] = value_of(operation, opset, x=np.atleast_1d(wide), **{k: np.float32(v) for k, v in constants.items()})
        return expected.reshape(wide.shape)

    def made(label: str, opset: str, x: np.ndarray, stated: dict[str, float], of: str | None = None) -> Case:
        dtype = "fp16" if x.dtype == np.float16 else "fp32"
        constants = {name: numpy_type(of or dtype)(value) for name, value in stated.items()}
        inputs = {"x": x, **{name: const(value) for name, value in constants.items()}}
        return case(label, operation, opset, inputs, [judge(opset, x, constants)], dtypes=[dtype])

    for opset in (IOS15, IOS17):
        for at, shape in enumerate(SHAPES):
            x = draw(f"{operation}-{opset}-{at}", *shape, low=-4, high=4)
            yield made(f"rank{len(shape)}", opset, x, choices[at % len(choices)])
        for at, stated in enumerate(choices):
            x = draw(f"{operation}-{opset}-choice{at}", 3, 4, low=-4, high=4)
            x[0, 0] = stated["alpha"]
            yield made(f"choice{at}", opset, x, stated)
            yield made(f"fp16-choice{at}", opset, x.astype(np.float16), stated)
            yield made(f"specials{at}", opset, single(SPECIALS), stated)
        yield made("fp16-specials", opset, half(HALF_SPECIALS), choices[0])
        yield made("empty", opset, np.zeros((2, 0), np.float32), choices[0])
    # Since iOS17 the constants may have an element type other than that of `x`.
    yield made("fp16-by-fp32", IOS17, draw("mixed", 9, dtype="fp16"), choices[0], "fp32")
    yield made("fp32-by-fp16", IOS18, draw("mixed", 2, 3), choices[0], "fp16")


def _gelu() -> Iterator[Case]:
    def exact(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x)

    modes: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "EXACT": exact,
        "TANH_APPROXIMATION": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "SIGMOID_APPROXIMATION": lambda x: x * torch.sigmoid(1.702 * x),
    }
    for mode, function in modes.items():
        for at, shape in enumerate(SHAPES):
            for dtype in ("fp32", "fp16"):
                x = draw(f"gelu-{mode}-{at}", *shape, low=-6, high=6, dtype=dtype)
                expected = function(torch.from_numpy(x.astype(np.float64))).numpy()
                inputs = {"x": x, "mode": const(mode)}
                opset = (IOS15, IOS16, IOS17, IOS18)[at % 4]
                yield case(f"{mode}-{dtype}-rank{len(shape)}", "gelu", opset, inputs, [expected], dtypes=[dtype])
    x = draw("gelu-default", 2, 7, low=-6, high=6)
    yield case("default", "gelu", IOS15, {"x": x}, [exact(torch.from_numpy(x)).numpy()])
    yield case("empty", "gelu", IOS15, {"x": np.zeros((0,), np.float32)}, [np.zeros((0,), np.float32)])
    x = single([np.nan, np.inf, 40.0, -40.0, 0.0])
    # torch's vectorized code returns NaN for infinity.
    yield case("specials", "gelu", IOS15, {"x": x}, value_of("gelu", IOS15, x=x), dtypes=["fp32"])


def _softmax() -> Iterator[Case]:
    def made(label: str, opset: str, x: np.ndarray, axis: int | None) -> Case:
        expected = torch.softmax(torch.from_numpy(x.astype(np.float32)), -1 if axis is None else axis).numpy()
        inputs = {"x": x} if axis is None else {"x": x, "axis": const(axis)}
        return case(label, "softmax", opset, inputs, [expected], dtypes=["fp16" if x.dtype == np.float16 else "fp32"])

    for shape in SHAPES[1:]:
        rank = len(shape)
        for axis in sorted({0, rank - 1, -rank, -1, rank // 2}):
            dtype = "fp16" if axis == 0 else "fp32"
            x = draw(f"softmax-{shape}-{axis}", *shape, low=-5, high=5, dtype=dtype)
            yield made(f"rank{rank}-axis{axis}", (IOS15, IOS16, IOS17, IOS18)[rank % 4], x, axis)
    yield made("default", IOS15, draw("softmax-default", 2, 3, 5, low=-5, high=5), None)
    yield made("large", IOS15, single([[1000, 1001, 999], [-1000, -1001, -3e38], [3e38, -3e38, 0]]), -1)
    yield made("fp16-large", IOS15, half([[65504, 65000, 0], [-65504, 0, 11]]), -1)
    yield made("masked", IOS16, single([[0.5, -np.inf, 1], [-np.inf, -np.inf, 2]]), -1)
    yield made("nan", IOS16, single([[0.5, np.nan, 1], [-np.inf, -np.inf, -np.inf]]), -1)
    yield made("one-element", IOS15, single([[5.0]]), 1)
    for axis in (0, 1, 2):
        yield made(f"empty-axis{axis}", IOS17, np.zeros((2, 0, 3), np.float32), axis)
    yield made("one-extent", IOS15, draw("softmax-one", 3, 1, 2), 1)


def _prelu() -> Iterator[Case]:
    for opset in (IOS15, IOS17):
        for dtype in ("fp32", "fp16"):
            for label, shape, alpha in (
                ("rank3", (2, 3, 4), [0.25, 0.25, 0.25]),
                ("rank4", (1, 4, 2, 3), [0.25, -1.0, 2.0, 0.0]),
                ("rank4-one-channel", (2, 1, 2, 2), [0.1]),
                ("rank5", (1, 2, 2, 1, 3), [0.5, 0.5]),
            ):
                x = draw(f"prelu-{label}", *shape, low=-3, high=3, dtype=dtype)
                slopes = np.array(alpha, numpy_type(dtype))
                expected = value_of("prelu", opset, x=x.astype(np.float32), alpha=slopes.astype(np.float32))
                inputs = {"x": x, "alpha": const(slopes)}
                yield case(f"{dtype}-{label}", "prelu", opset, inputs, expected, dtypes=[dtype])
    x = np.zeros((0, 2, 3), np.float32)
    yield case("empty", "prelu", IOS15, {"x": x, "alpha": const(single([0.5, 0.5]))}, [x])
    x = single(SPECIALS[:12]).reshape(1, 3, 2, 2)
    slopes = single([0.5, 2.0, 1.0])
    expected = torch.prelu(torch.from_numpy(x), torch.from_numpy(slopes)).numpy()
    yield case("specials", "prelu", IOS15, {"x": x, "alpha": const(slopes)}, [expected])
    x = draw("prelu-mixed", 1, 3, 2, 2, dtype="fp16")
    expected = torch.prelu(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(slopes)).numpy()
    yield case("fp16-by-fp32", "prelu", IOS17, {"x": x, "alpha": const(slopes)}, [expected], dtypes=["fp16"])


def _softplus_parametric() -> Iterator[Case]:
    def judge(x: np.ndarray, alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
        shape = [1, -1, *[1] * (x.ndim - 2)]
        wide, a, b = (torch.from_numpy(part.astype(np.float32)) for part in (x, alpha.reshape(shape), beta.reshape(shape)))
        return (a * torch.logaddexp(b * wide, torch.zeros(()))).numpy()

    for opset in (IOS15, IOS17):
        for dtype in ("fp32", "fp16"):
            for shape in ((2, 3, 4), (1, 3, 2, 3), (2, 3, 1, 2, 2)):
                x = draw(f"softplus-{shape}", *shape, low=-6, high=6, dtype=dtype)
                alpha, beta = (np.array(values, numpy_type(dtype)) for values in ([1, 0.5, -2], [1, 3, -0.5]))
                inputs = {"x": x, "alpha": const(alpha), "beta": const(beta)}
                label = f"{dtype}-rank{len(shape)}"
                yield case(label, "softplus_parametric", opset, inputs, [judge(x, alpha, beta)], dtypes=[dtype])
        x, one = single([[[-200, -90, 0, 90, 200]]]), single([1])
        inputs = {"x": x, "alpha": const(one), "beta": const(one)}
        yield case("large", "softplus_parametric", opset, inputs, [judge(x, one, one)])
    x, two = np.zeros((2, 2, 0), np.float32), single([1, 2])
    yield case("empty", "softplus_parametric", IOS15, {"x": x, "alpha": const(two), "beta": const(two)}, [x])
    x, alpha, beta = draw("softplus-mixed", 2, 2, 3, dtype="fp16"), single([1, 0.5]), single([0.3, 3])
    inputs = {"x": x, "alpha": const(alpha), "beta": const(beta)}
    expected = judge(x, alpha, beta)
    yield case("fp16-by-fp32", "softplus_parametric", IOS17, inputs, [expected], dtypes=["fp16"])
