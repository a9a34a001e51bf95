"""Makes ``coremltools`` mean ``coremill.coremltools``."""

from __future__ import annotations

#: Modules that come from coremltools if it is installed: training of compressed models, and what only it uses.
_KEPT = ("optimize.torch", "_deps")


def _missing(name: str) -> str:
    from ._missing import alternative

    return f"coremill.coremltools stands in for coremltools, and has no such part\nhint: {alternative(name)}"


def install() -> None:
    """Make ``import coremltools`` find this package, whether coremltools is installed or not.

    Call it before anything imports coremltools.
    """
    from .._aliases import Alias

    Alias("coremltools", __name__.rpartition(".")[0], _missing, kept=_KEPT).install()
