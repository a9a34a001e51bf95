"""`edit`, `merge` and `split`: changed models, several models as one, and one as several."""

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
    expose_states: Sequence[str] | str = (),
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
        expose_states: states that become inputs; the output `new_NAME` is the new value.
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
        drop: outputs that are removed, with what only they need; without its label, a classifier returns the scores as an array.
        rename: new names, by the present ones.

    Raises:
        Error: an edit does not fit the model.
        OptionError: an edit is not understood.
    """
    edits: list = [{"edit": "expose_output", "name": name} for name in _names(expose)]
    edits += [{"edit": "expose_state", "name": name} for name in _names(expose_states)]
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


def split(
    model: _native.Model,
    *,
    max_size: str | int | None = None,
    after: Sequence[str] | str | None = None,
    function: str | None = None,
    verify: bool = True,
) -> list[_native.Model]:
    """Pieces of a model that run one after another. A piece takes inputs of the model and outputs of earlier pieces, by name.

    Args:
        model: the model.
        max_size: the maximum size of the weights of a piece, such as `"500MB"`.
        after: values after whose operations the model is cut. Without `max_size` and `after`, the pieces are halves.
        function: the function to cut; the default one if left out.
        verify: runs the model and the pieces on random inputs; they must compute the same bits with rounded numerics.

    Raises:
        Error: the model cannot be cut there, or the pieces compute something else.
    """
    names = None if after is None else _names(after)
    pieces = _native.split(model, None if max_size is None else str(max_size), names, function)
    if verify:
        _verify_pieces(model, pieces, function)
    return pieces


def _verify_pieces(model: _native.Model, pieces: Sequence[_native.Model], function: str | None) -> None:
    import numpy

    from coremill._errors import InternalError

    summary = model.inspect()
    name = function or summary["default_function"]
    described = next(one for one in summary["functions"] if one["name"] == name)
    generator = numpy.random.default_rng(1)
    values: dict = {}
    for feature in described["inputs"]:
        shape = feature["shape"]
        if feature["kind"] == "image":
            values[feature["name"]] = generator.integers(0, 256, shape).astype(numpy.float32)
        elif feature["dtype"] in ("fp16", "fp32"):
            values[feature["name"]] = generator.uniform(-1, 1, shape).astype(numpy.float32)
        else:
            values[feature["name"]] = generator.integers(0, 2, shape).astype(numpy.int32)
    expected = model.session(function, numerics="rounded").predict(values)
    found: dict = {}
    for piece in pieces:
        inputs = [feature["name"] for feature in piece.inspect()["functions"][0]["inputs"]]
        outputs = piece.session(numerics="rounded").predict({key: values[key] for key in inputs})
        values.update(outputs)
        found.update(outputs)
    for key, value in expected.items():
        same = key in found and (
            numpy.array_equal(value, found[key], equal_nan=True) if hasattr(value, "dtype") else value == found[key]
        )
        if not same:
            raise InternalError(f"the pieces compute a different `{key}` than the whole model")


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
