"""Selects the parts of a program that run on Core ML."""

from .._direct import attach
from .coreml_partitioner import CoreMLPartitioner

attach()

__all__ = ["CoreMLPartitioner"]
