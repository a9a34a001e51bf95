"""Weights that torch packs for its own products with 4-bit integers, as integers with scales."""

from __future__ import annotations

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PRODUCTS = ("_weight_int4pack_mm_for_cpu", "_weight_int4pack_mm")
_PACKERS = ("_convert_weight_to_int4pack_for_cpu", "_convert_weight_to_int4pack")


def without_packed_weights(program: Any) -> Any:
    """The exported program with linear layers instead of products with packed weights; the program itself if it has none.

    The layout depends on the processor, so the weights are read through the product with the identity.
    """
    if not any(_name(node) in _PRODUCTS for node in program.graph.nodes):
        return program
    import copy
    import importlib

    import torch

    # Registers the operators.
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    module = copy.deepcopy(program.graph_module)
    signature = copy.deepcopy(program.graph_signature)
    constants = dict(program.constants)
    known = _Constants(program)
    for node in list(module.graph.nodes):
        if _name(node) not in _PRODUCTS:
            continue
        x, packed, group, scales = node.args
        weight, scales = known.value(packed), known.value(scales)
        if weight is None or scales is None:
            continue
        codes, scale, zero_point = _unpacked(node.target, x.meta["val"].shape[-1], weight, group, scales)
        inputs = []
        for kind, tensor in (("codes", codes), ("scale", scale), ("zero_point", zero_point)):
            name = f"{node.name}_{kind}"
            constants[name] = tensor
            inputs.append(_input(module.graph, signature, name, tensor, x.meta["val"].fake_mode))
        dtype = x.meta["val"].dtype
        with module.graph.inserting_before(node):
            dequantize = torch.ops.quantized_decomposed.dequantize_per_channel_group.default
            arguments = (*inputs, 0, 15, torch.uint8, group, dtype)
            dequantized = module.graph.call_function(dequantize, arguments)
            dequantized.meta["val"] = x.meta["val"].new_empty(codes.shape)
        # The node keeps its name, which outputs of the program have.
        node.target = torch.ops.aten.linear.default
        node.args = (x, dequantized)
    module.graph.eliminate_dead_code()
    module.recompile()
    return program._update(module, signature, constants=constants)


def _name(node: Any) -> str:
    """The name of the operator that a node of the graph calls."""
    return getattr(node.target, "__name__", "").partition(".")[0] if node.op == "call_function" else ""


class _Constants:
    """The tensors of a program that do not depend on its inputs."""

    def __init__(self, program: Any) -> None:
        self._tensors = {**program.constants, **program.state_dict}
        self._targets = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target is not None}

    def value(self, node: Any) -> Any:
        """The tensor of a node, computed if the node packs a constant; `None` if it depends on the inputs."""
        import torch

        if node.op == "placeholder":
            return self._tensors.get(self._targets.get(node.name))
        if _name(node) not in (*_PACKERS, "to", "_to_copy", "lift_fresh_copy", "clone", "detach"):
            return None
        arguments = [self.value(one) if isinstance(one, torch.fx.Node) else one for one in node.args]
        if any(one is None for one in arguments):
            return None
        with torch.no_grad():
            return node.target(*arguments, **node.kwargs)


def _unpacked(product: Any, size: int, weight: Any, group: int, scales: Any) -> tuple:
    """Codes from 0 to 15, scales, and zero points: an element is `(code - zero_point) * scale`."""
    import torch

    with torch.no_grad():
        pairs = scales.float()
        elements = product(torch.eye(size), weight, group, pairs).t().contiguous()
        scale, offset = (pairs[:, :, at].t().contiguous() for at in (0, 1))
        grouped = elements.unflatten(1, (-1, group))
        # torch's element is `(code - 8) * scale + offset`.
        codes = torch.round((grouped - offset[:, :, None]) / scale[:, :, None] + 8).clamp(0, 15)
        zero_point = 8 - offset / scale
        if torch.equal(zero_point, zero_point.round()):
            zero_point = zero_point.to(torch.int32)
    return codes.flatten(1).to(torch.uint8), scale, zero_point


def _input(graph: Any, signature: Any, name: str, tensor: Any, mode: Any) -> Any:
    """Adds a constant to a graph and its signature."""
    from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

    first = next(iter(graph.nodes))
    with graph.inserting_before(first):
        node = graph.placeholder(name)
    node.meta["val"] = mode.from_tensor(tensor)
    signature.input_specs.insert(0, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), name))
    return node
