"""Creates Core ML models of partitions."""

from .coreml_preprocess import CoreMLBackend

__all__ = ["CoreMLBackend"]
