"""Lowerings that coremltools 9.0 lacks, or that fail with the pinned torch and numpy.

Importing this module adds them to coremltools' registry. They only enable conversions; no test depends on their
results.
"""

from typing import Any

import numpy
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.frontend.torch import ops
from coremltools.converters.mil.frontend.torch.torch_op_registry import register_torch_op
from coremltools.converters.mil.frontend.torch.utils import NUM_TO_NUMPY_DTYPE
from coremltools.converters.mil.mil import types


def cast_to_number(context: Any, node: Any, convert: type, name: str) -> None:
    """Converts a tensor of one element to a number; numpy from 2.4 on converts only arrays of rank 0."""
    tensor = context[node.inputs[0]]
    if tensor.val is not None:
        number = mb.const(val=convert(numpy.asarray(tensor.val).item()), name=node.name)
    else:
        number = mb.squeeze(x=tensor) if tensor.rank > 0 else tensor
        number = mb.cast(x=number, dtype=name, name=node.name)
    context.add(number, node.name)


# `int` and `bool` both use this function.
ops._cast = cast_to_number


@register_torch_op
def new_ones(context: Any, node: Any) -> None:
    """A tensor of ones with the requested type, else with that of its operand."""
    like, shape = context[node.inputs[0]], context[node.inputs[1]]
    if isinstance(shape, list):
        shape = mb.concat(values=[mb.expand_dims(x=one, axes=[0]) for one in shape], axis=0)
    asked = context[node.inputs[2]] if len(node.inputs) > 2 else None
    kind = types.nptype_from_builtin(like.dtype)
    if asked is not None and asked.val is not None:
        kind = NUM_TO_NUMPY_DTYPE[asked.val]
    one = numpy.ones((), kind)
    ones = mb.const(val=one, name=node.name) if shape.shape == (0,) else mb.fill(shape=shape, value=one, name=node.name)
    context.add(ones, node.name)


@register_torch_op
def diff(context: Any, node: Any) -> None:
    """Differences of neighbors along the last dimension, with an optional tensor to prepend."""
    tensor = context[node.inputs[0]]
    before = context[node.inputs[3]] if len(node.inputs) > 3 else None
    if before is not None:
        tensor = mb.concat(values=[before, tensor], axis=-1)
    rank, length = tensor.rank, tensor.shape[-1]
    sizes = [*tensor.shape[:-1], length - 1]
    later = mb.slice_by_size(x=tensor, begin=[0] * (rank - 1) + [1], size=sizes)
    earlier = mb.slice_by_size(x=tensor, begin=[0] * rank, size=sizes)
    context.add(mb.sub(x=later, y=earlier, name=node.name), node.name)
