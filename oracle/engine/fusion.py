"""Programs whose operations the planner fuses into one kernel, or must not fuse, compared with torch in fp64.

Every operation is computed twice: exactly, for the fast mode, and rounded to fp16 wherever the program's types
require it, for the faithful mode. Possible errors of fusion: a value with two users or that is an output, a result
that is rounded once instead of at every step, operands that broadcast, memory that is reused too early.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .language import IOS15, IOS17, Case, Const, Name, Program, as_typed, const, draw, numpy_type

functional = torch.nn.functional


@dataclass(frozen=True)
class Value:
    """A value of the program, with its exact and its rounded contents."""

    name: Name
    exact: torch.Tensor
    rounded: torch.Tensor


class Trace:
    """Builds a program and computes its values at the same time."""

    def __init__(self, opset: str, dtype: str = "fp32") -> None:
        self.program = Program(opset)
        self.dtype = dtype
        self.operations: list[str] = []

    def input(self, label: str, *shape: int, low: float = -2, high: float = 2) -> Value:
        array = draw(label, *shape, low=low, high=high, dtype=self.dtype)
        value = torch.from_numpy(array.astype(np.float64))
        return Value(self.program.input(label, array), value, value)

    def weight(self, label: str, *shape: int, low: float = -1, high: float = 1) -> Value:
        return self.constant(draw(label, *shape, low=low, high=high, dtype=self.dtype))

    def constant(self, value: Any) -> Value:
        array = np.asarray(value, numpy_type(self.dtype))
        held = torch.from_numpy(array.astype(np.float64))
        return Value(self.program.const(array), held, held)

    def op(self, operation: str, function: Callable[..., Any], dtype: str | None = None, **inputs: Any) -> Any:
        """Adds an operation; `function` computes it from the operands that are values, in order."""
        values = [part for operand in inputs.values() for part in (operand if isinstance(operand, list) else [operand])]
        values = [value for value in values if isinstance(value, Value)]
        exact = function(*[value.exact for value in values])
        rounded = function(*[value.rounded for value in values])
        several = isinstance(exact, (tuple, list))
        exact, rounded = (list(part) if several else [part] for part in (exact, rounded))
        dtype = dtype or self.dtype
        if dtype == "fp16":
            rounded = [part.to(torch.float32).to(torch.float16).to(torch.float64) for part in rounded]
        self.operations.append(operation)
        bound = {name: _operand(operand, dtype) for name, operand in inputs.items()}
        names = self.program.op(operation, bound, *[(dtype, tuple(part.shape)) for part in exact])
        names = names if several else [names]
        made = [Value(*parts) for parts in zip(names, exact, rounded, strict=True)]
        return made if several else made[0]

    def binary(self, operation: str, x: Value, y: Value | float) -> Value:
        functions: dict[str, Callable[..., Any]] = {
            "add": torch.add,
            "sub": torch.sub,
            "mul": torch.mul,
            "real_div": torch.div,
            "maximum": torch.maximum,
            "minimum": torch.minimum,
        }
        if not isinstance(y, Value):
            held = float(numpy_type(self.dtype)(y))
            return self.op(operation, lambda x: functions[operation](x, torch.tensor(held, dtype=x.dtype)), x=x, y=held)
        return self.op(operation, functions[operation], x=x, y=y)

    def unary(self, operation: str, x: Value) -> Value:
        functions: dict[str, Callable[..., Any]] = {
            "relu": torch.relu,
            "relu6": functional.relu6,
            "sigmoid": torch.sigmoid,
            "silu": functional.silu,
            "tanh": torch.tanh,
            "exp": torch.exp,
            "abs": torch.abs,
            "square": torch.square,
            "sqrt": torch.sqrt,
            "erf": torch.erf,
            "softplus": functional.softplus,
            "sin": torch.sin,
        }
        return self.op(operation, functions[operation], x=x)

    def matmul(self, x: Value, y: Value, transpose_x: bool = False, transpose_y: bool = False) -> Value:
        def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (x.mT if transpose_x else x) @ (y.mT if transpose_y else y)

        return self.op("matmul", product, x=x, y=y, transpose_x=const(transpose_x), transpose_y=const(transpose_y))

    def linear(self, x: Value, weight: Value, bias: Value | None = None) -> Value:
        more = {} if bias is None else {"bias": bias}
        return self.op("linear", functional.linear, x=x, weight=weight, **more)

    def conv(self, x: Value, weight: Value, bias: Value | None = None, stride: int = 1, pad: int = 0, groups: int = 1) -> Value:
        rank = x.exact.ndim - 2
        function = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]

        def convolve(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            return function(x, weight, bias, stride, pad, 1, groups)

        more = {} if bias is None else {"bias": bias}
        return self.op(
            "conv",
            convolve,
            x=x,
            weight=weight,
            **more,
            strides=const([stride] * rank),
            pad_type=const("custom"),
            pad=const([pad] * 2 * rank),
            dilations=const([1] * rank),
            groups=const(groups),
        )

    def reduce(self, operation: str, x: Value, axes: list[int], keep: bool = True) -> Value:
        functions: dict[str, Callable[..., Any]] = {
            "reduce_mean": lambda x: x.mean(axes, keepdim=keep),
            "reduce_sum": lambda x: x.sum(axes, keepdim=keep),
            "reduce_max": lambda x: x.amax(axes, keepdim=keep),
        }
        return self.op(operation, functions[operation], x=x, axes=const(axes), keep_dims=const(keep))

    def reshape(self, x: Value, *shape: int) -> Value:
        return self.op("reshape", lambda x: x.reshape(shape), x=x, shape=const(list(shape)))

    def transpose(self, x: Value, *perm: int) -> Value:
        return self.op("transpose", lambda x: x.permute(perm), x=x, perm=const(list(perm)))

    def softmax(self, x: Value, axis: int = -1) -> Value:
        return self.op("softmax", lambda x: torch.softmax(x, axis), x=x, axis=const(axis))

    def case(self, label: str, *outputs: Value, rel: float = 2e-5, abs: float = 1e-5, main: str | None = None) -> Case:
        """The finished case. In the faithful mode of an fp16 program, intermediate values may differ by one rounding
        step."""
        dtype = self.dtype
        operation = main or self.operations[0]
        tolerance = {"rel": rel, "abs": abs} if dtype == "fp32" else {"rel": max(rel, 4e-3), "abs": max(abs, 2e-3)}
        names = [value.name for value in outputs]
        exact, rounded = ([getattr(value, part).numpy() for value in outputs] for part in ("exact", "rounded"))
        return self.program.case(operation, f"{label}-{dtype}", names, exact, faithful=rounded if dtype == "fp16" else None, **tolerance)


def _operand(operand: Any, dtype: str) -> Any:
    if isinstance(operand, Value):
        return operand.name
    if isinstance(operand, list):
        return [_operand(part, dtype) for part in operand]
    return operand if isinstance(operand, Const) else Const(as_typed(numpy_type(dtype)(operand)))


def cases() -> Iterator[Case]:
    for dtype, opset in (("fp32", IOS15), ("fp16", IOS17)):
        yield from _chains(dtype, opset)
        yield from _rounding(dtype, opset)
        yield from _shared_values(dtype, opset)
        yield from _products(dtype, opset)
        yield from _convolutions(dtype, opset)
        yield from _norms(dtype, opset)
        yield from _attention(dtype, opset)
        yield from _memory(dtype, opset)


def _chains(dtype: str, opset: str) -> Iterator[Case]:
    """Random chains of elementwise operations over shapes that broadcast."""
    shapes = ((2, 3, 4), (3, 1), (4,), (1,), (2, 1, 1), (2, 3, 4))
    binaries, unaries = ("add", "sub", "mul", "maximum", "minimum"), ("relu", "tanh", "sigmoid", "abs", "sin", "silu", "erf")
    for seed in range(24):
        trace = Trace(opset, dtype)
        picks = np.random.Generator(np.random.PCG64(seed)).integers(0, 1000, 40).tolist()
        values = [trace.input(f"x{at}", *shapes[(seed + at) % len(shapes)]) for at in range(2 + seed % 3)]
        unused = list(values)
        for step in range(4 + seed % 7):
            pick = picks[step]
            if pick % 5 < 3:
                left = unused.pop(0) if len(unused) > 1 else values[picks[step + 12] % len(values)]
                right = values[picks[step + 24] % len(values)] if pick % 10 else trace.constant([[0.25], [-1.5], [0.75]])
                made = trace.binary(binaries[pick % len(binaries)], left, right)
            elif pick % 5 == 3:
                made = trace.binary(("add", "mul", "maximum")[pick % 3], unused.pop(), (0.5, -1.25)[pick % 2])
            else:
                made = trace.unary(unaries[pick % len(unaries)], unused.pop() if unused else values[-1])
            values.append(made)
            unused.append(made)
        while len(unused) > 1:
            unused.append(trace.binary("add", unused.pop(0), unused.pop(0)))
        final = unused[0] if unused[0] not in values[: 2 + seed % 3] else trace.unary("abs", unused[0])
        yield trace.case(f"chain{seed}", final)


def _rounding(dtype: str, opset: str) -> Iterator[Case]:
    """Intermediate values that overflow or underflow if every step is rounded, but not otherwise."""
    trace = Trace(opset, dtype)
    x = trace.input("x", 6, low=50, high=90)
    cube = trace.binary("mul", trace.binary("mul", x, x), x)
    yield trace.case("overflows", trace.binary("real_div", cube, 1000.0))
    trace = Trace(opset, dtype)
    x = trace.input("x", 6, low=0.01, high=0.05)
    square = trace.unary("square", trace.unary("square", x))
    yield trace.case("vanishes", trace.binary("mul", square, 30000.0))
    trace = Trace(opset, dtype)
    x = trace.input("x", 2, 5, low=1, high=2)
    moved = trace.binary("add", x, 2048.0)
    yield trace.case("absorbed", trace.binary("sub", moved, 2048.0), abs=3e-4)
    trace = Trace(opset, dtype)
    x, weight = trace.input("x", 2, 8, low=50, high=90), trace.weight("w", 3, 8, low=50, high=90)
    large = trace.linear(x, weight)
    yield trace.case("product-overflows", trace.binary("mul", large, 0.001), main="linear")


def _shared_values(dtype: str, opset: str) -> Iterator[Case]:
    """Values that are used twice, or that are outputs and operands."""
    trace = Trace(opset, dtype)
    x = trace.input("x", 3, 4)
    a = trace.unary("tanh", x)
    b = trace.binary("mul", a, a)
    c = trace.binary("sub", b, a)
    yield trace.case("twice", c)

    trace = Trace(opset, dtype)
    x = trace.input("x", 3, 4)
    a = trace.binary("add", x, 1.0)
    b = trace.unary("relu", a)
    c = trace.binary("mul", b, 2.0)
    yield trace.case("given-out", c, a, b)

    trace = Trace(opset, dtype)
    x = trace.input("x", 2, 3, 4)
    total = trace.reduce("reduce_sum", x, [1])
    scaled = trace.binary("real_div", x, trace.binary("add", trace.unary("abs", total), 1.0))
    yield trace.case("with-its-sum", scaled, total, main="reduce_sum")

    trace = Trace(opset, dtype)
    x, weight, bias = trace.input("x", 4, 6), trace.weight("w", 5, 6), trace.weight("b", 5)
    y = trace.linear(x, weight, bias)
    z = trace.unary("relu", y)
    yield trace.case("linear-given-out", y, z, main="linear")

    trace = Trace(opset, dtype)
    x, weight = trace.input("x", 1, 3, 5, 5), trace.weight("w", 3, 3, 3, 3)
    y = trace.conv(x, weight, pad=1)
    z = trace.binary("add", trace.unary("sigmoid", y), y)
    yield trace.case("conv-used-twice", z, main="conv")

    trace = Trace(opset, dtype)
    x = trace.input("x", 2, 6)
    first, second = trace.op("split", lambda x: x.split(3, 1), x=x, num_splits=const(2), axis=const(1))
    gated = trace.binary("mul", first, trace.unary("sigmoid", second))
    yield trace.case("glu", gated, main="split")


def _products(dtype: str, opset: str) -> Iterator[Case]:
    """Products with constants and their epilogues, with sizes around the kernels' tiles."""
    sizes = ((1, 16, 16), (1, 33, 7), (3, 17, 50), (8, 32, 48), (13, 5, 97), (49, 8, 3), (1, 1, 1), (2, 64, 65))
    activations = ("relu", "tanh", "silu", "sigmoid", "relu6", "softplus", "erf", "abs")
    for at, (rows, depth, columns) in enumerate(sizes):
        trace = Trace(opset, dtype)
        x, weight, bias = trace.input("x", rows, depth), trace.weight("w", columns, depth), trace.weight("b", columns)
        y = trace.unary(activations[at], trace.linear(x, weight, bias))
        yield trace.case(f"linear-{activations[at]}-{rows}x{depth}x{columns}", y, main="linear", abs=3e-5)

        trace = Trace(opset, dtype)
        x, weight, rest = trace.input("x", 1, rows, depth), trace.weight("w", depth, columns), trace.input("r", 1, rows, columns)
        y = trace.binary("add", rest, trace.binary("add", trace.matmul(x, weight), trace.weight("b", columns)))
        yield trace.case(f"residual-{rows}x{depth}x{columns}", y, main="matmul", abs=3e-5)

    trace = Trace(opset, dtype)
    x, weight = trace.input("x", 2, 3, 8), trace.weight("w", 12, 8)
    y = trace.transpose(trace.reshape(trace.linear(x, weight), 2, 3, 4, 3), 0, 2, 1, 3)
    yield trace.case("heads", y, main="linear")

    trace = Trace(opset, dtype)
    x = trace.input("x", 3, 10)
    gate, up, down = trace.weight("gate", 14, 10), trace.weight("up", 14, 10), trace.weight("down", 10, 14)
    hidden = trace.binary("mul", trace.unary("silu", trace.linear(x, gate)), trace.linear(x, up))
    yield trace.case("gated", trace.binary("add", x, trace.linear(hidden, down)), main="linear", abs=5e-5)

    for mode, approximate in (("EXACT", "none"), ("TANH_APPROXIMATION", "tanh")):
        trace = Trace(opset, dtype)
        x, first, second = trace.input("x", 5, 9), trace.weight("w", 20, 9), trace.weight("v", 9, 20)
        hidden = trace.linear(x, first, trace.weight("b", 20))
        hidden = trace.op("gelu", lambda x, a=approximate: functional.gelu(x, approximate=a), x=hidden, mode=const(mode))
        yield trace.case(f"mlp-{mode}", trace.linear(hidden, second), main="linear", abs=5e-5)

    trace = Trace(opset, dtype)
    x, weight = trace.input("x", 4, 6), trace.weight("w", 6, 6)
    y = trace.binary("mul", trace.matmul(x, weight), 0.125)
    y = trace.op("clip", lambda x: x.clamp(-0.25, 0.25), x=y, alpha=-0.25, beta=0.25)
    yield trace.case("scaled-clipped", y, main="matmul")

    for flags in ((False, True), (True, False), (True, True)):
        trace = Trace(opset, dtype)
        x = trace.input("x", *((2, 5, 7) if flags[0] else (2, 7, 5)))
        weight = trace.weight("w", *((6, 5) if flags[1] else (5, 6)))
        y = trace.unary("relu", trace.matmul(x, weight, *flags))
        yield trace.case(f"transposed-{flags[0]}-{flags[1]}", y, main="matmul")

    trace = Trace(opset, dtype)
    x = trace.input("x", 2, 6)
    for at in range(4):
        x = trace.unary("tanh", trace.linear(x, trace.weight(f"w{at}", 6, 6), trace.weight(f"b{at}", 6)))
    yield trace.case("deep", x, main="linear")


def _convolutions(dtype: str, opset: str) -> Iterator[Case]:
    """Convolutions and their usual epilogues."""

    def batch_norm(trace: Trace, x: Value, at: str) -> Value:
        channels = x.exact.shape[1]
        mean, beta, gamma = (trace.weight(f"{at}{name}", channels) for name in ("mean", "beta", "gamma"))
        variance = trace.weight(f"{at}variance", channels, low=0.3, high=2)
        held = float(numpy_type(trace.dtype)(1e-3))

        def normalize(x: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
            return functional.batch_norm(x, *parts, eps=held)

        inputs = {"mean": mean, "variance": variance, "gamma": gamma, "beta": beta, "epsilon": 1e-3}
        return trace.op("batch_norm", normalize, x=x, **inputs)

    shapes = (
        ("3x3", (1, 3, 6, 7), (8, 3, 3, 3), 1, 1, 1),
        ("1x1", (1, 8, 4, 5), (6, 8, 1, 1), 1, 0, 1),
        ("stride", (2, 3, 9, 8), (5, 3, 3, 3), 2, 1, 1),
        ("depthwise", (1, 9, 6, 6), (9, 1, 3, 3), 1, 1, 9),
        ("depthwise-stride", (1, 4, 7, 7), (4, 1, 3, 3), 2, 1, 4),
        ("grouped", (1, 6, 5, 5), (4, 3, 3, 3), 1, 1, 2),
        ("5x5", (1, 2, 7, 7), (3, 2, 5, 5), 1, 2, 1),
        ("1d", (1, 4, 9), (5, 4, 3), 1, 1, 1),
        ("3d", (1, 2, 3, 4, 4), (3, 2, 2, 2, 2), 1, 0, 1),
        ("wide", (1, 17, 3, 3), (33, 17, 1, 1), 1, 0, 1),
    )
    for at, (label, shape, weight_shape, stride, pad, groups) in enumerate(shapes):
        activation = ("relu", "relu6", "silu", "sigmoid", "tanh")[at % 5]
        trace = Trace(opset, dtype)
        x, weight, bias = trace.input("x", *shape), trace.weight("w", *weight_shape), trace.weight("b", weight_shape[0])
        y = trace.unary(activation, trace.conv(x, weight, bias, stride, pad, groups))
        yield trace.case(f"conv-{label}-{activation}", y, main="conv", abs=5e-5)

        trace = Trace(opset, dtype)
        x, weight = trace.input("x", *shape), trace.weight("w", *weight_shape)
        y = trace.unary("relu", batch_norm(trace, trace.conv(x, weight, None, stride, pad, groups), "n"))
        yield trace.case(f"conv-{label}-norm-relu", y, main="conv", rel=5e-5, abs=5e-5)

    # A residual block and an inverted bottleneck.
    trace = Trace(opset, dtype)
    x = trace.input("x", 1, 4, 6, 6)
    y = trace.unary("relu", batch_norm(trace, trace.conv(x, trace.weight("w", 4, 4, 3, 3), None, 1, 1), "n1"))
    y = batch_norm(trace, trace.conv(y, trace.weight("v", 4, 4, 3, 3), None, 1, 1), "n2")
    yield trace.case("residual-block", trace.unary("relu", trace.binary("add", y, x)), main="conv", rel=1e-4, abs=2e-4)

    trace = Trace(opset, dtype)
    x = trace.input("x", 1, 3, 6, 6)
    y = trace.unary("relu6", batch_norm(trace, trace.conv(x, trace.weight("w", 12, 3, 1, 1)), "n1"))
    y = trace.unary("relu6", batch_norm(trace, trace.conv(y, trace.weight("d", 12, 1, 3, 3), None, 1, 1, 12), "n2"))
    y = batch_norm(trace, trace.conv(y, trace.weight("p", 3, 12, 1, 1)), "n3")
    yield trace.case("inverted-bottleneck", trace.binary("add", x, y), main="conv", rel=1e-4, abs=2e-4)

    # Squeeze and excite: one gate per channel.
    trace = Trace(opset, dtype)
    x = trace.input("x", 2, 6, 4, 4)
    pooled = trace.reduce("reduce_mean", x, [2, 3])
    gate = trace.unary("relu", trace.conv(pooled, trace.weight("w", 2, 6, 1, 1), trace.weight("b", 2)))
    gate = trace.unary("sigmoid", trace.conv(gate, trace.weight("v", 6, 2, 1, 1), trace.weight("c", 6)))
    yield trace.case("squeeze-excite", trace.binary("mul", x, gate), main="conv")

    # Operations between convolutions: concatenation, pooling, transposition.
    trace = Trace(opset, dtype)
    x = trace.input("x", 1, 3, 6, 6)
    left = trace.unary("relu", trace.conv(x, trace.weight("w", 2, 3, 3, 3), None, 1, 1))
    right = trace.conv(x, trace.weight("v", 3, 3, 1, 1))
    joined = trace.op(
        "concat", lambda a, b: torch.cat([a, b], 1), values=[left, right], axis=const(1), interleave=const(False)
    )
    y = trace.conv(joined, trace.weight("u", 2, 5, 3, 3), trace.weight("b", 2))
    yield trace.case("branches", y, joined, main="concat", abs=5e-5)

    trace = Trace(opset, dtype)
    x = trace.input("x", 1, 3, 6, 6)
    y = trace.unary("relu", trace.conv(x, trace.weight("w", 4, 3, 3, 3), None, 1, 1))
    pool = {"kernel_sizes": const([2, 2]), "strides": const([2, 2]), "pad_type": const("valid")}
    y = trace.op("max_pool", lambda x: functional.max_pool2d(x, 2), x=y, **pool)
    y = trace.conv(y, trace.weight("v", 5, 4, 3, 3), None, 1, 1)
    tokens = trace.transpose(trace.reshape(y, 1, 5, 9), 0, 2, 1)
    yield trace.case("tokens", trace.linear(tokens, trace.weight("u", 4, 5)), main="max_pool", abs=5e-5)

    trace = Trace(opset, dtype)
    x = trace.transpose(trace.input("x", 1, 5, 6, 3), 0, 3, 1, 2)
    y = trace.unary("relu", trace.conv(x, trace.weight("w", 4, 3, 3, 3), trace.weight("b", 4), 1, 1))
    yield trace.case("channels-last", trace.transpose(y, 0, 2, 3, 1), main="transpose")


def _norms(dtype: str, opset: str) -> Iterator[Case]:
    """Normalizations written as elementary operations, and products after normalizations."""
    trace = Trace(opset, dtype)
    x = trace.input("x", 2, 3, 8)
    centred = trace.binary("sub", x, trace.reduce("reduce_mean", x, [-1]))
    variance = trace.reduce("reduce_mean", trace.unary("square", centred), [-1])
    held = float(numpy_type(dtype)(1e-3))
    scale = trace.op("rsqrt", lambda x: (x + held).rsqrt(), x=variance, epsilon=1e-3)
    normal = trace.binary("mul", centred, scale)
    y = trace.binary("add", trace.binary("mul", normal, trace.weight("g", 8)), trace.weight("b", 8))
    yield trace.case("layer-norm-in-parts", y, main="rsqrt")

    trace = Trace(opset, dtype)
    x = trace.input("x", 2, 3, 8)
    mean = trace.reduce("reduce_mean", trace.unary("square", x), [-1])
    scale = trace.op("rsqrt", lambda x: (x + held).rsqrt(), x=mean, epsilon=1e-3)
    normal = trace.binary("mul", trace.binary("mul", x, scale), trace.weight("g", 8))
    yield trace.case("rms-norm", trace.linear(normal, trace.weight("w", 6, 8)), main="rsqrt")

    trace = Trace(opset, dtype)
    x = trace.input("x", 1, 4, 10)
    gamma, beta = trace.weight("g", 10), trace.weight("b", 10)

    def normalize(x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, [10], gamma, beta, held)

    y = trace.op("layer_norm", normalize, x=x, axes=const([-1]), gamma=gamma, beta=beta, epsilon=1e-3)
    y = trace.binary("add", trace.linear(y, trace.weight("w", 10, 10)), x)
    yield trace.case("pre-norm", y, main="layer_norm", abs=5e-5)

    trace = Trace(opset, dtype)
    x = trace.input("x", 2, 4, 6)
    shifted = trace.binary("sub", x, trace.reduce("reduce_max", x, [-1]))
    powers = trace.unary("exp", shifted)
    y = trace.binary("real_div", powers, trace.reduce("reduce_sum", powers, [-1]))
    yield trace.case("softmax-in-parts", y, main="exp")


def _attention(dtype: str, opset: str) -> Iterator[Case]:
    """Attention as elementary operations: with and without a mask, and with fewer key heads than query heads."""
    for label, masked, heads in (("plain", False, 2), ("masked", True, 2), ("one-head", True, 1)):
        trace = Trace(opset, dtype)
        x = trace.input("x", 1, 5, 8)
        width = 8 // heads

        def projected(name: str, trace: Trace = trace, x: Value = x, heads: int = heads, width: int = width) -> Value:
            y = trace.linear(x, trace.weight(name, 8, 8), trace.weight(f"{name}b", 8))
            return trace.transpose(trace.reshape(y, 1, 5, heads, width), 0, 2, 1, 3)

        query, key, value = (projected(name) for name in "qkv")
        scores = trace.binary("mul", trace.matmul(query, key, transpose_y=True), 1 / math.sqrt(width))
        if masked:
            mask = np.triu(np.full((1, 1, 5, 5), -30000.0), 1)
            scores = trace.binary("add", scores, trace.constant(mask))
        mixed = trace.matmul(trace.softmax(scores), value)
        mixed = trace.reshape(trace.transpose(mixed, 0, 2, 1, 3), 1, 5, 8)
        yield trace.case(f"attention-{label}", trace.linear(mixed, trace.weight("o", 8, 8)), main="softmax", abs=1e-4)

    # Rotary embedding: the two halves swap, one with its sign changed.
    trace = Trace(opset, dtype)
    x = trace.input("x", 1, 2, 5, 8)
    cosine, sine = (trace.constant(part) for part in _angles(5, 8))
    left, right = trace.op("split", lambda x: x.split(4, -1), x=x, num_splits=const(2), axis=const(-1))
    swapped = trace.op(
        "concat",
        lambda a, b: torch.cat([a, b], -1),
        values=[trace.binary("mul", right, -1.0), left],
        axis=const(-1),
        interleave=const(False),
    )
    y = trace.binary("add", trace.binary("mul", x, cosine), trace.binary("mul", swapped, sine))
    yield trace.case("rotary", y, main="concat")


def _angles(rows: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    angles = np.outer(np.arange(rows), 1 / 100 ** (np.arange(width // 2) / (width // 2)))
    angles = np.concatenate([angles, angles], -1)[None, None]
    return np.cos(angles), np.sin(angles)


def _memory(dtype: str, opset: str) -> Iterator[Case]:
    """Long-lived and short-lived values together, and views of them."""
    trace = Trace(opset, dtype)
    x = trace.input("x", 4, 6)
    kept = [trace.unary("tanh", x)]
    for at in range(6):
        kept.append(trace.linear(kept[-1], trace.weight(f"w{at}", 6, 6, low=-0.5, high=0.5)))
    total = kept[0]
    for value in kept[1:]:
        total = trace.binary("add", total, value)
    yield trace.case("all-live", total, kept[3], main="linear", abs=5e-5)

    trace = Trace(opset, dtype)
    x = trace.input("x", 2, 6)
    a = trace.unary("sin", x)
    flat = trace.reshape(a, 12)
    b = trace.unary("abs", flat)
    c = trace.reshape(b, 3, 4)
    d = trace.transpose(c, 1, 0)
    yield trace.case("views", trace.reshape(trace.binary("add", d, 1.0), 12), flat, c, main="reshape")

    trace = Trace(opset, dtype)
    x = trace.input("x", 2, 4)
    first, second = trace.reshape(x, 8), trace.reshape(x, 4, 2)
    yield trace.case("views-of-input", first, second, trace.binary("mul", second, 3.0), main="reshape")

    trace = Trace(opset, dtype)
    x = trace.input("x", 3, 8)
    narrow = trace.linear(x, trace.weight("w", 2, 8))
    wide = trace.linear(narrow, trace.weight("v", 40, 2))
    back = trace.linear(wide, trace.weight("u", 8, 40))
    again = trace.linear(trace.binary("add", back, x), trace.weight("t", 33, 8))
    yield trace.case("sizes-differ", again, narrow, main="linear", rel=1e-4, abs=5e-4)

    # A chain that folds completely because its input is a constant, together with a computed value.
    trace = Trace(opset, dtype)
    x = trace.input("x", 2, 3)
    known = trace.unary("exp", trace.binary("mul", trace.weight("k", 2, 3), 0.5))
    yield trace.case("known-part", trace.binary("mul", trace.unary("relu", x), known), main="exp")


