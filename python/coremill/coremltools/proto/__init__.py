"""Messages of Core ML's published schema, made when they are first used. They need the package `protobuf`.

The schema (`schema.bin`) is made of the files that Apple publishes with coremltools under the BSD 3-Clause license.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FILES = (
    *("ArrayFeatureExtractor", "AudioFeaturePrint", "BayesianProbitRegressor", "CategoricalMapping"),
    *("ClassConfidenceThresholding", "CustomModel", "DataStructures", "DictVectorizer", "FeatureTypes", "FeatureVectorizer"),
    *("GLMClassifier", "GLMRegressor", "Gazetteer", "Identity", "Imputer", "ItemSimilarityRecommender", "LinkedModel", "MIL"),
    *("Model", "NearestNeighbors", "NeuralNetwork", "NonMaximumSuppression", "Normalizer", "OneHotEncoder", "Parameters"),
    *("SVM", "Scaler", "SoundAnalysisPreprocessing", "TextClassifier", "TreeEnsemble", "VisionFeaturePrint"),
    *("WordEmbedding", "WordTagger"),
)
_pool: Any = None


def _schema() -> Any:
    """The pool with the files of the schema."""
    global _pool
    if _pool is None:
        import importlib.resources
        import zlib

        try:
            from google.protobuf import descriptor_pb2, descriptor_pool
        except ImportError:
            raise ImportError(
                "specifications require protobuf, which is not installed\nhint: pip install protobuf"
            ) from None
        data = importlib.resources.files(__name__).joinpath("schema.bin").read_bytes()
        files = descriptor_pb2.FileDescriptorSet.FromString(zlib.decompress(data))
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        _pool = pool
    return _pool


class _Messages(ModuleType):
    """A module with the messages and the values of enumerations of one file, as `protoc` generates it."""

    def __init__(self, name: str, file: str) -> None:
        super().__init__(f"{__name__}.{name}")
        self.__spec__ = ModuleSpec(self.__name__, None)
        self._file = file

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        from google.protobuf import message_factory
        from google.protobuf.internal import enum_type_wrapper

        file = _schema().FindFileByName(self._file)
        if name in file.message_types_by_name:
            value = message_factory.GetMessageClass(file.message_types_by_name[name])
        elif name in file.enum_types_by_name:
            value = enum_type_wrapper.EnumTypeWrapper(file.enum_types_by_name[name])
        else:
            values = [one for kind in file.enum_types_by_name.values() for one in kind.values if one.name == name]
            if not values:
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
            value = values[0].number
        setattr(self, name, value)
        return value


for _file in _FILES:
    _name = f"{_file}_pb2"
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = _Messages(_name, f"{_file}.proto")
del _file, _name


def model_of(model: Any) -> Any:
    """The specification of a `coremill.Model`."""
    import os
    import tempfile

    with tempfile.TemporaryDirectory(prefix="coremill-spec-") as folder:
        path = os.path.join(folder, "Model.mlpackage")
        model.save(path)
        with open(os.path.join(path, "Data", "com.apple.CoreML", "model.mlmodel"), "rb") as file:
            return sys.modules[f"{__name__}.Model_pb2"].Model.FromString(file.read())
