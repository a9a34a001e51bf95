"""Sizes of traced modules, which tracing notes as tensors of one element, as integers.

`torch.export` knows the value of an integer, but not that of a tensor's element, and gives up where a shape depends on it.
"""

from __future__ import annotations

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Operators of tensors, and the operators of integers that compute the same.
_OPERATORS = {
    "aten::add": "aten::add",
    "aten::sub": "aten::sub",
    "aten::rsub": "aten::sub",
    "aten::mul": "aten::mul",
    "aten::floor_divide": "aten::floordiv",
    "aten::remainder": "aten::remainder",
    "aten::neg": "aten::neg",
}
#: Conversions of tensors to numbers.
_CONVERSIONS = ("aten::Int", "aten::IntImplicit", "aten::ScalarImplicit")


def traced_sizes(value: Any) -> list | None:
    """The shape that a value had when the module was traced; `None` if unknown."""
    kind = value.type()
    return kind.sizes() if kind.kind() == "TensorType" else None


def with_known_sizes(graph: Any, examples: tuple) -> None:
    """Computes what depends on sizes only if integers do, and if a module is converted with the shapes of its trace."""
    import torch

    if not any(node.kind() in _CONVERSIONS and node.output().uses() for node in graph.nodes()):
        return
    # Graphs of modules also have the module as an input.
    sizes = [traced_sizes(value) for value in graph.inputs() if value.type().kind() != "ClassType"]
    if len(sizes) != len(examples) or any(own != list(example.shape) for own, example in zip(sizes, examples)):
        return
    for node in graph.findAllNodes("aten::size"):
        operands = list(node.inputs())
        shape = traced_sizes(operands[0])
        axis = operands[1].toIValue() if len(operands) > 1 else None
        if shape is None or (len(operands) > 1 and axis is None):
            continue
        with graph.insert_point_guard(node):
            node.output().replaceAllUsesWith(graph.insertConstant(shape if len(operands) == 1 else shape[axis]))
    torch._C._jit_pass_constant_propagation(graph)


def with_integer_sizes(graph: Any) -> None:
    """Computes sizes in a TorchScript graph with integers instead of tensors. Results of other operators stay tensors."""
    integers: dict = {}
    for node in list(graph.nodes()):
        kind = node.kind()
        if kind == "prim::NumToTensor" and _is_integer(node.input()):
            integers[node.output().debugName()] = node.input()
        elif kind in _OPERATORS:
            found = _computed(graph, node, integers)
            if found is not None:
                integers[node.output().debugName()] = found
        elif kind in _CONVERSIONS:
            found = integers.get(node.input().debugName())
            if found is not None:
                node.output().replaceAllUsesWith(found)


def with_broadcast_writes(graph: Any) -> None:
    """Writes values as they are where tracing expanded them to the sizes that the written part had: writing expands, too."""
    for node in list(graph.nodes()):
        if node.kind() != "aten::copy_":
            continue
        value = list(node.inputs())[1]
        if value.node().kind() == "aten::expand":
            node.replaceInput(1, next(value.node().inputs()))
        elif value.node().kind() == "prim::Constant" and 0 in value.toIValue().stride():
            tensor = value.toIValue()
            for axis, stride in enumerate(tensor.stride()):
                tensor = tensor if stride else tensor.narrow(axis, 0, 1)
            with graph.insert_point_guard(node):
                node.replaceInput(1, graph.insertConstant(tensor))


#: Our own kind of node, which torch's converter gives to `_scaled`.
_SCALED = "coremill::scaled_size"


def with_scaled_sizes(graph: Any) -> None:
    """Computes the product of a size and a factor, rounded down, with numbers: `interpolate` with `recompute_scale_factor`."""
    from torch._export.converter import kind_to_standard_operators

    kind_to_standard_operators[_SCALED] = _scaled
    for node in list(graph.nodes()):
        if node.kind() not in _CONVERSIONS:
            continue
        floor = _converted(node.input()).node()
        if floor.kind() != "aten::floor":
            continue
        product = _converted(floor.input()).node()
        if product.kind() != "aten::mul":
            continue
        operands = [_converted(value) for value in product.inputs()]
        factors = [_factor(value) for value in operands]
        sizes = [value.node().input() if value.node().kind() == "prim::NumToTensor" else None for value in operands]
        size, factor = (sizes[0], factors[1]) if sizes[0] is not None else (sizes[1], factors[0])
        if size is None or factor is None or not _is_integer(size):
            continue
        with graph.insert_point_guard(node):
            call = graph.create(_SCALED, [size, graph.insertConstant(factor)], 1)
            call.output().setType(size.type())
            graph.insertNode(call)
        node.output().replaceAllUsesWith(call.output())


def _scaled(size: Any, factor: float) -> Any:
    import math

    return math.floor(size * factor)


def _converted(value: Any) -> Any:
    """The operand of conversions between types of floats and devices."""
    while value.node().kind() in ("aten::to", "aten::detach"):
        value = next(value.node().inputs())
    return value


def _factor(value: Any) -> float | None:
    """A constant of one element as the module's code has it: tracing stores 3.6 as the nearest number in fp32."""
    import torch

    constant = value.toIValue() if value.node().kind() == "prim::Constant" else None
    if not isinstance(constant, torch.Tensor) or constant.ndim or not constant.is_floating_point():
        return None
    return float(str(constant.numpy())) if constant.dtype in (torch.float16, torch.float32) else float(constant)


def _is_integer(value: Any) -> bool:
    return value.type().kind() == "IntType"


def _computed(graph: Any, node: Any, integers: dict) -> Any:
    """The integer that a call computes from integers; `None` if it computes anything else."""
    operands = list(node.inputs())
    if node.kind() in ("aten::add", "aten::sub", "aten::rsub"):
        factor = operands.pop()
        if factor.toIValue() != 1:
            return None
    if all(_is_integer(operand) for operand in operands):
        # An operator of numbers already.
        return None
    with graph.insert_point_guard(node):
        values = [_integer(graph, operand, integers) for operand in operands]
        if any(value is None for value in values):
            return None
        if node.kind() == "aten::rsub":
            values.reverse()
        call = graph.create(_OPERATORS[node.kind()], values, 1)
        call.output().setType(values[0].type())
        graph.insertNode(call)
    return call.output()


def _integer(graph: Any, value: Any, integers: dict) -> Any:
    """An operand as an integer, `None` if it is a tensor of unknown elements."""
    import torch

    if _is_integer(value):
        return value
    constant = value.toIValue()
    if type(constant) is int:
        # torch reads some constants of tensors as numbers.
        return graph.insertConstant(constant)
    if isinstance(constant, torch.Tensor) and constant.ndim == 0 and constant.dtype in (torch.int64, torch.int32):
        return graph.insertConstant(int(constant))
    return integers.get(value.debugName())
