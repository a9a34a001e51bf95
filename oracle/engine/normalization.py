"""Normalizations, compared with torch; `l2_norm` follows its definition, in numpy and fp64.

For an even `size`, the window of `local_response_norm` is torch's: one more channel before than after. MIL's
documentation does not specify this.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from oracle.support.distance import within

from .elementwise import half, single
from .language import IOS15, IOS16, IOS17, IOS18, Case, case, const, draw, numpy_type

functional = torch.nn.functional

#: Tolerance for differences of large numbers.
TOLERANCE = {"rel": 2e-5, "abs": 1e-5}

#: Tolerance for numbers around 1000 after subtraction of their fp32 mean.
FAR = {"rel": 2e-4, "abs": 2e-4}


def cases() -> Iterator[Case]:
    yield from _batch_norm()
    yield from _instance_norm()
    yield from _l2_norm()
    yield from _layer_norm()
    yield from _local_response_norm()


def _wide(array: np.ndarray | None) -> torch.Tensor | None:
    return None if array is None else torch.from_numpy(array.astype(np.float64))


def _bound(x: np.ndarray, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"x": x, **{name: const(value) for name, value in parameters.items() if value is not None}}


def _batch_norm() -> Iterator[Case]:
    def made(label: str, opset: str, x: np.ndarray, epsilon: float | None = None, of: str | None = None, **more: Any) -> Case:
        dtype = "fp16" if x.dtype == np.float16 else "fp32"
        of = of or dtype
        parameters = {name: value.astype(numpy_type(of)) for name, value in more.items()}
        eps = None if epsilon is None else numpy_type(of)(epsilon)
        # The default is an fp32 number, also for fp16 operands.
        used = float(np.float32(1e-5)) if eps is None else float(eps)
        mean, variance, gamma, beta = (parameters.get(name) for name in ("mean", "variance", "gamma", "beta"))
        expected = functional.batch_norm(_wide(x), _wide(mean), _wide(variance), _wide(gamma), _wide(beta), eps=used)
        inputs = _bound(x, {**parameters, "epsilon": eps})
        return case(label, "batch_norm", opset, inputs, [expected.numpy()], dtypes=[dtype], **TOLERANCE)

    for opset in (IOS15, IOS17):
        for shape in ((2, 3, 4), (1, 3, 2, 3), (2, 3, 2, 1, 2)):
            for dtype in ("fp32", "fp16"):
                x = draw(f"batch-{shape}", *shape, low=-3, high=3, dtype=dtype)
                mean, gamma, beta = (draw(f"batch-{name}", 3) for name in ("mean", "gamma", "beta"))
                variance = draw("batch-variance", 3, low=0.1, high=3)
                label = f"{dtype}-rank{len(shape)}"
                yield made(label, opset, x, mean=mean, variance=variance)
                yield made(f"{label}-affine", opset, x, 1e-3, mean=mean, variance=variance, gamma=gamma, beta=beta)
        x = draw("batch-only", 1, 2, 3)
        yield made("gamma-only", opset, x, mean=single([0.5, -1]), variance=single([2, 0]), gamma=single([2, -0.5]))
        yield made("beta-only", opset, x, 0.5, mean=single([0.5, -1]), variance=single([2, 0]), beta=single([2, -0.5]))
        specials = single([np.nan, np.inf, -np.inf, 3e38, 0, 1]).reshape(1, 2, 3)
        yield made("specials", opset, specials, mean=single([1, 2]), variance=single([4, 9]))
        yield made("empty", opset, np.zeros((0, 2, 3), np.float32), mean=single([1, 2]), variance=single([4, 9]))
    x = draw("batch-mixed", 1, 2, 2, 2, dtype="fp16")
    yield made("fp16-by-fp32", IOS17, x, 1e-6, "fp32", mean=single([0.1, 1]), variance=single([1e-3, 2]))
    yield made("fp32-by-fp16", IOS18, x.astype(np.float32), 1e-3, "fp16", mean=single([0.5, 1]), variance=single([0.25, 2]))


def _instance_norm() -> Iterator[Case]:
    def made(
        label: str,
        opset: str,
        x: np.ndarray,
        epsilon: float | None = None,
        of: str | None = None,
        tolerance: dict[str, float] = TOLERANCE,
        **more: Any,
    ) -> Case:
        dtype = "fp16" if x.dtype == np.float16 else "fp32"
        of = of or dtype
        parameters = {name: value.astype(numpy_type(of)) for name, value in more.items()}
        eps = None if epsilon is None else numpy_type(of)(epsilon)
        used = float(np.float32(1e-5)) if eps is None else float(eps)
        wide = x.astype(np.float64)
        axes = tuple(range(2, x.ndim))
        normal = (wide - wide.mean(axes, keepdims=True)) / np.sqrt(wide.var(axes, keepdims=True) + used)
        if wide[0, 0].size > 1:
            judged = functional.instance_norm(_wide(x), eps=used).numpy()
            assert within(normal, judged, 1e-9, 1e-12)
        channels = [1, -1, *[1] * (x.ndim - 2)]
        if "gamma" in parameters:
            normal = normal * parameters["gamma"].astype(np.float64).reshape(channels)
        if "beta" in parameters:
            normal = normal + parameters["beta"].astype(np.float64).reshape(channels)
        inputs = _bound(x, {**parameters, "epsilon": eps})
        return case(label, "instance_norm", opset, inputs, [normal], dtypes=[dtype], **tolerance)

    for opset in (IOS15, IOS17):
        for shape in ((2, 3, 5), (1, 3, 2, 3), (2, 1, 4, 2)):
            for dtype in ("fp32", "fp16"):
                x = draw(f"instance-{shape}", *shape, low=-3, high=5, dtype=dtype)
                gamma, beta = (draw(f"instance-{name}", shape[1]) for name in ("gamma", "beta"))
                label = f"{dtype}-{'x'.join(map(str, shape))}"
                yield made(label, opset, x)
                yield made(f"{label}-affine", opset, x, 1e-3, gamma=gamma, beta=beta)
        yield made("constant", opset, np.full((1, 2, 3), 7, np.float32), 1e-3)
        nothing = np.zeros((0, 2, 3), np.float32)
        yield case("empty", "instance_norm", opset, {"x": nothing}, [nothing])
        yield made("one-element", opset, draw("instance-one", 2, 2, 1), beta=single([1, -2]))
        far = draw("instance-far", 1, 2, 8) + np.float32(1000)
        yield made("far-from-zero", opset, far, 1e-3, tolerance=FAR)
    yield made("fp16-by-fp32", IOS17, draw("instance-mixed", 1, 2, 4, dtype="fp16"), 1e-6, "fp32", gamma=single([2, 3]))
    yield made("gamma-only", IOS18, draw("instance-gamma", 1, 2, 4), gamma=single([2, 3]))


def _l2_norm() -> Iterator[Case]:
    def made(label: str, opset: str, x: np.ndarray, epsilon: float | None = None, of: str | None = None) -> Case:
        dtype = "fp16" if x.dtype == np.float16 else "fp32"
        eps = None if epsilon is None else numpy_type(of or dtype)(epsilon)
        used = float(np.float32(1e-6)) if eps is None else float(eps)
        wide = x.astype(np.float64)
        norm = np.sqrt(np.sum(wide * wide, axis=(-3, -2, -1), keepdims=True) + used)
        with np.errstate(all="ignore"):
            expected = wide / norm
        return case(label, "l2_norm", opset, _bound(x, {"epsilon": eps}), [expected], dtypes=[dtype], **TOLERANCE)

    for opset in (IOS15, IOS17):
        for shape in ((2, 3, 4), (1, 1, 1), (3, 1, 2, 2), (2, 2, 1, 3, 2)):
            for dtype in ("fp32", "fp16"):
                x = draw(f"l2-{shape}", *shape, low=-3, high=3, dtype=dtype)
                yield made(f"{dtype}-{'x'.join(map(str, shape))}", opset, x)
                yield made(f"{dtype}-{'x'.join(map(str, shape))}-epsilon", opset, x, 0.25)
        yield made("zeros", opset, np.zeros((2, 1, 1, 3), np.float32))
        yield made("empty", opset, np.zeros((2, 1, 0, 3), np.float32))
        yield made("nan", opset, single([1, np.nan, 2, 3, 4, 5]).reshape(2, 1, 1, 3))
    yield made("fp16-by-fp32", IOS17, draw("l2-mixed", 1, 2, 3, dtype="fp16"), 1e-9, "fp32")


def _layer_norm() -> Iterator[Case]:
    def made(
        label: str,
        opset: str,
        x: np.ndarray,
        axes: list[int] | None,
        epsilon: float | None = None,
        of: str | None = None,
        tolerance: dict[str, float] = TOLERANCE,
        **more: Any,
    ) -> Case:
        dtype = "fp16" if x.dtype == np.float16 else "fp32"
        parameters = {name: value.astype(numpy_type(of or dtype)) for name, value in more.items()}
        eps = None if epsilon is None else numpy_type(of or dtype)(epsilon)
        used = float(np.float32(1e-5)) if eps is None else float(eps)
        named = sorted(axis % x.ndim for axis in (range(x.ndim) if axes is None else axes))
        # torch normalizes trailing axes.
        order = [axis for axis in range(x.ndim) if axis not in named] + named
        moved = _wide(np.transpose(x, order))
        assert moved is not None
        shape = [x.shape[axis] for axis in named]
        result = functional.layer_norm(moved, shape, _wide(parameters.get("gamma")), _wide(parameters.get("beta")), used)
        expected = np.transpose(result.numpy(), np.argsort(order))
        inputs = _bound(x, {"axes": axes, **parameters, "epsilon": eps})
        return case(label, "layer_norm", opset, inputs, [expected], dtypes=[dtype], **tolerance)

    choices: tuple[tuple[tuple[int, ...], list[int] | None], ...] = (
        ((7,), None),
        ((2, 5), [-1]),
        ((2, 5), [0]),
        ((2, 3, 4), [2]),
        ((2, 3, 4), [1, 2]),
        ((2, 3, 4), [-2]),
        ((1, 2, 3, 4), [1, 3]),
        ((2, 3, 2, 2), [1]),
        ((1, 2, 3, 2, 2), [2, 3, 4]),
        ((2, 3, 4), [2, 1]),
    )
    for opset in (IOS15, IOS17):
        for at, (shape, axes) in enumerate(choices):
            dtype = ("fp32", "fp16")[at % 2]
            x = draw(f"layer-{at}", *shape, low=-3, high=5, dtype=dtype)
            named = sorted(axis % x.ndim for axis in (range(x.ndim) if axes is None else axes))
            gamma, beta = (draw(f"layer-{name}-{at}", *[shape[axis] for axis in named]) for name in ("gamma", "beta"))
            yield made(f"plain{at}", opset, x, axes)
            yield made(f"affine{at}", opset, x, axes, 1e-3, gamma=gamma, beta=beta)
            if at % 3 == 0:
                yield made(f"gamma{at}", opset, x.astype(np.float32), axes, gamma=gamma)
        far = draw("layer-far", 2, 16) + np.float32(1000)
        yield made("far-from-zero", opset, far, [-1], 1e-3, tolerance=FAR)
        yield made("constant", opset, np.full((2, 4), 3, np.float32), [-1])
        yield made("one-element", opset, draw("layer-one", 3, 1), [-1], beta=single([0.5]))
        yield made("nan", opset, single([[1, np.nan, 2], [1, 2, 3]]), [-1])
        yield made("empty", opset, np.zeros((0, 3), np.float32), [-1], gamma=single([1, 2, 3]))
        yield made("fp16-large", opset, half([[60000, -60000, 100, 5]]), [-1])
    yield made("fp16-by-fp32", IOS17, draw("layer-mixed", 2, 6, dtype="fp16"), [1], 1e-6, "fp32", gamma=draw("layer-g", 6))
    yield made("fp32-by-fp16", IOS18, draw("layer-mixed2", 2, 6), [1], 1e-3, "fp16", gamma=draw("layer-g", 6), beta=draw("layer-b", 6))


def _local_response_norm() -> Iterator[Case]:
    def made(label: str, opset: str, x: np.ndarray, size: int, of: str | None = None, **more: float) -> Case:
        dtype = "fp16" if x.dtype == np.float16 else "fp32"
        parameters = {name: numpy_type(of or dtype)(value) for name, value in more.items()}
        stated = {name: float(value) for name, value in parameters.items()}
        implied = {"alpha": float(np.float32(1e-4)), "beta": 0.75, "k": 1.0}
        expected = functional.local_response_norm(_wide(x), size, **{**implied, **stated})
        inputs = _bound(x, {"size": size, **parameters})
        return case(label, "local_response_norm", opset, inputs, [expected.numpy()], dtypes=[dtype], **TOLERANCE)

    for opset in (IOS15, IOS17):
        for at, shape in enumerate(((1, 5, 3), (2, 4, 2, 2), (2, 1, 3), (1, 6, 1, 1), (1, 4, 2, 1, 3))):
            for size in (1, 2, 3, 5):
                dtype = ("fp32", "fp16")[(at + size) % 2]
                x = draw(f"local-{shape}-{size}", *shape, low=-3, high=3, dtype=dtype)
                label = f"{dtype}-{'x'.join(map(str, shape))}-size{size}"
                yield made(label, opset, x, size, alpha=0.5, beta=0.5 + size / 8, k=2.0)
        inputs = _bound(np.zeros((0, 2, 3), np.float32), {"size": 3})
        yield case("empty", "local_response_norm", opset, inputs, [np.zeros((0, 2, 3), np.float32)])
        yield made("default", opset, draw("local-default", 1, 5, 2, low=-40, high=40), 3)
        yield made("wider-than-x", opset, draw("local-wide", 1, 3, 2), 9, alpha=1.0)
    yield made("fp16-by-fp32", IOS17, draw("local-mixed", 1, 4, 2, dtype="fp16"), 3, "fp32", alpha=0.3, k=0.7)
    yield made("beta-only", IOS16, draw("local-beta", 1, 4, 2, low=-30, high=30), 3, beta=2.0)
