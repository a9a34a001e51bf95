"""`convert`, and the types of its arguments, where coremltools has them as well."""

from __future__ import annotations

import importlib

from .._missing import unsupported_name

_TYPES = (
    "ClassifierConfig",
    "EnumeratedShapes",
    "ImageType",
    "RangeDim",
    "Shape",
    "StateType",
    "TensorType",
)


def __getattr__(name: str) -> object:
    if name in _TYPES:
        return getattr(importlib.import_module(".._types", __name__), name)
    if name == "ColorLayout":
        return importlib.import_module(".._types", __name__).colorlayout
    if name == "convert":
        return importlib.import_module(".._convert", __name__).convert
    if name == "mil":
        return importlib.import_module(".mil", __name__)
    raise unsupported_name("coremltools.converters", name)
