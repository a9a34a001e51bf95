"""Makes ``executorch.backends.apple.coreml`` mean ``coremill.executorch``."""

import importlib
import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Optional, Sequence

_THEIRS = "executorch.backends.apple.coreml"
_OURS = __name__.rpartition(".")[0]
#: What is ours. Anything else, such as ExecuTorch's own tests, stays as it is.
_MODULES = ("compiler", "logging", "partition", "quantizer", "recipes")


class _Finder(MetaPathFinder):
    """Finds our module where one of theirs is asked for."""

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        prefix, _, rest = fullname.partition(_THEIRS + ".")
        if prefix or rest.partition(".")[0] not in _MODULES:
            return None
        ours = f"{_OURS}.{rest}"
        found = importlib.util.find_spec(ours)
        if found is None:
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: coremill.install() has replaced {_THEIRS}, and "
                f"{ours!r} has no such part",
                name=fullname,
            )
        return ModuleSpec(
            fullname, _Loader(ours), origin=found.origin, is_package=found.submodule_search_locations is not None
        )


class _Loader(Loader):
    """Gives our module, which then has two names."""

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
