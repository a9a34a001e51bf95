"""Makes ``coremltools`` mean ``coremill.coremltools``."""

from __future__ import annotations

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: The converter's own modules. Scripts import them at their top for a function or two that many of their uses do not reach.
_CONVERTER = "coremltools.converters.mil."
#: Modules that come from coremltools if it is installed: training of compressed models, and what only it uses.
_KEPT = ("optimize.torch", "_deps")


def _missing(name: str) -> str:
    from ._missing import alternative

    return f"coremill.coremltools replaces coremltools, but does not have this part\nhint: {alternative(name)}"


def _placeholder(name: str) -> Callable[[str], object] | None:
    if not name.startswith(_CONVERTER):
        return None
    from ._absent import absent_names

    return absent_names(name)


def install() -> None:
    """Make ``import coremltools`` find this package, whether coremltools is installed or not.

    Call it before anything imports coremltools.
    """
    from .._aliases import Alias

    Alias("coremltools", __name__.rpartition(".")[0], _missing, kept=_KEPT, placeholder=_placeholder).install()
