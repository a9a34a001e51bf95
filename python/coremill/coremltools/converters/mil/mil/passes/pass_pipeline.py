"""Pipelines of passes, where coremltools has them as well."""

from ....._passes import PassPipeline

__all__ = ["PassPipeline"]
