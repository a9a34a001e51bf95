"""Predictions of pipelines with stages that are no ML Programs, and of non-maximum suppression."""

from __future__ import annotations

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Stages:
    """The stages of a pipeline, which run in order."""

    def __init__(self, spec: Any, weights_dir: str | None) -> None:
        """`weights_dir` has the weights of all stages."""
        pipeline = getattr(spec, spec.WhichOneof("Type"))
        stages = pipeline.models if hasattr(pipeline, "models") else pipeline.pipeline.models
        self._outputs = [feature.name for feature in spec.description.output]
        self._stages = [_Program(stage, weights_dir) if _is_program(stage) else _session(stage, weights_dir) for stage in stages]

    def predict(self, data: dict) -> dict:
        """The outputs of the pipeline for its inputs by name."""
        known = dict(data)
        for stage in self._stages:
            known.update(stage.predict(known))
        return {name: known[name] for name in self._outputs}


def _is_program(spec: Any) -> bool:
    return spec.WhichOneof("Type") == "mlProgram"


def _session(spec: Any, weights_dir: str | None) -> Any:
    from ._other_kinds import OtherModel

    return OtherModel(spec, weights_dir, False).session()


class _Program:
    """An ML Program among the stages."""

    def __init__(self, spec: Any, weights_dir: str | None) -> None:
        from ._package import package_of_spec
        from .model import MLModel

        self._model = MLModel(package_of_spec(spec, weights_dir))
        self._inputs = [feature.name for feature in spec.description.input]

    def predict(self, data: dict) -> dict:
        """The outputs for those values that are inputs."""
        return self._model.predict({name: data[name] for name in self._inputs if name in data})


class NonMaximumSuppression:
    """Leaves out boxes that overlap with boxes of higher confidence."""

    def __init__(self, spec: Any) -> None:
        """`spec` is that of a `nonMaximumSuppression`."""
        self._model = spec.nonMaximumSuppression
        self._least, self._most = 0, None
        for feature in spec.description.output:
            self._bound(feature.type.multiArrayType)

    def _bound(self, array: Any) -> None:
        """Notes the number of rows that an output describes."""
        if len(array.shape) == 2:
            self._least = self._most = array.shape[0]
        elif len(array.shapeRange.sizeRanges) == 2:
            rows = array.shapeRange.sizeRanges[0]
            self._least = max(self._least, rows.lowerBound)
            if rows.upperBound >= 0:
                self._most = rows.upperBound

    def predict(self, data: dict) -> dict:
        """Boxes and their confidences, in descending order of the highest confidence of each box."""
        import numpy

        model = self._model
        names = (model.confidenceInputFeatureName, model.coordinatesInputFeatureName)
        missing = [name for name in names if name not in data]
        if missing:
            raise RuntimeError(f"the input `{missing[0]}` is missing; the inputs are {', '.join(names)}")
        scores, boxes = (numpy.asarray(data[name]) for name in names)
        if scores.ndim != 2 or boxes.shape != (len(scores), 4):
            raise RuntimeError(
                f"expected confidences of shape (boxes, classes) and coordinates of shape (boxes, 4), got {scores.shape} and "
                f"{boxes.shape}"
            )
        kept = self._kept(scores, boxes.astype(numpy.float64), *self._thresholds(data))
        if self._most is not None:
            kept = kept[: self._most]
        padding = ((0, max(self._least - len(kept), 0)), (0, 0))
        return {
            model.confidenceOutputFeatureName: numpy.pad(scores[kept], padding),
            model.coordinatesOutputFeatureName: numpy.pad(boxes[kept], padding),
        }

    def _thresholds(self, data: dict) -> tuple:
        model = self._model
        found = []
        for name, default in (
            (model.iouThresholdInputFeatureName, model.iouThreshold),
            (model.confidenceThresholdInputFeatureName, model.confidenceThreshold),
        ):
            found.append(float(data[name].item() if hasattr(data.get(name), "item") else data.get(name, default)))
        return tuple(found)

    def _kept(self, scores: Any, boxes: Any, overlap: float, threshold: float) -> Any:
        import numpy

        best = scores.max(axis=1, initial=0)
        order = numpy.argsort(-best, kind="stable")
        order = order[best[order] >= threshold]
        classes = scores.argmax(axis=1) if self._model.pickTop.perClass and scores.shape[1] else numpy.zeros(len(scores))
        low, high = boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2
        areas = boxes[:, 2] * boxes[:, 3]
        kept = []
        while len(order):
            first, rest = order[0], order[1:]
            kept.append(first)
            sides = numpy.minimum(high[rest], high[first]) - numpy.maximum(low[rest], low[first])
            common = sides.clip(min=0).prod(axis=1)
            union = areas[rest] + areas[first] - common
            ratio = numpy.divide(common, union, out=numpy.zeros_like(common), where=union > 0)
            order = rest[(ratio <= overlap) | (classes[rest] != classes[first])]
        return numpy.array(kept, dtype=numpy.int64)
