"""What scripts import from coremltools' converter: operators can be registered, and the builder cannot be used."""

from __future__ import annotations

from ..._absent import absent_names
from . import frontend, mil
from .frontend.torch import register_torch_op
from .mil import types

__all__ = ["frontend", "mil", "register_torch_op", "types"]

__getattr__ = absent_names(
    __name__,
    ("Block", "Builder", "Function", "InternalVar", "Placeholder", "Program", "Symbol", "Var", "get_new_symbol"),
)
