"""Recurrent layers and cells."""

import itertools
from collections.abc import Iterator
from typing import Any

from torch import nn

from .case import Case, Weight, case, name_of, real

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn_tanh": nn.RNN, "rnn_relu": nn.RNN}


def layer(name: str, shape: tuple[int, ...], **options: Any) -> Case:
    """A torch layer with its own weights."""
    if name == "rnn_relu":
        options["nonlinearity"] = "relu"
    module = KINDS[name](4, 5, **options).eval().requires_grad_(False)
    inputs = (real(*shape),)
    return Case(name_of(f"aten.{name}.input", inputs), f"aten.{name}.input", module, inputs)


def cases() -> Iterator[Case]:
    for name, both, deep, first, bias in itertools.product(KINDS, (False, True), (1, 2), (False, True), (True, False)):
        shape = (2, 6, 4) if first else (6, 2, 4)
        yield layer(name, shape, bidirectional=both, num_layers=deep, batch_first=first, bias=bias)
    for name in KINDS:
        yield layer(name, (6, 4))
        yield layer(name, (1, 2, 4))
        yield layer(name, (6, 1, 4))
    for size in (3, 2):
        yield layer("lstm", (6, 2, 4), proj_size=size)
    for gates, name in ((4, "lstm_cell"), (3, "gru_cell"), (1, "rnn_tanh_cell"), (1, "rnn_relu_cell")):
        for bias in (True, False):
            weights = [Weight(real(gates * 5, 4, scale=0.5)), Weight(real(gates * 5, 5, scale=0.5))]
            weights += [Weight(real(gates * 5, scale=0.5)) for _ in range(2)] if bias else []
            state: Any = [real(3, 5), real(3, 5)] if name == "lstm_cell" else real(3, 5)
            yield case(f"aten.{name}.default", real(3, 4), state, *weights)
    for gates, name in ((4, "lstm"), (3, "gru"), (1, "rnn_tanh")):
        weights = [
            Weight(real(gates * 5, 4, scale=0.5)),
            Weight(real(gates * 5, 5, scale=0.5)),
            Weight(real(gates * 5, scale=0.5)),
            Weight(real(gates * 5, scale=0.5)),
        ]
        state = [real(1, 2, 5), real(1, 2, 5)] if name == "lstm" else real(1, 2, 5)
        yield case(f"aten.{name}.input", real(6, 2, 4), state, weights, True, 1, 0.0, False, False, False)
        yield case(f"aten.{name}.input", real(2, 6, 4), state, weights, True, 1, 0.0, False, False, True)
