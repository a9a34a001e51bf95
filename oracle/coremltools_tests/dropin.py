"""`coremill.coremltools` in the place of coremltools' public interface.

The names of the public modules are replaced; coremltools' enumerations, which the drop-in accepts, its messages, and
its internals, which the tests use to make and to examine programs, stay. Programs of coremltools' builder are out of
the drop-in's scope, so coremltools writes them, and the drop-in loads the packages.
"""

import functools
import importlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import coremltools as theirs
import numpy
from coremltools.converters.mil import testing_utils
from coremltools.converters.mil.frontend.milproto import load as milproto
from coremltools.converters.mil.mil import Program
from coremltools.converters.mil.mil.scope import ScopeSource
from coremltools.converters.mil.mil.types import type_mapping

import coremill.coremltools as ours
from coremill.coremltools._scopes import scopes_of
from coremill.coremltools.models.model import MLModel

_THEIR_MODEL = theirs.models.MLModel
_THEIR_CONVERT = theirs.convert
_THEIR_TYPES = {
    name: getattr(theirs, name)
    for name in ("ClassifierConfig", "EnumeratedShapes", "ImageType", "RangeDim", "Shape", "StateType", "TensorType")
}
_THEIR_PIPELINE = theirs.PassPipeline
_THEIR_PRECISION = theirs.transform.FP16ComputePrecision
#: Modules whose names are replaced.
_MODULES = (
    "models",
    "models.compute_device",
    "models.compute_plan",
    "models.model",
    "models.utils",
    "models.ml_program.compression_utils",
    "converters",
    "optimize.coreml",
    "optimize.coreml.experimental",
)


def replace() -> None:
    """Replaces coremltools' public names."""
    # Tests of coremltools' passes, which need its own configurations. Other tests import them.
    importlib.import_module("coremltools.test.optimize.coreml.test_passes")
    theirs.convert = theirs.converters.convert = _convert
    for name in (*_THEIR_TYPES, "PassPipeline", "transform"):
        setattr(theirs, name, getattr(ours, name))
    for name in _MODULES:
        _replace_names(importlib.import_module(f"coremltools.{name}"), f"coremill.coremltools.{name}")
    theirs.models.CompiledMLModel = ours.models.CompiledMLModel
    MLModel.__init__ = _init
    MLModel._mil_program = property(_program)
    MLModel.__proxy__ = property(lambda model: model._session)
    for shape in (ours.Shape, ours.EnumeratedShapes):
        shape.symbolic_shape = property(_symbolic_shape)
    MLModel._get_mil_internal = _program
    testing_utils.get_op_types_in_program = _operations
    testing_utils.assert_cast_ops_count = _check_casts
    # The tests ask it for the type of `TensorType.dtype`.
    type_mapping.nptype_from_builtin = _nptype


def _replace_names(module: Any, our_name: str) -> None:
    """Replaces the public names of a module. The drop-in's error takes the place of those that it does not have."""
    try:
        substitute = importlib.import_module(our_name)
    except ModuleNotFoundError:
        substitute = None
    for name, value in list(vars(module).items()):
        if name.startswith("_") or not callable(value) or not getattr(value, "__module__", "").startswith("coremltools"):
            continue
        if value is _convert:
            continue
        try:
            found = getattr(substitute, name)
        except AttributeError:
            if isinstance(value, type):
                continue
            found = _missing(our_name, name)
        is_function = callable(found) and not isinstance(found, type)
        setattr(module, name, _accepting_their_models(found) if is_function else found)


def _missing(module: str, name: str) -> Callable[..., Any]:
    def call(*_: object, **__: object) -> None:
        from coremill.coremltools._missing import unsupported_name

        raise unsupported_name(module.removeprefix("coremill."), name)

    return call


def _accepting_their_models(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        return function(*map(_model, arguments), **{name: _model(value) for name, value in options.items()})

    return call


def _model(value: Any) -> Any:
    """coremltools' models as the drop-in's; anything else as it is."""
    if not isinstance(value, _THEIR_MODEL) or not value.is_package:
        return value
    made = MLModel(value.package_path, compute_units=value.compute_unit, function_name=value.function_name)
    made._their_program = (made._model, value._mil_program)
    return made


def _convert(model: Any, *arguments: Any, **options: Any) -> Any:
    if not isinstance(model, Program) and options.get("source") != "milinternal":
        if options.get("convert_to") == "milinternal":
            # The program alone, which only coremltools can represent. It keeps its floats by default.
            changed = {"compute_precision": ours.precision.FLOAT32, **options, "convert_to": "mlprogram"}
            return ours.convert(model, *arguments, **changed)._mil_program
        return ours.convert(model, *arguments, **options)
    # coremltools finishes the models of its own class.
    theirs.models.MLModel = _THEIR_MODEL
    try:
        made = _THEIR_CONVERT(model, *map(_their, arguments), **{key: _their(one) for key, one in options.items()})
    finally:
        theirs.models.MLModel = MLModel
    return _model(made)


_our_init = MLModel.__init__


def _init(made: MLModel, *arguments: Any, mil_program: Any = None, **options: Any) -> None:
    """Makes a model. coremltools' converter of the builder's programs also passes the program."""
    _our_init(made, *arguments, **options)
    made._their_program = (made._model, mil_program)


def _their(value: Any) -> Any:
    """coremltools' descriptions of inputs and pipelines for the drop-in's."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_their, value))
    if isinstance(value, ours.PassPipeline):
        preset = {"default_palettization": "DEFAULT_PALETTIZATION", "default_sparsification": "DEFAULT_PRUNING"}.get(value._pipeline_name)
        made = getattr(_THEIR_PIPELINE, preset) if preset else _THEIR_PIPELINE()
        made.passes = value.passes
        for name, options in value._options.items():
            # The presets have configurations of their own.
            if not (preset and name.startswith("compression::")):
                made.set_options(name, options)
        return made
    if isinstance(value, ours.StateType):
        return _THEIR_TYPES["StateType"](wrapped_type=_their(value.wrapped_type), name=value.name)
    if isinstance(value, ours.transform.FP16ComputePrecision):
        return _THEIR_PRECISION(value.op_selector)
    name = type(value).__name__
    if isinstance(value, ours.colorlayout):
        return theirs.colorlayout[value.name]
    if hasattr(value, "_their_shape"):
        return value._their_shape
    if type(value).__module__ == "coremill.coremltools._types" and name in _THEIR_TYPES:
        unknown = {"Shape": "default", "ImageType": "dtype"}.get(name)
        return _THEIR_TYPES[name](**{key: _their(one) for key, one in vars(value).items() if key != unknown})
    return value


def _symbolic_shape(shape: Any) -> Any:
    """What the builder of coremltools takes."""
    if not hasattr(shape, "_their_shape"):
        shape._their_shape = _their(shape)
    return shape._their_shape.symbolic_shape


def _program(model: MLModel) -> Any:
    """The program of a model as coremltools reads it, which the tests examine."""
    kept = getattr(model, "_their_program", None)
    if kept is None or kept[0] is not model._model or kept[1] is None:
        spec = theirs.proto.Model_pb2.Model.FromString(model._spec.SerializeToString())
        program = milproto.load(
            spec, specification_version=spec.specificationVersion, file_weights_dir=model.weights_dir or ""
        )
        program.is_of_coremill = True
        for function in program.functions.values():
            _set_scopes(function, model._scopes)
        kept = model._their_program = (model._model, program)
    return kept[1]


def _set_scopes(block: Any, known: dict[str, Any]) -> None:
    """Sets where the operations come from, which packages do not tell."""
    for op in block.operations:
        for inner in op.blocks:
            _set_scopes(inner, known)
        found = scopes_of(op.outputs[0].name, known) if op.outputs else {}
        op.scopes.update({source: found[source] for source in ScopeSource if source in found})


def _essential(operations: Iterable[str]) -> tuple[Counter[str], set[str]]:
    """The operations that say how weights are stored and where values are quantized; and those of states, by kind.

    A state may be read and written once, where coremltools writes after each step.
    """
    operations = list(operations)
    stored = Counter(op for op in operations if op.startswith("constexpr_") or op in ("quantize", "dequantize"))
    return stored, {"read_state", "coreml_update_state"}.intersection(operations)


class Operations(list):
    """The types of the operations of a program that coremill made.

    The tests compare them with those of coremltools' own passes. Casts, and operations that are fused, split or replaced by
    others, may differ: the difference is noted, and the rest of the test, with the predictions, goes on. Compressed weights,
    quantized values and the use of states must be those of coremltools.
    """

    #: Differences in the present case.
    differences: ClassVar[list[str]] = []

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list) or _essential(self) != _essential(other):
            return False
        if not list.__eq__(self, other):
            self.differences.append(f"{list(self)}; coremltools has {list(other)}")
        return True

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None


_their_operations = testing_utils.get_op_types_in_program
_their_check_of_casts = testing_utils.assert_cast_ops_count


def _operations(program: Any, *arguments: Any, **options: Any) -> list[str]:
    found = _their_operations(program, *arguments, **options)
    return Operations(found) if hasattr(program, "is_of_coremill") else found


def _check_casts(model: Any, expected_count: int) -> None:
    casts = Operations(["cast"] * len(model._mil_program.functions["main"].find_ops(op_type="cast")))
    assert casts == ["cast"] * expected_count


_their_nptype = type_mapping.nptype_from_builtin


def _nptype(kind: Any) -> Any:
    return kind if isinstance(kind, type) and issubclass(kind, numpy.generic) else _their_nptype(kind)
