"""Types of the inputs and outputs of pipelines."""

from __future__ import annotations

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _Datatype:
    """A type; equal types have the same class and the same arguments."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._arguments == other._arguments

    def __hash__(self) -> int:
        return hash((type(self), self._arguments))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._arguments))})"


class Int64(_Datatype):
    """An integer."""

    num_elements = 1

    def __init__(self) -> None:
        super().__init__()


class Double(Int64):
    """A number."""


class String(Int64):
    """A text."""


class Array(_Datatype):
    """An array of a fixed shape."""

    def __init__(self, *dimensions: int) -> None:
        import math
        import operator

        self.dimensions = tuple(map(operator.index, dimensions))
        if not self.dimensions:
            raise ValueError("an array must have at least one dimension")
        self.num_elements = math.prod(self.dimensions)
        super().__init__(*self.dimensions)


class Dictionary(_Datatype):
    """A dictionary of numbers by integers or texts."""

    num_elements = None

    def __init__(self, key_type: Any = None) -> None:
        self.key_type = normalize(key_type)
        if type(self.key_type) not in (Int64, String):
            raise TypeError(f"the keys of a dictionary must be integers or strings, got {key_type!r}")
        super().__init__(self.key_type)


_PLAIN = {
    int: Int64,
    str: String,
    float: Double,
    Int64: Int64,
    String: String,
    Double: Double,
    "Int64": Int64,
    "String": String,
    "Double": Double,
}


def normalize(datatype: Any) -> _Datatype:
    """A type; `int`, `float` and `str` are `Int64`, `Double` and `String`."""
    if isinstance(datatype, _Datatype):
        return datatype
    try:
        return _PLAIN[datatype]()
    except (KeyError, TypeError):
        raise TypeError(f"{datatype!r} is not a type of `coremltools.models.datatypes`") from None


def write_type(feature_type: Any, datatype: Any) -> None:
    """Sets the type in the description of a feature."""
    datatype = normalize(datatype)
    if isinstance(datatype, Array):
        from ..proto import FeatureTypes_pb2

        feature_type.multiArrayType.dataType = FeatureTypes_pb2.ArrayFeatureType.DOUBLE
        feature_type.multiArrayType.shape.extend(datatype.dimensions)
    elif isinstance(datatype, Dictionary):
        key = "int64KeyType" if datatype.key_type == Int64() else "stringKeyType"
        getattr(feature_type.dictionaryType, key).SetInParent()
    else:
        kind = {Int64: "int64Type", Double: "doubleType", String: "stringType"}[type(datatype)]
        getattr(feature_type, kind).SetInParent()
