"""Registration of operators, as in coremltools' front end of torch."""

from . import ops, torch_op_registry
from .torch_op_registry import register_torch_op

__all__ = ["ops", "register_torch_op", "torch_op_registry"]
