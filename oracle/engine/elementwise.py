"""Elementwise operations of one and two operands, compared with coremltools' value inference.

Differences between value inference and MIL: for integers, `real_div` and `exp2` return fractions although the
inferred types are integers. Fractions are truncated, as by `cast`; numpy and torch are the references for these.
`pow` with a negative exponent raises an error. A `cast` of floats outside the integer type's range depends on the
machine; the expected result is the nearest integer of the type, and 0 for NaN, as on Arm.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .judge import value_of
from .language import IOS15, IOS16, IOS17, IOS18, Case, case, const, draw, numpy_type

SPECIALS = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-30, -1e-30, 3e38, -3e38, 0.5, -0.5, 1.5, 2.5, -2.5]
HALF_SPECIALS = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 6e-8, -6e-8, 65504.0, -65504.0, 0.5, -0.5, 1.5, 2.5]

#: The input range that covers the interesting part of each function.
FLOAT_UNARY = {
    "acos": (-1.1, 1.1),
    "asin": (-1.1, 1.1),
    "atan": (-5, 5),
    "atanh": (-1.05, 1.05),
    "ceil": (-4, 4),
    "cos": (-9, 9),
    "cosh": (-6, 6),
    "erf": (-4, 4),
    "exp": (-9, 9),
    "floor": (-4, 4),
    "round": (-4, 4),
    "sin": (-9, 9),
    "sinh": (-6, 6),
    "sqrt": (-0.5, 9),
    "tan": (-1.4, 1.4),
    "tanh": (-4, 4),
}
NUMBER_UNARY = {"abs": (-9, 9), "exp2": (-6, 9), "sign": (-2, 2), "square": (-9, 9)}
EPSILON = {"inverse": ((0.1, 4), 1e-4), "log": ((0, 9), 1e-45), "rsqrt": ((0.1, 9), 1e-12)}

BINARY = ("add", "floor_div", "maximum", "minimum", "mod", "mul", "pow", "real_div", "sub")
COMPARISONS = ("equal", "greater", "greater_equal", "less", "less_equal", "not_equal")
LOGICAL = ("logical_and", "logical_or", "logical_xor")

#: Pairs of shapes that broadcast.
SHAPES = {
    "rank0": ((), ()),
    "rank1": ((5,), (5,)),
    "row": ((2, 3), (3,)),
    "column": ((2, 3), (2, 1)),
    "both": ((2, 1, 4), (3, 1)),
    "rank5": ((2, 3, 1, 1, 2), (1, 4, 1)),
    "scalar": ((2, 3), ()),
    "scalar-first": ((), (2, 3)),
    "one-element": ((1, 1, 1), (2, 2)),
    "outer": ((4, 1), (1, 3)),
}


def cases() -> Iterator[Case]:
    for operation, bounds in FLOAT_UNARY.items():
        yield from _unary(operation, bounds)
    for operation, bounds in NUMBER_UNARY.items():
        yield from _unary(operation, bounds)
        yield from _unary_ints(operation)
    for operation, (bounds, epsilon) in EPSILON.items():
        yield from _with_epsilon(operation, bounds, epsilon)
    yield from _clip()
    yield from _threshold()
    yield from _logical_not()
    yield from _cast()
    for operation in BINARY:
        yield from _binary_floats(operation)
        yield from _binary_ints(operation)
    for operation in COMPARISONS:
        yield from _binary_floats(operation)
        yield from _binary_ints(operation)
    for operation in LOGICAL:
        yield from _logical(operation)


def half(values: Any) -> np.ndarray:
    return np.array(values, np.float16)


def single(values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def judged(label: str, operation: str, opset: str, x: np.ndarray, stated: dict[str, float] | None = None, **more: Any) -> Case:
    """A case of a function of `x` with constants of the same type, computed in fp32."""
    dtype = "fp16" if x.dtype == np.float16 else "fp32"
    wide = x.astype(np.float32)
    constants = {name: numpy_type(dtype)(value) for name, value in (stated or {}).items()}
    expected = value_of(operation, opset, x=wide, **{name: np.float32(value) for name, value in constants.items()})
    inputs = {"x": x, **{name: const(value) for name, value in constants.items()}}
    return case(label, operation, opset, inputs, expected, dtypes=[dtype], **more)


def _unary(operation: str, bounds: tuple[float, float]) -> Iterator[Case]:
    low, high = bounds

    def x(label: str, *shape: int, dtype: str = "fp32") -> np.ndarray:
        return draw(f"{operation}-{label}", *shape, low=low, high=high, dtype=dtype)

    more = {"rel": 3e-5} if operation in ("tan", "sinh", "cosh", "exp") else {}
    yield judged("rank0", operation, IOS15, x("rank0"), **more)
    yield judged("rank1", operation, IOS15, x("rank1", 31), **more)
    yield judged("rank3", operation, IOS16, x("rank3", 2, 3, 4), **more)
    yield judged("rank5", operation, IOS17, x("rank5", 1, 2, 1, 3, 2), **more)
    yield judged("one-element", operation, IOS18, x("one", 1, 1), **more)
    yield judged("specials", operation, IOS15, single(SPECIALS), **more)
    yield judged("fp16", operation, IOS15, x("half", 3, 7, dtype="fp16"), **more)
    yield judged("fp16-rank4", operation, IOS17, x("half4", 2, 1, 3, 2, dtype="fp16"), **more)
    yield judged("fp16-rank0", operation, IOS16, x("half0", dtype="fp16"), **more)
    yield judged("fp16-specials", operation, IOS18, half(HALF_SPECIALS), **more)
    yield case("empty", operation, IOS16, {"x": np.zeros((2, 0, 3), np.float32)}, [np.zeros((2, 0, 3), np.float32)])


def _unary_ints(operation: str) -> Iterator[Case]:
    functions = {"abs": np.abs, "exp2": lambda x: np.trunc(np.exp2(x)), "sign": np.sign, "square": np.square}
    low, high = NUMBER_UNARY[operation]
    for label, opset, shape in (("rank0", IOS15, ()), ("rank2", IOS16, (3, 4)), ("rank4", IOS18, (2, 1, 2, 3))):
        x = draw(f"{operation}-int-{label}", *shape, low=low, high=high, dtype="int32")
        yield case(f"int32-{label}", operation, opset, {"x": x}, [functions[operation](x).astype(np.int32)])
    if operation != "exp2":
        x = np.array([2**31 - 1, -(2**31), 46341, 65536, -65537, 0], np.int32)
        with np.errstate(all="ignore"):
            yield case("int32-wraps", operation, IOS15, {"x": x}, [functions[operation](x).astype(np.int32)])


def _with_epsilon(operation: str, bounds: tuple[float, float], default: float) -> Iterator[Case]:
    low, high = bounds
    for opset in (IOS15, IOS17):
        for dtype in ("fp32", "fp16"):

            def x(*shape: int, at: str = opset + dtype, of: str = dtype) -> np.ndarray:
                return draw(f"{operation}-{at}-{shape}", *shape, low=low, high=high, dtype=of)

            near_zero = np.array([0.0, 1e-4, 2e-3, -1e-3, np.inf, np.nan], numpy_type(dtype))
            implied = float(numpy_type(dtype)(default))
            for label, value in (("default", x(7)), ("near-zero", near_zero), ("default-rank4", x(2, 3, 1, 2))):
                made = value_of(operation, opset, x=value.astype(np.float32), epsilon=np.float32(implied))
                yield case(f"{dtype}-{label}", operation, opset, {"x": value}, made, dtypes=[dtype], rel=3e-5)
            yield judged(f"{dtype}-epsilon", operation, opset, x(2, 5), {"epsilon": 0.25})
            yield judged(f"{dtype}-rank0", operation, opset, x(), {"epsilon": 1e-3})
            yield judged(f"{dtype}-zero", operation, opset, near_zero, {"epsilon": 0.0}, rel=3e-5)
            nothing = np.zeros((0, 2), numpy_type(dtype))
            yield case(f"{dtype}-empty", operation, opset, {"x": nothing}, [nothing])
    # Since iOS17 the epsilon may have an element type other than that of `x`.
    x = draw(f"{operation}-mixed", 4, low=low, high=high, dtype="fp16")
    made = value_of(operation, IOS17, x=x.astype(np.float32), epsilon=np.float32(0.125))
    inputs = {"x": x, "epsilon": const(0.125, "fp32")}
    yield case("fp16-by-fp32", operation, IOS17, inputs, made, dtypes=["fp16"])


def _clip() -> Iterator[Case]:
    for opset in (IOS15, IOS17):
        for dtype in ("fp32", "fp16"):
            limits = {"alpha": -1.25, "beta": 1.5}
            for shape in ((), (9,), (2, 3), (1, 2, 3), (2, 1, 3, 2), (1, 2, 1, 2, 2)):
                x = draw(f"clip-{dtype}-{shape}", *shape, low=-4, high=4, dtype=dtype)
                yield judged(f"{dtype}-rank{len(shape)}", "clip", opset, x, limits)
            specials = single(SPECIALS) if dtype == "fp32" else half(HALF_SPECIALS)
            yield judged(f"{dtype}-specials", "clip", opset, specials, limits)
            yield judged(f"{dtype}-empty", "clip", opset, np.zeros((1, 0), numpy_type(dtype)), limits)
            yield judged(f"{dtype}-relu6", "clip", opset, draw("clip6", 5, 5, low=-9, high=9, dtype=dtype), {"alpha": 0, "beta": 6})
    yield judged("crossed", "clip", IOS15, draw("crossed", 9, low=-4, high=4), {"alpha": 2, "beta": 1})
    yield judged("infinite", "clip", IOS17, single(SPECIALS), {"alpha": 0, "beta": np.inf})


def _threshold() -> Iterator[Case]:
    for dtype in ("fp32", "fp16"):
        for opset, shape in ((IOS15, ()), (IOS16, (9,)), (IOS17, (2, 3, 2)), (IOS18, (1, 2, 1, 3, 2))):
            x = draw(f"threshold-{dtype}-{shape}", *shape, low=-4, high=4, dtype=dtype)
            yield judged(f"{dtype}-rank{len(shape)}", "threshold", opset, x, {"alpha": 0.75})
        specials = single(SPECIALS) if dtype == "fp32" else half(HALF_SPECIALS)
        yield judged(f"{dtype}-specials", "threshold", IOS15, specials, {"alpha": -0.25})
    for opset, shape in ((IOS15, ()), (IOS16, (9,)), (IOS18, (2, 3))):
        x = draw(f"threshold-int-{shape}", *shape, low=-9, high=9, dtype="int32")
        yield case(f"int32-rank{len(shape)}", "threshold", opset, {"x": x, "alpha": const(2)}, [np.maximum(x, 2)])


def _logical_not() -> Iterator[Case]:
    for opset in (IOS15, IOS18):
        for shape in ((), (5,), (2, 3), (1, 2, 3), (2, 1, 2, 2), (1, 2, 1, 2, 2)):
            x = draw(f"logical_not-{shape}", *shape, dtype="bool")
            yield case(f"rank{len(shape)}", "logical_not", opset, {"x": x}, [np.logical_not(x)])


def _cast() -> Iterator[Case]:
    older, newer = ("fp32", "fp16", "int32", "bool"), ("int8", "uint8", "int16", "uint16")
    shapes = ((6,), (), (2, 3), (1, 2, 1, 3), (2, 1, 3), (1, 2, 1, 2, 2))
    for opset, dtypes in ((IOS15, older), (IOS17, older + newer)):
        at = 0
        for source in dtypes:
            for target in dtypes:
                at += 1
                shape = shapes[at % len(shapes)]
                low = 0 if "uint" in source + target else -9
                x = draw(f"cast-{source}-{target}-{shape}", *shape, low=low, high=99, dtype=source)
                expected = x.astype(numpy_type(target))
                inputs = {"x": x, "dtype": const(target)}
                yield case(f"{source}-{target}", "cast", opset, inputs, [expected], dtypes=[target])

    def cast(label: str, opset: str, x: np.ndarray, target: str, expected: Any) -> Case:
        inputs = {"x": x, "dtype": const(target)}
        return case(label, "cast", opset, inputs, [np.asarray(expected)], dtypes=[target])

    for opset, target in ((IOS15, "int32"), (IOS15, "fp16"), (IOS17, "bool"), (IOS17, "uint8")):
        yield cast(f"empty-{target}", opset, np.zeros((3, 0), np.float32), target, np.zeros((3, 0)))

    for opset in (IOS15, IOS17):
        fractions = single([1.9, -1.9, 0.5, -0.5, 2.5, -2.5, 0.999, -0.999, 0.0, -0.0])
        yield cast("truncates", opset, fractions, "int32", np.trunc(fractions))
        yield cast("truncates-half", opset, fractions.astype(np.float16), "int32", [1, -1, 0, 0, 2, -2, 0, 0, 0, 0])
        out_of_range = single([3e9, -3e9, np.inf, -np.inf, np.nan, 2147483520])
        yield cast("saturates", opset, out_of_range, "int32", [2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 0, 2147483520])
        yield cast("truth", opset, single([0.0, -0.0, 0.1, -3, np.nan, np.inf]), "bool", [0, 0, 1, 1, 1, 1])
        yield cast("truth-int", opset, np.array([0, 1, -1, 256, 65536], np.int32), "bool", [0, 1, 1, 1, 1])
        large = single([65504, 65519, 65520, -70000, 1e-8, 6e-8, 2049, np.nan, np.inf])
        yield cast("to-half", opset, large, "fp16", large)
        integers = np.array([2048, 2049, 4099, 65504, 70000, -70000], np.int32)
        yield cast("int-to-half", opset, integers, "fp16", integers.astype(np.float32))
        yield cast("int-to-float", opset, np.array([16777217, -(2**31), 2**31 - 1], np.int32), "fp32", single([16777216, -(2**31), 2**31]))
    for target in newer:
        info = np.iinfo(numpy_type(target))
        floats = single([info.max + 0.5, info.max + 1, 1e9, info.min - 1, -1e9, np.nan, np.inf, -np.inf, info.min + 0.5])
        clamped = np.clip(np.nan_to_num(np.trunc(floats)), info.min, info.max)
        yield cast(f"saturates-{target}", IOS17, floats, target, clamped)
        integers = np.array([-1, -129, 128, 255, 256, 32768, 65535, 65536, 70000, -40000], np.int32)
        yield cast(f"wraps-{target}", IOS18, integers, target, integers.astype(numpy_type(target)))


def _binary_floats(operation: str) -> Iterator[Case]:
    compares = operation in COMPARISONS
    low, high = (0.1, 3) if operation == "pow" else (-3, 3)

    def pair(label: str, opset: str, x: Any, y: Any, bound: tuple[Any, Any] | None = None, rel: float = 1e-5) -> Case:
        dtype = "fp16" if x.dtype == np.float16 else "fp32"
        expected = value_of(operation, opset, x=x.astype(np.float32), y=y.astype(np.float32))
        taken = bound or (x, y)
        dtypes = ["bool" if compares else dtype]
        return case(label, operation, opset, {"x": taken[0], "y": taken[1]}, expected, dtypes=dtypes, rel=rel)

    def two(label: str, shapes: tuple[Any, Any], dtype: str = "fp32") -> tuple[np.ndarray, np.ndarray]:
        x = draw(f"{operation}-{label}-x", *shapes[0], low=low, high=high, dtype=dtype)
        y = draw(f"{operation}-{label}-y", *shapes[1], low=low, high=high, dtype=dtype)
        if compares:
            # Includes equal elements.
            x, y = np.round(x), np.round(y)
        if operation in ("floor_div", "mod", "real_div"):
            y = np.where(y == 0, y.dtype.type(0.7), y)
        return x, y

    for at, (label, shapes) in enumerate(SHAPES.items()):
        opset = (IOS15, IOS16, IOS17, IOS18)[at % 4]
        yield pair(f"fp32-{label}", opset, *two(label, shapes))
        if at % 3 == 0:
            yield pair(f"fp16-{label}", opset, *two(label, shapes, "fp16"), rel=1e-3)
    for label, of_x, of_y in (("row", (0, 3), (3,)), ("column", (2, 0), (2, 1)), ("scalar", (0,), ()), ("both", (0, 1), (1, 4))):
        x, y = np.zeros(of_x, np.float32), np.ones(of_y, np.float32)
        expected = np.zeros(np.broadcast_shapes(of_x, of_y), np.bool_ if compares else np.float32)
        yield case(f"empty-{label}", operation, IOS17, {"x": x, "y": y}, [expected])
    x, y = two("const", ((2, 3), (1, 3)))
    yield pair("const-y", IOS15, x, y, (x, const(y)))
    yield pair("const-x", IOS15, x, y, (const(x), y))
    x, y = two("const-scalar", ((2, 3), ()))
    yield pair("const-scalar", IOS17, x, y, (x, const(np.float32(y))))
    left, right = np.meshgrid(single([np.nan, np.inf, -np.inf, 0.0, 1.5, -2.0]), single([np.nan, np.inf, -np.inf, 0.0, 1.5, -2.0]))
    yield pair("specials", IOS15, left, right)
    if operation == "mod" or operation == "floor_div":
        left, right = np.meshgrid(single([5, -5, 5.5, -5.5, 0, 1]), single([3, -3, 2.5, -2.5, 0.1]))
        yield pair("signs", IOS15, left, right)


def _binary_ints(operation: str) -> Iterator[Case]:
    compares = operation in COMPARISONS
    functions = {
        "add": np.add,
        "floor_div": np.floor_divide,
        "maximum": np.maximum,
        "minimum": np.minimum,
        "mod": np.mod,
        "mul": np.multiply,
        "pow": np.power,
        "real_div": lambda x, y: np.trunc(x.astype(np.float64) / y),
        "sub": np.subtract,
    }

    def pair(label: str, opset: str, x: Any, y: Any) -> Case:
        function = getattr(np, operation) if compares else functions[operation]
        with np.errstate(all="ignore"):
            expected = np.asarray(function(x, y))
        dtype = "bool" if compares else "int32"
        return case(label, operation, opset, {"x": x, "y": y}, [expected], dtypes=[dtype])

    for at, (label, shapes) in enumerate(SHAPES.items()):
        if at % 2:
            continue
        x = draw(f"{operation}-int-{label}-x", *shapes[0], low=-9, high=9, dtype="int32")
        y = draw(f"{operation}-int-{label}-y", *shapes[1], low=0 if operation == "pow" else -4, high=4, dtype="int32")
        if operation in ("floor_div", "mod", "real_div"):
            y = np.where(y == 0, np.int32(3), y)
        yield pair(f"int32-{label}", (IOS15, IOS16, IOS17, IOS18)[at % 4], x, y)
    large = np.array([2**31 - 1, -(2**31), 46341, -46341, 7, -7, 16777217], np.int32)
    left, right = np.meshgrid(large, np.array([3, 2, 1, 5] if operation == "pow" else [3, -3, 2**31 - 1, 16777216], np.int32))
    yield pair("int32-large", IOS15, left.astype(np.int32), right.astype(np.int32))
    if operation in ("floor_div", "mod"):
        yield pair("int32-zero", IOS15, np.array([5, -5, 0], np.int32), np.array([0, 0, 0], np.int32))


def _logical(operation: str) -> Iterator[Case]:
    for at, (label, shapes) in enumerate(SHAPES.items()):
        x = draw(f"{operation}-{label}-x", *shapes[0], dtype="bool")
        y = draw(f"{operation}-{label}-y", *shapes[1], dtype="bool")
        expected = np.asarray(getattr(np, operation)(x, y))
        yield case(label, operation, (IOS15, IOS16, IOS17, IOS18)[at % 4], {"x": x, "y": y}, [expected])
    x = np.zeros((2, 0), np.bool_)
    yield case("empty", operation, IOS17, {"x": x, "y": np.array([[True], [False]])}, [x])
    x = np.array([[False, True]])
    inputs = {"x": x, "y": const(x.T)}
    yield case("const", operation, IOS15, inputs, [getattr(np, operation)(x, x.T)])
