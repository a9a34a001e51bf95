"""Models that predict, and what edits them."""

from __future__ import annotations

import importlib

from .._missing import unsupported_name

_LAZY = {
    "MLModel": ".model",
    "CompiledMLModel": "._compiled_model",
    "MLState": ".model",
}
_MODULES = ("compute_device", "compute_plan", "datatypes", "ml_program", "model", "neural_network", "pipeline", "utils")

__all__ = [*_LAZY, *_MODULES]


def __getattr__(name: str) -> object:
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name], __name__), name)
    elif name in _MODULES:
        value = importlib.import_module(f".{name}", __name__)
    else:
        raise unsupported_name("coremltools.models", name)
    globals()[name] = value
    return value
