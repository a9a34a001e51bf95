"""Recurrent layers while modules are exported: their length stays open.

torch computes the types of their results step by step, which fixes the number of steps.
"""

from __future__ import annotations

import contextlib

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


@contextlib.contextmanager
def with_open_lengths() -> Iterator[None]:
    """torch takes the types of results of recurrent layers from here."""
    import torch
    from torch._C import DispatchKey

    types = {
        torch.ops.aten.lstm.input: _lstm,
        torch.ops.aten.gru.input: _with_one_state,
        torch.ops.aten.rnn_tanh.input: _with_one_state,
        torch.ops.aten.rnn_relu.input: _with_one_state,
    }
    keys = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)
    kept = {op: dict(op.py_kernels) for op in types}
    try:
        for op, function in types.items():
            op.py_kernels.update(dict.fromkeys(keys, function))
            op._dispatch_cache.clear()
        yield
    finally:
        for op, kernels in kept.items():
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()


def _lstm(
    x: Any, states: Any, weights: Any, has_biases: bool, layers: int, dropout: float, train: bool, both: bool, batch_first: bool
) -> tuple:
    hidden, cell = states
    return _output(x, hidden, both), hidden.new_empty(hidden.shape), cell.new_empty(cell.shape)


def _with_one_state(
    x: Any, hidden: Any, weights: Any, has_biases: bool, layers: int, dropout: float, train: bool, both: bool, batch_first: bool
) -> tuple:
    return _output(x, hidden, both), hidden.new_empty(hidden.shape)


def _output(x: Any, hidden: Any, both: bool) -> Any:
    return x.new_empty((*x.shape[:-1], hidden.shape[-1] * (2 if both else 1)))
