"""Compression of the weights of models: configurations, and what they are applied by."""

from __future__ import annotations

from ..._missing import unsupported_name
from ._config import (
    OpLinearQuantizerConfig,
    OpMagnitudePrunerConfig,
    OpPalettizerConfig,
    OptimizationConfig,
    OpThresholdPrunerConfig,
)

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...models.model import MLModel

__all__ = [
    "OpLinearQuantizerConfig",
    "OpMagnitudePrunerConfig",
    "OpPalettizerConfig",
    "OpThresholdPrunerConfig",
    "OptimizationConfig",
    "decompress_weights",
    "linear_quantize_weights",
    "palettize_weights",
    "prune_weights",
]


def __getattr__(name: str) -> Any:
    raise unsupported_name("coremltools.optimize.coreml", name)


def linear_quantize_weights(
    mlmodel: MLModel, config: OptimizationConfig | None = None, joint_compression: bool = False
) -> MLModel:
    """A model whose weights are integers."""
    return _compressed(mlmodel, config, OpLinearQuantizerConfig, joint_compression)


def palettize_weights(
    mlmodel: MLModel, config: OptimizationConfig | None = None, joint_compression: bool = False
) -> MLModel:
    """A model whose weights are indices of small tables."""
    return _compressed(mlmodel, config, OpPalettizerConfig, joint_compression)


def prune_weights(
    mlmodel: MLModel, config: OptimizationConfig | None = None, joint_compression: bool = False
) -> MLModel:
    """A model whose weights are sparse."""
    return _compressed(mlmodel, config, (OpMagnitudePrunerConfig, OpThresholdPrunerConfig), joint_compression)


def decompress_weights(mlmodel: MLModel) -> MLModel:
    """A model whose weights are floats again."""
    import coremill

    return _of(mlmodel, coremill.compress(mlmodel._model, decompress=True)[0])


def _of(mlmodel: MLModel, model: Any) -> MLModel:
    from ...models.model import MLModel

    return MLModel._of(model, mlmodel.compute_unit, mlmodel.function_name)


def _compressed(mlmodel: MLModel, config: Any, kinds: Any, joint: bool) -> MLModel:
    import coremill

    if joint:
        from ..._missing import unsupported

        raise unsupported(
            "`joint_compression`", "one call does both: `coremill.compress(model, prune='0.5', palettize=4)`"
        )
    if config is None:
        raise ValueError("config must be of type OptimizationConfig")
    rules = config._rules(kinds)
    if not any(not rule.get("keep") for rule in rules):
        return _of(mlmodel, mlmodel._model)
    return _of(mlmodel, coremill.compress(mlmodel._model, rules=rules)[0])
