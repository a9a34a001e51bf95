"""Labels and probabilities of a converted classifier beside torch's."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image

import coremill
import coremill.coremltools as ct
from oracle.classifiers.models import BIAS, FRONTENDS, LABELS, SCALE, Row, files, module, normalized

#: Maximum difference of probabilities. The models compute in half precision.
TOLERANCE = 0.1
#: The labels of pictures whose two highest probabilities are closer than this may differ.
MARGIN = 0.2

#: Predicts the probabilities of a picture, and the label if the model has labels.
Predict = Callable[[Image.Image], tuple[str | None, numpy.ndarray]]


@dataclass
class Result:
    """What a model predicted."""

    #: Number of compared predictions.
    predictions: int = 0
    #: Number of pictures whose label is clear.
    clear: int = 0
    #: The clear labels.
    labels: set[str] = field(default_factory=set)
    #: Maximum difference of probabilities.
    difference: float = 0.0
    #: Predictions that differ from torch's.
    errors: list[str] = field(default_factory=list)


def check(row: Row, frontends: list[str], folder: Path) -> Result:
    """Converts a model and compares all ways to predict."""
    made, result = module(row), Result()
    shown = [Image.open(path).convert("RGB") for path in files(row.size, folder)]
    with torch.no_grad():
        expected = [made(normalized(picture))[0].numpy() for picture in shown]
    for probabilities in expected:
        second, first = numpy.sort(probabilities)[-2:]
        if first - second > MARGIN:
            result.clear += 1
            result.labels.add(LABELS[int(probabilities.argmax())])
    for frontend in frontends:
        program = FRONTENDS[frontend](made, torch.rand(1, 3, row.size, row.size))
        for way, predict in ways(program, row, folder / f"{row.name}-{frontend}"):
            for at, (picture, probabilities) in enumerate(zip(shown, expected, strict=True)):
                _compare(result, f"{frontend}, {way}, picture {at}", predict(picture), probabilities)
    return result


def _compare(result: Result, where: str, found: tuple[str | None, numpy.ndarray], expected: numpy.ndarray) -> None:
    label, probabilities = found
    difference = float(abs(probabilities - expected).max())
    result.predictions += 1
    result.difference = max(result.difference, difference)
    if not difference <= TOLERANCE:
        result.errors.append(f"{where}: probabilities differ by {difference:.3g}")
    second, first = numpy.sort(expected)[-2:]
    own = LABELS[int(probabilities.argmax())]
    if label is not None and label != own:
        result.errors.append(f"{where}: the label is {label}, and the highest probability that of {own}")
    if first - second > MARGIN and own != LABELS[int(expected.argmax())]:
        result.errors.append(f"{where}: {own}; torch's label is {LABELS[int(expected.argmax())]}")


def ways(program: object, row: Row, path: Path) -> Iterator[tuple[str, Predict]]:
    """The converted model, from disk, compiled, and after edits."""
    converted = ct.convert(
        program,
        inputs=[ct.ImageType(name="image", shape=(1, 3, row.size, row.size), scale=SCALE, bias=BIAS)],
        classifier_config=ct.ClassifierConfig(LABELS),
        minimum_deployment_target=ct.target.iOS16,
    )
    yield "converted", _classifier(converted)
    package = str(path.with_suffix(".mlpackage"))
    converted.save(package)
    yield "package", _classifier(ct.models.MLModel(package))
    yield "compiled", _classifier(ct.models.CompiledMLModel(converted.get_compiled_model_path()))
    model = coremill.load(package)
    renamed = coremill.edit(model, rename={"image": "picture", "classLabel": "animal", "classLabel_probs": "scores"})
    yield "renamed", _classifier(_saved(renamed, path, "renamed"), "picture", "animal", "scores")
    arrays = coremill.edit(model, arrays=["image"])
    yield "array", _classifier(_saved(arrays, path, "array"), image=_pixels)
    images = coremill.edit(arrays, images={"image": "rgb"})
    yield "image again", _classifier(_saved(images, path, "image"))
    bare = coremill.edit(model, drop=["classLabel"])
    [scores] = bare.inspect()["functions"][0]["outputs"]
    bare_model = _saved(bare, path, "bare")
    yield "without labels", lambda picture: (None, bare_model.predict({"image": picture})[scores["name"]].reshape(-1))
    labelled = coremill.edit(bare, labels=LABELS, label_name="kind")
    yield "labels again", _classifier(_saved(labelled, path, "labels"), label="kind", scores="kind_probs")
    spec = converted.get_spec()
    ct.utils.rename_feature(spec, "image", "photo")
    yield "specification", _classifier(ct.models.MLModel(spec, weights_dir=converted.weights_dir), "photo")


def _saved(model: Any, path: Path, name: str) -> Any:
    """An edited model, read from its package."""
    package = str(path.with_name(f"{path.name}-{name}.mlpackage"))
    model.save(package)
    return ct.models.MLModel(package)


def _pixels(picture: Image.Image) -> numpy.ndarray:
    return numpy.asarray(picture, dtype=numpy.float32).transpose(2, 0, 1)[None]


def _classifier(
    model: Any,
    name: str = "image",
    label: str = "classLabel",
    scores: str = "classLabel_probs",
    image: Callable[[Image.Image], object] = lambda picture: picture,
) -> Predict:
    def predict(picture: Image.Image) -> tuple[str | None, numpy.ndarray]:
        found = model.predict({name: image(picture)})
        return found[label], numpy.array([found[scores][one] for one in LABELS])

    return predict
