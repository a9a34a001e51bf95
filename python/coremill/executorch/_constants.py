"""Constant methods that return tensors, lists and other structures."""

from typing import Any, Dict, List

import torch
from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary
from executorch.exir.capture._config import ExecutorchBackendConfig
from executorch.exir.schema import (
    Bool,
    Buffer,
    Chain,
    ContainerMetadata,
    Double,
    EValue,
    ExecutionPlan,
    Int,
    String,
)
from executorch.exir.tensor import TensorSpec, layout_enum, make_tensor_value, scalar_type_enum
from executorch.extension.pytree import tree_flatten

#: Types that a ``.pte`` file stores without a buffer.
_SCALARS = {
    bool: lambda value: Bool(value),
    int: lambda value: Int(value),
    float: lambda value: Double(value),
    str: lambda value: String(value),
    torch.dtype: lambda value: Int(scalar_type_enum(value)),
    torch.layout: lambda value: Int(layout_enum(value)),
}


def is_storable(value: Any) -> bool:
    """Whether :func:`with_constants` stores a value as ExecuTorch does."""
    return all(type(leaf) in _SCALARS or _is_plain(leaf) for leaf in tree_flatten(value)[0])


def _is_plain(value: Any) -> bool:
    """Whether a value is a dense CPU tensor that covers its storage."""
    return (
        type(value) is torch.Tensor
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not value.is_quantized
        and not value.requires_grad
        and value.is_contiguous()
        and value.numel() > 0
        and value.untyped_storage().nbytes() == value.nbytes
    )


def with_constants(data: bytes, constants: Dict[str, Any]) -> bytes:
    """Append methods that return constants to the file of a program."""
    file = deserialize_pte_binary(data)
    buffers = file.program.constant_buffer
    if not buffers:
        # Index 0 means that a tensor has no data.
        buffers.append(Buffer(storage=b""))
    indices: Dict[bytes, int] = {}
    for name, value in constants.items():
        file.program.execution_plan.append(_plan(name, value, buffers, indices))
    config = ExecutorchBackendConfig()
    return bytes(
        serialize_pte_binary(
            file,
            extract_delegate_segments=config.extract_delegate_segments,
            segment_alignment=config.segment_alignment,
            constant_tensor_alignment=config.constant_tensor_alignment,
            delegate_alignment=config.delegate_alignment,
        )
    )


def _plan(name: str, value: Any, buffers: List[Buffer], indices: Dict[bytes, int]) -> ExecutionPlan:
    leaves, structure = tree_flatten(value)
    values = [
        EValue(_tensor(leaf, buffers, indices) if isinstance(leaf, torch.Tensor) else _SCALARS[type(leaf)](leaf))
        for leaf in leaves
    ]
    return ExecutionPlan(
        name=name,
        container_meta_type=ContainerMetadata("", structure.to_str()),
        values=values,
        inputs=[],
        outputs=list(range(len(values))),
        chains=[Chain(inputs=[], outputs=[], instructions=[], stacktrace=None)],
        operators=[],
        delegates=[],
        non_const_buffer_sizes=[0],
    )


def _tensor(value: torch.Tensor, buffers: List[Buffer], indices: Dict[bytes, int]) -> Any:
    """Store a tensor. Equal contents share a buffer."""
    content = value.reshape(-1).view(torch.uint8).numpy().tobytes()
    if content not in indices:
        indices[content] = len(buffers)
        buffers.append(Buffer(storage=content))
    return make_tensor_value(indices[content], None, TensorSpec.from_tensor(value, const=True))
