"""Random tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .language import IOS15, IOS16, IOS17, IOS18, REFUSED, Instance, Operand, const, filled, gives, instance, tensor

OPERATIONS = ("random_bernoulli", "random_categorical", "random_normal", "random_uniform")

PARAMETERS = {"random_bernoulli": ("prob",), "random_normal": ("mean", "stddev"), "random_uniform": ("low", "high")}
UNCHECKED = "coremltools does not check it"


def instances() -> Iterator[Instance]:
    for operation, parameters in PARAMETERS.items():
        yield from _distribution(operation, parameters)
    yield from _categorical()


def _distribution(operation: str, parameters: tuple[str, ...]) -> Iterator[Instance]:
    def draw(label: str, shape: Operand | None, opset: str = IOS15, **more: Any) -> Instance:
        return instance(operation, opset, label, shape=shape, **more)

    plane = const("int32", [2, 3])
    yield draw("rank1", const("int32", [5]))
    yield draw("rank2", plane)
    yield draw("rank5", const("int32", [1, 2, 3, 4, 5]), IOS17)
    yield draw("seed", plane, seed=const("int32", 7))
    for dtype in ("fp16", "fp32"):
        yield draw(f"all-{dtype}", plane, **{name: const(dtype, 0.25) for name in parameters})
    yield draw("computed", tensor("int32", 3), IOS16)
    yield draw("of-fixed-shape", gives("shape", x=tensor("fp32", 4, 6)), IOS18)
    yield draw("of-open-shape", gives("shape", x=tensor("fp32", "s0", 6, "s1")))
    more = gives("add", x=gives("shape", x=tensor("fp32", "s0", 6)), y=const("int32", 2))
    yield draw(
        "of-open-shape-and-more",
        more,
        because="coremltools forgets all of a shape of which it does not know one element",
        instead={"outputs": [{"dtype": "fp32", "shape": [{"expr": "s0 + 2", "at": [9, 14, 39]}, 8]}]},
    )

    yield draw("rank0", const("int32", 5))
    yield draw("rank0-computed", tensor("int32"))
    yield draw("float", const("fp32", [2.0, 3.0]))
    yield draw("missing", None)
    yield draw("computed-parameter", plane, **{parameters[0]: tensor("fp32")})
    yield draw("int-parameter", plane, **{parameters[0]: const("int32", 1)})
    if len(parameters) > 1:
        yield draw("mixed", plane, **{parameters[0]: const("fp16", 0.0), parameters[1]: const("fp32", 1.0)})
        yield draw("half-and-default", plane, **{parameters[0]: const("fp16", 0.0)})
        yield draw("default-and-half", plane, **{parameters[1]: const("fp16", 0.0)})
    nothing = "coremltools gives it a variadic shape, which no file can hold and no runtime makes"
    yield draw("open-rank", tensor("int32", "s0"), because=nothing, instead=REFUSED)
    yield draw("negative", const("int32", [2, -3]), because=UNCHECKED, instead=REFUSED)
    yield draw("empty", const("int32", [2, 0]), because=UNCHECKED, instead=REFUSED)
    huge = "coremltools does not check it; Core ML has tensors of five dimensions at most"
    yield draw("rank100", filled("int32", 100), because=huge, instead=REFUSED)


def _categorical() -> Iterator[Instance]:
    def draw(label: str, x: Operand | None, opset: str = IOS15, **more: Any) -> Instance:
        return instance("random_categorical", opset, label, x=x, **more)

    for dtype in ("fp16", "fp32"):
        yield draw(f"rank1-{dtype}", tensor(dtype, 5))
        yield draw(f"rank2-{dtype}", tensor(dtype, 2, 5), size=const("int32", 3))
    yield draw("rank4", tensor("fp32", 2, 3, 4, 5), IOS17, mode=const("string", "probs"))
    yield draw("open", tensor("fp32", "s0", 5), size=const("int32", 7))
    yield draw("open-last", tensor("fp32", 2, "s1"), IOS18, seed=const("int32", 3))
    yield draw("int32", tensor("int32", 2, 5))
    yield draw("computed-size", tensor("fp32", 2, 5), size=tensor("int32"))
    yield draw("missing", None)
    yield draw("rank0", tensor("fp32"), because=UNCHECKED, instead=REFUSED)
    yield draw("mode", tensor("fp32", 5), mode=const("string", "odds"), because=UNCHECKED, instead=REFUSED)
    yield draw("size-negative", tensor("fp32", 5), size=const("int32", -1), because=UNCHECKED, instead=REFUSED)
