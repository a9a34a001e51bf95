"""Imports of another package that find a package of coremill, and scripts that run with such imports."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from importlib.machinery import ModuleSpec, PathFinder

# `typing` and `importlib.abc` take longer to import than all of this.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any


class Alias:
    """Finds the modules of a package of coremill when those of another package are imported."""

    def __init__(
        self,
        theirs: str,
        ours: str,
        missing: Callable[[str], str],
        modules: Sequence[str] | None = None,
        kept: Sequence[str] = (),
        placeholder: Callable[[str], Callable[[str], object] | None] | None = None,
    ) -> None:
        """`missing` returns the error message for a module that coremill's package does not have.

        `modules` are the replaced submodules; without it, the whole package is replaced. `kept` are submodules that come from
        the other package, if it is installed. `placeholder` returns the `__getattr__` of a missing module that can be imported
        anyway, or `None`.
        """
        self.theirs = theirs
        self._ours = ours
        self._missing = missing
        self._modules = modules
        self._kept = kept
        self._placeholder = placeholder

    def _replaces(self, fullname: str) -> bool:
        if self._modules is None and fullname == self.theirs:
            return True
        prefix, dot, rest = fullname.partition(self.theirs + ".")
        return not prefix and bool(dot) and (self._modules is None or rest.partition(".")[0] in self._modules)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The import system's question for a module."""
        if not self._replaces(fullname):
            return None
        if any(f"{fullname}.".startswith(f"{self.theirs}.{name}.") for name in self._kept):
            found = self._find_kept(fullname)
            if found is not None:
                return found
        from importlib.util import find_spec

        ours = self._ours + fullname[len(self.theirs) :]
        try:
            found = find_spec(ours)
        except ModuleNotFoundError:
            found = None
        if found is None:
            getter = self._placeholder(fullname) if self._placeholder is not None else None
            if getter is not None:
                return ModuleSpec(fullname, _PlaceholderLoader(getter), is_package=True)
            raise ModuleNotFoundError(f"No module named {fullname!r}: {self._missing(fullname)}", name=fullname)
        return ModuleSpec(
            fullname, _Loader(ours), origin=found.origin, is_package=found.submodule_search_locations is not None
        )

    def _find_kept(self, fullname: str) -> ModuleSpec | None:
        """A module of the other package, which itself is not imported."""
        name, _, rest = fullname.partition(".")
        spec = PathFinder.find_spec(name)
        for part in rest.split("."):
            if spec is None or spec.submodule_search_locations is None:
                return None
            name = f"{name}.{part}"
            spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
        return spec

    def install(self) -> None:
        """Adds the alias to the import system, unless it is there already."""
        if any(isinstance(finder, Alias) and finder.theirs == self.theirs for finder in sys.meta_path):
            return
        names = [self.theirs] if self._modules is None else [f"{self.theirs}.{name}" for name in self._modules]
        imported = next((name for name in names if name in sys.modules), None)
        if imported is not None:
            raise ImportError(
                f"{imported} is imported already\n"
                f"hint: call {self._ours}.install() before anything imports it, "
                f"or run the script with `python -m {self._ours} SCRIPT`"
            )
        sys.meta_path.insert(0, self)


class _Loader:
    """Returns a module of coremill, which then has two names."""

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


class _PlaceholderLoader:
    """Makes a module that has a `__getattr__` and nothing else."""

    def __init__(self, getter: Callable[[str], object]) -> None:
        self._getter = getter

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__getattr__"] = self._getter


def run_script(usage: str, prepare: Callable[[str | None], None]) -> None:
    """Runs the script or module on the command line.

    `prepare` installs the aliases before. It takes the name of the module; None for a script.
    """
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage, file=sys.stdout if arguments else sys.stderr)
        sys.exit(0 if arguments else 2)
    is_module = arguments[0] == "-m"
    if is_module and len(arguments) < 2:
        sys.exit(f"{usage}\n\nerror: -m needs the name of a module")
    if not is_module and arguments[0].startswith("-"):
        sys.exit(f"{usage}\n\nerror: unknown option {arguments[0]}")
    name = arguments[1] if is_module else arguments[0]
    prepare(name if is_module else None)
    sys.argv = arguments[1:] if is_module else arguments
    if is_module:
        # Like `python -m`, allows imports from the current directory.
        sys.path.insert(0, os.getcwd())
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    elif os.path.exists(name):
        sys.path.insert(0, os.path.dirname(os.path.abspath(name)))
        runpy.run_path(name, run_name="__main__")
    else:
        sys.exit(f"error: cannot open {name}: no such file or directory")
