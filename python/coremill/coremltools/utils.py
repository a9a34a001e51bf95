"""The helpers of `models.utils`, as some of coremltools' guides import them."""

from __future__ import annotations

from .models import utils as _utils


def __getattr__(name: str) -> object:
    return getattr(_utils, name)
