"""coremltools' value inference as a reference: it computes most operations on constant operands."""

from __future__ import annotations

import logging
from typing import Any

import coremltools as ct
import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Function

logging.getLogger("coremltools").setLevel(logging.ERROR)


def value_of(operation: str, opset: str, **inputs: Any) -> list[np.ndarray]:
    """Returns coremltools' inferred outputs of an operation on constant operands: numpy arrays, numbers, strings.

    There is no value inference for convolutions, pools, batch and instance norm, recurrent operations, `silu`,
    `one_hot`, the resizing family, most scatters, and random operations. `cumsum` with `exclusive` raises an error;
    `thresholded_relu` writes to its operand, which is a copy here; `scatter_along_axis` in mode `add` loses repeated
    indices.
    """
    with Function({}, opset_version=getattr(ct.target, opset)):
        operands = {name: np.copy(value) if isinstance(value, np.ndarray) else value for name, value in inputs.items()}
        with np.errstate(all="ignore"):
            given = getattr(mb, operation)(**operands)
        outputs = given if isinstance(given, (tuple, list)) else (given,)
        missing = [output.name for output in outputs if output.val is None]
        if missing:
            raise ValueError(f"coremltools cannot infer a value of `{operation}`")
        return [np.asarray(output.val) for output in outputs]
