"""Predictions of coremltools' models by coremill, as if on macOS 15.

coremltools reaches Core ML through one class of a native library, `_MLModelProxy`. `Proxy` replaces it.
"""

import importlib
import pkgutil
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import coremill.coremltools as ours

#: The release that the tests believe to run on, and the newest specification that it loads.
MACOS = (15, 0)
SPECIFICATION = 9


class Proxy:
    """A model in Core ML's stead."""

    def __init__(self, path: str, _unit: str, function: str, _hints: dict[str, str], asset: object) -> None:
        if asset is not None:
            raise RuntimeError("assets need Core ML")
        try:
            self._model = ours.models.MLModel(path, function_name=function or None)
            # Core ML loads models when they are made.
            self._model._default_session()
        except Exception as error:
            raise RuntimeError(str(error)) from error

    def predict(self, data: dict[str, Any], state: Any = None) -> dict[str, Any]:
        """The outputs by name."""
        return self._model.predict(data, state)

    def batchPredict(self, data: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The outputs of each element."""
        return self._model.predict(data)

    def newState(self) -> Any:
        """States of zeros."""
        return self._model.make_state()

    def get_compiled_model_path(self) -> str:
        """The compiled model."""
        return self._model.get_compiled_model_path()

    @staticmethod
    def maximum_supported_specification_version() -> int:
        """The newest specification that macOS 15 loads."""
        return SPECIFICATION

    @staticmethod
    def auto_set_specification_version(specification: bytes) -> bytes:
        """Specifications keep the version that their converter wrote."""
        return specification

    @staticmethod
    def compileModel(path: str) -> str:
        """Compiles a model into a temporary folder."""
        source = Path(path)
        compiled = Path(ours.models.MLModel(path).get_compiled_model_path())
        target = Path(tempfile.mkdtemp(prefix="coremltools-tests-")) / f"{source.stem}.mlmodelc"
        return str(shutil.move(compiled, target))


def pretend() -> None:
    """Makes coremltools believe that it runs on macOS 15, with Core ML."""
    platform.machine = lambda: "arm64"
    import coremltools
    from coremltools import _deps

    for module in pkgutil.iter_modules(coremltools.models.__path__, "coremltools.models."):
        if not module.ispkg:
            importlib.import_module(module.name)
    _deps._IS_MACOS = True
    replacements = {"_is_macos": lambda: True, "_macos_version": lambda: MACOS, "_MLModelProxy": Proxy}
    for module in _modules("coremltools"):
        for name, value in replacements.items():
            if name in vars(module):
                setattr(module, name, value)
    library = type(sys)("coremltools.libcoremlpython")
    library._MLModelProxy = Proxy
    library._MLModelAssetProxy = type("_MLModelAssetProxy", (), {})
    sys.modules[library.__name__] = coremltools.libcoremlpython = library


def _modules(package: str) -> Iterable[Any]:
    return [module for name, module in sys.modules.items() if module and name.split(".")[0] == package]


def stub(module: str, names: Iterable[str], error: Callable[[str], Exception]) -> None:
    """A module whose names raise when they are called, if it is not installed."""
    try:
        importlib.import_module(module)
    except ImportError:
        made = type(sys)(module)
        for name in names:
            setattr(made, name, _raising(error(name)))
        sys.modules[module] = made


def _raising(error: Exception) -> Callable[..., Any]:
    def call(*_: object, **__: object) -> None:
        raise error

    return call
