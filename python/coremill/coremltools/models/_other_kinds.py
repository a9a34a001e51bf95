"""Models other than ML Programs: they can be read, described and saved. Some kinds predict, and so do pipelines of these."""

from __future__ import annotations

import os
import shutil

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_KINDS = {
    "doubleType": "double",
    "int64Type": "int64",
    "stringType": "string",
    "multiArrayType": "multiArray",
    "imageType": "image",
    "dictionaryType": "dictionary",
    "sequenceType": "sequence",
    "stateType": "state",
}
#: Color spaces of images by their number in the schema.
_LAYOUTS = {10: "grayscale", 20: "RGB", 30: "BGR", 40: "grayscale fp16"}
_ARRAYS = {65552: "fp16", 65568: "fp32", 65600: "fp64", 131104: "int32", 131080: "int8"}


def load_any_kind(path: str) -> Any:
    """A `coremill.Model`, or an :class:`OtherModel` for a package or a model file of another kind."""
    import coremill

    from ._package import is_pipeline

    try:
        model = coremill.load(path)
    except coremill.FormatError:
        found = _read(path)
        if found is None:
            raise
        return found
    # coremill links the stages of a pipeline to one program; the specification keeps them.
    found = _read(path) if is_pipeline(path) else None
    if found is None:
        return model
    from ._pipeline import Pipeline

    return Pipeline(found.spec, found.weights_dir, found.is_package, model)


def _read(path: str) -> OtherModel | None:
    """The model of a package or a model file; `None` if it is an ML Program, or no model."""
    from .utils import load_spec

    if path.rstrip("/").endswith(".mlmodelc"):
        return None
    try:
        spec = load_spec(path)
    except (ImportError, OSError, ValueError, LookupError):
        return None
    except Exception as failure:  # protobuf's DecodeError, which is imported only with protobuf
        if type(failure).__name__ != "DecodeError":
            raise
        return None
    if spec.WhichOneof("Type") in (None, "mlProgram"):
        return None
    weights = os.path.join(path, "Data", "com.apple.CoreML", "weights")
    return OtherModel(spec, weights if os.path.isdir(weights) else None, os.path.isdir(path))


class OtherModel:
    """A model of another kind, with the methods of `coremill.Model` that `MLModel` calls."""

    def __init__(self, spec: Any, weights_dir: str | None, is_package: bool) -> None:
        """`weights_dir` has the weights of the programs in a pipeline."""
        self.spec = spec
        self.weights_dir = weights_dir
        self.is_package = is_package

    @property
    def kind(self) -> str:
        """The name of the kind in the schema."""
        return self.spec.WhichOneof("Type")

    def _text(name: str) -> Any:
        """A text of the metadata."""

        def read(self: OtherModel) -> str:
            return getattr(self.spec.description.metadata, name)

        def write(self: OtherModel, text: str) -> None:
            setattr(self.spec.description.metadata, name, text)

        return property(read, write)

    description = _text("shortDescription")
    author = _text("author")
    license = _text("license")
    model_version = _text("versionString")
    del _text

    @property
    def metadata(self) -> Any:
        """Notes by key."""
        return self.spec.description.metadata.userDefined

    def inspect(self) -> dict:
        """A summary of inputs and outputs, as that of an ML Program."""
        description = self.spec.description
        function = {
            "name": "main",
            "inputs": [_feature(feature) for feature in description.input],
            "outputs": [_feature(feature) for feature in description.output],
            "states": [],
        }
        return {"default_function": "main", "functions": [function]}

    def _edit(self, edits: str, function: str | None = None) -> OtherModel:
        """The model with new descriptions of features."""
        import copy
        import json

        made = type(self)(copy.deepcopy(self.spec), self.weights_dir, self.is_package)
        for edit in json.loads(edits):
            if edit["edit"] != "describe":
                raise self._unsupported(f"the edit `{edit['edit']}`")
            for feature in (*made.spec.description.input, *made.spec.description.output):
                if feature.name == edit["name"]:
                    feature.shortDescription = edit["text"]
        return made

    def linked(self) -> Any:
        """Raises: there is no program."""
        raise self._unsupported("editing the program of a model")

    def save(self, path: str) -> None:
        """Writes a package or a model file."""
        from ._package import write_package

        if path.endswith(".mlmodelc"):
            raise self._unsupported("compiling")
        if not path.endswith(".mlpackage"):
            with open(path, "wb") as file:
                file.write(self.spec.SerializeToString())
            return
        weights = self.weights_dir
        if weights is not None and os.path.abspath(weights).startswith(os.path.abspath(path) + os.sep):
            # Writing removes the package that exists.
            from ._package import temporary

            weights = shutil.copytree(weights, os.path.join(temporary(), "weights"))
        write_package(self.spec, path, weights)

    def session(self, function: str | None = None) -> Any:
        """What predicts."""
        from ._stages import NonMaximumSuppression, Stages

        if self.kind == "glmRegressor":
            return LinearRegressor(self.spec)
        if self.kind == "nonMaximumSuppression":
            return NonMaximumSuppression(self.spec)
        if self.kind.startswith("pipeline"):
            return Stages(self.spec, self.weights_dir)
        raise self._unsupported("predicting")

    def _unsupported(self, what: str) -> NotImplementedError:
        from .._missing import unsupported

        return unsupported(
            f"{what} with a `{self.kind}`", "convert the original model to an ML Program, or use a Mac with coremltools"
        )


def _feature(feature: Any) -> dict:
    which = feature.type.WhichOneof("Type")
    is_array = which == "multiArrayType"
    dtype = _ARRAYS.get(feature.type.multiArrayType.dataType) if is_array else None
    if which == "imageType":
        dtype = _LAYOUTS.get(feature.type.imageType.colorSpace)
    return {
        "name": feature.name,
        "kind": _KINDS.get(which, which),
        "dtype": dtype,
        "shape": list(feature.type.multiArrayType.shape) if is_array else None,
        "accepts": None,
        "optional": feature.type.isOptional,
        "description": feature.shortDescription,
    }


class LinearRegressor:
    """A generalized linear model: a transform of the weighted sum of the inputs and an offset."""

    def __init__(self, spec: Any) -> None:
        """`spec` is that of a `glmRegressor`."""
        model = spec.glmRegressor
        self._inputs = [feature.name for feature in spec.description.input]
        self._output = spec.description.predictedFeatureName or spec.description.output[0].name
        self._weights = [list(row.value) for row in model.weights]
        self._offsets = list(model.offset)
        self._transform = model.PostEvaluationTransform.Name(model.postEvaluationTransform)
        if len(self._weights) != len(self._offsets):
            raise ValueError(f"the numbers of weight rows ({len(self._weights)}) and offsets ({len(self._offsets)}) must be equal")

    def predict(self, data: dict) -> dict:
        """The output for inputs by name."""
        import math

        import numpy

        missing = [name for name in self._inputs if name not in data]
        if missing:
            raise RuntimeError(f"the input `{missing[0]}` is missing; the inputs are {', '.join(self._inputs)}")
        values = numpy.concatenate([numpy.asarray(data[name], dtype=numpy.float64).ravel() for name in self._inputs])
        sums = []
        for row, offset in zip(self._weights, self._offsets):
            if len(row) != len(values):
                raise RuntimeError(f"the model has {len(row)} weights, but the inputs have {len(values)} elements")
            sums.append(math.fsum([offset, *(weight * value for weight, value in zip(row, values))]))
        if self._transform == "Logit":
            sums = [1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value)) for value in sums]
        elif self._transform == "Probit":
            sums = [(1 + math.erf(value / math.sqrt(2))) / 2 for value in sums]
        return {self._output: numpy.array(sums, dtype=numpy.float64)}
