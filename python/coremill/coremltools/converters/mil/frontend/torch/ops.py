"""Helpers of coremltools' operators, which scripts import and replace; none is called."""

from __future__ import annotations

from ....._absent import absent_names
from .torch_op_registry import _TORCH_OPS_REGISTRY, LOWERED, register_torch_op

__all__ = ["_TORCH_OPS_REGISTRY", "register_torch_op"]

__getattr__ = absent_names(__name__, hint=LOWERED)
