"""`MLModel`: a model that predicts on any operating system."""

from __future__ import annotations

import os

from .._types import ComputeUnit
from ._predict import Function

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator


def __getattr__(name: str) -> Any:
    if name == "MLModelAsset":
        from ._asset import MLModelAsset

        return MLModelAsset
    from .._missing import unsupported_name

    raise unsupported_name("coremltools.models.model", name)


#: The types of optimization hints, by name.
_HINTS = {
    "allowLowPrecisionAccumulationOnGPU": "bool",
    "reshapeFrequency": "ReshapeFrequency",
    "specializationStrategy": "SpecializationStrategy",
}


def check_hints(hints: Any) -> None:
    """Checks optimization hints. They have no effect on coremill's engine."""
    if hints is None:
        return
    if not isinstance(hints, dict):
        raise TypeError('"optimization_hint_input" must be a dictionary or None')
    for name, value in hints.items():
        if name not in _HINTS:
            raise ValueError(f"Unrecognized key in optimization_hint dictionary: {name}")
        if type(value).__name__ != _HINTS[name]:
            kind = "bool" if _HINTS[name] == "bool" else f"coremltools.{_HINTS[name]}"
            raise TypeError(f'"{name}" value of "optimization_hint_input" dictionary must be of type {kind}')


class MLState:
    """The states of a model between predictions."""

    def __init__(self, session: Any) -> None:
        """`session` is one of `coremill`."""
        self._session = session

    def read_state(self, name: str) -> Any:
        """The content of a state."""
        states = self._session.states
        if name not in states:
            raise RuntimeError(f"the model has no state `{name}`; its states are {', '.join(states)}")
        return states[name]

    def write_state(self, name: str, value: Any) -> None:
        """Sets a state."""
        self._session.set_state(name, value)


class _Descriptions:
    """Texts for people, by input or output. Assigning to a name describes it."""

    def __init__(self, model: MLModel, part: str) -> None:
        self._model = model
        self._part = part

    def _features(self) -> dict:
        return {feature["name"]: feature["description"] for feature in self._model._function_summary()[self._part]}

    def __getitem__(self, name: str) -> str:
        features = self._features()
        if name not in features:
            raise KeyError(f"No feature with name {name}.")
        return features[name]

    def __setitem__(self, name: str, text: str) -> None:
        if name not in self._features():
            raise AttributeError(f"No feature with name {name}.")
        self._model._apply([{"edit": "describe", "name": name, "text": text}])

    @property
    def _fd_spec(self) -> Any:
        """The descriptions in the specification, under the name that coremltools gives them."""
        description = self._model._spec.description
        if self._model._has_functions:
            description = self._model._get_function_description(self._model.function_name)
        return description.input if self._part == "inputs" else description.output

    def __contains__(self, name: str) -> bool:
        return name in self._features()

    def __iter__(self) -> Iterator[str]:
        return iter(self._features())

    def __len__(self) -> int:
        return len(self._features())

    def __repr__(self) -> str:
        return f"Features({','.join(self)})"


#: Kinds of models that coremill reads: ML Programs, and pipelines of these. `None` is an empty specification.
_READ = ("mlProgram", "pipeline", "pipelineClassifier", "pipelineRegressor", None)


class MLModel:
    """A Core ML model."""

    def __init__(
        self,
        model: Any,
        is_temp_package: bool = False,
        mil_program: Any = None,
        skip_model_load: bool = False,
        compute_units: Any = ComputeUnit.ALL,
        weights_dir: str | None = None,
        function_name: str | None = None,
        optimization_hints: dict | None = None,
    ) -> None:
        """`model` is a path, or a specification with `weights_dir`. The model is loaded when it predicts first."""
        import coremill

        from ._other_kinds import OtherModel, load_any_kind
        from ._package import package_of_spec

        if getattr(compute_units, "name", None) not in ComputeUnit.__members__:
            raise TypeError('"compute_units" parameter must be of type: coremltools.ComputeUnit')
        check_hints(optimization_hints)
        if mil_program is not None:
            from .._missing import unsupported

            raise unsupported("`mil_program`", "pass the path of a package")
        if isinstance(model, (str, os.PathLike)):
            path = os.path.abspath(os.path.expanduser(os.path.expandvars(os.fspath(model))))
            found = load_any_kind(path)
        elif hasattr(model, "SerializeToString") and model.WhichOneof("Type") not in _READ:
            from ..proto import Model_pb2

            found = OtherModel(Model_pb2.Model.FromString(model.SerializeToString()), weights_dir, False)
        elif hasattr(model, "SerializeToString"):
            if model.WhichOneof("Type") == "mlProgram" and weights_dir is None:
                raise Exception(
                    "MLModel of type mlProgram cannot be loaded just from the model spec object. It also needs the path to "
                    "the weights file. Please provide that as well, using the 'weights_dir' argument."
                )
            found = load_any_kind(package_of_spec(model, weights_dir))
        else:
            raise TypeError("Expected model to be a .mlmodel file, .mlpackage file or a Model_pb2 object")
        if not isinstance(found, (coremill.Model, OtherModel)):
            raise TypeError(f"{model} is an ExecuTorch program; expected a Core ML model")
        self._start(found, compute_units, function_name, optimization_hints)

    @classmethod
    def _of(cls, model: Any, compute_units: Any = ComputeUnit.ALL, function_name: str | None = None) -> MLModel:
        """A model of a `coremill.Model`."""
        made = cls.__new__(cls)
        made._start(model, compute_units, function_name, None)
        return made

    def _start(self, model: Any, compute_units: Any, function_name: str | None, hints: dict | None) -> None:
        self._model = model
        self._written: str | None = None
        self._message: Any = None
        self._session: Any = None
        self._parts: Function | None = None
        #: Where operations come from, by the names of values.
        self._scopes: dict = {}
        self.compute_unit = compute_units
        self.function_name = function_name
        self.optimization_hints = None if hints is None else dict(hints)
        #: Models of other kinds may be single files.
        self.is_package = getattr(model, "is_package", True)
        summary = model.inspect()
        functions = [function["name"] for function in summary["functions"]]
        # A package of several functions may have one, which then has any name.
        self._has_functions = functions != ["main"]
        if function_name is None and self._has_functions:
            self.function_name = summary["default_function"]
        elif function_name is not None and not self._has_functions and function_name != "main":
            raise ValueError('function_name must be "main" for non multifunction model')
        elif function_name is not None and function_name not in functions and self._has_functions:
            raise ValueError(f"function_name {function_name} not found in the model.")

    def _function_summary(self) -> dict:
        summary = self._model.inspect()
        name = self.function_name if self._has_functions else summary["default_function"]
        return next(function for function in summary["functions"] if function["name"] == name)

    def _one_program(self) -> Any:
        """The model as one program: a pipeline with its stages linked."""
        linked = getattr(self._model, "linked", None)
        return self._model if linked is None else linked()

    def _apply(self, edits: list) -> None:
        """Changes the model."""
        import json

        self._model = self._model._edit(json.dumps(edits), self.function_name if self._has_functions else None)
        self._forget()

    def _forget(self) -> None:
        self._written = self._message = self._session = self._parts = None

    def _part(self) -> Function:
        if self._parts is None:
            self._parts = Function(self._function_summary())
        return self._parts

    @property
    def short_description(self) -> str:
        """What the model does."""
        return self._model.description

    @short_description.setter
    def short_description(self, text: str) -> None:
        self._model.description = text
        self._written = self._message = None

    @property
    def author(self) -> str:
        """Who made the model."""
        return self._model.author

    @author.setter
    def author(self, text: str) -> None:
        self._model.author = text
        self._written = self._message = None

    @property
    def license(self) -> str:
        """Under which terms the model may be used."""
        return self._model.license

    @license.setter
    def license(self, text: str) -> None:
        self._model.license = text
        self._written = self._message = None

    @property
    def version(self) -> str:
        """The model's version."""
        return self._model.model_version

    @version.setter
    def version(self, text: str) -> None:
        self._model.model_version = text
        self._written = self._message = None

    @property
    def user_defined_metadata(self) -> Any:
        """Notes by key."""
        self._written = self._message = None
        return self._model.metadata

    @property
    def input_description(self) -> _Descriptions:
        """Texts for people, by input."""
        return _Descriptions(self, "inputs")

    @property
    def output_description(self) -> _Descriptions:
        """Texts for people, by output."""
        return _Descriptions(self, "outputs")

    @property
    def package_path(self) -> str | None:
        """A package with the model, in a temporary folder that is removed at exit; `None` for a single file."""
        from ._package import temporary

        if not self.is_package:
            return None
        if self._written is None or not os.path.exists(self._written):
            self._written = os.path.join(temporary(), "Model.mlpackage")
            self._model.save(self._written)
        return self._written

    @property
    def weights_dir(self) -> str | None:
        """The folder with the weights of a package of the model; `None` for a single file."""
        if not self.is_package:
            return None
        folder = os.path.join(self.package_path, "Data", "com.apple.CoreML", "weights")
        return folder if os.path.isdir(folder) else os.path.dirname(folder)

    def save(self, save_path: str) -> None:
        """Writes the model as a package."""
        path = os.path.expanduser(os.path.expandvars(os.fspath(save_path)))
        extension = os.path.splitext(path)[1]
        is_program = not hasattr(self._model, "spec")
        if not extension:
            path += ".mlpackage" if self.is_package else ".mlmodel"
        elif not is_program:
            if extension not in (".mlmodel", ".mlpackage"):
                raise Exception(f"Extension must be .mlmodel or .mlpackage (not {extension}).")
        elif extension not in (".mlpackage", ".mlmodelc"):
            raise Exception(f"For an ML Program, extension must be .mlpackage (not {extension}). Please see "
                            "https://coremltools.readme.io/docs/unified-conversion-api#target-conversion-formats to see the "
                            "difference between neuralnetwork and mlprogram model types.")
        self._model.save(path)

    def get_compiled_model_path(self) -> str:
        """The path of the compiled model, in a temporary folder that is removed at exit."""
        from ._package import temporary

        path = os.path.join(temporary(), "Model.mlmodelc")
        self._model.save(path)
        return path

    @property
    def _spec(self) -> Any:
        if hasattr(self._model, "spec"):
            return self._model.spec
        if self._message is None:
            with open(os.path.join(self.package_path, "Data", "com.apple.CoreML", "model.mlmodel"), "rb") as file:
                from ..proto import Model_pb2

                self._message = Model_pb2.Model.FromString(file.read())
        return self._message

    @property
    def _mil_program(self) -> Any:
        """The program to read: its functions with their operations, as scripts examine them."""
        from .._selector import Program

        return Program(self._spec, self._scopes)

    def _get_mil_internal(self) -> Any:
        return self._mil_program

    def get_spec(self) -> Any:
        """The specification: a message of the published schema."""
        import copy

        return copy.deepcopy(self._spec)

    def predict(self, data: Any, state: MLState | None = None) -> Any:
        """Predicts from inputs by name: arrays, numbers, tensors and pictures of Pillow. A list of inputs gives a list."""
        if type(data) not in (list, dict):
            raise TypeError(f'"data" parameter must be either a dict or list of dict, but got {type(data)}.')
        if type(data) is list and not all(type(one) is dict for one in data):
            raise TypeError('"data" list must contain only dictionaries')
        part = self._part()
        if part.states and state is None:
            raise ValueError("the model has states\nhint: pass `state=mlmodel.make_state()`")
        if isinstance(data, list):
            if state is not None:
                raise AssertionError("State can only be used for unbatched predictions")
            return [part.predict(self._default_session(), one) for one in data]
        return part.predict(self._default_session() if state is None else state._session, data)

    @classmethod
    def get_available_compute_devices(cls) -> list:
        """The devices that predictions can use: the CPU."""
        from .compute_device import MLComputeDevice

        return MLComputeDevice.get_all_compute_devices()

    def _default_session(self) -> Any:
        if self._session is None:
            self._session = self._model.session(self.function_name if self._has_functions else None)
        return self._session

    def make_state(self) -> MLState:
        """States of zeros, for `predict`."""
        return MLState(self._model.session(self.function_name if self._has_functions else None))

    def _is_stateful(self) -> bool:
        return bool(self._part().states)

    def _is_multifunction(self) -> bool:
        return self._has_functions

    def _get_function_description(self, function_name: str) -> Any:
        for function in self._spec.description.functions:
            if function.name == function_name:
                return function
        raise ValueError(f"function_name {function_name} not found in the model.")

    def __repr__(self) -> str:
        summary = self._function_summary()
        names = [", ".join(feature["name"] for feature in summary[part]) for part in ("inputs", "outputs")]
        return f"<MLModel ({names[0]}) -> ({names[1]})>"
