"""`CompiledMLModel`: a compiled model that predicts."""

from __future__ import annotations

import os

from .._types import ComputeUnit
from ._asset import MLModelAsset
from .model import MLModel, check_hints

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class CompiledMLModel:
    """A compiled model (`.mlmodelc`)."""

    def __init__(
        self,
        path: str,
        compute_units: Any = ComputeUnit.ALL,
        function_name: str | None = None,
        optimization_hints: dict | None = None,
        asset: Any = None,
    ) -> None:
        """`path` is the folder of the compiled model, unless there is an asset."""
        if asset is not None:
            if not isinstance(asset, MLModelAsset):
                raise TypeError('The "asset" parameter must be of type "MLModelAsset".')
            path = asset.path
        check_hints(optimization_hints)
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError("The path must be a string")
        self.compute_unit = compute_units
        self.function_name = function_name
        self.optimization_hints = optimization_hints
        self._model = MLModel(path, compute_units=compute_units, function_name=function_name)

    @classmethod
    def from_asset(
        cls,
        asset: MLModelAsset,
        compute_units: Any = ComputeUnit.ALL,
        function_name: str | None = None,
        optimization_hints: dict | None = None,
    ) -> CompiledMLModel:
        """The model of an asset."""
        return cls("", compute_units, function_name, optimization_hints, asset)

    def predict(self, data: Any, state: Any = None) -> Any:
        """Predicts from inputs by name, as `MLModel.predict` does."""
        return self._model.predict(data, state)

    def make_state(self) -> Any:
        """States of zeros, for `predict`."""
        return self._model.make_state()
