"""Element types by coremltools' names."""

from __future__ import annotations

from ....._absent import absent_names
from ....._types import ElementType

bool = ElementType("bool")
fp16 = ElementType("fp16")
fp32 = ElementType("fp32")
int8 = ElementType("int8")
int32 = ElementType("int32")
int64 = ElementType("int64")

__getattr__ = absent_names(__name__)
