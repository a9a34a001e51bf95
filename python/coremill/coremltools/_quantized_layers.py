"""Quantized layers of traced modules while torch's converter replaces them by layers of floats between quantizations."""

from __future__ import annotations

import contextlib

from ._checks import at_least

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


@contextlib.contextmanager
def with_integers(release: str | None) -> Iterator[None]:
    """Weights stay integers, and quantizations are operators instead of their arithmetic, if the release has these."""
    import importlib

    import torch
    from torch._export import converter
    from torch._export.passes import replace_quantized_ops_with_standard_ops_pass as layers

    # Registers the operators.
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    operators = torch.ops.quantized_decomposed
    replacements: list = [(converter, "replace_quantized_ops_with_standard_ops", _replaced)]
    if release is None or at_least(release, 16):
        replacements.append((layers, "insert_weight_and_bias_get_attr_node", _parameters))
    if release is None or at_least(release, 17):
        replacements.append((layers, "quantize_per_tensor", operators.quantize_per_tensor))
        replacements.append((layers, "dequantize_per_tensor", operators.dequantize_per_tensor))
    kept = [(module, name, getattr(module, name)) for module, name, _ in replacements]
    try:
        for module, name, function in replacements:
            setattr(module, name, function)
        yield
    finally:
        for module, name, function in kept:
            setattr(module, name, function)


def _replaced(module: Any) -> None:
    """Replaces the layers of a module of `torch.fx`.

    Each dequantization returns its own operand. torch takes the result of the last quantized layer, whichever that is.
    """
    import torch
    from torch._export.passes import replace_quantized_ops_with_standard_ops_pass as layers

    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.dequantize.self):
        node.replace_all_uses_with(node.args[0])
        module.graph.erase_node(node)
    layers.replace_quantized_ops_with_standard_ops(module)
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.quantize_per_tensor.default):
        if not node.users:
            module.graph.erase_node(node)


def _parameters(module: Any, weight: Any, bias: Any, weight_name: str, bias_name: str) -> tuple:
    """The dequantized weight and the bias of a layer."""
    import torch
    from torch._export.passes import replace_quantized_ops_with_standard_ops_pass as layers

    def attribute(name: str, tensor: Any) -> Any:
        layers._assign_attr(tensor, module, name)
        return module.graph.get_attr(name)

    integers = weight.int_repr()
    limits = torch.iinfo(integers.dtype)
    operators = torch.ops.quantized_decomposed
    if weight.qscheme() in (torch.per_channel_affine, torch.per_channel_symmetric):
        dequantize = operators.dequantize_per_channel
        place = [
            attribute(f"{weight_name}_scale", weight.q_per_channel_scales().float()),
            attribute(f"{weight_name}_zero_point", weight.q_per_channel_zero_points().to(torch.int64)),
            weight.q_per_channel_axis(),
        ]
    else:
        dequantize, place = operators.dequantize_per_tensor, [weight.q_scale(), weight.q_zero_point()]
    arguments = (attribute(weight_name, integers), *place, limits.min, limits.max, integers.dtype)
    dequantized = module.graph.call_function(dequantize, arguments)
    return dequantized, None if bias is None else attribute(bias_name, bias)
