"""Neural networks, which scripts import for models of older releases: names can be imported, and not used."""

from __future__ import annotations

from ..._absent import absent_names
from . import quantization_utils

__all__ = ["quantization_utils"]

__getattr__ = absent_names(__name__, ("NeuralNetworkBuilder", "AdamParams", "SgdParams", "neural_network"))
