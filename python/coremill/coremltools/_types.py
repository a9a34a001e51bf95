"""Descriptions of inputs and outputs, and the enumerations of coremltools."""

from __future__ import annotations

from enum import Enum, IntEnum

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class ComputeUnit(Enum):
    """Devices that Core ML may use. Predictions of this package run on the CPU whatever it says."""

    ALL = 1
    CPU_AND_GPU = 2
    CPU_ONLY = 3
    CPU_AND_NE = 4


class ReshapeFrequency(Enum):
    """How often callers change shapes."""

    Frequent = 1
    Infrequent = 2


class SpecializationStrategy(Enum):
    """What Core ML specializes a model for."""

    Default = 1
    FastPrediction = 2


class target(IntEnum):
    """The oldest release that must run a model, by the version of the specification."""

    iOS13 = 4
    iOS14 = 5
    iOS15 = 6
    iOS16 = 7
    iOS17 = 8
    iOS18 = 9
    iOS26 = 10
    macOS10_15 = 4
    macOS11 = 5
    macOS12 = 6
    macOS13 = 7
    macOS14 = 8
    macOS15 = 9
    macOS26 = 10
    watchOS6 = 4
    watchOS7 = 5
    watchOS8 = 6
    watchOS9 = 7
    watchOS10 = 8
    watchOS11 = 9
    watchOS26 = 10
    tvOS13 = 4
    tvOS14 = 5
    tvOS15 = 6
    tvOS16 = 7
    tvOS17 = 8
    tvOS18 = 9
    tvOS26 = 10
    macOS16 = 10
    visionOS1 = 8
    visionOS2 = 9
    visionOS26 = 10


class precision(Enum):
    """What floats are computed in."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"


class colorlayout(Enum):
    """The meaning of an image's pixels."""

    RGB = "RGB"
    BGR = "BGR"
    GRAYSCALE = "G"
    GRAYSCALE_FLOAT16 = "G_FLOAT16"


class RangeDim:
    """A dimension of any size within bounds."""

    def __init__(
        self, lower_bound: int = 1, upper_bound: int = -1, default: int | None = None, symbol: str | None = None
    ) -> None:
        """`default` is the lower bound if left out; dimensions of one `symbol` are equal."""
        if default is None:
            default = lower_bound
        elif default < lower_bound:
            raise ValueError(f"Default value {default} is less than minimum value ({lower_bound}) for range")
        elif 0 < upper_bound < default:
            raise ValueError(f"Default value {default} is greater than maximum value ({upper_bound}) for range")
        self.lower_bound = lower_bound
        self.upper_bound = upper_bound
        self.default = default
        self.symbol = symbol

    def __repr__(self) -> str:
        return f"RangeDim(lower_bound={self.lower_bound}, upper_bound={self.upper_bound}, default={self.default})"


class Shape:
    """A shape of sizes and ranges."""

    def __init__(self, shape: Any, default: Any = None) -> None:
        """`default` is made of the defaults of ranges if left out."""
        if not isinstance(shape, (list, tuple)):
            raise ValueError(f"Shape should be list or tuple, got type {type(shape)} instead")
        for size in shape:
            is_size = isinstance(size, RangeDim) or hasattr(size, "lower_bound") or _is_int(size)
            if not is_size:
                raise ValueError(f"a shape must consist of sizes and `RangeDim`, got {size!r}")
        self.shape = tuple(size if hasattr(size, "lower_bound") else int(size) for size in shape)
        own = [size.default if hasattr(size, "lower_bound") else size for size in self.shape]
        if default is not None and not isinstance(default, (list, tuple)):
            raise ValueError(f"Default shape should be list or tuple, got type {type(default)} instead")
        self.default = tuple(own if default is None else default)

    @property
    def has_symbolic(self) -> bool:
        """Whether a size is not fixed."""
        return any(hasattr(size, "lower_bound") for size in self.shape)

    def to_list(self, allow_symbolic: bool = False) -> list:
        """The default shape."""
        return list(self.shape if allow_symbolic else self.default)

    def __repr__(self) -> str:
        return f"Shape({self.shape}, default={self.default})"


class EnumeratedShapes:
    """Several shapes that callers choose from."""

    def __init__(self, shapes: Any, default: Any = None) -> None:
        """`default` is the first shape if left out."""
        if not isinstance(shapes, (list, tuple)):
            raise ValueError(f"EnumeratedShapes should be list or tuple of shape, got type {type(shapes)} instead")
        if len(shapes) < 2:
            raise ValueError(f"EnumeratedShapes should be take a list or tuple with len >= 2, got {len(shapes)} instead")
        self.shapes = [shape if isinstance(shape, Shape) else Shape(shape) for shape in shapes]
        self.default = tuple(self.shapes[0].default if default is None else default)

    def __repr__(self) -> str:
        return f"EnumeratedShapes({self.shapes}, default={self.default})"


class InputType:
    """An input or an output."""

    def __init__(self, name: str | None = None, shape: Any = None, dtype: Any = None) -> None:
        """`shape` holds sizes and `RangeDim`, or is a `Shape` or `EnumeratedShapes`."""
        self.name = name
        self.shape = None if shape is None else _shape(shape)
        self.dtype = dtype

    def can_be_output(self) -> bool:
        """Whether outputs can be described by it."""
        return True


class TensorType(InputType):
    """An array."""

    def __init__(self, name: str | None = None, shape: Any = None, dtype: Any = None, default_value: Any = None) -> None:
        """`default_value` makes the input optional; its elements are all the same."""
        super().__init__(name, shape, dtype)
        if dtype is not None:
            dtype_name(dtype)
        if default_value is not None:
            import numpy

            if isinstance(shape, EnumeratedShapes):
                raise ValueError(f"TensorType input {name} has EnumeratedShapes and may not be optional")
            if not isinstance(default_value, numpy.ndarray):
                raise ValueError(f"TensorType {name} default_value is not np.ndarray")
            if not numpy.all(default_value == default_value.flatten()[0]):
                raise ValueError(f"TensorType {name} default_value can only have same entries")
            fixed = self.shape is not None and not self.shape.has_symbolic
            if fixed and tuple(default_value.shape) != self.shape.default:
                raise ValueError(f"TensorType {name} default_value shape {default_value.shape} != TensorType.shape {self.shape.to_list()}")
            if dtype is not None and dtype_name(default_value.dtype) != dtype_name(dtype):
                raise ValueError(f"TensorType {name} default_value dtype {default_value.dtype} != TensorType.dtype {dtype}")
            self.dtype = default_value.dtype.type
        self.default_value = default_value

    def __repr__(self) -> str:
        return f"TensorType(name={self.name}, shape={self.shape}, dtype={self.dtype})"


def numbers(value: Any) -> list[float]:
    """The numbers of a scale or bias: one number, a list, or an array."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [float(number) for number in value] if isinstance(value, (list, tuple)) else [float(value)]


class ImageType(InputType):
    """An image. Pixels are `scale` times the channel plus `bias`."""

    def __init__(
        self,
        name: str | None = None,
        shape: Any = None,
        scale: Any = 1.0,
        bias: Any = None,
        color_layout: Any = colorlayout.RGB,
        channel_first: bool | None = None,
        grayscale_use_uint8: bool = False,
    ) -> None:
        """`bias` holds a number for each channel; `color_layout` is one of `colorlayout`."""
        super().__init__(name, shape)
        if isinstance(color_layout, str):
            if color_layout not in ("G", "RGB", "BGR"):
                raise ValueError("color_layout should be an enum of type ct.colorlayout, or 'G', 'RGB' or 'BGR'")
            color_layout = colorlayout(color_layout)
        elif getattr(color_layout, "name", None) not in colorlayout.__members__:
            raise ValueError("color_layout should be an enum of type ct.colorlayout")
        is_gray = color_layout.name.startswith("GRAYSCALE")
        if grayscale_use_uint8 and color_layout.name != "GRAYSCALE":
            raise ValueError('"grayscale_use_uint8" can only be True when "color_layout" is "GRAYSCALE"')
        self.scale = scale
        self.bias = (0.0 if is_gray else [0.0, 0.0, 0.0]) if bias is None else bias
        self.color_layout = color_layout
        self.channel_first = channel_first
        self.grayscale_use_uint8 = grayscale_use_uint8

    def __repr__(self) -> str:
        return (
            f"ImageType(name={self.name}, shape={self.shape}, scale={self.scale}, bias={self.bias}, "
            f"color_layout={self.color_layout}, channel_first={self.channel_first})"
        )


class StateType(InputType):
    """A state: a buffer that the model writes to."""

    def __init__(self, wrapped_type: TensorType, name: str | None = None) -> None:
        """`name` is that of the buffer."""
        if not isinstance(wrapped_type, TensorType):
            raise ValueError(f"StateType only supports {TensorType}. Got {type(wrapped_type)}.")
        if wrapped_type.name is not None:
            raise ValueError("name cannot be set in the state wrapped_type.")
        if wrapped_type.default_value is not None:
            raise ValueError("default_value cannot be set in the state wrapped_type.")
        super().__init__(name, wrapped_type.shape, wrapped_type.dtype)
        self.wrapped_type = wrapped_type

    def can_be_output(self) -> bool:
        """States are no outputs."""
        return False

    def __repr__(self) -> str:
        return f"StateType[{self.wrapped_type}]"


class ClassifierConfig:
    """The labels of a classifier."""

    def __init__(
        self,
        class_labels: Any,
        predicted_feature_name: str = "classLabel",
        predicted_probabilities_output: str | None = None,
    ) -> None:
        """`class_labels` is a list of texts or integers, or a file with one label a line."""
        self.class_labels = class_labels
        self.predicted_feature_name = predicted_feature_name
        self.predicted_probabilities_output = predicted_probabilities_output


def _is_int(size: Any) -> bool:
    return not isinstance(size, (bool, float)) and hasattr(size, "__index__")


def _shape(shape: Any) -> Any:
    if isinstance(shape, (Shape, EnumeratedShapes)) or type(shape).__name__ in ("Shape", "EnumeratedShapes"):
        return shape
    if isinstance(shape, (list, tuple)) and len(shape) >= 2 and all(isinstance(one, (list, tuple, Shape)) for one in shape):
        return EnumeratedShapes(shape)
    return Shape(shape)


class ElementType:
    """An element type by coremltools' name."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __repr__(self) -> str:
        return f"<types.{self.__name__}>"


#: Names of element types, as numpy, Python and coremltools have them.
_DTYPES = {
    "float16": "fp16",
    "half": "fp16",
    "fp16": "fp16",
    "float32": "fp32",
    "fp32": "fp32",
    "float": "fp32",
    "float64": "fp32",
    "double": "fp32",
    "fp64": "fp32",
    "int8": "int8",
    "int32": "int32",
    "int": "int32",
    "int64": "int32",
    "bool": "bool",
    "bool_": "bool",
}


def dtype_name(dtype: Any) -> str:
    """`fp16`, `fp32`, `int32`, `int8` or `bool` for a type of numpy, Python or coremltools."""
    name = getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or str(dtype)
    if name not in _DTYPES:
        raise TypeError(f"dtype={dtype} is unsupported for inputs/outputs of the model")
    return _DTYPES[name]
