"""Compression of the weights of models: configurations, and what they are applied by."""

from __future__ import annotations

import importlib

from ..._missing import unsupported_name
from ..._names import name_of_weight
from ._config import (
    OpLinearQuantizerConfig,
    OpMagnitudePrunerConfig,
    OpPalettizerConfig,
    OptimizationConfig,
    OpThresholdPrunerConfig,
)
from ._metadata import CoreMLOpMetaData, CoreMLWeightMetaData, get_weights_metadata

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...models.model import MLModel

__all__ = [
    "CoreMLOpMetaData",
    "CoreMLWeightMetaData",
    "OpLinearQuantizerConfig",
    "OpMagnitudePrunerConfig",
    "OpPalettizerConfig",
    "OpThresholdPrunerConfig",
    "OptimizationConfig",
    "decompress_weights",
    "get_weights_metadata",
    "linear_quantize_activations",
    "linear_quantize_weights",
    "palettize_weights",
    "prune_weights",
]


def __getattr__(name: str) -> Any:
    if name == "experimental":
        return importlib.import_module(".experimental", __name__)
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

    return _of(mlmodel, coremill.compress(mlmodel._one_program(), decompress=True)[0])


def linear_quantize_activations(
    mlmodel: MLModel, config: OptimizationConfig, sample_data: list, calibration_op_group_size: int = -1
) -> MLModel:
    """A model whose activations are 8-bit integers with the ranges that samples show.

    Args:
        mlmodel: the model.
        config: configurations of operations by name and by type; `mode` and `dtype` apply.
        sample_data: inputs by name; `None` is the name of the only input.
        calibration_op_group_size: has no effect: all ranges come from one run for each sample.
    """
    import json

    from coremill import _native
    from coremill._convert import _Files

    rules = []
    for selection, one in config._selections():
        if one is not None and not isinstance(one, OpLinearQuantizerConfig):
            raise ValueError(f"{type(one).__name__} does not apply to the quantization of activations")
        rules.append({**selection, **({} if one is None else one._activations())})
    with _Files(_named(mlmodel, sample_data)) as paths:
        return _of(mlmodel, _native.quantize_activations(mlmodel._one_program(), paths, json.dumps(rules)))


def _named(mlmodel: MLModel, samples: list) -> list:
    """Samples with the name of the only input in the place of `None`."""
    if not any(None in sample for sample in samples):
        return samples
    inputs = mlmodel._function_summary()["inputs"]
    if len(inputs) > 1 or any(len(sample) > 1 for sample in samples):
        raise ValueError(
            "When the model has multiple inputs, please provide the name for each data in `sample_data`"
        )
    return [{inputs[0]["name"] if name is None else name: value for name, value in sample.items()} for sample in samples]


def _of(mlmodel: MLModel, model: Any) -> MLModel:
    from ...models.model import MLModel

    return MLModel._of(model, mlmodel.compute_unit, mlmodel.function_name)


def _compressed(mlmodel: MLModel, config: Any, kinds: Any, joint: bool) -> MLModel:
    import coremill

    if not hasattr(config, "_rules"):
        raise ValueError(f"config must be of type OptimizationConfig. Got {type(config)}.")
    rules = config._rules(kinds)
    _check_release(mlmodel, config, kinds, joint)
    selected = _of_operations(mlmodel, rules)
    made = mlmodel
    while any(not rule.get("keep") for rule in selected):
        try:
            made = _of(mlmodel, coremill.compress(mlmodel._one_program(), rules=selected, joint=joint)[0])
            break
        except coremill.Error as error:
            name = _not_finite(str(error))
            if name is not None and selected[0].get("name") != name:
                # coremltools leaves weights with infinite elements as they are.
                selected = [{"name": name, "keep": True, "min_elements": 1}, *selected]
                continue
            if "can have only one scale" not in str(error):
                raise
            raise NotImplementedError(
                "When use joint compression for palettization-quantization, please make sure to use per-tensor "
                'quantization: OpLinearQuantizerConfig(granularity="per_tensor")'
            ) from error
    custom = [one if getattr(one, "mode", None) == "CUSTOM" else None for _, one in config._selections()]
    if any(custom):
        from ._custom import palettized

        return _of(mlmodel, palettized(made, rules, custom))
    return made if made is not mlmodel else _of(mlmodel, mlmodel._one_program())


def _not_finite(message: str) -> str | None:
    """The weight with infinite elements that an error is about."""
    name, found, _ = message.partition("` cannot be compressed: some of its elements are infinite")
    return name.removeprefix("`") if found else None


def _of_operations(mlmodel: MLModel, rules: list) -> list:
    """The rules, with rules for the weights that rules name by operations that use them or by coremltools' names."""
    names = {rule["name"] for rule in rules if "name" in rule}
    if not names:
        return rules
    from ._metadata import weights

    known = weights(mlmodel)
    selected = []
    for rule in rules:
        selected.append(rule)
        for weight in known:
            is_used = any(user["name"] == rule.get("name") for user in weight["users"])
            theirs = name_of_weight(weight["value"], weight["dtype"] == "fp16")
            if is_used or (theirs != weight["value"] and rule.get("name") == theirs):
                selected.append({**rule, "name": weight["value"]})
    return selected


def _check_release(mlmodel: MLModel, config: OptimizationConfig, kinds: Any, joint: bool) -> None:
    """Some kinds of compression need iOS 18, which a model does not silently come to need."""
    if mlmodel._one_program().inspect()["specification_version"] >= 9:
        return
    what = "palettization" if kinds is OpPalettizerConfig else "quantization"
    remedy = "Please re-convert your model with minimum_deployment_target set to at least ct.target.iOS18."
    if joint:
        raise ValueError(f"Joint compression is only supported since iOS18. {remedy}")
    for selected in config._configs():
        reason = None if selected is None else selected._needs_ios_18()
        if reason is not None:
            raise ValueError(f"The {reason} {what} is supported since iOS18. {remedy}")
