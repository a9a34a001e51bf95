"""Sources of the scopes that `op_selector` sees."""

from __future__ import annotations

from enum import Enum


class ScopeSource(Enum):
    """What a scope says of an operation."""

    TORCHSCRIPT_MODULE_TYPE = 0
    TORCHSCRIPT_MODULE_NAME = 1
    COREMLTOOLS_GRAPH_PASS = 2
    EXIR_STACK_TRACE = 3
    EXIR_DEBUG_HANDLE = 4
