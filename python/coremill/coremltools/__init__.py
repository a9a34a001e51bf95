"""coremltools' interface on top of coremill: ``import coremill.coremltools as ct``.

``ct.convert`` takes exported programs, modules and traced modules of torch; ``ct.models.MLModel`` predicts on any
operating system; ``ct.optimize.coreml`` compresses weights. Change the import, or none: :func:`install` and
``python -m coremill.coremltools SCRIPT`` make ``import coremltools`` find this package.

Importing this module imports neither torch nor numpy nor coremltools.
"""

from __future__ import annotations

import importlib

from ._install import install
from ._missing import unsupported_name

#: Version of coremltools whose interface this package has.
__version__ = "9.0"

#: Modules that define the names of this package. Each is imported when one of its names is first used.
_LAZY = {
    "ClassifierConfig": "._types",
    "ComputeUnit": "._types",
    "EnumeratedShapes": "._types",
    "ImageType": "._types",
    "RangeDim": "._types",
    "ReshapeFrequency": "._types",
    "Shape": "._types",
    "SpecializationStrategy": "._types",
    "StateType": "._types",
    "TensorType": "._types",
    "colorlayout": "._types",
    "precision": "._types",
    "target": "._types",
    "PassPipeline": "._passes",
    "transform": "._passes",
    "convert": "._convert",
}
_MODULES = ("converters", "models", "optimize", "proto", "utils", "version")
#: Names of modules whose contents are elsewhere.
_ALIASES = {"compression_utils": ".models.ml_program.compression_utils"}
#: Version of the specification that introduced each release.
_SPECIFICATION_VERSION_IOS_13 = 4
_SPECIFICATION_VERSION_IOS_14 = 5
_SPECIFICATION_VERSION_IOS_15 = 6
_SPECIFICATION_VERSION_IOS_16 = 7
_SPECIFICATION_VERSION_IOS_17 = 8
_SPECIFICATION_VERSION_IOS_18 = 9
_SPECIFICATION_VERSION_IOS_26 = 10
SPECIFICATION_VERSION = 1

__all__ = ["install", *_LAZY, *_MODULES, *_ALIASES]


def __getattr__(name: str) -> object:
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name], __name__), name)
    elif name in _MODULES:
        value = importlib.import_module(f".{name}", __name__)
    elif name in _ALIASES:
        value = importlib.import_module(_ALIASES[name], __name__)
    elif name == "_logger":
        value = importlib.import_module("logging").getLogger("coremltools")
    else:
        raise unsupported_name("coremltools", name)
    globals()[name] = value
    return value


def __dir__() -> list:
    return sorted(__all__)
