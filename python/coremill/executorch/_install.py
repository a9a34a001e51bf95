"""Replaces ``executorch.backends.apple.coreml`` by ``coremill.executorch``, and registers the engine with
ExecuTorch's runtime."""

from __future__ import annotations

import sys

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_THEIRS = "executorch.backends.apple.coreml"
#: Our modules. All others, such as ExecuTorch's own tests, are unchanged.
_MODULES = ("compiler", "logging", "partition", "quantizer", "recipes")
#: The module through which everything that executes programs gets the runtime.
_RUNTIME = "executorch.extension.pybindings.portable_lib"


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
    from .._aliases import Alias

    ours = __name__.rpartition(".")[0]

    def missing(name: str) -> str:
        return f"coremill.executorch.install() has replaced {_THEIRS}, but {ours + name[len(_THEIRS):]!r} does not exist"

    Alias(_THEIRS, ours, missing, _MODULES).install()
