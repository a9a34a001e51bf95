"""Deprecated names: `coremltools.optimize.coreml` has them."""

from __future__ import annotations

from ...._missing import unsupported_name
from .. import OpLinearQuantizerConfig as OpActivationLinearQuantizerConfig
from .. import linear_quantize_activations

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["OpActivationLinearQuantizerConfig", "linear_quantize_activations"]


def __getattr__(name: str) -> Any:
    raise unsupported_name("coremltools.optimize.coreml.experimental", name)
