"""Front ends of coremltools that scripts import."""

from . import torch

__all__ = ["torch"]
