"""Random operations, tested with properties of every generator.

Devices and this engine draw different elements. These properties must agree: the distributions, whose moments and
frequencies the program computes and compares with theory within five standard errors; the same elements for the same
seed; other elements for another seed; and distributions with a single outcome.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .elementwise import half, single
from .language import IOS15, IOS16, IOS17, IOS18, Case, Name, Program, const, draw, numpy_type

#: Sample size of the statistics.
COUNT = 4000


def cases() -> Iterator[Case]:
    for operation in ("random_bernoulli", "random_normal", "random_uniform"):
        yield from _seeds(operation)
    yield from _bernoulli()
    yield from _normal()
    yield from _uniform()
    yield from _categorical()


def _drawn(program: Program, operation: str, shape: Any, dtype: str = "fp32", seed: int | None = None, **more: float) -> Name:
    inputs = {"shape": const(list(shape)), **{name: const(numpy_type(dtype)(value)) for name, value in more.items()}}
    if seed is not None:
        inputs["seed"] = const(seed)
    return program.op(operation, inputs, (dtype, tuple(shape)))


def _kept(program: Program) -> Name:
    """An unrelated input and its use: a function of random elements needs an input."""
    x = program.input("x", single([0.5]))
    return program.op("exp", {"x": x}, ("fp32", (1,)))


def _made(program: Program, operation: str, label: str, outputs: list[Name], expected: list[Any], **more: Any) -> Case:
    kept = _kept(program)
    return program.case(operation, label, [*outputs, kept], [*expected, np.exp(single([0.5]))], **more)


def _mean(program: Program, x: Name) -> Name:
    wide = x if x.dtype == "fp32" else program.op("cast", {"x": x, "dtype": const("fp32")}, ("fp32", x.shape))
    axes = const(list(range(len(x.shape or ()))))
    return program.op("reduce_mean", {"x": wide, "axes": axes, "keep_dims": const(False)}, ("fp32", ()))


def _share(program: Program, x: Name, operation: str, limit: float) -> Name:
    """The fraction of elements for which a comparison holds."""
    holds = program.op(operation, {"x": x, "y": const(numpy_type(x.dtype)(limit))}, ("bool", x.shape))
    number = program.op("cast", {"x": holds, "dtype": const("fp32")}, ("fp32", x.shape))
    return _mean(program, number)


def _seeds(operation: str) -> Iterator[Case]:
    for opset, shape in ((IOS15, (40,)), (IOS16, (2, 20)), (IOS17, (2, 1, 4, 5)), (IOS18, (1, 2, 2, 2, 5))):
        program = Program(opset)
        first, second = (_drawn(program, operation, shape, seed=17) for _ in range(2))
        same = program.op("equal", {"x": first, "y": second}, ("bool", shape))
        yield _made(program, operation, f"same-seed-rank{len(shape)}", [same], [np.ones(shape, np.bool_)])
    for label, seeds in (("other-seed", (17, 18)), ("no-seed", (None, None)), ("negative-seed", (-1, -1))):
        # Some elements may agree by chance, so only one has to differ.
        program = Program(IOS17)
        first, second = (_drawn(program, operation, (64,), seed=seed) for seed in seeds)
        differ = program.op("not_equal", {"x": first, "y": second}, ("bool", (64,)))
        any_differ = program.op("cast", {"x": differ, "dtype": const("int32")}, ("int32", (64,)))
        largest = program.op("reduce_max", {"x": any_differ, "axes": const([0]), "keep_dims": const(True)}, ("int32", (1,)))
        yield _made(program, operation, label, [largest], [np.ones(1, np.int32)])
    # A computed shape.
    program = Program(IOS15)
    shape = program.input("shape", np.array([2, 3], np.int32))
    drawn = program.op(operation, {"shape": shape, "seed": const(3)}, ("fp32", ("?", "?")))
    found = program.op("shape", {"x": drawn}, ("int32", (2,)))
    yield program.case(operation, "computed-shape", [found], [np.array([2, 3], np.int32)])


def _bernoulli() -> Iterator[Case]:
    for dtype, opset in (("fp32", IOS15), ("fp16", IOS16)):
        for chance in (0.0, 1.0):
            program = Program(opset)
            drawn = _drawn(program, "random_bernoulli", (3, 5), dtype, 1, prob=chance)
            yield _made(program, "random_bernoulli", f"{dtype}-certain{chance:.0f}", [drawn], [np.full((3, 5), chance)])
        for chance in (0.1, 0.5, 0.9):
            program = Program(opset)
            drawn = _drawn(program, "random_bernoulli", (COUNT // 4, 4), dtype, 5, prob=chance)
            error = 5 * np.sqrt(chance * (1 - chance) / COUNT)
            shares = [_mean(program, drawn), _share(program, drawn, "equal", 1), _share(program, drawn, "equal", 0)]
            expected = [np.float32(value) for value in (chance, chance, 1 - chance)]
            yield _made(program, "random_bernoulli", f"{dtype}-share{chance}", shares, expected, rel=0, abs=float(error))
    program = Program(IOS17)
    drawn = _drawn(program, "random_bernoulli", (COUNT,))
    yield _made(program, "random_bernoulli", "default", [_mean(program, drawn)], [np.float32(0.5)], rel=0, abs=0.04)


def _normal() -> Iterator[Case]:
    for dtype, opset in (("fp32", IOS15), ("fp16", IOS16)):
        program = Program(opset)
        drawn = _drawn(program, "random_normal", (2, 4), dtype, 1, mean=1.5, stddev=0.0)
        yield _made(program, "random_normal", f"{dtype}-certain", [drawn], [np.full((2, 4), 1.5)])
        for mean, deviation in ((0.0, 1.0), (-2.0, 0.5), (3.0, 4.0)):
            program = Program(opset)
            drawn = _drawn(program, "random_normal", (COUNT // 4, 4), dtype, 11, mean=mean, stddev=deviation)
            # The fractions below these limits are 2.275, 15.866, 50, 84.134 and 97.725 %.
            limits = [mean + deviation * step for step in (-2, -1, 0, 1, 2)]
            shares = [_share(program, drawn, "less", limit) for limit in limits]
            expected = [np.float32(share) for share in (0.02275, 0.15866, 0.5, 0.84134, 0.97725)]
            label = f"{dtype}-shares{mean}-{deviation}"
            yield _made(program, "random_normal", label, shares, expected, rel=0, abs=5 * 0.5 / np.sqrt(COUNT))
            program = Program(opset)
            drawn = _drawn(program, "random_normal", (COUNT,), dtype, 12, mean=mean, stddev=deviation)
            moment = [_mean(program, drawn)]
            label = f"{dtype}-mean{mean}-{deviation}"
            error = 5 * deviation / np.sqrt(COUNT)
            yield _made(program, "random_normal", label, moment, [np.float32(mean)], rel=0, abs=float(error))
    program = Program(IOS17)
    drawn = _drawn(program, "random_normal", (COUNT,))
    squares = program.op("square", {"x": drawn}, ("fp32", (COUNT,)))
    outputs, expected = [_mean(program, drawn), _mean(program, squares)], [np.float32(0), np.float32(1)]
    yield _made(program, "random_normal", "default", outputs, expected, rel=0, abs=0.12)


def _uniform() -> Iterator[Case]:
    for dtype, opset in (("fp32", IOS15), ("fp16", IOS16)):
        program = Program(opset)
        drawn = _drawn(program, "random_uniform", (2, 4), dtype, 1, low=-2.5, high=-2.5)
        yield _made(program, "random_uniform", f"{dtype}-certain", [drawn], [np.full((2, 4), -2.5)])
        for low, high in ((0.0, 1.0), (-3.0, 5.0), (100.0, 101.0)):
            program = Program(opset)
            drawn = _drawn(program, "random_uniform", (COUNT // 4, 4), dtype, 23, low=low, high=high)
            limits = [low + (high - low) * step for step in (0.0, 0.25, 0.5, 0.75)]
            shares = [_share(program, drawn, "greater_equal", limit) for limit in limits]
            beyond = _share(program, drawn, "greater", high)
            expected = [np.float32(share) for share in (1, 0.75, 0.5, 0.25, 0)]
            label = f"{dtype}-shares{low}-{high}"
            yield _made(program, "random_uniform", label, [*shares, beyond], expected, rel=0, abs=5 * 0.5 / np.sqrt(COUNT))
    program = Program(IOS15)
    drawn = _drawn(program, "random_uniform", (COUNT,), seed=9)
    extremes = [_share(program, drawn, "less", 0.0), _share(program, drawn, "greater_equal", 1.0)]
    yield _made(program, "random_uniform", "bounds", extremes, [np.float32(0), np.float32(0)], rel=0, abs=0)
    program = Program(IOS17)
    drawn = _drawn(program, "random_uniform", (COUNT,))
    yield _made(program, "random_uniform", "default", [_mean(program, drawn)], [np.float32(0.5)], rel=0, abs=0.03)


def _categorical() -> Iterator[Case]:
    def sampled(program: Program, x: np.ndarray, size: int, mode: str | None, seed: int | None) -> Name:
        dtype = "fp16" if x.dtype == np.float16 else "fp32"
        inputs: dict[str, Any] = {"x": x, "size": const(size)}
        if mode is not None:
            inputs["mode"] = const(mode)
        if seed is not None:
            inputs["seed"] = const(seed)
        return program.op("random_categorical", inputs, (dtype, (*x.shape[:-1], size)))

    impossible = -np.inf
    certain = single([[impossible, 3, impossible], [9, impossible, impossible], [impossible, impossible, -50]])
    for label, x, mode, opset in (
        ("certain-logits", certain, "logits", IOS15),
        ("certain-probs", single([[0, 1, 0], [0.5, 0, 0], [0, 0, 2]]), "probs", IOS16),
        ("certain-default", certain, None, IOS17),
        ("certain-fp16", half([[0, 1, 0], [0.5, 0, 0], [0, 0, 2]]), "probs", IOS15),
    ):
        program = Program(opset)
        drawn = sampled(program, x, 6, mode, 1)
        yield program.case("random_categorical", label, [drawn], [np.repeat([[1], [0], [2]], 6, 1)])
    program = Program(IOS15)
    drawn = program.op("random_categorical", {"x": single([[0, 0, 5e4], [5e4, 0, 0]])}, ("fp32", (2, 1)))
    yield program.case("random_categorical", "default-size", [drawn], [np.array([[2], [0]])])
    program = Program(IOS18)
    drawn = sampled(program, single([0, 0, 1, 0]), 5, "probs", None)
    yield program.case("random_categorical", "rank1", [drawn], [np.full(5, 2)])
    program = Program(IOS18)
    drawn = sampled(program, single([0, 1, 1, 0, 0, 1, 1, 0]).reshape(2, 2, 1, 2), 2, "probs", None)
    yield program.case("random_categorical", "rank4", [drawn], [np.array([1, 1, 0, 0, 1, 1, 0, 0]).reshape(2, 2, 1, 2)])

    for label, weights, dtype in (
        ("even", [1, 1, 1, 1], "fp32"),
        ("uneven", [1, 2, 3, 4], "fp32"),
        ("uneven-fp16", [4, 1, 1, 2], "fp16"),
    ):
        chances = np.array(weights) / np.sum(weights)
        for mode, x in (("probs", weights), ("logits", np.log(weights) + 2)):
            program = Program(IOS16)
            drawn = sampled(program, np.array(x, numpy_type(dtype)), COUNT, mode, 31)
            shares = [_share(program, drawn, "equal", index) for index in range(4)]
            expected = [np.float32(chance) for chance in chances]
            bound = 5 * 0.5 / np.sqrt(COUNT)
            yield program.case("random_categorical", f"{label}-{mode}", shares, expected, rel=0, abs=bound)
    for label, seeds, agree in (("same-seed", (4, 4), 1), ("other-seed", (4, 5), 0), ("no-seed", (None, None), 0)):
        program = Program(IOS17)
        x = program.input("x", draw("categorical", 20))
        pair = []
        for seed in seeds:
            inputs = {"x": x, "size": const(50)} | ({} if seed is None else {"seed": const(seed)})
            pair.append(program.op("random_categorical", inputs, ("fp32", (50,))))
        same = program.op("equal", {"x": pair[0], "y": pair[1]}, ("bool", (50,)))
        number = program.op("cast", {"x": same, "dtype": const("int32")}, ("int32", (50,)))
        least = program.op("reduce_min", {"x": number, "axes": const([0]), "keep_dims": const(True)}, ("int32", (1,)))
        yield program.case("random_categorical", label, [least], [np.array([agree], np.int32)])
