"""Compression of weights."""

from __future__ import annotations

import importlib

from .._missing import unsupported_name

__all__ = ["coreml"]


def __getattr__(name: str) -> object:
    if name == "coreml":
        return importlib.import_module(".coreml", __name__)
    raise unsupported_name("coremltools.optimize", name)
