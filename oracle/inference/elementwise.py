"""Operations that work element by element."""

from __future__ import annotations

from collections.abc import Iterator

from .language import IOS15, IOS16, IOS17, IOS18, Instance, const, gives, instance, tensor

FLOATS = ("fp16", "fp32")
NUMBERS = (*FLOATS, "int32")

UNARY_FLOAT = (
    "acos", "asin", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "floor", "round", "sin", "sinh", "sqrt",
    "tan", "tanh",
)  # fmt: skip
UNARY_NUMBER = ("abs", "exp2", "sign", "square")
WITH_EPSILON = ("inverse", "log", "rsqrt")
ARITHMETIC = ("add", "floor_div", "maximum", "minimum", "mod", "mul", "pow", "real_div", "sub")
COMPARISONS = ("equal", "greater", "greater_equal", "less", "less_equal", "not_equal")
LOGICAL = ("logical_and", "logical_or", "logical_xor")

OPERATIONS = (
    *UNARY_FLOAT, *UNARY_NUMBER, *WITH_EPSILON, *ARITHMETIC, *COMPARISONS, *LOGICAL,
    "cast", "clip", "logical_not", "threshold",
)  # fmt: skip

DIVIDED_BY_ZERO = "numpy makes some number of an integer divided by zero; nobody says which Core ML makes"
NEGATIVE_POWER = "numpy cannot fold integers to negative powers, and coremltools lets its error through"

WRONG_WHEN_FIXED = {
    "pow/iOS16/of-shape-negative/fixed": (NEGATIVE_POWER, {"outputs": [{"dtype": "int32", "shape": [3]}]}),
}


def instances() -> Iterator[Instance]:
    for operation in UNARY_FLOAT:
        yield from _unary(operation, FLOATS)
    for operation in UNARY_NUMBER:
        yield from _unary(operation, NUMBERS)
    for operation in WITH_EPSILON:
        yield from _with_epsilon(operation)
    for operation in ARITHMETIC:
        yield from _binary(operation, NUMBERS)
        yield from _arithmetic(operation)
    for operation in COMPARISONS:
        yield from _binary(operation, NUMBERS)
        yield from _comparison(operation)
    for operation in LOGICAL:
        yield from _binary(operation, ("bool",))
        yield from _logical(operation)
    yield from _cast()
    yield from _clip()
    yield from _logical_not()
    yield from _threshold()


def _unary(operation: str, dtypes: tuple[str, ...]) -> Iterator[Instance]:
    for dtype in dtypes:
        yield instance(operation, IOS15, f"rank0-{dtype}", x=tensor(dtype))
        yield instance(operation, IOS17, f"rank1-{dtype}", x=tensor(dtype, 3))
        yield instance(operation, IOS16, f"rank3-open-{dtype}", x=tensor(dtype, 1, "s0", 8))
        yield instance(operation, IOS18, f"rank5-{dtype}", x=tensor(dtype, 2, 1, 3, "s0", "s1"))
    yield instance(operation, IOS15, "const", x=const("fp32", [[0.25, -0.5], [0.75, 0.0]]))
    yield instance(operation, IOS15, "const-half", x=const("fp16", [0.3, 0.7, -0.2]))
    yield instance(operation, IOS15, "const-rank0", x=const("fp32", 0.5))
    yield instance(operation, IOS15, "specials", x=const("fp32", ["nan", "inf", "-inf", -0.0]))
    yield instance(operation, IOS15, "halves", x=const("fp32", [0.5, 1.5, 2.5, -0.5, -1.5, -0.3]))
    if "int32" in dtypes:
        yield instance(operation, IOS15, "const-int", x=const("int32", [0, -3, 7]))
        if operation != "exp2":
            yield instance(operation, IOS15, "wrap", x=const("int32", [-2147483648, 65536]))
    else:
        yield instance(operation, IOS17, "int32", x=tensor("int32", 2))
    yield instance(operation, IOS17, "bool", x=tensor("bool", 2))
    yield instance(operation, IOS17, "missing")
    yield instance(operation, IOS17, "unknown", x=tensor("fp32", 2), y=tensor("fp32", 2))
    yield instance(operation, IOS18, "int8", x=tensor("int8", 2))


def _with_epsilon(operation: str) -> Iterator[Instance]:
    for opset in (IOS15, IOS17):
        for dtype in FLOATS:
            yield instance(operation, opset, f"rank0-{dtype}", x=tensor(dtype))
            yield instance(operation, opset, f"rank2-{dtype}", x=tensor(dtype, 4, "s1"))
            yield instance(
                operation, opset, f"epsilon-{dtype}", x=tensor(dtype, 2, 1, 3, "s0", 4), epsilon=const(dtype, 0.01)
            )
        yield instance(operation, opset, "const", x=const("fp32", [[0.25, 0.5], [0.75, 4.0]]))
        yield instance(operation, opset, "const-epsilon", x=const("fp32", [0.25, 3.0]), epsilon=const("fp32", 0.5))
        yield instance(operation, opset, "const-half", x=const("fp16", [0.25, 3.0]), epsilon=const("fp16", 0.5))
        yield instance(operation, opset, "mixed", x=tensor("fp16", 3), epsilon=const("fp32", 0.01))
        yield instance(operation, opset, "int32", x=tensor("int32", 3))
        yield instance(operation, opset, "open-epsilon", x=tensor("fp32", 3), epsilon=tensor("fp32"))
        yield instance(operation, opset, "epsilon-int", x=tensor("fp32", 3), epsilon=const("int32", 1))
        yield instance(operation, opset, "missing", epsilon=const("fp32", 0.01))
        yield instance(operation, opset, "unknown", x=tensor("fp32", 3), alpha=const("fp32", 0.01))


def _binary(operation: str, dtypes: tuple[str, ...]) -> Iterator[Instance]:
    for dtype in dtypes:
        yield instance(operation, IOS15, f"rank0-{dtype}", x=tensor(dtype), y=tensor(dtype))
        yield instance(operation, IOS15, f"scalar-{dtype}", x=tensor(dtype, 2, "s0"), y=tensor(dtype))
        yield instance(operation, IOS16, f"broadcast-{dtype}", x=tensor(dtype, 4, 1, 3), y=tensor(dtype, 5, 3))
        yield instance(operation, IOS17, f"rank5-{dtype}", x=tensor(dtype, 1, 2, 3, 4, 5), y=tensor(dtype, 5))
    dtype = dtypes[0]
    shapes = {
        "open-same": ([1, "s0"], [1, "s0"]),
        "open-one": (["s0", 4], [1, 4]),
        "one-open": ([1, 4], ["s0", 4]),
        "open-fixed": (["s0", 4], [3, 4]),
        "fixed-open": ([3, 4], ["s1", 4]),
        "open-differ": (["s0", 4], ["s1", 4]),
        "open-longer": (["s0", "s1"], ["s1"]),
        "open-rank0": ([], ["s1", 2]),
        "zero": ([0, 2], [1, 2]),
        "zero-same": ([0], [0]),
        "zero-open": ([0], ["s0"]),
        "zero-mismatch": ([0, 2], [3, 2]),
        "mismatch": ([2, 3], [2, 4]),
        "mismatch-rank": ([2, 3], [2]),
    }
    for label, (left, right) in shapes.items():
        yield instance(operation, IOS16, label, x=tensor(dtype, *left), y=tensor(dtype, *right))
    other = "fp32" if dtype == "bool" else "int32" if dtype != "int32" else "fp32"
    yield instance(operation, IOS17, "mixed", x=tensor(dtype, 2), y=tensor(other, 2))
    yield instance(operation, IOS17, "mixed-rank0", x=tensor(dtype, 2), y=const(other, 1))
    wrong = "int32" if dtype == "bool" else "bool"
    yield instance(operation, IOS17, "wrong", x=tensor(wrong, 2), y=tensor(wrong, 2))
    yield instance(operation, IOS18, "int8", x=tensor("int8", 2), y=tensor("int8", 2))
    yield instance(operation, IOS17, "missing", x=tensor(dtype, 2))
    yield instance(operation, IOS17, "unknown", x=tensor(dtype, 2), y=tensor(dtype, 2), z=tensor(dtype, 2))


def _constants(operation: str) -> Iterator[Instance]:
    extra = {}
    if operation == "pow":
        extra = {"because": NEGATIVE_POWER, "instead": {"outputs": [{"dtype": "int32", "shape": [4]}]}}
    yield instance(
        operation, IOS15, "const-int", x=const("int32", [7, -7, 6, 9]), y=const("int32", [2, 2, -4, 9]), **extra
    )
    yield instance(operation, IOS15, "const-int-rank0", x=const("int32", 7), y=const("int32", 2))
    yield instance(
        operation, IOS15, "const-int-broadcast", x=const("int32", [[3], [4]]), y=const("int32", [1, 2, 3])
    )
    yield instance(operation, IOS15, "const-float", x=const("fp32", [1.5, 7.25, 6.0]), y=const("fp32", [0.5, 2.0, 6.0]))
    yield instance(operation, IOS15, "const-float-rank0", x=const("fp32", 7.5), y=const("fp32", 2.0))
    yield instance(operation, IOS15, "const-half", x=const("fp16", [[1.1], [7.3]]), y=const("fp16", [0.3, 2.0]))


def _arithmetic(operation: str) -> Iterator[Instance]:
    yield from _constants(operation)
    symbols = gives("shape", x=tensor("fp32", "s0", 4, "s1"))
    yield instance(operation, IOS16, "of-shape", x=symbols, y=const("int32", 2))
    fixed = gives("shape", x=tensor("fp32", 3, 4, 9))
    yield instance(operation, IOS16, "of-fixed-shape", x=fixed, y=const("int32", [2, 3, 4]))
    others = gives("shape", x=tensor("fp32", "s1", "s0", 4))
    yield instance(operation, IOS16, "of-shapes", x=symbols, y=others)
    yield instance(operation, IOS16, "by-shape", x=const("int32", 100), y=symbols)
    yield instance(operation, IOS16, "of-shape-negative", x=symbols, y=const("int32", [-3, -3, -1]))
    yield instance(operation, IOS16, "of-shape-itself", x=symbols, y=symbols)
    floats = gives("cast", x=symbols, dtype=const("string", "fp32"))
    yield instance(operation, IOS16, "of-float-shape", x=floats, y=const("fp32", [2.0, 0.5, 3.0]))
    halves = gives("cast", x=symbols, dtype=const("string", "fp16"))
    yield instance(operation, IOS16, "of-half-shape", x=halves, y=const("fp16", 3.0))
    yield from _edges(operation)


def _edges(operation: str) -> Iterator[Instance]:
    """Integers at the ends of their range, and floats that are NaN or infinite."""
    if operation not in ("pow", "real_div"):
        large = const("int32", [2147483647, -2147483648, 65536, -5])
        yield instance(operation, IOS15, "wrap", x=large, y=const("int32", [1, -1, 65536, 2147483647]))
    specials = const("fp32", ["nan", "inf", "-inf", 0.0, -0.0, 1.0])
    for label, other in (("zero", 0.0), ("minus-two", -2.0), ("infinity", "inf"), ("nan", "nan")):
        yield instance(operation, IOS15, f"specials-{label}", x=specials, y=const("fp32", other))
    yield instance(operation, IOS15, "half-overflow", x=const("fp16", [60000.0, 1e-4]), y=const("fp16", [60000.0, 1e-4]))
    # numpy's conversion of an infinite quotient to an integer depends on the machine, so `real_div` is excluded.
    if operation in ("floor_div", "mod"):
        right = {"outputs": [{"dtype": "int32", "shape": [2]}]}
        because, instead = (DIVIDED_BY_ZERO, right)
        zero = const("int32", [0, 0])
        yield instance(operation, IOS15, "by-zero", x=const("int32", [7, 0]), y=zero, because=because, instead=instead)


def _comparison(operation: str) -> Iterator[Instance]:
    yield from _constants(operation)
    symbols = gives("shape", x=tensor("fp32", "s0", 4, "s1"))
    others = gives("shape", x=tensor("fp32", "s0", "s1", 5))
    yield instance(operation, IOS16, "of-shapes", x=symbols, y=others)
    specials = const("fp32", ["nan", "inf", "-inf", 0.0, -0.0, 1.0])
    for label, other in (("zero", 0.0), ("infinity", "inf"), ("nan", "nan")):
        yield instance(operation, IOS15, f"specials-{label}", x=specials, y=const("fp32", other))


def _logical(operation: str) -> Iterator[Instance]:
    yield instance(
        operation, IOS15, "const", x=const("bool", [True, True, False, False]), y=const("bool", [True, False, True, False])
    )
    yield instance(operation, IOS15, "const-rank0", x=const("bool", True), y=const("bool", False))
    yield instance(operation, IOS15, "const-broadcast", x=const("bool", [[True], [False]]), y=const("bool", [True, False]))


def _cast() -> Iterator[Instance]:
    older = (*NUMBERS, "bool")
    newer = (*older, "int8", "uint8", "int16", "uint16")
    for opset, dtypes in ((IOS15, older), (IOS17, newer), (IOS16, older[:1]), (IOS18, newer[-1:])):
        for at, dtype in enumerate(dtypes):
            for target in dtypes:
                shape = ([], [3], [1, "s0"], [2, 1, 3, "s0", 4])[(at + len(target)) % 4]
                yield instance(
                    "cast", opset, f"{dtype}-{target}", x=tensor(dtype, *shape), dtype=const("string", target)
                )
    for opset in (IOS15, IOS17):
        yield instance("cast", opset, "int8", x=tensor("int8", 2), dtype=const("string", "int32"))
        yield instance("cast", opset, "to-int8", x=tensor("int32", 2), dtype=const("string", "int8"))
        yield instance("cast", opset, "to-int64", x=tensor("fp32", 2), dtype=const("string", "int64"))
        yield instance("cast", opset, "to-nonsense", x=tensor("fp32", 2), dtype=const("string", "float"))
        yield instance("cast", opset, "to-string", x=tensor("fp32", 2), dtype=const("string", "string"))
        yield instance("cast", opset, "missing", x=tensor("fp32", 2))
        yield instance("cast", opset, "dtype-number", x=tensor("fp32", 2), dtype=const("int32", 1))
        yield instance("cast", opset, "floats", x=const("fp32", [1.9, -1.9, 0.0, 2.5]), dtype=const("string", "int32"))
        yield instance("cast", opset, "floats-bool", x=const("fp32", [1.9, -0.1, 0.0]), dtype=const("string", "bool"))
        yield instance("cast", opset, "float-rank0", x=const("fp16", 7.7), dtype=const("string", "int32"))
        yield instance("cast", opset, "ints", x=const("int32", [[1, -7], [0, 40000]]), dtype=const("string", "fp32"))
        yield instance("cast", opset, "ints-half", x=const("int32", [4099, 70000]), dtype=const("string", "fp16"))
        yield instance("cast", opset, "ints-bool", x=const("int32", [4, 0, -1]), dtype=const("string", "bool"))
        yield instance("cast", opset, "bools", x=const("bool", [True, False]), dtype=const("string", "int32"))
        yield instance("cast", opset, "bools-float", x=const("bool", [True, False]), dtype=const("string", "fp16"))
        symbols = gives("shape", x=tensor("fp32", "s0", 4, "s1"))
        for target in ("int32", "fp32", "fp16"):
            yield instance("cast", opset, f"shape-{target}", x=symbols, dtype=const("string", target))
        floats = gives("cast", x=symbols, dtype=const("string", "fp32"))
        scaled = gives("floor", x=gives("mul", x=floats, y=const("fp32", 2.0)))
        yield instance("cast", opset, "scaled-shape", x=scaled, dtype=const("string", "int32"))
        yield instance("cast", opset, "nan-bool", x=const("fp32", ["nan", "inf"]), dtype=const("string", "bool"))
        yield instance("cast", opset, "to-half", x=const("fp32", [1e6, "nan", 1e-9]), dtype=const("string", "fp16"))
    for dtype in ("int8", "uint8", "int16", "uint16"):
        yield instance("cast", IOS17, f"const-{dtype}", x=const("int32", [0, 7, 100]), dtype=const("string", dtype))
        yield instance("cast", IOS17, f"const-from-{dtype}", x=const(dtype, [0, 7, 100]), dtype=const("string", "fp32"))
        yield instance("cast", IOS17, f"wrap-{dtype}", x=const("int32", [-3, 300, 70000]), dtype=const("string", dtype))


def _clip() -> Iterator[Instance]:
    for opset in (IOS15, IOS17):
        for dtype in FLOATS:
            limits = {"alpha": const(dtype, -1.0), "beta": const(dtype, 6.0)}
            for label, shape in (("rank0", []), ("rank2", [3, "s0"]), ("rank5", [1, "s0", 3, 4, 5])):
                yield instance("clip", opset, f"{label}-{dtype}", x=tensor(dtype, *shape), **limits)
        limits = {"alpha": const("fp32", -1.0), "beta": const("fp32", 6.0)}
        yield instance("clip", opset, "const", x=const("fp32", [[-3.0, 2.0], [7.0, 6.0]]), **limits)
        yield instance("clip", opset, "const-rank0", x=const("fp32", 9.0), **limits)
        yield instance("clip", opset, "specials", x=const("fp32", ["nan", "inf", "-inf"]), **limits)
        yield instance("clip", opset, "one-element", x=tensor("fp32", 2), alpha=const("fp32", [-1.0]), beta=limits["beta"])
        yield instance("clip", opset, "int32", x=tensor("int32", 2), **limits)
        yield instance("clip", opset, "half-by-float", x=tensor("fp16", 2), **limits)
        yield instance(
            "clip", opset, "crossed", x=tensor("fp32", 2), alpha=const("fp32", 2.0), beta=const("fp32", 1.0)
        )
        yield instance("clip", opset, "equal", x=tensor("fp32", 2), alpha=const("fp32", 1.0), beta=const("fp32", 1.0))
        yield instance("clip", opset, "no-beta", x=tensor("fp32", 2), alpha=const("fp32", 1.0))
        yield instance("clip", opset, "open-alpha", x=tensor("fp32", 2), alpha=tensor("fp32"), beta=const("fp32", 1.0))


def _logical_not() -> Iterator[Instance]:
    for label, shape in (("rank0", []), ("rank1", [3]), ("rank2", [3, "s0"]), ("rank5", [1, "s0", 3, 4, 5])):
        yield instance("logical_not", IOS15, label, x=tensor("bool", *shape))
    yield instance("logical_not", IOS16, "const", x=const("bool", [[True], [False]]))
    yield instance("logical_not", IOS16, "const-rank0", x=const("bool", True))
    yield instance("logical_not", IOS17, "int32", x=tensor("int32", 2))
    yield instance("logical_not", IOS18, "fp16", x=tensor("fp16", 2))
    yield instance("logical_not", IOS18, "missing")


def _threshold() -> Iterator[Instance]:
    for dtype in NUMBERS:
        alpha = const(dtype, 2)
        for label, shape in (("rank0", []), ("rank2", [3, "s0"]), ("rank5", [1, "s0", 3, 4, 5])):
            yield instance("threshold", IOS15, f"{label}-{dtype}", x=tensor(dtype, *shape), alpha=alpha)
        yield instance("threshold", IOS15, f"const-{dtype}", x=const(dtype, [-1, 7, 2]), alpha=alpha)
    yield instance("threshold", IOS17, "mixed", x=tensor("fp16", 2), alpha=const("fp32", 2.0))
    yield instance("threshold", IOS17, "bool", x=tensor("bool", 2), alpha=const("bool", True))
    yield instance("threshold", IOS17, "open-alpha", x=tensor("fp32", 2), alpha=tensor("fp32"))
    yield instance("threshold", IOS17, "missing", x=tensor("fp32", 2))
