"""`edit` and `merge`: other inputs, outputs, names and types of models."""

from __future__ import annotations

import os

from coremill import _native

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Union

    Image = Union[str, Mapping[str, Any]]
    Labels = Union[str, "os.PathLike[str]", Sequence[str], Sequence[int]]


def edit(
    model: _native.Model,
    *,
    function: str | None = None,
    expose: Sequence[str] | str = (),
    shapes: Mapping[str, Any] | None = None,
    arrays: Sequence[str] | str = (),
    images: Mapping[str, Image] | None = None,
    types: Mapping[str, str] | None = None,
    labels: Labels | None = None,
    scores: str | None = None,
    label_name: str | None = None,
    descriptions: Mapping[str, str] | None = None,
    optional: Mapping[str, float] | None = None,
    drop: Sequence[str] | str = (),
    rename: Mapping[str, str] | None = None,
) -> _native.Model:
    """Changes the inputs and outputs of a model. Returns the changed model, which shares the weights.

    Args:
        model: the model.
        function: the function to change; the default one if left out.
        expose: values that become outputs.
        shapes: the shapes that inputs accept, `{"x": [1, 3, 224, 224]}`: one fixes the input, a list is chosen from.
        arrays: images that become arrays of pixels.
        images: inputs and outputs that become images: `{"x": {"layout": "rgb", "scale": 1 / 255, "bias": [-1, -1, -1]}}`, or the
            layout alone: `rgb`, `bgr`, `grayscale` or `grayscale_fp16`.
        types: the element types of inputs and outputs: `fp16`, `fp32`, `int32` or `int8`.
        labels: class labels, or a file with one a line: the model becomes a classifier.
        scores: the output with the scores of a classifier; the last one of floats if left out.
        label_name: name of the output with the label; `classLabel` if left out.
        descriptions: texts for people, by input or output.
        optional: the elements of inputs that callers may leave out.
        drop: outputs that are removed, with what only they need.
        rename: new names, by the present ones.

    Raises:
        Error: an edit does not fit the model.
        OptionError: an edit is not understood.
    """
    edits: list = [{"edit": "expose_output", "name": name} for name in _names(expose)]
    for name, shape in (shapes or {}).items():
        several = [list(one) for one in shape] if shape and not hasattr(shape[0], "__index__") else [list(shape)]
        edits.append({"edit": "shapes", "name": name, "shapes": several})
    edits += [{"edit": "array", "name": name} for name in _names(arrays)]
    edits += interface_edits(images, types, labels, scores, label_name, descriptions)
    edits += [{"edit": "optional", "name": name, "default": float(value)} for name, value in (optional or {}).items()]
    edits += [{"edit": "drop_output", "name": name} for name in _names(drop)]
    edits += [{"edit": "rename", "from": name, "to": new} for name, new in (rename or {}).items()]
    import json

    return model._edit(json.dumps(edits), function)


def merge(functions: Mapping[str, Any]) -> _native.Model:
    """One model with a function of each model, by its name; the first runs by default. Equal weights are stored once.

    Args:
        functions: a model, or a model and the name of one of its functions, by the new name of the function.
    """
    parts = []
    for name, model in functions.items():
        model, function = model if isinstance(model, tuple) else (model, None)
        parts.append((name, model, function))
    return _native.merge(parts)


def interface_edits(
    images: Mapping[str, Image] | None,
    types: Mapping[str, str] | None,
    labels: Labels | None,
    scores: str | None,
    label_name: str | None,
    descriptions: Mapping[str, str] | None,
) -> list:
    """The edits that `convert` and `edit` share, in the order of their application."""
    edits: list = [_image(name, image) for name, image in (images or {}).items()]
    edits += [{"edit": "retype", "name": name, "dtype": dtype} for name, dtype in (types or {}).items()]
    if labels is not None:
        edits.append({"edit": "classify", "labels": _labels(labels), "output": scores, "name": label_name})
    edits += [{"edit": "describe", "name": name, "text": text} for name, text in (descriptions or {}).items()]
    return edits


def _names(names: Sequence[str] | str) -> list:
    return [names] if isinstance(names, str) else list(names)


def _image(name: str, image: Image) -> dict:
    fields = {"layout": image} if isinstance(image, str) else dict(image)
    for key in ("scale", "bias"):
        value = fields.get(key, [])
        value = value.tolist() if hasattr(value, "tolist") else value
        fields[key] = [float(one) for one in value] if isinstance(value, (list, tuple)) else [float(value)]
    unknown = sorted(set(fields) - {"layout", "scale", "bias"})
    if unknown:
        from coremill._errors import OptionError

        raise OptionError(f"image `{name}` has the unknown field `{unknown[0]}`", hint="pass `layout`, `scale` and `bias`")
    return {"edit": "image", "name": name, **fields}


def _labels(labels: Labels) -> list:
    if isinstance(labels, (str, os.PathLike)):
        with open(labels, encoding="utf-8") as file:
            return file.read().splitlines()
    return list(labels)
