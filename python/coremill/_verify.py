"""Verification of converted models against eager torch."""

from __future__ import annotations

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from coremill import _native

#: The bound of `verify=True`, in parts of an output's largest element.
BOUND = 1e-2
HINT = (
    'pass `precision="auto"` or `precision="fp32"`, or find the operations that differ with `compare(..., per_op=True)`, '
    "and keep them in fp32 with `fp32_values`, `fp32_modules` or `fp32_ops`"
)


def agrees_with_torch(
    model: _native.Model, example: tuple[list, list], bound: float, numerics: str = "rounded"
) -> bool:
    """Compares a model with the inputs and outputs that `torch_example` returned.

    Returns `False` if the model's inputs and outputs are not the same tensors. Raises `VerificationError` if an output is off.
    """
    function = model.inspect()["functions"][0]
    if len(example[0]) != len(function["inputs"]) or len(example[1]) != len(function["outputs"]):
        return False
    from coremill import _errors, _reports

    inputs = {feature["name"]: array for feature, array in zip(function["inputs"], example[0])}
    try:
        found = model.session(numerics=numerics).predict(inputs)
    except _errors.RunError:
        return False
    expected = {}
    for feature, array in zip(function["outputs"], example[1]):
        name = feature["name"]
        if array.size != found[name].size:
            return False
        expected[name] = array.reshape(found[name].shape)
    comparison = _reports.compare(expected, found, {}, bound=bound)
    for name, is_within in comparison.within.items():
        if is_within:
            continue
        figures = comparison[name]
        how = f"the relative error is {figures['max_relative']:.2e}"
        if figures.get("unlike"):
            how = f"{figures['unlike']} elements are finite in only one result"
        message = f"output `{name}` differs from torch: {how}; the bound is {bound:g}"
        raise _errors.VerificationError(message, hint=HINT)
    return True


def torch_example(program: Any) -> tuple[list, list] | None:
    """Example inputs of a program, and the outputs of eager torch.

    Returns `None` for a program that is not in memory, writes to buffers, draws random numbers, or has no arrays.
    """
    if not all(hasattr(program, name) for name in ("graph_signature", "example_inputs", "module")):
        return None
    import torch
    from torch.utils._pytree import tree_leaves, tree_map

    signature = program.graph_signature
    if program.example_inputs is None or signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        return None
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    targets = [node.target for graph in graphs for node in graph.nodes]
    if any(torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()) for target in targets):
        return None
    # A program before functionalization may write to its buffers without saying so in its signature.
    writes = any(getattr(getattr(target, "_schema", None), "is_mutable", False) for target in targets)
    tensors = {**program.constants, **program.state_dict}
    buffers = [tensors[name] for name in signature.buffers if name in tensors] if writes else []
    before = [buffer.clone() for buffer in buffers]
    args, kwargs = program.example_inputs
    inputs = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs)) if writes else (args, kwargs)
    with torch.no_grad():
        results = program.module()(*inputs[0], **inputs[1])
        changed = [not torch.equal(buffer, copy) for buffer, copy in zip(buffers, before)]
        for buffer, copy in zip(buffers, before):
            buffer.copy_(copy)
    if any(changed):
        return None
    both = []
    for leaves in (tree_leaves((args, kwargs)), tree_leaves(results)):
        tensors = [leaf for leaf in leaves if leaf is not None]
        if not all(isinstance(leaf, torch.Tensor) and not leaf.is_complex() for leaf in tensors):
            return None
        narrow = [leaf.float() if leaf.dtype == torch.bfloat16 else leaf for leaf in tensors]
        both.append([leaf.detach().cpu().numpy() for leaf in narrow])
    return both[0], both[1]
