"""Replaces ``executorch.backends.apple.coreml`` by ``coremill.executorch``, and registers the engine with
ExecuTorch's runtime."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec

# `typing` and `importlib.abc` take longer to import than all of this.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

_THEIRS = "executorch.backends.apple.coreml"
_OURS = __name__.rpartition(".")[0]
#: Our modules. All others, such as ExecuTorch's own tests, are unchanged.
_MODULES = ("compiler", "logging", "partition", "quantizer", "recipes")
#: The module through which everything that executes programs gets the runtime.
_RUNTIME = "executorch.extension.pybindings.portable_lib"


class _Finder:
    """Finds our module when one of theirs is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        prefix, _, rest = fullname.partition(_THEIRS + ".")
        if prefix or rest.partition(".")[0] not in _MODULES:
            return None
        ours = f"{_OURS}.{rest}"
        from importlib.util import find_spec

        found = find_spec(ours)
        if found is None:
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: coremill.install() has replaced {_THEIRS}, and "
                f"{ours!r} has no such part",
                name=fullname,
            )
        return ModuleSpec(
            fullname, _Loader(ours), origin=found.origin, is_package=found.submodule_search_locations is not None
        )


class _Loader:
    """Returns our module, which then has two names."""

    def __init__(self, ours: str) -> None:
        self._ours = ours
        self._spec: Any = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._ours)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just written the other name here.
        module.__spec__ = self._spec


class _RuntimeFinder:
    """Calls a function once ExecuTorch's runtime is imported."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _RUNTIME:
            return None
        others = (one for one in sys.meta_path if one is not self)
        spec = next(filter(None, (one.find_spec(fullname, path, target) for one in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _RuntimeLoader(spec.loader, self._then)
        return spec


class _RuntimeLoader:
    """Loads a module, and then calls a function."""

    def __init__(self, loader: Any, then: Callable[[], None]) -> None:
        self._loader = loader
        self._then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._then()


def when_runtime_is_imported(then: Callable[[], None]) -> None:
    """Call a function once, after the import of ExecuTorch's runtime, which may have been before."""
    if _RUNTIME in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _RuntimeFinder(then))


def install() -> None:
    """Make imports of ``executorch.backends.apple.coreml`` find the modules of ``coremill.executorch``.

    Call it before anything imports ExecuTorch's own Core ML backend.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    imported = [name for name in _MODULES if f"{_THEIRS}.{name}" in sys.modules]
    if imported:
        raise ImportError(
            f"{_THEIRS}.{imported[0]} is imported already\n"
            "hint: call coremill.executorch.install() before anything imports it, "
            "or run the script with `python -m coremill.executorch SCRIPT`"
        )
    sys.meta_path.insert(0, _Finder())
