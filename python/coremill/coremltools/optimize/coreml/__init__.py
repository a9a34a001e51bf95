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

    if not hasattr(config, "_rules"):
        raise ValueError(f"config must be of type OptimizationConfig. Got {type(config)}.")
    rules = config._rules(kinds)
    _check_release(mlmodel, config, kinds, joint)
    before = mlmodel._compression
    source = mlmodel._model
    if joint:
        if before is None:
            from ..._missing import unsupported

            raise unsupported(
                "`joint_compression` of a model that this process did not compress",
                "one call does both: `coremill.compress(model, prune='0.5', palettize=4)`",
            )
        source, earlier = before
        rules = _joined(earlier, rules)
    if not any(not rule.get("keep") for rule in rules):
        return _of(mlmodel, mlmodel._model)
    made = _of(mlmodel, coremill.compress(source, rules=rules)[0])
    # Compression of compressed weights is one compression with the rules of both.
    made._compression = (source, rules)
    return made


def _check_release(mlmodel: MLModel, config: OptimizationConfig, kinds: Any, joint: bool) -> None:
    """Some kinds of compression need iOS 18, which a model does not silently come to need."""
    if mlmodel._model.inspect()["specification_version"] >= 9:
        return
    what = "palettization" if kinds is OpPalettizerConfig else "quantization"
    remedy = "Please re-convert your model with minimum_deployment_target set to at least ct.target.iOS18."
    if joint:
        raise ValueError(f"Joint compression is only supported since iOS18. {remedy}")
    for selected in config._configs():
        reason = None if selected is None else selected._needs_ios_18()
        if reason is not None:
            raise ValueError(f"The {reason} {what} is supported since iOS18. {remedy}")


def _joined(earlier: list, rules: list) -> list:
    """The rules of two compressions, one after the other, as those of one."""
    joined = []
    for rule in rules:
        selection = {key: rule[key] for key in ("name", "op") if key in rule}
        same = [one for one in earlier if {key: one[key] for key in ("name", "op") if key in one} == selection]
        before = same[0] if same else next((one for one in earlier if "name" not in one and "op" not in one), {"keep": True})
        joined.append(_combined(before, rule))
    known = [{key: one.get(key) for key in ("name", "op")} for one in joined]
    return [one for one in earlier if {key: one.get(key) for key in ("name", "op")} not in known] + joined


def _combined(before: dict, rule: dict) -> dict:
    if before.get("keep"):
        return rule
    if rule.get("keep"):
        return before
    both = {**before, **rule}
    if "palettize" in before and "linear" in rule:
        # The tables become integers, not the indices.
        both["lut"] = both.pop("linear")
        for key in ("mode", "per", "block"):
            both.pop(key, None)
    return both
