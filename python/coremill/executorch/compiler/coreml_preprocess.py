"""Creates Core ML models of partitions, and the compile specs with their options."""

import json
import logging
import sys
from dataclasses import dataclass
from enum import Enum
from typing import Any, Dict, List, Optional, Tuple, final

from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import (
    BackendDetails,
    ExportedProgram,
    PreprocessResult,
)
from executorch.exir.backend.compile_spec_schema import CompileSpec

from ... import _native
from ..enums import ComputeUnit, as_user_knows_it, member, precision, target
from ..logging import get_coreml_log_level
from .enumerated_shape_utils import _SymbolicShapeToEnumeratedShapeMap, check_inputs

# The name by which users who come from ExecuTorch's backend already listen to it.
logger = logging.getLogger("executorch.backends.apple.coreml.compiler.coreml_preprocess")
logger.setLevel(get_coreml_log_level(default_level=logging.WARNING))


class COMPILE_SPEC_KEYS(Enum):
    """The keys of the backend's compile specs."""

    COMPUTE_UNITS = "compute_units"
    MODEL_TYPE = "model_type"
    MIN_DEPLOYMENT_TARGET = "min_deployment_target"
    MODEL_COMPUTE_PRECISION = "model_compute_precision"
    OP_LINEAR_QUANTIZER_CONFIG = "op_linear_quantizer_config"
    ENUMERATED_SHAPES = "enumerated_shapes"
    PASS_PIPELINE = "pass_pipeline"
    MULTIMETHOD_WEIGHT_SHARING_STRATEGY = "multimethod_weight_sharing_strategy"


class MULTIMETHOD_WEIGHT_SHARING_STRATEGY(Enum):
    """Whether the methods of a program share weights."""

    #: Each method has its own.
    DISABLED = "disabled"
    #: The first partitions of all methods are functions of one model, and so are the second ones.
    POSITIONAL = "positional"


class MODEL_PATHS(Enum):
    """The files that a delegate is given."""

    MODEL = "model.mlpackage"
    COMPILED_MODEL = "model.mlmodelc"
    METADATA = "metadata.json"
    DEBUG_INFO = "debug_info.json"


@dataclass
class PassPipeline:
    """The passes of a compile spec, for users without coremltools."""

    passes: Optional[List[str]] = None
    pipeline_name: str = "default"


@final
class CoreMLBackend(BackendDetails):
    """The backend that ExecuTorch finds by this name."""

    class MODEL_TYPE(Enum):
        """The form of the models."""

        #: A package, which the device compiles when it loads it first.
        MODEL = "model"
        #: A compiled model.
        COMPILED_MODEL = "compiled_model"

    @staticmethod
    def generate_model_type_compile_spec(model_type: MODEL_TYPE) -> CompileSpec:
        """Returns the spec for a form of the models."""
        return _spec(COMPILE_SPEC_KEYS.MODEL_TYPE, model_type.value)

    @staticmethod
    def model_type_from_compile_specs(compile_specs: List[CompileSpec]) -> MODEL_TYPE:
        """Returns the form of the models, by default a package."""
        value = _value(compile_specs, COMPILE_SPEC_KEYS.MODEL_TYPE)
        return CoreMLBackend.MODEL_TYPE(value or "model")

    @staticmethod
    def generate_compute_precision_compile_spec(compute_precision: Any) -> CompileSpec:
        """Returns the spec for the precision: ``precision`` of coremltools or of ``coremill.executorch``."""
        value = member(compute_precision, "precision").value
        return _spec(COMPILE_SPEC_KEYS.MODEL_COMPUTE_PRECISION, value)

    @staticmethod
    def model_compute_precision_from_compile_specs(compile_specs: List[CompileSpec]) -> Any:
        """Returns the precision, by default ``FLOAT16``."""
        value = _value(compile_specs, COMPILE_SPEC_KEYS.MODEL_COMPUTE_PRECISION)
        return as_user_knows_it(precision(value or "float16"), "precision")

    @staticmethod
    def generate_minimum_deployment_target_compile_spec(min_deployment_target: Any) -> CompileSpec:
        """Returns the spec for the minimum deployment target; ``None`` selects the oldest that supports the model."""
        value = ""
        if min_deployment_target is not None:
            value = str(member(min_deployment_target, "target").value)
        return _spec(COMPILE_SPEC_KEYS.MIN_DEPLOYMENT_TARGET, value)

    @staticmethod
    def min_deployment_target_from_compile_specs(compile_specs: List[CompileSpec]) -> Any:
        """Returns the minimum deployment target; ``None`` if unspecified."""
        value = _value(compile_specs, COMPILE_SPEC_KEYS.MIN_DEPLOYMENT_TARGET)
        return as_user_knows_it(target(int(value)), "target") if value else None

    @staticmethod
    def generate_compute_unit_compile_spec(compute_unit: Any) -> CompileSpec:
        """Returns the spec for the processors: ``ComputeUnit`` of coremltools or of ``coremill.executorch``."""
        name = member(compute_unit, "ComputeUnit").name.lower()
        return _spec(COMPILE_SPEC_KEYS.COMPUTE_UNITS, name)

    @staticmethod
    def compute_unit_from_compile_specs(compile_specs: List[CompileSpec]) -> Any:
        """Returns the processors, by default all."""
        value = _value(compile_specs, COMPILE_SPEC_KEYS.COMPUTE_UNITS)
        return as_user_knows_it(ComputeUnit[(value or "all").upper()], "ComputeUnit")

    @staticmethod
    def generate_op_linear_quantizer_config_compile_spec(
        op_linear_quantizer_config: Dict,
    ) -> CompileSpec:
        """Returns the spec for quantized weights, with the fields of coremltools' ``OpLinearQuantizerConfig``."""
        value = json.dumps(op_linear_quantizer_config)
        return _spec(COMPILE_SPEC_KEYS.OP_LINEAR_QUANTIZER_CONFIG, value)

    @staticmethod
    def op_linear_quantizer_config_from_compile_specs(compile_specs: List[CompileSpec]) -> Any:
        """Read how weights are quantized: coremltools' config if it is imported, else its fields."""
        value = _value(compile_specs, COMPILE_SPEC_KEYS.OP_LINEAR_QUANTIZER_CONFIG)
        if value is None:
            return None
        fields = json.loads(value)
        optimize = sys.modules.get("coremltools.optimize.coreml")
        return optimize.OpLinearQuantizerConfig._from_dict(fields) if optimize else fields

    @staticmethod
    def generate_pass_pipeline_compile_spec(pass_names: List[str]) -> CompileSpec:
        """Returns the spec for a list of passes, by coremltools' names."""
        return _spec(COMPILE_SPEC_KEYS.PASS_PIPELINE, json.dumps(pass_names))

    @staticmethod
    def pass_pipeline_from_compile_specs(compile_specs: List[CompileSpec]) -> Any:
        """Read the passes: coremltools' ``PassPipeline`` if it is imported, else one with its fields."""
        made = getattr(sys.modules.get("coremltools"), "PassPipeline", PassPipeline)
        value = _value(compile_specs, COMPILE_SPEC_KEYS.PASS_PIPELINE)
        if value is None:
            return getattr(made, "DEFAULT", PassPipeline())
        return made(json.loads(value), pipeline_name="executorch_user_pipeline")

    @staticmethod
    def generate_multimethod_weight_sharing_strategy_compile_spec(
        strategy: MULTIMETHOD_WEIGHT_SHARING_STRATEGY,
    ) -> CompileSpec:
        """Returns the spec for methods that share weights, or for methods that do not."""
        key = COMPILE_SPEC_KEYS.MULTIMETHOD_WEIGHT_SHARING_STRATEGY
        return _spec(key, strategy.value)

    @staticmethod
    def multimethod_weight_sharing_strategy_from_compile_specs(
        compile_specs: List[CompileSpec],
    ) -> MULTIMETHOD_WEIGHT_SHARING_STRATEGY:
        """Returns whether methods share weights, which is the default."""
        key = COMPILE_SPEC_KEYS.MULTIMETHOD_WEIGHT_SHARING_STRATEGY
        return MULTIMETHOD_WEIGHT_SHARING_STRATEGY(_value(compile_specs, key) or "positional")

    @staticmethod
    def generate_enumerated_shapes_compile_spec(
        ep: ExportedProgram, enumerated_shapes: Dict[str, List[List[int]]]
    ) -> CompileSpec:
        """Returns the spec for inputs with enumerated shapes: ``{"x": [[1, 24], [8, 24]]}``.

        The first shapes of all inputs belong together, and so do the second ones. Several such inputs need iOS 18.
        """
        shapes = _SymbolicShapeToEnumeratedShapeMap.from_exported_program(ep, enumerated_shapes)
        return _spec(COMPILE_SPEC_KEYS.ENUMERATED_SHAPES, shapes.to_json())

    @staticmethod
    def enumerated_shapes_from_compile_specs(
        compile_specs: List[CompileSpec],
    ) -> Optional[_SymbolicShapeToEnumeratedShapeMap]:
        """Returns the enumerated shapes of inputs; ``None`` if unspecified."""
        value = _value(compile_specs, COMPILE_SPEC_KEYS.ENUMERATED_SHAPES)
        return None if value is None else _SymbolicShapeToEnumeratedShapeMap.from_json(value)

    @staticmethod
    def generate_compile_specs(
        compute_unit: Any = ComputeUnit.ALL,
        minimum_deployment_target: Any = None,
        compute_precision: Any = precision.FLOAT16,
        model_type: MODEL_TYPE = MODEL_TYPE.MODEL,
        op_linear_quantizer_config: Optional[Dict] = None,
        pass_names: Optional[List[str]] = None,
    ) -> List[CompileSpec]:
        """Return the compile specs for the partitioner."""
        made = CoreMLBackend
        specs = [
            made.generate_compute_unit_compile_spec(compute_unit),
            made.generate_minimum_deployment_target_compile_spec(minimum_deployment_target),
            made.generate_compute_precision_compile_spec(compute_precision),
            made.generate_model_type_compile_spec(model_type),
        ]
        if op_linear_quantizer_config is not None:
            specs.append(
                made.generate_op_linear_quantizer_config_compile_spec(op_linear_quantizer_config)
            )
        if pass_names is not None:
            specs.append(made.generate_pass_pipeline_compile_spec(pass_names))
        return specs

    @classmethod
    def copy_exported_program_for_preprocess(
        cls, edge_program: ExportedProgram, compile_specs: List[CompileSpec]
    ) -> ExportedProgram:
        """Return the program itself: preprocessing reads it, and its weights need not be copied."""
        return edge_program

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: List[CompileSpec]
    ) -> PreprocessResult:
        """Make a model of a partition."""
        check_shapes(edge_program, compile_specs)
        made = _native.edge_preprocess(edge_program, pairs(compile_specs))
        warn_of_version(f"with identifier {made.identifier}", made.specification_version)
        return PreprocessResult(
            processed_bytes=made.data, debug_handle_map=made.debug_handle_map
        )

    @classmethod
    def preprocess_multimethod(
        cls,
        edge_programs: Dict[str, List[ExportedProgram]],
        compile_specs: Dict[str, List[List[CompileSpec]]],
    ) -> Dict[str, List[PreprocessResult]]:
        """Make models of the partitions of several methods, which share weights unless that is disabled."""
        first = next(iter(edge_programs), "")
        is_shared = len(edge_programs) > 1 and bool(compile_specs[first])
        if is_shared:
            strategy = cls.multimethod_weight_sharing_strategy_from_compile_specs(
                compile_specs[first][0]
            )
            is_shared = strategy == MULTIMETHOD_WEIGHT_SHARING_STRATEGY.POSITIONAL
        if not is_shared:
            return super().preprocess_multimethod(edge_programs, compile_specs)
        count = len(edge_programs[first])
        for method, programs in edge_programs.items():
            if len(programs) != count:
                raise ValueError(
                    f"Method '{method}' has {len(programs)} partitions, but '{first}' has {count}. "
                    "POSITIONAL weight sharing strategy requires all methods to have the same number "
                    "of partitions. Use MULTIMETHOD_WEIGHT_SHARING_STRATEGY.DISABLED if methods should "
                    "be processed independently."
                )
            for program, specs in zip(programs, compile_specs[method]):
                check_shapes(program, specs)
        store = NamedDataStore()
        references: Dict[str, List[bytes]] = {method: [] for method in edge_programs}
        for at in range(count):
            parts = [
                (method, programs[at], pairs(compile_specs[method][at]))
                for method, programs in edge_programs.items()
            ]
            made = _native.edge_preprocess_multimethod(parts, at)
            warn_of_version(f"with identifier {made.identifier}", made.specification_version)
            store.add_named_data(made.key, made.data)
            for method, reference in made.references.items():
                references[method].append(reference)
        shared = store.get_named_data_store_output()
        return {
            method: [
                PreprocessResult(processed_bytes=one, data_store_output=shared) for one in own
            ]
            for method, own in references.items()
        }


def _spec(key: COMPILE_SPEC_KEYS, value: str) -> CompileSpec:
    return CompileSpec(key.value, value.encode("utf-8"))


def _value(specs: List[CompileSpec], key: COMPILE_SPEC_KEYS) -> Optional[str]:
    """The value of the first spec with a key."""
    return next((spec.value.decode("utf-8") for spec in specs if spec.key == key.value), None)


def pairs(specs: List[CompileSpec]) -> List[Tuple[str, bytes]]:
    """Compile specs for the native module."""
    return [(spec.key, bytes(spec.value)) for spec in specs]


def check_shapes(program: ExportedProgram, specs: List[CompileSpec]) -> None:
    """Check that a program's inputs can have the shapes that specs enumerate."""
    shapes = CoreMLBackend.enumerated_shapes_from_compile_specs(specs)
    if shapes is not None:
        wanted = CoreMLBackend.min_deployment_target_from_compile_specs(specs)
        check_inputs(program, shapes, wanted is not None and wanted >= target.iOS18)


def warn_of_version(which: str, version: int) -> None:
    """Logs which systems run a model, as ExecuTorch's own backend does."""
    logger.warning(
        f"The model {which} was exported with CoreML specification version "
        f"{version}, and it will not run on all version of iOS/macOS."
        " See https://apple.github.io/coremltools/mlmodel/Format/Model.html#model for information on what OS "
        "versions are compatible with this specifcation version."
        " If you want to control the deployment target, please set the minimum_deployment_target compile spec "
        "in the CoreMLPartitioner."
    )
