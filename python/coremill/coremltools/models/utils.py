"""Edits of models and specifications."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil

from .._missing import unsupported_name
from ._package import model_file, write_package

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .model import MLModel

#: Element types of arrays by their codes in specifications.
_DTYPES = {65552: "fp16", 65568: "fp32", 131104: "int32", 131080: "int8"}


def __getattr__(name: str) -> Any:
    if name == "make_pipeline":
        from ._pipeline import make_pipeline

        return make_pipeline
    if name.startswith("evaluate_"):
        from . import _evaluate

        if hasattr(_evaluate, name):
            return getattr(_evaluate, name)
    raise unsupported_name("coremltools.models.utils", name)


def _is_macos() -> bool:
    import sys

    return sys.platform == "darwin"


def _macos_version() -> tuple:
    """The version of macOS; empty on other systems."""
    import platform

    return tuple(int(part) for part in platform.mac_ver()[0].split(".")[:2]) if _is_macos() else ()


def load_spec(model_path: str) -> Any:
    """The specification of a package or of a model file."""
    from ..proto import Model_pb2

    with open(model_file(os.path.expanduser(os.fspath(model_path))), "rb") as file:
        return Model_pb2.Model.FromString(file.read())


def save_spec(
    spec: Any, filename: str, auto_set_specification_version: bool = False, weights_dir: str | None = None
) -> None:
    """Writes a specification: a package with its weights, or a model file."""
    path = os.path.expanduser(os.fspath(filename))
    is_program = spec.WhichOneof("Type") == "mlProgram"
    extension = os.path.splitext(path)[1]
    if not extension:
        path += ".mlpackage" if is_program else ".mlmodel"
    elif is_program and extension != ".mlpackage":
        raise Exception(f"For an ML Program, extension must be .mlpackage (not {extension}).")
    if path.endswith(".mlpackage"):
        if is_program and weights_dir is None:
            raise ValueError("spec of type mlProgram cannot be saved without the weights file. Please provide the path to the weights file as well, using the 'weights_dir' argument.")
        write_package(spec, path, weights_dir)
        return
    with open(path, "wb") as file:
        file.write(spec.SerializeToString())


def rename_feature(
    spec: Any, current_name: str, new_name: str, rename_inputs: bool = True, rename_outputs: bool = True
) -> None:
    """Renames an input or an output in a specification, in the stages of pipelines as well. An unknown name is no error."""
    description = spec.description
    features = [*(description.input if rename_inputs else ()), *(description.output if rename_outputs else ())]
    found = [feature for feature in features if feature.name == current_name]
    if not found:
        return
    if not (new_name.isascii() and new_name.isidentifier()):
        raise ValueError(
            "Input/output names for ML Program must be of the format [a-zA-Z_][a-zA-Z0-9_]*. That is, it must start with a "
            f'letter and only contain numerals, underscore or letters. Provided feature name, "{new_name}" does not satisfy '
            "these requirements."
        )
    for feature in found:
        feature.name = new_name
    if rename_outputs:
        for field in ("predictedFeatureName", "predictedProbabilitiesName"):
            if getattr(description, field) == current_name:
                setattr(description, field, new_name)
    for at, stage in enumerate(stages_of(spec)):
        rename_feature(stage, current_name, new_name, rename_inputs or at > 0)
    for function in spec.mlProgram.functions.values():
        for value in function.inputs:
            if value.name == current_name:
                value.name = new_name
        for block in function.block_specializations.values():
            _rename_in(block, current_name, new_name)


def stages_of(spec: Any) -> Any:
    """The specifications of the stages; none unless this is a pipeline."""
    kind = spec.WhichOneof("Type") or ""
    pipeline = getattr(spec, kind) if kind.startswith("pipeline") else None
    return () if pipeline is None else getattr(pipeline, "pipeline", pipeline).models


def _rename_in(block: Any, current_name: str, new_name: str) -> None:
    for at, name in enumerate(block.outputs):
        if name == current_name:
            block.outputs[at] = new_name
    for op in block.operations:
        for argument in op.inputs.values():
            for binding in argument.arguments:
                if binding.HasField("name") and binding.name == current_name:
                    binding.name = new_name
        for value in op.outputs:
            if value.name == current_name:
                value.name = new_name
        for inner in op.blocks:
            _rename_in(inner, current_name, new_name)


def change_input_output_tensor_type(
    ml_model: MLModel,
    from_type: Any,
    to_type: Any,
    function_names: list | None = None,
    input_names: list | None = None,
    output_names: list | None = None,
) -> MLModel:
    """Another element type for the inputs and outputs that have `from_type`; only outputs unless inputs are named."""
    from .model import MLModel

    source, target = _dtype(from_type), _dtype(to_type)
    patterns = {"inputs": input_names or [], "outputs": ["*"] if output_names is None else output_names}
    model = ml_model._one_program()
    functions = model.inspect()["functions"]
    for function in functions:
        if function["name"] not in (function_names or ["main"]):
            continue
        names = [
            feature["name"]
            for part, wanted in patterns.items()
            for feature in function[part]
            if feature["kind"] == "multiArray"
            and feature["dtype"] == source
            and any(fnmatch.fnmatchcase(feature["name"], pattern) for pattern in wanted)
        ]
        edits = [{"edit": "retype", "name": name, "dtype": target} for name in names]
        if edits:
            model = model._edit(json.dumps(edits), function["name"] if len(functions) > 1 else None)
    return MLModel._of(model, ml_model.compute_unit, ml_model.function_name)


def _dtype(code: Any) -> str:
    if code not in _DTYPES:
        raise ValueError(f"{code} is not an array type; expected one of {sorted(_DTYPES)}")
    return _DTYPES[code]


class MultiFunctionDescriptor:
    """Functions of packages that become one package."""

    def __init__(self, model_path: str | None = None) -> None:
        """With a path, all functions of that package under their names."""
        self._sources: dict = {}
        self._default: str | None = None
        if model_path is not None:
            self.add_model(model_path)

    def _functions(self) -> dict:
        """The path and the source's name, by function."""
        return dict(self._sources)

    @property
    def default_function_name(self) -> str | None:
        """The function that runs by default."""
        return self._default

    @default_function_name.setter
    def default_function_name(self, name: str) -> None:
        if not isinstance(name, str):
            raise ValueError(f"default_function_name must be type of str. Got {name}.")
        self._default = name

    def add_function(self, model_path: str, src_function_name: str, target_function_name: str) -> None:
        """Adds a function of a package under a name."""
        if target_function_name in self._sources:
            raise ValueError(f"function {target_function_name} already exist.")
        names = _functions_of(model_path)
        if src_function_name not in names:
            raise ValueError(f"src_function_name {src_function_name} not found in {model_path}.")
        self._sources[target_function_name] = (model_path, src_function_name)

    def add_model(self, model_path: str) -> None:
        """Adds all functions of a package under their names."""
        for name in _functions_of(model_path):
            self.add_function(model_path, name, name)

    def remove_function(self, function_name: str) -> None:
        """Removes a function."""
        if function_name not in self._sources:
            raise ValueError(f"function_name {function_name} not found.")
        del self._sources[function_name]


def _opened(path: str) -> Any:
    import coremill

    try:
        return coremill.load(path)
    except Exception as error:
        raise ValueError(f"invalid model_path {path} with error {error} while loading.") from error


def _functions_of(path: str) -> list:
    """The functions of a package, in the order of its description."""
    names = [function["name"] for function in _opened(path).inspect()["functions"]]
    if len(names) < 2 or not path.rstrip("/").endswith(".mlpackage"):
        return names
    try:
        described = [function.name for function in load_spec(path).description.functions]
    except ImportError:
        return names
    return described if sorted(described) == sorted(names) else names


def save_multifunction(desc: MultiFunctionDescriptor, destination_path: str) -> None:
    """Writes one package with the functions of a descriptor. Weights of equal content are stored once."""
    from coremill import _native

    if desc.default_function_name is None:
        raise ValueError("default_function_name must be set for the MultiFunctionDescriptor instance before calling save_multifunction.")
    if desc.default_function_name not in desc._sources:
        raise ValueError(f"default_function_name {desc.default_function_name} not found in the program.")
    opened = {path: _opened(path) for path, _ in desc._sources.values()}
    parts = [(name, opened[path], source) for name, (path, source) in desc._sources.items()]
    _native.merge(parts, desc.default_function_name).save(os.path.expanduser(os.fspath(destination_path)))


def materialize_dynamic_shape_mlmodel(
    dynamic_shape_mlmodel: MLModel,
    function_name_to_materialization_map: dict,
    destination_path: str,
    source_function_name: str = "main",
) -> None:
    """Writes a package with a function of fixed shapes for each name, from a model of flexible shapes."""
    from coremill import _native

    if not isinstance(function_name_to_materialization_map, dict) or not function_name_to_materialization_map:
        raise ValueError("function_name_to_materialization_map must be a dictionary of shapes by input, by function")
    model = dynamic_shape_mlmodel._one_program()
    functions = [function["name"] for function in model.inspect()["functions"]]
    if source_function_name not in functions:
        raise ValueError(f"Source function {source_function_name} not found; the functions are {functions}")
    source = source_function_name if len(functions) > 1 else None
    # Functions that are not replaced stay.
    kept = [name for name in functions if name not in function_name_to_materialization_map]
    parts = [(name, model, name if len(functions) > 1 else None) for name in kept]
    for name, shapes in function_name_to_materialization_map.items():
        edits = [{"edit": "shapes", "name": key, "shapes": [list(shape)]} for key, shape in shapes.items()]
        parts.append((name, model._edit(json.dumps(edits), source), source))
    if len(parts) == 1 and parts[0][0] == "main":
        parts[0][1].save(destination_path)
        return
    _native.merge(parts, model.inspect()["default_function"]).save(destination_path)


def compile_model(model: Any, destination_path: str | None = None) -> str:
    """Writes a package, a specification or a model as a compiled model; the path."""
    from .model import MLModel

    if isinstance(model, MLModel):
        raise TypeError("an MLModel is compiled already; call its get_compiled_model_path()")
    path = MLModel(model, weights_dir="" if hasattr(model, "SerializeToString") else None).get_compiled_model_path()
    if destination_path is None:
        return path
    if not os.fspath(destination_path).endswith(".mlmodelc"):
        raise ValueError(f'"destination_path" must end with .mlmodelc, got {destination_path}')
    if os.path.exists(destination_path):
        shutil.rmtree(destination_path)
    return shutil.move(path, destination_path)


def randomize_weights(mlmodel: MLModel) -> MLModel:
    """The model with random weights, drawn with numpy's state. Masks of sparse weights and integers such as indices stay."""
    import numpy

    from coremill import _native

    from .model import MLModel

    seed = int(numpy.random.randint(2**62, dtype=numpy.int64))
    made = _native.randomize_weights(mlmodel._one_program(), seed)
    return MLModel._of(made, mlmodel.compute_unit, mlmodel.function_name if mlmodel._has_functions else None)


def bisect_model(
    model: str | MLModel,
    output_dir: str,
    merge_chunks_to_pipeline: bool = False,
    check_output_correctness: bool = True,
) -> None:
    """Writes a model as two packages whose weights have about the same size, or as a pipeline of the two."""
    import coremill
    from coremill import _native

    from .model import MLModel

    if not isinstance(model, (str, MLModel)):
        raise ValueError(f"'model' must be type of [str, MLModel]. Got {type(model)}.")
    whole = coremill.load(model) if isinstance(model, str) else model._one_program()
    if [function["name"] for function in whole.inspect()["functions"]] != ["main"]:
        raise ValueError("'bisect_model' only support model with a single 'main' function.")
    pieces = coremill.split(whole, verify=check_output_correctness)
    if len(pieces) != 2:
        raise ValueError("'bisect_model' needs a model with at least two operations.")
    prefix = f"{os.path.splitext(os.path.basename(model))[0]}_" if isinstance(model, str) else ""
    os.makedirs(output_dir, exist_ok=True)
    if merge_chunks_to_pipeline:
        path = os.path.join(output_dir, f"{prefix}chunked_pipeline.mlpackage")
        _native.save_pipeline(path, whole, [(f"chunk{at}", piece) for at, piece in enumerate(pieces, 1)])
        return
    for at, piece in enumerate(pieces, 1):
        piece.save(os.path.join(output_dir, f"{prefix}chunk{at}.mlpackage"))
