"""Normalization."""

from __future__ import annotations

from collections.abc import Iterator

from .language import IOS15, IOS17, REFUSED, Instance, const, filled, instance, tensor

OPERATIONS = ("batch_norm", "instance_norm", "l2_norm", "layer_norm", "local_response_norm")

RANK = "coremltools documents the ranks that Core ML takes, and does not check them"
CHANNELS = "coremltools does not check that there is one element for each channel"
TWICE = "coremltools does not see that an axis is named twice"
NOT_SCALAR = "coremltools does not check that the parameter is one number"
SIZE = "coremltools does not check that the window has elements"
ALL_AXES = "coremltools' default for `axes` is a range, of which it cannot make a constant"
BETA = "coremltools looks at the shape of `gamma` where it means `beta`"

WRONG_WHEN_FIXED = {
    f"{operation}/{opset}/open-channels/fixed": (CHANNELS, REFUSED)
    for operation in ("batch_norm", "instance_norm")
    for opset in (IOS15, IOS17)
}


def instances() -> Iterator[Instance]:
    for opset in (IOS15, IOS17):
        yield from _batch_norm(opset)
        yield from _instance_norm(opset)
        yield from _l2_norm(opset)
        yield from _layer_norm(opset)
        yield from _local_response_norm(opset)


def _lax(operation: str, opset: str, label: str, because: str, **operands: dict | None) -> Instance:
    """An invalid instance that coremltools does not reject."""
    return instance(operation, opset, label, because=because, instead=REFUSED, **operands)


def _batch_norm(opset: str) -> Iterator[Instance]:
    def made(label: str, x: dict, dtype: str = "fp32", **more: dict | None) -> Instance:
        operands = {"mean": filled(dtype, 3), "variance": filled(dtype, 3), **more}
        return instance("batch_norm", opset, label, x=x, **operands)

    three = filled("fp32", 3)
    x = tensor("fp32", 1, 3, 5, "s0")
    yield made("rank3", tensor("fp32", 1, 3, 5))
    yield made("rank4", x, gamma=three, beta=three)
    yield made("rank5", tensor("fp32", "s0", 3, 5, "s1", 2), gamma=three)
    yield made("half", tensor("fp16", 1, 3, 5), "fp16", epsilon=const("fp16", 0.001))
    yield made("half-rank4", tensor("fp16", 1, 3, 5, 5), "fp16", beta=filled("fp16", 3))
    yield made("epsilon", x, epsilon=const("fp32", 0.001))
    yield made("mixed", tensor("fp16", 1, 3, 5))
    yield made("open-channels", tensor("fp32", 1, "s0", 5))
    yield made("mixed-parameters", tensor("fp32", 1, 3, 5), gamma=filled("fp16", 3))
    yield made("int32", tensor("int32", 1, 3, 5))
    yield made("mean-open", x, mean=tensor("fp32", 3))
    yield made("no-variance", x, variance=None)
    yield made("unknown", x, axes=const("int32", [1]))
    three_each = {"mean": three, "variance": three}
    yield _lax("batch_norm", opset, "rank2", RANK, x=tensor("fp32", 1, 3), **three_each)
    yield _lax("batch_norm", opset, "rank6", RANK, x=tensor("fp32", 1, 3, 1, 1, 1, 1), **three_each)
    yield _lax("batch_norm", opset, "mean-length", CHANNELS, x=x, mean=filled("fp32", 4), variance=three)
    yield _lax("batch_norm", opset, "gamma-rank", CHANNELS, x=x, **three_each, gamma=filled("fp32", 1, 3))
    yield _lax("batch_norm", opset, "beta-length", CHANNELS, x=x, **three_each, beta=filled("fp32", 1))
    yield _lax("batch_norm", opset, "epsilon-vector", NOT_SCALAR, x=x, **three_each, epsilon=three)


def _instance_norm(opset: str) -> Iterator[Instance]:
    three = filled("fp32", 3)
    x = tensor("fp32", 1, 3, 5, "s0")
    yield instance("instance_norm", opset, "rank3", x=tensor("fp32", 1, 3, 5))
    yield instance("instance_norm", opset, "rank4", x=x, gamma=three, beta=three)
    yield instance("instance_norm", opset, "half", x=tensor("fp16", "s0", 3, 5), gamma=filled("fp16", 3))
    yield instance("instance_norm", opset, "half-rank4", x=tensor("fp16", 2, 3, 5, 5), epsilon=const("fp16", 0.001))
    yield instance("instance_norm", opset, "open-channels", x=tensor("fp32", 1, "s0", 5), beta=three)
    yield instance("instance_norm", opset, "mixed", x=tensor("fp16", 1, 3, 5), gamma=three, beta=three)
    yield instance("instance_norm", opset, "int32", x=tensor("int32", 1, 3, 5))
    yield instance("instance_norm", opset, "gamma-open", x=x, gamma=tensor("fp32", 3))
    yield instance("instance_norm", opset, "missing", gamma=three)
    yield instance("instance_norm", opset, "unknown", x=x, mean=three)
    yield _lax("instance_norm", opset, "rank2", RANK, x=tensor("fp32", 1, 3))
    yield _lax("instance_norm", opset, "rank5", RANK, x=tensor("fp32", 1, 3, 4, 4, 4))
    yield _lax("instance_norm", opset, "gamma-length", CHANNELS, x=x, gamma=filled("fp32", 4))
    yield _lax("instance_norm", opset, "epsilon-vector", NOT_SCALAR, x=x, epsilon=three)


def _l2_norm(opset: str) -> Iterator[Instance]:
    yield instance("l2_norm", opset, "rank3", x=tensor("fp32", 1, 3, 5))
    yield instance("l2_norm", opset, "rank4", x=tensor("fp32", "s0", 3, 5, "s1"), epsilon=const("fp32", 0.1))
    yield instance("l2_norm", opset, "rank5", x=tensor("fp32", 1, 2, 3, 4, "s0"))
    yield instance("l2_norm", opset, "half", x=tensor("fp16", 1, 3, 5), epsilon=const("fp16", 0.1))
    yield instance("l2_norm", opset, "half-rank4", x=tensor("fp16", 1, 3, 5, 5))
    yield instance("l2_norm", opset, "const", x=const("fp32", [[[1.0, 2.0]]]))
    yield instance("l2_norm", opset, "mixed", x=tensor("fp16", 1, 3, 5), epsilon=const("fp32", 0.1))
    yield instance("l2_norm", opset, "rank2", x=tensor("fp32", 3, 5))
    yield instance("l2_norm", opset, "rank0", x=tensor("fp32"))
    yield instance("l2_norm", opset, "int32", x=tensor("int32", 1, 3, 5))
    yield instance("l2_norm", opset, "epsilon-open", x=tensor("fp32", 1, 3, 5), epsilon=tensor("fp32"))
    yield _lax("l2_norm", opset, "epsilon-vector", NOT_SCALAR, x=tensor("fp32", 1, 3, 5), epsilon=filled("fp32", 5))


def _layer_norm(opset: str) -> Iterator[Instance]:
    x = tensor("fp32", 2, "s0", 8)
    last = const("int32", [-1])
    eight = filled("fp32", 8)
    eight_of_eight = {"outputs": [{"dtype": "fp32", "shape": [8]}]}
    yield instance("layer_norm", opset, "all", x=tensor("fp32", 8), because=ALL_AXES, instead=eight_of_eight)
    yield instance("layer_norm", opset, "rank1", x=tensor("fp32", 8), axes=const("int32", [0]))
    yield instance("layer_norm", opset, "rank3", x=x, axes=last, gamma=eight, beta=eight, epsilon=const("fp32", 0.001))
    yield instance("layer_norm", opset, "gamma", x=x, axes=last, gamma=eight)
    yield instance(
        "layer_norm",
        opset,
        "rank5",
        x=tensor("fp32", 1, 2, "s0", 3, 4),
        axes=const("int32", [4, 1]),
        gamma=filled("fp32", 2, 4),
        beta=filled("fp32", 2, 4),
    )
    yield instance("layer_norm", opset, "half", x=tensor("fp16", 2, 8), axes=last, gamma=filled("fp16", 8))
    yield instance("layer_norm", opset, "half-rank4", x=tensor("fp16", 2, 8, "s0", 1), axes=const("int32", [2, 3]))
    yield instance("layer_norm", opset, "open-normalized", x=x, axes=const("int32", [1]), gamma=filled("fp32", 5))
    yield instance("layer_norm", opset, "const", x=const("fp32", [[1.0, 2.0]]), axes=last)
    yield instance("layer_norm", opset, "mixed", x=tensor("fp16", 2, 8), axes=last, gamma=eight)
    yield instance("layer_norm", opset, "too-large", x=x, axes=const("int32", [3]))
    yield instance("layer_norm", opset, "too-small", x=x, axes=const("int32", [-4]))
    yield instance("layer_norm", opset, "axes-rank0", x=x, axes=const("int32", 1))
    yield instance("layer_norm", opset, "gamma-length", x=x, axes=last, gamma=filled("fp32", 4))
    yield instance("layer_norm", opset, "gamma-rank", x=x, axes=last, gamma=filled("fp32", 1, 8))
    yield instance("layer_norm", opset, "gamma-open", x=x, axes=last, gamma=tensor("fp32", 8))
    yield instance("layer_norm", opset, "int32", x=tensor("int32", 8))
    yield instance("layer_norm", opset, "axes-open", x=x, axes=tensor("int32", 1))
    right = {"outputs": [{"dtype": "fp32", "shape": [2, {"at": [7, 12, 37], "expr": "s0"}, 8]}]}
    yield instance("layer_norm", opset, "beta", x=x, axes=last, beta=eight, because=BETA, instead=right)
    yield _lax("layer_norm", opset, "twice", TWICE, x=x, axes=const("int32", [2, -1]))
    yield _lax("layer_norm", opset, "beta-length", BETA, x=x, axes=last, gamma=eight, beta=filled("fp32", 7))
    yield _lax("layer_norm", opset, "epsilon-vector", NOT_SCALAR, x=x, axes=last, epsilon=eight)


def _local_response_norm(opset: str) -> Iterator[Instance]:
    size = const("int32", 3)
    x = tensor("fp32", 1, 3, 5, "s0")
    yield instance("local_response_norm", opset, "rank3", x=tensor("fp32", 1, 3, 5), size=size)
    yield instance("local_response_norm", opset, "rank4", x=x, size=size, alpha=const("fp32", 0.1))
    yield instance("local_response_norm", opset, "half", x=tensor("fp16", 1, 3, "s0"), size=size)
    half = const("fp16", 0.5)
    yield instance(
        "local_response_norm", opset, "half-rank4", x=tensor("fp16", 1, 3, 5, 5), size=size, alpha=half, beta=half, k=half
    )
    yield instance("local_response_norm", opset, "mixed", x=tensor("fp16", 1, 3, 5), size=size, k=const("fp32", 2.0))
    yield instance("local_response_norm", opset, "int32", x=tensor("int32", 1, 3, 5), size=size)
    yield instance("local_response_norm", opset, "no-size", x=x)
    yield instance("local_response_norm", opset, "size-open", x=x, size=tensor("int32"))
    yield instance("local_response_norm", opset, "size-float", x=x, size=const("fp32", 3.0))
    yield _lax("local_response_norm", opset, "rank2", RANK, x=tensor("fp32", 3, 5), size=size)
    yield instance("local_response_norm", opset, "rank5", x=tensor("fp32", 1, 3, 5, 5, 5), size=size)
    yield _lax("local_response_norm", opset, "size-zero", SIZE, x=x, size=const("int32", 0))
    yield _lax("local_response_norm", opset, "size-vector", NOT_SCALAR, x=x, size=const("int32", [3, 3]))
