"""ExecuTorch's Core ML backend without coremltools.

The modules mirror ``executorch.backends.apple.coreml``: ``partition``, ``compiler``, ``quantizer``, ``recipes`` and
``logging``. Change the imports, or none: :func:`install` and ``python -m coremill.executorch`` make the old ones find
these modules.

Importing this module imports neither torch nor executorch.
"""

from __future__ import annotations

import importlib

from ._install import install

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The module that defines each name; it is imported on first use.
_LAZY = {
    "CoreMLBackend": ".compiler",
    "CoreMLPartitioner": ".partition",
    "CoreMLQuantizer": ".quantizer",
    "CoreMLRecipeProvider": ".recipes",
    "CoreMLRecipeType": ".recipes",
    "COMPILE_SPEC_KEYS": ".compiler.coreml_preprocess",
    "MULTIMETHOD_WEIGHT_SHARING_STRATEGY": ".compiler.coreml_preprocess",
    "ComputeUnit": ".enums",
    "precision": ".enums",
    "target": ".enums",
    "LinearQuantizerConfig": ".quantizer.config",
    "ModuleLinearQuantizerConfig": ".quantizer.config",
    "register_runtime": ".runtime",
}

__all__ = ["install", *_LAZY]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list:
    return sorted(__all__)
