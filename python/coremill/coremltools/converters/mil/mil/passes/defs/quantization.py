"""The precision of a conversion."""

from ......_passes import FP16ComputePrecision

__all__ = ["FP16ComputePrecision"]
