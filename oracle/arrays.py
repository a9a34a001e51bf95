"""What modules give, as tensors and as numpy has them."""

from typing import Any

import numpy
import torch
from torch.utils import _pytree


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The results in order, numbers among them."""
    return [torch.as_tensor(one).detach().clone() for one in _pytree.tree_leaves(value) if one is not None]


def array(tensor: torch.Tensor) -> numpy.ndarray:
    """As numpy has it: bf16, which numpy has not, widened; complex numbers as pairs."""
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.numpy()
