"""Recurrent layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .language import IOS15, IOS16, IOS17, IOS18, REFUSED, Instance, Operand, const, filled, instance, tensor

OPERATIONS = ("gru", "lstm", "rnn")

GATES = {"gru": 3, "lstm": 4, "rnn": 1}
TRUE = const("bool", True)
UNCHECKED = "coremltools does not check it"


def instances() -> Iterator[Instance]:
    for operation in OPERATIONS:
        for opset in (IOS15, IOS16, IOS17, IOS18):
            yield from _layer(operation, opset)
    for opset in (IOS15, IOS17):
        yield from _bidirectional(opset)
    yield from _gru_of_ios18()


def text(name: str) -> Operand:
    return const("string", name)


def _operands(operation: str, dtype: str, sequence: Any = 5, batch: Any = 2, width: int = 3, hidden: int = 4) -> dict:
    rows = GATES[operation] * hidden
    states = ("initial_h", "initial_c") if operation == "lstm" else ("initial_h",)
    return {
        "x": tensor(dtype, sequence, batch, width),
        **{name: tensor(dtype, batch, hidden) for name in states},
        "weight_ih": filled(dtype, rows, width),
        "weight_hh": filled(dtype, rows, hidden),
    }


def _layer(operation: str, opset: str) -> Iterator[Instance]:
    def layer(label: str, base: dict[str, Operand], **more: Any) -> Instance:
        return instance(operation, opset, label, **{**base, **more})

    gates = GATES[operation]
    single = _operands(operation, "fp32")
    for dtype in ("fp32", "fp16"):
        yield layer(f"last-{dtype}", _operands(operation, dtype))
        yield layer(f"sequence-{dtype}", _operands(operation, dtype, 7, 1, 2, 3), output_sequence=TRUE)
    yield layer("bias", single, bias=filled("fp32", gates * 4))
    yield layer("reverse", single, direction=text("reverse"), output_sequence=TRUE)
    yield layer("relu", single, activation=text("relu"))
    yield layer("open-sequence", _operands(operation, "fp32", "s0"), output_sequence=TRUE)
    yield layer("open-sequence-last", _operands(operation, "fp32", "s0"))
    yield layer("open-batch", _operands(operation, "fp32", 5, "s1"), output_sequence=TRUE)
    yield layer("open-both", _operands(operation, "fp32", "s0", "s1"), output_sequence=TRUE)

    yield layer("direction", single, direction=text("backward"))
    yield layer("rank2", single, x=tensor("fp32", 5, 3))
    yield layer("weight-rank1", single, weight_ih=filled("fp32", gates * 4))
    yield layer("weight-hh-rank3", single, weight_hh=filled("fp32", gates * 4, 4, 1))
    yield layer("computed-weight", single, weight_ih=tensor("fp32", gates * 4, 3))
    yield layer("mixed", single, x=tensor("fp16", 5, 2, 3))
    yield layer("int32", _operands(operation, "int32"))
    yield layer("missing", single, weight_hh=None)
    if operation == "rnn":
        yield layer(
            "hidden-not-square", single, weight_hh=filled("fp32", 5, 4), because=UNCHECKED, instead=REFUSED
        )
    else:
        yield layer("hidden-not-square", single, weight_hh=filled("fp32", gates * 5, 4))
        yield layer(
            "hidden-one-more", single, weight_hh=filled("fp32", gates * 4 + 1, 4), because=UNCHECKED, instead=REFUSED
        )
    yield layer("bias-short", single, bias=filled("fp32", 2), because=UNCHECKED, instead=REFUSED)
    yield layer("input-width", single, x=tensor("fp32", 5, 2, 9), because=UNCHECKED, instead=REFUSED)
    yield layer("initial-width", single, initial_h=tensor("fp32", 2, 5), because=UNCHECKED, instead=REFUSED)
    yield layer("initial-batch", single, initial_h=tensor("fp32", 3, 4), because=UNCHECKED, instead=REFUSED)
    if operation == "lstm":
        yield layer("activation", single, activation=text("gelu"))
        yield layer("activation-case", single, activation=text("Tanh"), cell_activation=text("RELU"))
        yield layer("cell-activation", single, cell_activation=text("gelu"))
        yield layer("weight-rows", single, weight_ih=filled("fp32", 8, 3))
        yield layer("peephole", single, peephole=filled("fp32", 12), clip=const("fp32", 3.0))
        short = {"peephole": filled("fp32", 16), "because": UNCHECKED, "instead": REFUSED}
        yield layer("peephole-long", single, **short)
    else:
        yield layer("activation", single, activation=text("gelu"), because=UNCHECKED, instead=REFUSED)
        yield layer(
            "weight-rows", single, weight_ih=filled("fp32", 5, 3), because=UNCHECKED, instead=REFUSED
        )


def _bidirectional(opset: str) -> Iterator[Instance]:
    def lstm(label: str, **more: Any) -> Instance:
        base = {
            **_operands("lstm", "fp32"),
            "initial_h": tensor("fp32", 2, 8),
            "initial_c": tensor("fp32", 2, 8),
            "weight_ih_back": filled("fp32", 16, 3),
            "weight_hh_back": filled("fp32", 16, 4),
            "direction": text("bidirectional"),
        }
        return instance("lstm", opset, f"bidirectional{label}", **{**base, **more})

    yield lstm("")
    yield lstm("-sequence", output_sequence=TRUE)
    yield lstm("-bias", bias=filled("fp32", 16), bias_back=filled("fp32", 16), peephole_back=filled("fp32", 12))
    yield lstm("-open", x=tensor("fp32", "s0", 2, 3), output_sequence=TRUE)
    yield lstm("-no-weight", weight_ih_back=None)
    yield lstm("-no-hidden-weight", weight_hh_back=None)
    yield lstm("-weight", weight_ih_back=filled("fp32", 8, 3))
    yield lstm("-initial", initial_c=tensor("fp32", 2, 4), because=UNCHECKED, instead=REFUSED)
    yield lstm("-bias-short", bias_back=filled("fp32", 4), because=UNCHECKED, instead=REFUSED)


def _gru_of_ios18() -> Iterator[Instance]:
    single = _operands("gru", "fp32")
    for opset in (IOS17, IOS18):
        yield instance("gru", opset, "reset-after", **single, reset_after=TRUE)
        yield instance("gru", opset, "input-bias", **single, input_bias=filled("fp32", 12))
    short = {"input_bias": filled("fp32", 4), "because": UNCHECKED, "instead": REFUSED}
    yield instance("gru", IOS18, "input-bias-short", **single, **short)
