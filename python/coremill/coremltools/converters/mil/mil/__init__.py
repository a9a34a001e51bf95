"""The builder of coremltools' converter, which can be imported and not used."""

from __future__ import annotations

from ...._absent import absent_names
from . import passes, scope, types

__all__ = ["passes", "scope", "types"]

__getattr__ = absent_names(
    __name__,
    ("Block", "Builder", "Function", "InternalVar", "Operation", "Placeholder", "Program", "Symbol", "Var", "get_new_symbol"),
)
