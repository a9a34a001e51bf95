"""Which parts of a program Core ML runs."""

from .._direct import attach
from .coreml_partitioner import CoreMLPartitioner

attach()

__all__ = ["CoreMLPartitioner"]
