"""Inputs as a model takes them, and outputs as Core ML returns them."""

from __future__ import annotations

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Modes of Pillow by the color spaces of images.
_MODES = {"RGB": "RGB", "BGR": "RGB", "grayscale": "L", "grayscale fp16": "F"}


class Function:
    """The inputs and outputs of a function."""

    def __init__(self, summary: dict) -> None:
        """`summary` is a function of what `inspect` returns."""
        self.inputs = {feature["name"]: feature for feature in summary["inputs"]}
        self.outputs = {feature["name"]: feature for feature in summary["outputs"]}
        self.states = [feature["name"] for feature in summary["states"]]

    def predict(self, session: Any, data: dict) -> dict:
        """The outputs for inputs by name."""
        unknown = [name for name in data if name not in self.inputs]
        if unknown:
            raise KeyError(
                f'Provided key "{unknown[0]}", in the input dict, does not match any of the model input name(s), which are: '
                f"{set(self.inputs)}"
            )
        arrays = {name: _input(self.inputs[name], value) for name, value in data.items()}
        try:
            found = session.predict(arrays)
        except RuntimeError as failure:
            for name, array in arrays.items():
                _check_shape(self.inputs[name], array, failure)
            raise
        return {name: _output(self.outputs.get(name), value) for name, value in found.items()}


def _check_shape(feature: dict, array: Any, failure: Exception) -> None:
    """Raises Core ML's error if the shape of an array is not accepted."""
    accepts = feature["accepts"]
    if not isinstance(accepts, dict) or not hasattr(array, "shape"):
        return
    shapes = accepts.get("shapes")
    if shapes is not None and list(array.shape) not in shapes:
        shape = " x ".join(map(str, array.shape))
        raise RuntimeError(f"MultiArray Shape ({shape}) was not in enumerated set of allowed shapes") from failure
    ranges = accepts.get("ranges") or ()
    for at, (size, allowed) in enumerate(zip(array.shape, ranges)):
        upper = allowed["max"]
        if size < allowed["min"] or (upper is not None and size > upper):
            bounds = f"{allowed['min']}..{'' if upper is None else upper}"
            raise RuntimeError(f"Size ({size}) of dimension ({at}) is not in allowed range ({bounds})") from failure


def layout(feature: dict) -> str:
    """The layout of an image: `RGB`, `BGR`, `grayscale` or `grayscale fp16`."""
    text = (feature["dtype"] or "").lower()
    if "gr" in text and "16" in text:
        return "grayscale fp16"
    return {"rgb": "RGB", "bgr": "BGR"}.get(text, "grayscale")


def _input(feature: dict, value: Any) -> Any:
    import numpy

    if feature["kind"] == "image":
        return _pixels(feature, value)
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    array = numpy.asarray(value)
    if feature["kind"] != "multiArray":
        return array
    dtype = feature["dtype"] or "fp32"
    # Core ML converts numbers to the type of the input.
    wanted = {"fp16": numpy.float16, "int32": numpy.int32, "int8": numpy.int8}.get(dtype, numpy.float32)
    with numpy.errstate(over="ignore", invalid="ignore"):
        array = array.astype(wanted)
    return array.reshape(1) if array.ndim == 0 else array


def _pixels(feature: dict, value: Any) -> Any:
    import numpy

    order = layout(feature)
    mode = getattr(value, "mode", None)
    if mode is None:
        if isinstance(value, numpy.ndarray) and value.ndim == 4:
            return value
        raise TypeError(
            f"Image input, '{feature['name']}' must be of type PIL.Image.Image in the input dict, got {type(value)}"
        )
    if mode != _MODES[order]:
        kind = {"L": "GRAYSCALE", "F": "GRAYSCALE_FLOAT16"}.get(_MODES[order], "RGB/BGR")
        raise TypeError(
            f"{kind} image input, '{feature['name']}', must be of type PIL.Image.Image with mode=='{_MODES[order]}', "
            f"got mode {mode!r}"
        )
    pixels = numpy.asarray(value, dtype=numpy.float32)
    if pixels.ndim == 2:
        return pixels[None, None]
    pixels = pixels.transpose(2, 0, 1)[None]
    return numpy.ascontiguousarray(pixels[:, ::-1] if order == "BGR" else pixels)


def _output(feature: dict | None, value: Any) -> Any:
    if feature is None:
        return value
    kind = feature["kind"]
    if kind == "image":
        return _image(feature, value)
    if kind == "string":
        return str(_only(value))
    if kind == "int64":
        return int(_only(value))
    if kind == "double":
        return float(_only(value))
    return value


def _only(value: Any) -> Any:
    return value.reshape(-1)[0] if hasattr(value, "reshape") else value


def _image(feature: dict, value: Any) -> Any:
    import numpy
    from PIL import Image

    order = layout(feature)
    planes = numpy.asarray(value, dtype=numpy.float32)[0]
    if order == "grayscale fp16":
        return Image.fromarray(planes[0])
    planes = numpy.clip(numpy.rint(planes), 0, 255).astype(numpy.uint8)
    if order == "grayscale":
        return Image.fromarray(planes[0])
    planes = planes[::-1] if order == "BGR" else planes
    return Image.fromarray(numpy.ascontiguousarray(planes.transpose(1, 2, 0)))
