"""Deprecated names of the compression of weights."""

from __future__ import annotations

import importlib

from ..._missing import unsupported_name

__all__ = ["compression_utils"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return importlib.import_module(f".{name}", __name__)
    raise unsupported_name("coremltools.models.ml_program", name)
