"""Names that scripts import from coremltools, and whose use raises the error that names the alternative.

Scripts import the builder and helpers of coremltools' converter at their top, and use them for operators that coremill lowers anyway.
"""

from __future__ import annotations

from types import FunctionType

from ._missing import alternative, unsupported, unsupported_name

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn


class Absent:
    """A name that can be imported, and not used."""

    def __init__(self, name: str, hint: str | None = None) -> None:
        """`name` is dotted, as coremltools has it."""
        self._name = name
        self._hint = hint

    def __getattr__(self, name: str) -> NoReturn:
        raise unsupported_name(self._name, name, None if name.startswith("__") else self._hint)

    def __call__(self, *args: Any, **kwargs: Any) -> Absent:
        if len(args) == 1 and not kwargs and type(args[0]) is FunctionType:
            # It decorates a function, which the script may never call.
            return self
        raise unsupported(f"`{self._name}`", self._hint or alternative(self._name))

    def __mro_entries__(self, bases: tuple) -> tuple:
        """Allows classes that derive from it, whose registration raises the error."""
        return (object,)

    def __repr__(self) -> str:
        return f"<{self._name}, which is not supported>"


def absent_names(module: str, names: tuple | None = None, hint: str | None = None) -> Callable[[str], Absent]:
    """The `__getattr__` of a module of coremltools: `names`, or any name, as :class:`Absent`."""
    theirs = module.replace(__name__.rpartition(".")[0], "coremltools", 1)

    def get(name: str) -> Absent:
        if name.startswith("__") or (names is not None and name not in names):
            raise unsupported_name(theirs, name, hint)
        return Absent(f"{theirs}.{name}", hint)

    return get
