"""The types of `convert`'s arguments, where coremltools has them as well."""

from ..._types import ClassifierConfig, EnumeratedShapes, ImageType, RangeDim, Shape, StateType, TensorType

__all__ = ["ClassifierConfig", "EnumeratedShapes", "ImageType", "RangeDim", "Shape", "StateType", "TensorType"]
