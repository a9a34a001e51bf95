"""Quantized tensors of traced modules, which `torch.export` cannot trace, as integers with a scale and a zero point."""

from __future__ import annotations

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_DEQUANTIZE = "aten::dequantize"
_QUANTIZE = ("aten::quantize_per_tensor", "aten::quantize_per_channel")


class QuantizationError(ValueError):
    """A quantized type that Core ML does not have."""


def without_quantized_tensors(graph: Any, parameters: dict) -> list:
    """Replaces quantized tensors of a TorchScript graph that are only dequantized.

    `parameters` are the tensors of the module by name. Returns the names of those that the graph no longer uses. torch
    replaces the quantized tensors that quantized layers use.
    """
    for node in [node for node in graph.nodes() if node.kind() in _QUANTIZE]:
        _replace(node.output(), lambda node=node: _computed(graph, node, parameters))
    replaced = []
    for node in [node for node in graph.nodes() if node.kind() == "prim::GetAttr"]:
        name = _name(node)
        tensor = parameters.get(name)
        if tensor is None or not tensor.is_quantized:
            continue
        if _replace(node.output(), lambda node=node, tensor=tensor: _stored(graph, node, tensor)):
            replaced.append(name)
    for node in [node for node in graph.nodes() if node.kind() == "prim::Constant"]:
        # torch folds the quantization of constants.
        tensor = node.t("value") if node.hasAttribute("value") and node.kindOf("value") == "t" else None
        if tensor is not None and tensor.is_quantized:
            _replace(node.output(), lambda node=node, tensor=tensor: _stored(graph, node, tensor))
    for at, value in reversed(list(enumerate(graph.inputs()))):
        if value.debugName() in replaced and not value.uses():
            graph.eraseInput(at)
    return replaced


def _name(node: Any) -> str:
    """The name of a tensor in its module."""
    names = []
    while node.kind() == "prim::GetAttr":
        names.append(node.s("name"))
        node = node.input().node()
    return ".".join(reversed(names))


def _replace(value: Any, dequantized: Any) -> bool:
    """Replaces the dequantized values of a value if all its uses are these; whether it did."""
    uses = [use.user for use in value.uses()]
    if not uses or any(user.kind() != _DEQUANTIZE for user in uses):
        return False
    replacement = dequantized()
    if replacement is None:
        return False
    for user in uses:
        user.output().replaceAllUsesWith(replacement)
        user.destroy()
    value.node().destroy()
    return True


def _computed(graph: Any, node: Any, tensors: dict) -> Any:
    """The dequantized result of a quantization; `None` unless its parameters are constants or tensors of the module."""
    import torch

    x, *parameters = node.inputs()
    values = [_known(parameter, tensors) for parameter in parameters]
    if any(value is None for value in values):
        return None
    scale, zero_point, *axis, dtype = values
    dtype = _storage(dtype)
    weight = _known(x, tensors)
    stored = {torch.uint8: torch.quint8, torch.int8: torch.qint8}.get(dtype)
    if stored is not None and isinstance(weight, torch.Tensor):
        quantize = torch.quantize_per_channel if axis else torch.quantize_per_tensor
        return _stored(graph, node, quantize(weight.detach(), scale, zero_point, *axis, stored))
    place = _place(scale, zero_point, axis[0] if axis else None)
    kind = "channel" if axis else "tensor"
    code = {torch.uint8: 0, torch.int8: 1}[dtype]
    limits = torch.iinfo(dtype)
    quantized = _call(graph, node, f"quantize_per_{kind}", x, [*place, limits.min, limits.max, code])
    return _call(graph, node, f"dequantize_per_{kind}", quantized, [*place, limits.min, limits.max, code, None])


def _known(value: Any, tensors: dict) -> Any:
    """The value of a constant or of a tensor of the module; `None` for any other."""
    if value.node().kind() == "prim::GetAttr":
        return tensors.get(_name(value.node()))
    return value.toIValue()


def _stored(graph: Any, node: Any, value: Any) -> Any:
    """The dequantized value of a quantized tensor that a module holds."""
    import torch

    dtype = _storage(value.dtype)
    if value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        kind, place = "tensor", _place(value.q_scale(), value.q_zero_point(), None)
    else:
        parameters = value.q_per_channel_scales(), value.q_per_channel_zero_points()
        kind, place = "channel", _place(*parameters, value.q_per_channel_axis())
    with graph.insert_point_guard(node):
        integers = graph.insertConstant(value.int_repr())
    limits = torch.iinfo(dtype)
    code = {torch.uint8: 0, torch.int8: 1}[dtype]
    return _call(graph, node, f"dequantize_per_{kind}", integers, [*place, limits.min, limits.max, code, None])


def _storage(dtype: Any) -> Any:
    """The integers that store a quantized type."""
    import torch

    known = {13: torch.uint8, 12: torch.int8, torch.quint8: torch.uint8, torch.qint8: torch.int8}
    if dtype not in known:
        raise QuantizationError(
            f"MIL quantization dtype must be int8 or uint8, got {'qint32' if dtype == 14 else dtype}\n"
            "hint: quantize to `torch.qint8` or `torch.quint8`"
        )
    return known[dtype]


def _place(scale: Any, zero_point: Any, axis: int | None) -> list:
    """Scale and zero point, and the axis of channels, as the decomposed operators take them."""
    import torch

    if axis is not None:
        return [scale.float(), zero_point.to(torch.int64), axis]
    return [float(scale), int(zero_point)]


def _call(graph: Any, before: Any, name: str, x: Any, arguments: list) -> Any:
    """Inserts a call of a decomposed quantization operator."""
    import importlib

    # Registers the operators.
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    with graph.insert_point_guard(before):
        constants = [graph.insertConstant(argument) for argument in arguments]
        call = graph.create(f"quantized_decomposed::{name}", [x, *constants], 1)
        graph.insertNode(call)
    return call.output()
