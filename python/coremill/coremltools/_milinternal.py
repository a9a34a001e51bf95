"""Programs that `convert(..., convert_to="milinternal")` returns, to print, to read and to convert to models."""

from __future__ import annotations

from ._selector import Program

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .models.model import MLModel


class ConvertedProgram(Program):
    """The program of a converted model. Its text is MIL."""

    def __init__(self, model: MLModel, source: Any, arguments: dict) -> None:
        """`source` and `arguments` are those of the conversion."""
        super().__init__(model._spec, model._scopes)
        self._model = model
        self.source = source
        self._arguments = arguments

    def __str__(self) -> str:
        return self._model._model._text()

    def to_model(self, given: dict, compute_units: Any, converted: Callable[..., MLModel]) -> tuple[MLModel, dict]:
        """A model of its own, and its arguments: those given, and the program's where these are `None`.

        A program of fp16 stays one, and inputs and outputs keep their types, as in coremltools.
        """
        given = {name: value for name, value in given.items() if value is not None}
        if getattr(self._arguments["compute_precision"], "name", None) == "FLOAT32":
            given.setdefault("compute_precision", None)
        else:
            given.pop("compute_precision", None)
        arguments = {**self._arguments, **given}
        if all(arguments[name] is self._arguments[name] for name in arguments):
            # Without an edit, changes of the model's metadata would reach the program.
            model = self._model._of(self._model._model._edit("[]"), compute_units=compute_units)
            model._scopes = self._model._scopes
            return model, arguments
        model = converted(self.source, **arguments, compute_units=compute_units)
        retyped = _retyped(self._model, model, arguments)
        if retyped:
            model._apply(retyped)
        return model, arguments


def _retyped(known: MLModel, model: MLModel, arguments: dict) -> list:
    """The edits that give inputs and outputs their types in a known model, if a release alone has changed them."""
    edits = []
    for part in ("inputs", "outputs"):
        if any(getattr(one, "dtype", None) is not None for one in arguments[part] or ()):
            continue
        features = {feature["name"]: feature for feature in known._function_summary()[part]}
        for feature in model._function_summary()[part]:
            old = features.get(feature["name"])
            if old is not None and old["kind"] == feature["kind"] == "multiArray" and old["dtype"] != feature["dtype"]:
                edits.append({"edit": "retype", "name": feature["name"], "dtype": old["dtype"]})
    return edits
