"""Constant masks of traced modules as indices.

`torch.export` takes the number of selected elements for unknown, even if the mask is a constant.
"""

from __future__ import annotations

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SELECTIONS = ("aten::index", "aten::index_put", "aten::index_put_")


def with_constant_indices(graph: Any) -> None:
    """Replaces constant masks in a TorchScript graph by the indices of the elements that they select."""
    import torch

    optional = torch._C.OptionalType(torch._C.TensorType.get())
    for node in graph.nodes():
        if node.kind() not in _SELECTIONS:
            continue
        selection = list(node.inputs())[1]
        known = selection.toIValue()
        if known is None and selection.node().kind() == "prim::ListConstruct":
            known = [value.toIValue() if _is_constant(value) else value for value in selection.node().inputs()]
        if known is None or not any(_is_mask(one) for one in known):
            continue
        with graph.insert_point_guard(node):
            values = []
            for one in known:
                if _is_mask(one):
                    values += [graph.insertConstant(index) for index in one.nonzero(as_tuple=True)]
                elif one is None or isinstance(one, torch.Tensor):
                    values.append(graph.insertConstant(one))
                else:
                    values.append(one)
            indices = graph.create("prim::ListConstruct", values, 1)
            indices.output().setType(torch._C.ListType(optional))
            graph.insertNode(indices)
        node.replaceInput(1, indices.output())


def _is_constant(value: Any) -> bool:
    return value.node().kind() == "prim::Constant"


def _is_mask(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.dtype == torch.bool
