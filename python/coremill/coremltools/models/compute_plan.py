"""The structure of models: functions, operations, and the values that connect them."""

from __future__ import annotations

from collections import namedtuple

from .._missing import unsupported

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
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


class MLComputePlan:
    """The devices on which Core ML would run operations."""

    @classmethod
    def load_from_path(cls, path: str, compute_units: Any = None) -> MLComputePlan:
        """Raises: only Core ML knows its plan."""
        raise unsupported("`MLComputePlan`", "`coremill plan` records the compute plan on a Mac")


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
