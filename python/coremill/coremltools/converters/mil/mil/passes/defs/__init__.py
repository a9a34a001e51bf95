"""Passes of coremltools that scripts import."""

from . import quantization

__all__ = ["quantization"]
