"""What makes Core ML models of the parts that Core ML runs."""

from .coreml_preprocess import CoreMLBackend

__all__ = ["CoreMLBackend"]
