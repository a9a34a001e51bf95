"""Which parts of a program Core ML runs."""

from .coreml_partitioner import CoreMLPartitioner

__all__ = ["CoreMLPartitioner"]
