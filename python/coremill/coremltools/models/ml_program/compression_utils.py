"""Deprecated: compression of the weights that a function selects. `coremltools.optimize.coreml` replaces it."""

from __future__ import annotations

from types import SimpleNamespace

from ..._missing import unsupported_name
from ..._names import name_of_weight
from ...optimize.coreml import (
    OpLinearQuantizerConfig,
    OpMagnitudePrunerConfig,
    OpPalettizerConfig,
    OptimizationConfig,
    OpThresholdPrunerConfig,
    decompress_weights,
    linear_quantize_weights,
)
from ...optimize.coreml import palettize_weights as _palettize_weights
from ...optimize.coreml import prune_weights as _prune_weights

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..model import MLModel

    Selector = Callable[[Any], bool]

__all__ = ["affine_quantize_weights", "decompress_weights", "palettize_weights", "sparsify_weights"]

#: Weights with more elements are compressed unless a function selects them.
_MIN_ELEMENTS = 2048
#: The code of fp16 in the schema of ML Programs.
_FLOAT16 = 10


def __getattr__(name: str) -> Any:
    raise unsupported_name("coremltools.models.ml_program.compression_utils", name)


def affine_quantize_weights(
    mlmodel: MLModel, mode: str = "linear_symmetric", op_selector: Selector | None = None, dtype: Any = "int8"
) -> MLModel:
    """A model whose weights are 8-bit integers."""
    config = OpLinearQuantizerConfig(mode=mode, dtype=dtype, weight_threshold=None)
    return linear_quantize_weights(mlmodel, _selected(mlmodel, config, op_selector))


def palettize_weights(
    mlmodel: MLModel,
    nbits: int | None = None,
    mode: str = "kmeans",
    op_selector: Selector | None = None,
    lut_function: Any = None,
) -> MLModel:
    """A model whose weights are indices of small tables."""
    config = OpPalettizerConfig(nbits=nbits, mode=mode, lut_function=lut_function, weight_threshold=None)
    return _palettize_weights(mlmodel, _selected(mlmodel, config, op_selector))


def sparsify_weights(
    mlmodel: MLModel,
    mode: str = "threshold_based",
    threshold: float = 1e-12,
    target_percentile: float = 1.0,
    op_selector: Selector | None = None,
) -> MLModel:
    """A model whose weights are sparse."""
    config: Any
    if mode.upper() == "THRESHOLD_BASED":
        config = OpThresholdPrunerConfig(threshold=threshold, minimum_sparsity_percentile=0.0, weight_threshold=None)
    elif mode.upper() == "PERCENTILE_BASED":
        config = OpMagnitudePrunerConfig(target_sparsity=target_percentile, weight_threshold=None)
    else:
        raise ValueError(
            'Only modes "THRESHOLD_BASED" and "PERCENTILE_BASED" are supported for weight sparsification.'
            f' Got mode: "{mode}".'
        )
    return _prune_weights(mlmodel, _selected(mlmodel, config, op_selector))


def _selected(mlmodel: MLModel, config: Any, op_selector: Selector | None) -> OptimizationConfig:
    """A configuration for the weights that a function selects."""
    if op_selector is None:
        config.weight_threshold = _MIN_ELEMENTS
        return OptimizationConfig(global_config=config)
    names = [weight.name for weight in _weights(mlmodel) if op_selector(weight)]
    return OptimizationConfig(op_name_configs=dict.fromkeys(names, config))


def _weights(mlmodel: MLModel) -> list:
    """The weights as constant operations with coremltools' names, without their elements."""
    found = []
    for function in mlmodel._spec.mlProgram.functions.values():
        for block in function.block_specializations.values():
            for op in block.operations:
                if op.type != "const" or not op.outputs[0].type.HasField("tensorType"):
                    continue
                shape = tuple(size.constant.size for size in op.outputs[0].type.tensorType.dimensions)
                elements = 1
                for size in shape:
                    elements *= size
                array = SimpleNamespace(shape=shape, size=elements, ndim=len(shape))
                value = SimpleNamespace(val=array, shape=shape, rank=len(shape))
                name = name_of_weight(op.outputs[0].name, op.outputs[0].type.tensorType.dataType == _FLOAT16)
                found.append(SimpleNamespace(op_type="const", name=name, val=value, outputs=[value]))
    return found
