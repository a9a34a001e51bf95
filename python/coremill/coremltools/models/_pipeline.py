"""Pipelines: models that run one after another."""

from __future__ import annotations

import os
import shutil

from ._other_kinds import OtherModel

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .model import MLModel


class Pipeline(OtherModel):
    """A pipeline of ML Programs. Its specification keeps the stages; the engine runs them as one program."""

    def __init__(self, spec: Any, weights_dir: str | None, is_package: bool = True, linked: Any = None) -> None:
        """`weights_dir` has the weights of all stages, and `linked` is the program of all if it is known."""
        super().__init__(spec, weights_dir, is_package)
        self._linked = linked

    def linked(self) -> Any:
        """One program with the operations of all stages."""
        if self._linked is None:
            self._linked = self._opened()
        return self._linked

    def _opened(self) -> Any:
        import coremill

        from ._package import package_of_spec

        return coremill.load(package_of_spec(self.spec, self.weights_dir))

    def inspect(self) -> dict:
        """A summary of inputs and outputs."""
        return self.linked().inspect()

    def _edit(self, edits: str, function: str | None = None) -> Pipeline:
        """The pipeline with new descriptions of features."""
        made = super()._edit(edits, function)
        made._linked = self.linked()._edit(edits)
        return made

    def save(self, path: str) -> None:
        """Writes a package with the stages, or one compiled program."""
        if path.endswith(".mlmodelc"):
            self._opened().save(path)
        else:
            super().save(path)

    def session(self, function: str | None = None) -> Any:
        """What predicts."""
        return self.linked().session()


def pipeline_of(models: tuple) -> Pipeline:
    """A pipeline: inputs that no earlier model computes are its inputs, outputs that no later model takes are its outputs."""
    from ..proto import Model_pb2
    from ._package import temporary

    specs = [model.get_spec() for model in models]
    spec = Model_pb2.Model(specificationVersion=max(one.specificationVersion for one in specs))
    known: set = set()
    for one in specs:
        for feature in one.description.input:
            if feature.name not in known:
                spec.description.input.add().CopyFrom(feature)
                known.add(feature.name)
        known.update(feature.name for feature in one.description.output)
    used: set = set()
    for one in reversed(specs):
        for feature in one.description.output:
            if feature.name not in used:
                spec.description.output.add().CopyFrom(feature)
        used.update(feature.name for feature in one.description.input)
    weights = os.path.join(temporary(), "weights")
    os.makedirs(weights)
    for at, (model, one) in enumerate(zip(models, specs)):
        source = model.weights_dir
        for name in sorted(os.listdir(source)) if os.path.basename(source) == "weights" else ():
            shutil.copyfile(os.path.join(source, name), os.path.join(weights, f"{at}-{name}"))
        for function in one.mlProgram.functions.values():
            for block in function.block_specializations.values():
                _rename_files(block, at)
        spec.pipeline.models.append(one)
        spec.pipeline.names.append(f"model{at}")
    return Pipeline(spec, weights)


def _rename_files(block: Any, at: int) -> None:
    """Gives the weight files of a stage names of their own."""
    for op in block.operations:
        values = [*op.attributes.values()]
        for argument in op.inputs.values():
            values.extend(bound.value for bound in argument.arguments if bound.HasField("value"))
        for value in values:
            if value.HasField("blobFileValue"):
                folder, _, name = value.blobFileValue.fileName.rpartition("/")
                value.blobFileValue.fileName = f"{folder}/{at}-{name}"
        for inner in op.blocks:
            _rename_files(inner, at)


def make_pipeline(*models: MLModel, compute_units: Any = None) -> MLModel:
    """Makes a pipeline of ML Programs. The values between them have the same name on both sides."""
    from .model import MLModel

    if len(models) < 2:
        raise ValueError(f"a pipeline needs at least two models, got {len(models)}")
    if compute_units is None:
        compute_units = models[0].compute_unit
        if any(model.compute_unit is not compute_units for model in models):
            raise ValueError('Models have different compute_unit values. The "compute_units" parameter must be specified.')
    for model in models:
        kind = model._spec.WhichOneof("Type")
        if kind != "mlProgram" or model._has_functions or model._is_stateful():
            from .._missing import unsupported

            what = kind if kind != "mlProgram" else "model with several functions or states"
            raise unsupported(f"a pipeline with a `{what}`", "convert the stages as one module")
    return MLModel._of(pipeline_of(models), compute_units)
