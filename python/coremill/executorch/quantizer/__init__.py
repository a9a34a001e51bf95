"""Selects the weights and activations to quantize."""

from .coreml_quantizer import CoreMLQuantizer

__all__ = ["CoreMLQuantizer"]
