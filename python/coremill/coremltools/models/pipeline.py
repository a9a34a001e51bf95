"""Pipelines that scripts make of specifications, one stage after the other."""

from __future__ import annotations

from .datatypes import Dictionary, Double, Int64, String, write_type

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class Pipeline:
    """A pipeline, whose specification is `spec`."""

    _kind = "pipeline"

    def __init__(self, input_features: Sequence, output_features: Sequence, training_features: Any = None) -> None:
        """Features are names with types of `datatypes`, or names of numbers."""
        from ..proto import Model_pb2

        if training_features is not None:
            from .._missing import unsupported

            raise unsupported("training of pipelines", "leave out `training_features`")
        self.spec = Model_pb2.Model(specificationVersion=1)
        _describe(self.spec.description.input, input_features)
        _describe(self.spec.description.output, output_features)

    def _pipeline(self) -> Any:
        """The message with the stages."""
        kind = getattr(self.spec, self._kind)
        return kind if self._kind == "pipeline" else kind.pipeline

    def add_model(self, spec: Any) -> None:
        """Appends a stage: a specification or an `MLModel`."""
        self._pipeline().models.add().CopyFrom(getattr(spec, "_spec", spec))


class PipelineRegressor(Pipeline):
    """A pipeline whose last stage is a regressor."""

    _kind = "pipelineRegressor"

    def __init__(self, input_features: Sequence, output_features: Any, training_features: Any = None) -> None:
        """`output_features` is one feature, which is the prediction."""
        is_one = isinstance(output_features, str) or (len(output_features) == 2 and isinstance(output_features[0], str))
        super().__init__(input_features, [output_features] if is_one else output_features, training_features)
        self.spec.description.predictedFeatureName = self.spec.description.output[0].name


class PipelineClassifier(Pipeline):
    """A pipeline whose last stage is a classifier."""

    _kind = "pipelineClassifier"

    def __init__(
        self, input_features: Sequence, class_labels: Sequence, output_features: Any = None, training_features: Any = None
    ) -> None:
        """`output_features` are the names of the class and of the probabilities."""
        is_integer = all(isinstance(label, int) for label in class_labels)
        key = Int64() if is_integer else String()
        names = ["classLabel", "classProbability"] if output_features is None else output_features
        names = [names, "classProbability"] if isinstance(names, str) else names
        names = [name if isinstance(name, str) else name[0] for name in names]
        features = list(zip(names, (key, Dictionary(key))))
        super().__init__(input_features, features, training_features)
        self.spec.description.predictedFeatureName = names[0]
        if len(names) > 1:
            self.spec.description.predictedProbabilitiesName = names[1]


def _describe(descriptions: Any, features: Sequence) -> None:
    """Adds features to the description of a model."""
    for feature in features:
        name, datatype = (feature, Double()) if isinstance(feature, str) else feature
        write_type(descriptions.add(name=name).type, datatype)
