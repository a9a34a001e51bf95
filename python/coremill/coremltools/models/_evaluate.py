"""Comparisons of predictions with those of another framework, in rows of a data frame."""

from __future__ import annotations

import math

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator


def evaluate_regressor(model: Any, data: Any, target: str = "target", verbose: bool = False) -> dict:
    """The root of the mean square, and the maximum, of the differences between predictions and the column `target`."""
    errors = []
    for row, predicted in _predictions(model, data):
        errors.append(abs(predicted[target] - row[target]))
        _tell(verbose, row[target], predicted[target], errors[-1])
    rmse = math.sqrt(math.fsum(error * error for error in errors) / max(len(errors), 1))
    return {"samples": len(errors), "rmse": rmse, "max_error": max(errors, default=0)}


def evaluate_classifier(model: Any, data: Any, target: str = "target", verbose: bool = False) -> dict:
    """The number of labels that differ from the column `target`."""
    wrong = []
    for row, predicted in _predictions(model, data):
        wrong.append(predicted[target] != row[target])
        _tell(verbose, row[target], predicted[target])
    return {"num_samples": len(wrong), "num_errors": sum(wrong)}


def evaluate_classifier_with_probabilities(
    model: Any, data: Any, probabilities: str = "probabilities", verbose: bool = False
) -> dict:
    """The maximum difference of probabilities from those in a column, and the number of rows with other classes."""
    errors, samples, mismatches = [0], 0, 0
    for row, predicted in _predictions(model, data):
        expected, found = row[probabilities], predicted[probabilities]
        samples += 1
        _tell(verbose, expected, found)
        if set(expected) != set(found):
            mismatches += 1
        else:
            errors += [abs(found[label] - expected[label]) for label in found]
    return {"num_samples": samples, "max_probability_error": max(errors), "num_key_mismatch": mismatches}


def evaluate_transformer(model: Any, input_data: list, reference_output: list, verbose: bool = False) -> dict:
    """The number of rows whose outputs differ from the reference by more than 1e-5 of their magnitude."""
    model, errors = _opened(model), 0
    for row, expected in zip(input_data, reference_output):
        predicted = model.predict(row)
        _tell(verbose, expected, predicted)
        errors += not all(_is_close(predicted[name], value) for name, value in expected.items())
    return {"num_samples": len(input_data), "num_errors": errors}


def _opened(model: Any) -> Any:
    from .model import MLModel

    return model if isinstance(model, MLModel) else MLModel(model)


def _predictions(model: Any, data: Any) -> Iterator[tuple]:
    """The rows of a data frame, with the predictions for those columns that are inputs."""
    model = _opened(model)
    names = set(model.input_description)
    for _, row in data.iterrows():
        yield row, model.predict({name: value for name, value in dict(row).items() if name in names})


def _is_close(found: Any, expected: Any) -> bool:
    import numpy

    if isinstance(expected, dict):
        return set(found) == set(expected) and all(_is_close(found[key], value) for key, value in expected.items())
    if isinstance(expected, str) or isinstance(found, str):
        return found == expected
    found, expected = numpy.asarray(found, dtype=float), numpy.asarray(expected, dtype=float)
    if found.shape != expected.shape:
        return False
    return bool((abs(found - expected) <= 1e-5 * (abs(found) + abs(expected))).all())


def _tell(verbose: bool, *values: Any) -> None:
    if verbose:
        print(*values, sep="\t")
