"""Compression of weights."""

from __future__ import annotations

import importlib

from .._missing import unsupported_name

__all__ = ["coreml"]


def __getattr__(name: str) -> object:
    if name == "coreml":
        return importlib.import_module(".coreml", __name__)
    if name == "torch":
        try:
            return importlib.import_module("coremltools.optimize.torch")
        except ModuleNotFoundError as error:
            raise unsupported_name("coremltools.optimize", name) from error
    raise unsupported_name("coremltools.optimize", name)
