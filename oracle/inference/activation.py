"""Activation functions."""

from __future__ import annotations

from collections.abc import Iterator

from .language import IOS15, IOS16, IOS17, IOS18, REFUSED, Instance, const, filled, gives, instance, tensor

FLOATS = ("fp16", "fp32")

PLAIN = ("relu", "relu6", "sigmoid", "silu", "softplus", "softsign")
WITH_ALPHA = ("elu", "leaky_relu", "thresholded_relu")
WITH_ALPHA_AND_BETA = ("clamped_relu", "linear_activation", "scaled_tanh", "sigmoid_hard")

OPERATIONS = (*PLAIN, *WITH_ALPHA, *WITH_ALPHA_AND_BETA, "gelu", "prelu", "softmax", "softplus_parametric")

NOT_SCALAR = "coremltools does not check that the parameter is one number"
NO_AXIS = "coremltools does not check that `x` has the axis"
NO_ASSIGNMENT = "coremltools' folding assigns to an element of a number and fails"


def instances() -> Iterator[Instance]:
    for operation in PLAIN:
        yield from _plain(operation)
    for operation in (*WITH_ALPHA, *WITH_ALPHA_AND_BETA):
        for opset in (IOS15, IOS17):
            yield from _parametric(operation, opset)
    yield from _gelu()
    for opset in (IOS15, IOS17):
        yield from _prelu(opset)
        yield from _softplus_parametric(opset)
    yield from _softmax()


def _shapes(operation: str, opset: str, dtype: str = "fp32", **operands: dict) -> Iterator[Instance]:
    """Valid operands of any rank."""
    for label, shape in (("rank0", []), ("rank1", [3]), ("rank3", [1, "s0", 8]), ("rank5", [2, 1, 3, "s0", "s1"])):
        yield instance(operation, opset, f"{label}-{dtype}", x=tensor(dtype, *shape), **operands)


def _plain(operation: str) -> Iterator[Instance]:
    for dtype in FLOATS:
        yield from _shapes(operation, IOS15, dtype)
        yield from _shapes(operation, IOS18, dtype)
    yield instance(operation, IOS15, "const", x=const("fp32", [[0.25, -0.5], [7.5, 0.0]]))
    yield instance(operation, IOS15, "const-half", x=const("fp16", [0.3, 7.0, -0.2]))
    yield instance(operation, IOS15, "const-rank0", x=const("fp32", -0.5))
    yield instance(operation, IOS17, "int32", x=tensor("int32", 2))
    yield instance(operation, IOS17, "bool", x=tensor("bool", 2))
    yield instance(operation, IOS17, "missing")
    yield instance(operation, IOS17, "alpha", x=tensor("fp32", 2), alpha=const("fp32", 1.0))


def _parametric(operation: str, opset: str) -> Iterator[Instance]:
    names = ("alpha",) if operation in WITH_ALPHA else ("alpha", "beta")
    for dtype in FLOATS:
        yield from _shapes(operation, opset, dtype, **{name: const(dtype, 0.5) for name in names})
    numbers = {"alpha": 0.75, "beta": 0.25}
    exact = {name: const("fp32", numbers[name]) for name in names}
    x = tensor("fp32", 2, "s0")
    yield instance(operation, opset, "const", x=const("fp32", [[0.25, -0.5], [7.5, 0.0]]), **exact)
    half = {name: const("fp16", numbers[name]) for name in names}
    yield instance(operation, opset, "const-half", x=const("fp16", [0.3, 7.0, -0.2]), **half)
    wrong = {}
    if operation == "thresholded_relu":
        wrong = {"because": NO_ASSIGNMENT, "instead": {"outputs": [{"dtype": "fp32", "shape": [], "value": [0.0]}]}}
    yield instance(operation, opset, "const-rank0", x=const("fp32", -0.5), **exact, **wrong)
    yield instance(operation, opset, "mixed", x=tensor("fp16", 3), **exact)
    yield instance(operation, opset, "one-element", x=x, **{**exact, names[-1]: const("fp32", [0.5])})
    yield instance(
        operation,
        opset,
        "vector",
        x=tensor("fp32", 4, 2),
        **{**exact, names[-1]: const("fp32", [0.5, 0.25])},
        because=NOT_SCALAR,
        instead=REFUSED,
    )
    computed = gives("cast", x=const("fp16", 0.5), dtype=const("string", "fp32"))
    yield instance(operation, opset, "computed", x=x, **{**exact, names[-1]: computed})
    yield instance(operation, opset, "int32", x=tensor("int32", 2), **exact)
    yield instance(operation, opset, "open", x=x, **{**exact, names[-1]: tensor("fp32")})
    yield instance(operation, opset, "alpha-int", x=x, **{**exact, "alpha": const("int32", 1)})
    yield instance(operation, opset, "no-alpha", x=x, **{**exact, "alpha": None})
    yield instance(operation, opset, "gamma", x=x, **exact, gamma=const("fp32", 1.0))


def _gelu() -> Iterator[Instance]:
    for dtype in FLOATS:
        yield from _shapes("gelu", IOS15, dtype)
    x = tensor("fp32", 2, "s0")
    for mode in ("EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION", "exact", "NONE"):
        yield instance("gelu", IOS16, f"mode-{mode}", x=x, mode=const("string", mode))
    for mode in ("EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION"):
        operand = const("fp32", [[0.25, -0.5], [7.5, 0.0]])
        yield instance("gelu", IOS16, f"const-{mode}", x=operand, mode=const("string", mode))
    yield instance("gelu", IOS17, "int32", x=tensor("int32", 2))
    yield instance("gelu", IOS17, "mode-number", x=x, mode=const("int32", 1))


def _prelu(opset: str) -> Iterator[Instance]:
    same, different = filled("fp32", 3, value=0.5), const("fp32", [0.1, 0.2, 0.3])
    yield instance("prelu", opset, "rank3", x=tensor("fp32", 1, 3, "s0"), alpha=same)
    yield instance("prelu", opset, "rank4", x=tensor("fp32", 1, 3, 5, 6), alpha=different)
    yield instance("prelu", opset, "rank4-open", x=tensor("fp32", "s0", 3, "s1", "s1"), alpha=different)
    yield instance("prelu", opset, "rank5", x=tensor("fp32", 2, 3, 5, 6, 7), alpha=same)
    yield instance("prelu", opset, "half", x=tensor("fp16", 2, 3, 5, 6), alpha=const("fp16", [0.1, 0.2, 0.3]))
    yield instance("prelu", opset, "mixed", x=tensor("fp16", 2, 3, 5, 6), alpha=different)
    yield instance("prelu", opset, "const", x=const("fp32", [[[0.5], [-0.5], [2.0]]]), alpha=same)
    yield instance("prelu", opset, "large", x=tensor("fp32", 1, 5000, 2, 2), alpha=filled("fp32", 5000))
    yield instance("prelu", opset, "rank3-different", x=tensor("fp32", 1, 3, 4), alpha=different)
    yield instance("prelu", opset, "rank5-different", x=tensor("fp32", 1, 3, 4, 4, 4), alpha=different)
    yield instance("prelu", opset, "rank2", x=tensor("fp32", 1, 3), alpha=same)
    yield instance("prelu", opset, "rank6", x=tensor("fp32", 1, 3, 1, 1, 1, 1), alpha=same)
    yield instance("prelu", opset, "channels", x=tensor("fp32", 1, 4, 5, 5), alpha=same)
    yield instance("prelu", opset, "open-channels", x=tensor("fp32", 1, "s0", 5, 5), alpha=same)
    yield instance("prelu", opset, "alpha-rank0", x=tensor("fp32", 1, 3, 5, 5), alpha=const("fp32", 0.5))
    yield instance("prelu", opset, "alpha-rank2", x=tensor("fp32", 1, 3, 5, 5), alpha=const("fp32", [[0.5]]))
    yield instance("prelu", opset, "alpha-open", x=tensor("fp32", 1, 3, 5, 5), alpha=tensor("fp32", 3))


def _softplus_parametric(opset: str) -> Iterator[Instance]:
    three = const("fp32", [0.1, 0.2, 0.3])
    for label, shape in (("rank3", [1, 3, "s0"]), ("rank4", [1, 3, 5, 6]), ("rank5", ["s0", 3, "s1", 1, 2])):
        yield instance("softplus_parametric", opset, label, x=tensor("fp32", *shape), alpha=three, beta=three)
    half = const("fp16", [0.1, 0.2, 0.3])
    yield instance("softplus_parametric", opset, "half", x=tensor("fp16", 1, 3, 5, 6), alpha=half, beta=half)
    yield instance("softplus_parametric", opset, "mixed", x=tensor("fp16", 1, 3, 5, 6), alpha=three, beta=three)
    x = tensor("fp32", 1, 3, 5, 6)
    refused = {
        "rank2": (tensor("fp32", 1, 3), three, three),
        "channels": (tensor("fp32", 1, 4, 5, 5), three, three),
        "open-channels": (tensor("fp32", 1, "s0", 5, 5), three, three),
        "alpha-length": (x, const("fp32", [0.1]), three),
        "beta-length": (x, three, const("fp32", [0.1, 0.2])),
        "alpha-rank0": (x, const("fp32", 0.1), three),
        "beta-rank2": (x, three, const("fp32", [[0.1, 0.2, 0.3]])),
        "no-beta": (x, three, None),
    }
    for label, (operand, alpha, beta) in refused.items():
        yield instance("softplus_parametric", opset, label, x=operand, alpha=alpha, beta=beta)
    yield instance(
        "softplus_parametric", opset, "const", x=const("fp32", [[[0.5], [-0.5], [2.0]]]), alpha=three, beta=three
    )


def _softmax() -> Iterator[Instance]:
    for dtype in FLOATS:
        yield instance("softmax", IOS15, f"rank1-{dtype}", x=tensor(dtype, 5))
        yield instance("softmax", IOS16, f"rank3-{dtype}", x=tensor(dtype, 1, "s0", "s1"), axis=const("int32", 1))
        yield instance("softmax", IOS17, f"rank5-{dtype}", x=tensor(dtype, 1, 2, 3, "s0", 5), axis=const("int32", -5))
    yield instance("softmax", IOS15, "const", x=const("fp32", [[0.25, -0.5], [7.5, 0.0]]), axis=const("int32", 0))
    for label, axis in (("too-large", 2), ("too-small", -3)):
        yield instance(
            "softmax", IOS15, label, x=tensor("fp32", 2, 3), axis=const("int32", axis), because=NO_AXIS, instead=REFUSED
        )
    yield instance("softmax", IOS15, "rank0", x=tensor("fp32"), because=NO_AXIS, instead=REFUSED)
    yield instance("softmax", IOS15, "axis-open", x=tensor("fp32", 2, 3), axis=tensor("int32"))
    yield instance("softmax", IOS15, "int32", x=tensor("int32", 2, 3))
    yield instance("softmax", IOS15, "axes", x=tensor("fp32", 2, 3), axes=const("int32", [0]))
