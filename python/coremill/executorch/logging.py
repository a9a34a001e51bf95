"""The level at which the Core ML backend logs."""

import logging
import os

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def get_coreml_log_level(default_level: int) -> int:
    """Return the level that ``ET_COREML_LOG_LEVEL`` names, else ``default_level``."""
    name = os.environ.get("ET_COREML_LOG_LEVEL", "").upper()
    if not name:
        return default_level
    if name not in _LEVELS:
        raise ValueError(f"Invalid ET_COREML_LOG_LEVEL: {name}; expected one of {', '.join(_LEVELS)}")
    return getattr(logging, name)
