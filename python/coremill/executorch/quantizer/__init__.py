"""Which weights and activations are quantized."""

from .coreml_quantizer import CoreMLQuantizer

__all__ = ["CoreMLQuantizer"]
