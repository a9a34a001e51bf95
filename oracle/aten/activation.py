"""Activations with all their arguments."""

from collections.abc import Iterator

import torch

from .case import FLOATS, Case, Weight, case, free, positive, real, whole

#: Name and arguments.
ROWS = [
    ("relu", ()), ("relu6", ()), ("silu", ()), ("mish", ()), ("selu", ()), ("hardswish", ()), ("hardsigmoid", ()), ("sigmoid", ()), ("tanh", ()),
    ("log_sigmoid", ()), ("elu", ()), ("elu", (0.7,)), ("elu", (1.2, 1.1, 0.9)), ("celu", ()), ("celu", (0.6,)), ("leaky_relu", ()), ("leaky_relu", (0.3,)),
    ("hardtanh", ()), ("hardtanh", (-0.5, 0.75)), ("hardtanh", (0.0, 6.0)), ("hardshrink", ()), ("hardshrink", (0.25,)), ("softshrink", ()),
    ("softshrink", (0.75,)), ("softplus", ()), ("softplus", (2.0, 1.5)), ("threshold", (0.25, -0.5)), ("gelu", ()), ("glu", (-1,)), ("glu", (0,)),
]  # fmt: skip
IN_PLACE = (
    "relu_",
    "silu_",
    "hardswish_",
    "hardsigmoid_",
    "hardtanh_",
    "leaky_relu_",
    "elu_",
    "mish_",
    "celu_",
    "selu_",
    "relu6_",
)


def cases() -> Iterator[Case]:
    for name, arguments in ROWS:
        target = f"aten.{name}.default"
        # `real` draws numbers that fp16 represents exactly, so no input crosses a threshold when it is rounded.
        for shape in ((4,), (6, 4), (2, 3, 4, 2)):
            yield case(target, real(*shape), *arguments)
        for kind in FLOATS[1:]:
            yield case(target, real(6, 4, kind=kind), *arguments)
        yield case(
            target, free(real, (4, 4), (6, 4)) if name != "glu" else free(real, (4, 3, 4), (4, 5, 4)), *arguments
        )
        yield case(target, real(6, 4, scale=20), *arguments)
    for name in IN_PLACE:
        yield case(f"aten.{name}.default", real(6, 4))
    for approximate in ("none", "tanh"):
        yield case("aten.gelu.default", real(6, 4), approximate=approximate)
        yield case("aten.gelu.default", real(6, 4, kind=torch.float16), approximate=approximate)
        yield case("aten.gelu.default", torch.tensor([-60.0, 60.0, 0.0]), approximate=approximate)
    for shape in ((4, 6), (2, 6, 3), (2, 6, 3, 2)):
        yield case("aten.prelu.default", real(*shape), Weight(positive(6, high=0.5)))
        yield case("aten.prelu.default", real(*shape), Weight(positive(1, high=0.5)))
        yield case(
            "aten._prelu_kernel.default",
            real(*shape),
            Weight(positive(*[6 if axis == 1 else 1 for axis in range(len(shape))], high=0.5)),
        )
    yield case("aten.prelu.default", real(4, 6), positive(6))
    yield case("aten.rrelu.default", real(4, 6), 0.125, 0.375, False)
    for kind in (torch.int64, torch.int32, torch.int8):
        yield case("aten.relu.default", whole(4, 5, kind=kind))
        yield case("aten.relu6.default", whole(4, 5, kind=kind))
        yield case("aten.hardtanh.default", whole(4, 5, kind=kind), -2, 3)
    for name in ("softmax", "log_softmax"):
        for shape, axis in (
            ((5,), 0),
            ((3, 5), 1),
            ((3, 5), 0),
            ((2, 3, 4), -2),
            ((2, 3, 4, 2), 1),
            ((2, 3, 2, 2, 3), -1),
        ):
            yield case(f"aten.{name}.int", real(*shape), axis)
            yield case(f"aten._{name}.default", real(*shape), axis, False)
        yield case(f"aten.{name}.int", real(3, 5, kind=torch.float16), 1, torch.float32)
        yield case(f"aten.{name}.int", whole(3, 5), 1, torch.float32)
        yield case(f"aten.{name}.int", real(3, 5, scale=40), 1)
        yield case(f"aten.{name}.int", free(real, (3, 5), (6, 5)), -1)
        yield case(f"aten.{name}.int", free(real, (3, 5), (3, 9)), -1)
        for kind in FLOATS[1:]:
            yield case(f"aten.{name}.int", real(3, 5, kind=kind), -1)
    masked = torch.tensor([[0.0, float("-inf"), 1.0], [float("-inf"), 2.0, float("-inf")]])
    yield case("aten.softmax.int", masked, -1)
    yield case("aten._safe_softmax.default", torch.cat([masked, torch.full((1, 3), float("-inf"))]), -1)
    yield case("aten.softmax.int", real(), 0)
