"""The structure of models, with functions, operations and the values that connect them, and the forecast of their devices."""

from __future__ import annotations

import warnings
from collections import namedtuple

from .._missing import unsupported
from .._types import ComputeUnit
from .compute_device import MLCPUComputeDevice, MLGPUComputeDevice, MLNeuralEngineComputeDevice

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: A constant, whose content is not part of the structure.
MLModelStructureProgramValue = namedtuple("MLModelStructureProgramValue", [])
#: An argument that is either a named value or a constant.
MLModelStructureProgramBinding = namedtuple("MLModelStructureProgramBinding", ["name", "value"])
#: The arguments of a parameter.
MLModelStructureProgramArgument = namedtuple("MLModelStructureProgramArgument", ["bindings"])
#: A type, whose content is not part of the structure.
MLModelStructureProgramValueType = namedtuple("MLModelStructureProgramValueType", [])
#: A value of a program.
MLModelStructureProgramNamedValueType = namedtuple("MLModelStructureProgramNamedValueType", ["name", "type"])
#: An operation.
MLModelStructureProgramOperation = namedtuple(
    "MLModelStructureProgramOperation", ["inputs", "operator_name", "outputs", "blocks"]
)
#: A block of operations.
MLModelStructureProgramBlock = namedtuple("MLModelStructureProgramBlock", ["inputs", "operations", "output_names"])
#: A function.
MLModelStructureProgramFunction = namedtuple("MLModelStructureProgramFunction", ["inputs", "block"])
#: A program: functions by name.
MLModelStructureProgram = namedtuple("MLModelStructureProgram", ["functions"])


#: A pipeline: pairs of a stage's name and its structure.
MLModelStructurePipeline = namedtuple("MLModelStructurePipeline", ["sub_models"])


class MLModelStructure(namedtuple("MLModelStructure", ["neuralnetwork", "program", "pipeline"])):
    """The structure of a model: its program or its stages. Compiled pipelines are read as one program."""

    @classmethod
    def load_from_path(cls, compiled_model_path: str) -> MLModelStructure:
        """The structure of a compiled model or a package."""
        from .model import MLModel

        return cls._of(MLModel(compiled_model_path, skip_model_load=True)._spec)

    @classmethod
    def _of(cls, spec: Any) -> MLModelStructure:
        """The structure of a specification."""
        from .utils import stages_of

        kind = spec.WhichOneof("Type")
        if stages := stages_of(spec):
            pipeline = getattr(spec, kind)
            names = [*getattr(pipeline, "pipeline", pipeline).names]
            names += [f"model{at}" for at in range(len(names), len(stages))]
            return cls(None, None, MLModelStructurePipeline(tuple(zip(names, map(cls._of, stages)))))
        if kind != "mlProgram":
            raise unsupported(f"the structure of a `{kind}`", "`MLModel.get_spec()` has its layers")
        functions = {name: _function(function) for name, function in spec.mlProgram.functions.items()}
        return cls(None, MLModelStructureProgram(functions), None)


#: The devices of an operation.
MLComputePlanDeviceUsage = namedtuple("MLComputePlanDeviceUsage", ["preferred_compute_device", "supported_compute_devices"])
#: The share of the model's cost that an operation has.
MLComputePlanCost = namedtuple("MLComputePlanCost", ["weight"])


class MLComputePlan:
    """The devices on which Core ML would run operations, as a cost model forecasts them."""

    def __init__(self, structure: MLModelStructure, forecast: dict) -> None:
        """`forecast` is that of :meth:`coremill.Model.forecast`."""
        self._structure = structure
        planned = {(one["function"], *one["outputs"]): one for one in forecast["operations"]}
        self._planned = {
            id(op): planned.get((name, *(value.name for value in op.outputs)))
            for name, function in structure.program.functions.items()
            for op in _nested(function.block)
        }

    @property
    def model_structure(self) -> MLModelStructure:
        """The structure, whose operations the other methods take."""
        return self._structure

    @classmethod
    def load_from_path(cls, path: str, compute_units: ComputeUnit = ComputeUnit.ALL) -> MLComputePlan:
        """The forecast for a compiled model or a package on a Mac with an M4.

        It warns that it is one: only Core ML knows its plan, which `coremill plan` records on a Mac.
        """
        from .model import MLModel

        if compute_units == ComputeUnit.CPU_AND_GPU:
            raise unsupported("the plan for `CPU_AND_GPU`", "`coremill plan` records it on a Mac: GPU times are not published")
        model = MLModel(path, skip_model_load=True)
        structure = MLModelStructure._of(model._spec)
        if structure.program is None:
            raise unsupported("the plan of a pipeline", "load the plan of each of its models")
        forecast = model._model.forecast(neural_engine=compute_units != ComputeUnit.CPU_ONLY)
        warnings.warn(
            f"this plan is a forecast for {forecast['forecast']['chip']}: {forecast['forecast']['accuracy']}\n"
            "hint: `coremill plan` records Core ML's plan on a Mac",
            stacklevel=2,
        )
        return cls(structure, forecast)

    def get_compute_device_usage_for_mlprogram_operation(
        self, operation: MLModelStructureProgramOperation
    ) -> MLComputePlanDeviceUsage | None:
        """The devices of an operation; `None` for constants."""
        planned = self._of(operation)
        if planned is None or planned["preferred"] is None:
            return None
        return MLComputePlanDeviceUsage(_DEVICES[planned["preferred"]](), [_DEVICES[one]() for one in planned["supported"]])

    def get_estimated_cost_for_mlprogram_operation(self, operation: MLModelStructureProgramOperation) -> MLComputePlanCost | None:
        """The share of the cost; `None` for constants."""
        planned = self._of(operation)
        return None if planned is None or planned["cost"] is None else MLComputePlanCost(planned["cost"])

    def _of(self, operation: MLModelStructureProgramOperation) -> dict | None:
        if id(operation) not in self._planned:
            raise ValueError("the operation is not part of this plan's `model_structure`")
        return self._planned[id(operation)]


_DEVICES = {"cpu": MLCPUComputeDevice, "gpu": MLGPUComputeDevice, "neural-engine": MLNeuralEngineComputeDevice}


def _nested(block: MLModelStructureProgramBlock) -> Iterator[MLModelStructureProgramOperation]:
    """The operations of a block and of the blocks in them."""
    for op in block.operations:
        yield op
        for inner in op.blocks:
            yield from _nested(inner)


def _function(function: Any) -> MLModelStructureProgramFunction:
    block = function.block_specializations[function.opset]
    return MLModelStructureProgramFunction(_values(function.inputs), _block(block))


def _block(block: Any) -> MLModelStructureProgramBlock:
    operations = [
        MLModelStructureProgramOperation(
            {name: _argument(argument) for name, argument in op.inputs.items()},
            op.type,
            _values(op.outputs),
            [_block(inner) for inner in op.blocks],
        )
        for op in block.operations
    ]
    return MLModelStructureProgramBlock(_values(block.inputs), operations, list(block.outputs))


def _argument(argument: Any) -> MLModelStructureProgramArgument:
    return MLModelStructureProgramArgument(
        [
            MLModelStructureProgramBinding(bound.name, None)
            if bound.HasField("name")
            else MLModelStructureProgramBinding(None, MLModelStructureProgramValue())
            for bound in argument.arguments
        ]
    )


def _values(values: Any) -> list:
    return [MLModelStructureProgramNamedValueType(value.name, MLModelStructureProgramValueType()) for value in values]
