"""Registration of functions that build operators with coremltools' builder. coremill lowers operators itself and calls none."""

from __future__ import annotations

import sys
import warnings

from ....._absent import Absent

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


#: Remedy for operators that coremill does not know.
LOWERED = "coremill lowers the operators of torch itself; express unsupported operators with other operators"


class TorchOpsRegistry:
    """Functions by the name of an operator. Reading or deleting a name that nobody registered is allowed."""

    def __init__(self) -> None:
        self.name_to_func_mapping: dict = {}

    def register_func(self, func: Callable, torch_alias: Iterable[str] | None = None, override: bool = False) -> None:
        """Notes a function under its name and under others."""
        names = [func.__name__, *(torch_alias or ())]
        for name in names:
            if name.endswith("_"):
                raise ValueError(f"in-place operators cannot be registered: register `{name.rstrip('_')}` instead of `{name}`")
            if not override and name in self.name_to_func_mapping:
                raise ValueError(f"Torch op {name} already registered.")
        self._note(func, names)

    def set_func_by_name(self, func: Callable, name: str) -> None:
        """Notes a function under a name."""
        self._note(func, [name])

    def get_func(self, op_lookup: str) -> Any:
        """The function of a name; `None` if nobody registered one."""
        return self.name_to_func_mapping.get(op_lookup)

    def _note(self, func: Callable, names: list) -> None:
        if not isinstance(func, Absent):
            listed = ", ".join(f"`{name}`" for name in names)
            warnings.warn(
                f"the function registered for {listed} is not called\nhint: {LOWERED}",
                stacklevel=_callers() + 1,
            )
        self.name_to_func_mapping.update(dict.fromkeys(names, func))

    def __contains__(self, name: str) -> bool:
        return name in self.name_to_func_mapping

    def __getitem__(self, name: str) -> Any:
        return self.name_to_func_mapping.get(name) or Absent(f"{__name__.partition('.')[2]}.{name}", LOWERED)

    def __setitem__(self, name: str, func: Callable) -> None:
        self._note(func, [name])

    def __delitem__(self, name: str) -> None:
        self.name_to_func_mapping.pop(name, None)


def _callers() -> int:
    """The number of frames from the caller to the script that registers."""
    frame, count = sys._getframe(1), 0
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame, count = frame.f_back, count + 1
    return count


_TORCH_OPS_REGISTRY = TorchOpsRegistry()


def register_torch_op(
    _func: Callable | None = None, torch_alias: Iterable[str] | None = None, override: bool = False
) -> Callable:
    """Decorates a function that builds an operator. It is not called."""

    def register(func: Callable) -> Callable:
        _TORCH_OPS_REGISTRY.register_func(func, torch_alias, override)
        return func

    return register if _func is None else register(_func)
