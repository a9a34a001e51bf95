"""Passes of coremltools that scripts import."""

from . import defs

__all__ = ["defs"]
