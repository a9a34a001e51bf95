"""Makes ``coremltools`` mean ``coremill.coremltools``."""

from __future__ import annotations

import sys

# `typing` and `importlib.abc` take long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_THEIRS = "coremltools"
_OURS = __name__.rpartition(".")[0]


class _Finder:
    """Finds our module when one of theirs is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        import importlib.util
        from importlib.machinery import ModuleSpec

        if fullname != _THEIRS and not fullname.startswith(_THEIRS + "."):
            return None
        ours = _OURS + fullname[len(_THEIRS) :]
        try:
            found = importlib.util.find_spec(ours)
        except ModuleNotFoundError:
            found = None
        if found is None:
            from ._missing import alternative

            raise ModuleNotFoundError(
                f"No module named {fullname!r}: coremill.coremltools stands in for coremltools, and has no such part\n"
                f"hint: {alternative(fullname)}",
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
        import importlib

        module = importlib.import_module(self._ours)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just written the other name here.
        module.__spec__ = self._spec


def install() -> None:
    """Make ``import coremltools`` find this package, whether coremltools is installed or not.

    Call it before anything imports coremltools.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if _THEIRS in sys.modules:
        raise ImportError(
            "coremltools is imported already\n"
            "hint: call coremill.coremltools.install() before anything imports it, "
            "or run the script with `python -m coremill.coremltools SCRIPT`"
        )
    sys.meta_path.insert(0, _Finder())
