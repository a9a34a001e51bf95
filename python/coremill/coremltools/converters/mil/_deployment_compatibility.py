"""Deployment targets, where coremltools has them as well."""

from ..._types import target as AvailableTarget

__all__ = ["AvailableTarget"]
