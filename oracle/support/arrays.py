"""Converts the results of modules to tensors and numpy arrays."""

from typing import Any

import numpy
import torch
from torch.utils import _pytree


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The result's leaves in order; numbers become tensors."""
    return [torch.as_tensor(one).detach().clone() for one in _pytree.tree_leaves(value) if one is not None]


def array(tensor: torch.Tensor) -> numpy.ndarray:
    """A numpy array: bf16, which numpy lacks, becomes fp32; complex numbers become pairs."""
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.numpy()
