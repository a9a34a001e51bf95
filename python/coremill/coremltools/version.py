"""The version, where coremltools has it as well."""

from . import __version__

__all__ = ["__version__"]
