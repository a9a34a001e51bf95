"""`MLModelAsset`: a model on disk or in memory."""

from __future__ import annotations

import os


class MLModelAsset:
    """A model that :class:`CompiledMLModel` loads."""

    def __init__(self, path: str) -> None:
        """`path` is a compiled model or a package."""
        self.path = path

    @classmethod
    def from_path(cls, compiled_model_path: str) -> MLModelAsset:
        """The asset of a compiled model."""
        if not os.path.isdir(compiled_model_path):
            raise FileNotFoundError(f"no such directory: {compiled_model_path}")
        return cls(os.fspath(compiled_model_path))

    @classmethod
    def from_memory(cls, spec_data: bytes, blob_mapping: dict | None = None) -> MLModelAsset:
        """The asset of a specification, and of the content of weight files by their path, `weights/weight.bin` for instance.

        Both are written into a temporary folder that is removed at exit.
        """
        from ..proto import Model_pb2
        from ._package import package_of_spec, temporary

        spec = Model_pb2.Model.FromString(bytes(spec_data))
        weights = None
        for name, content in (blob_mapping or {}).items():
            folder, _, file_name = name.replace("@model_path/", "", 1).rpartition("/")
            if folder != "weights" or file_name in ("", ".", ".."):
                raise ValueError(f"weight paths must have the form `weights/NAME`, got `{name}`")
            if weights is None:
                weights = os.path.join(temporary(), "weights")
                os.makedirs(weights)
            with open(os.path.join(weights, file_name), "wb") as file:
                file.write(content)
        return cls(package_of_spec(spec, weights))
