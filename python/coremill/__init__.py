"""Converts PyTorch programs to Core ML on any operating system, and runs the results.

    >>> import coremill
    >>> model = coremill.convert(torch.export.export(module, example_inputs))
    >>> model.predict({"x": x})
    >>> model.save("Model.mlpackage")

Importing this package imports neither torch nor executorch nor coremltools.
"""

from coremill._convert import convert, lower, quantize
from coremill._edit import edit, merge, split
from coremill._errors import (
    ConversionError,
    Error,
    FormatError,
    InternalError,
    InvalidModelError,
    OptionError,
    RefusedCall,
    RunError,
    VerificationError,
)
from coremill._native import Method, Model, Program, Session, __version__, load
from coremill._reports import Comparison, Report, check, compare, compress, extract, inspect

__all__ = [
    "Comparison",
    "ConversionError",
    "Error",
    "FormatError",
    "InternalError",
    "InvalidModelError",
    "Method",
    "Model",
    "OptionError",
    "Program",
    "RefusedCall",
    "Report",
    "RunError",
    "Session",
    "VerificationError",
    "__version__",
    "check",
    "compare",
    "compress",
    "convert",
    "edit",
    "extract",
    "inspect",
    "load",
    "lower",
    "merge",
    "quantize",
    "split",
]
