"""Creates the export recipes."""

import logging
from typing import Any, Dict, NamedTuple, Optional, Sequence

import torch
from executorch.exir import EdgeCompileConfig
from executorch.export import (
    AOQuantizationConfig,
    BackendRecipeProvider,
    ExportRecipe,
    LoweringRecipe,
    QuantizationRecipe,
    RecipeType,
)

from ..compiler import CoreMLBackend
from ..enums import ComputeUnit, as_user_knows_it, is_member, precision, target
from ..partition import CoreMLPartitioner
from .coreml_recipe_types import COREML_BACKEND, CoreMLRecipeType


class _Scheme(NamedTuple):
    """Requirements and options of a recipe in addition to the common ones."""

    #: The name in the error for a target that is too old.
    family: str = ""
    #: The minimum target, if any.
    needs: Optional[target] = None
    takes: Sequence[str] = ()
    #: What a weight becomes with torchao.
    weight: Optional[torch.dtype] = None


_COMMON = (
    "minimum_deployment_target",
    "compute_unit",
    "skip_ops_for_coreml_delegation",
    "lower_full_graph",
    "take_over_constant_data",
)
_GROUPED = ("group_size", "filter_fn")
_Type = CoreMLRecipeType
_SCHEMES: Dict[RecipeType, _Scheme] = {
    _Type.FP32: _Scheme(),
    _Type.FP16: _Scheme(),
    _Type.PT2E_INT8_STATIC: _Scheme("pt2e", target.iOS17),
    _Type.PT2E_INT8_WEIGHT_ONLY: _Scheme("pt2e", target.iOS17),
    _Type.TORCHAO_INT4_WEIGHT_ONLY_PER_CHANNEL: _Scheme(
        "torchao", target.iOS18, ("filter_fn",), torch.int4
    ),
    _Type.TORCHAO_INT4_WEIGHT_ONLY_PER_GROUP: _Scheme(
        "torchao", target.iOS18, _GROUPED, torch.int4
    ),
    _Type.TORCHAO_INT8_WEIGHT_ONLY_PER_CHANNEL: _Scheme(
        "torchao", target.iOS16, ("filter_fn",), torch.int8
    ),
    _Type.TORCHAO_INT8_WEIGHT_ONLY_PER_GROUP: _Scheme(
        "torchao", target.iOS18, _GROUPED, torch.int8
    ),
    _Type.CODEBOOK_WEIGHT_ONLY: _Scheme(
        "codebook", target.iOS18, ("bits", "block_size", "filter_fn")
    ),
}


class CoreMLRecipeProvider(BackendRecipeProvider):
    """Makes recipes for the Core ML backend."""

    @property
    def backend_name(self) -> str:
        return COREML_BACKEND

    def get_supported_recipes(self) -> Sequence[RecipeType]:
        return list(CoreMLRecipeType)

    def create_recipe(self, recipe_type: RecipeType, **kwargs: Any) -> Optional[ExportRecipe]:
        """Return the recipe, or ``None`` where ``recipe_type`` is another backend's."""
        scheme = _SCHEMES.get(recipe_type)
        if scheme is None:
            return None
        _check(recipe_type, scheme, kwargs)
        kwargs = dict(kwargs, minimum_deployment_target=_deployment_target(scheme, kwargs))
        wanted = precision.FLOAT32 if recipe_type == _Type.FP32 else precision.FLOAT16
        return ExportRecipe(
            name=recipe_type.value,
            quantization_recipe=_quantization(recipe_type, scheme, kwargs),
            lowering_recipe=_lowering(wanted, kwargs),
        )


def _check(recipe_type: RecipeType, scheme: _Scheme, kwargs: Dict[str, Any]) -> None:
    accepted = {*_COMMON, *scheme.takes}
    unexpected = sorted(set(kwargs) - accepted)
    if unexpected:
        logging.warning(
            f"CoreML recipe '{recipe_type.value}' ignoring unexpected parameters: {unexpected}. "
            f"Expected parameters: {sorted(accepted)}"
        )
    wanted = kwargs.get("minimum_deployment_target")
    if wanted is not None and not is_member(wanted, "target"):
        raise ValueError(
            "Parameter 'minimum_deployment_target' must be an enum of type ct.target, "
            f"got {type(wanted)}"
        )
    if "compute_unit" in kwargs and not is_member(kwargs["compute_unit"], "ComputeUnit"):
        raise ValueError(
            "Parameter 'compute_unit' must be an enum of type ct.ComputeUnit, "
            f"got {type(kwargs['compute_unit'])}"
        )
    if "group_size" in scheme.takes and "group_size" in kwargs:
        size = _integer("group_size", kwargs["group_size"])
        if size <= 0:
            raise ValueError(f"Parameter 'group_size' must be positive, got: {size}")
    if recipe_type == _Type.CODEBOOK_WEIGHT_ONLY:
        if not ("bits" in kwargs and "block_size" in kwargs):
            raise ValueError(
                "Parameters 'bits' and 'block_size' must be present for codebook recipes"
            )
        bits = _integer("bits", kwargs["bits"])
        if not 1 <= bits <= 8:
            raise ValueError(f"Parameter 'bits' must be between 1 and 8, got: {bits}")
        size = kwargs["block_size"]
        if not isinstance(size, list):
            raise ValueError(
                f"Parameter 'block_size' must be a list, got {type(size).__name__}: {size}"
            )


def _integer(name: str, value: Any) -> int:
    if not isinstance(value, int):
        raise ValueError(
            f"Parameter '{name}' must be an integer, got {type(value).__name__}: {value}"
        )
    return value


def _deployment_target(scheme: _Scheme, kwargs: Dict[str, Any]) -> Any:
    """The requested target, which may be newer than necessary; otherwise the minimum target of the scheme."""
    wanted = kwargs.get("minimum_deployment_target")
    if wanted is None:
        return scheme.needs
    if scheme.needs is not None and wanted < scheme.needs:
        raise ValueError(
            f"minimum_deployment_target must be {as_user_knows_it(scheme.needs, 'target')} or higher "
            f"for {scheme.family} quantization, which is {scheme.needs.name}"
        )
    return wanted


def _quantization(
    recipe_type: RecipeType, scheme: _Scheme, kwargs: Dict[str, Any]
) -> Optional[QuantizationRecipe]:
    if scheme.family == "pt2e":
        from ..quantizer import CoreMLQuantizer
        from ..quantizer.config import LinearQuantizerConfig, ModuleLinearQuantizerConfig

        is_static = recipe_type == _Type.PT2E_INT8_STATIC
        config = ModuleLinearQuantizerConfig(
            quantization_scheme="symmetric",
            activation_dtype=torch.quint8 if is_static else torch.float32,
            weight_dtype=torch.qint8,
            weight_per_channel=True,
        )
        quantizer = CoreMLQuantizer(LinearQuantizerConfig(global_config=config))
        return QuantizationRecipe(quantizers=[quantizer])
    filter_fn = kwargs.get("filter_fn")
    if scheme.family == "torchao":
        from torchao.quantization.granularity import PerAxis, PerGroup
        from torchao.quantization.quant_api import IntxWeightOnlyConfig

        is_grouped = "group_size" in scheme.takes
        granularity = PerGroup(kwargs.get("group_size", 32)) if is_grouped else PerAxis(axis=0)
        base = IntxWeightOnlyConfig(weight_dtype=scheme.weight, granularity=granularity)
    elif scheme.family == "codebook":
        from torchao.prototype.quantization.codebook_coreml import CodebookWeightOnlyConfig

        dtype = getattr(torch, f"uint{kwargs['bits']}")
        base = CodebookWeightOnlyConfig(dtype=dtype, block_size=kwargs["block_size"])
        if "filter_fn" not in kwargs:
            filter_fn = _is_table_or_linear
    else:
        return None
    config = AOQuantizationConfig(ao_base_config=base, filter_fn=filter_fn)
    return QuantizationRecipe(quantizers=None, ao_quantization_configs=[config])


def _is_table_or_linear(module: torch.nn.Module, _name: str) -> bool:
    return isinstance(module, (torch.nn.Embedding, torch.nn.Linear))


def _lowering(compute_precision: precision, kwargs: Dict[str, Any]) -> LoweringRecipe:
    wanted = kwargs.get("minimum_deployment_target")
    partitioner = CoreMLPartitioner(
        compile_specs=CoreMLBackend.generate_compile_specs(
            compute_unit=kwargs.get("compute_unit", ComputeUnit.ALL),
            minimum_deployment_target=wanted,
            compute_precision=compute_precision,
        ),
        # States need iOS 18.
        take_over_mutable_buffer=wanted is None or wanted >= target.iOS18,
        skip_ops_for_coreml_delegation=kwargs.get("skip_ops_for_coreml_delegation"),
        lower_full_graph=kwargs.get("lower_full_graph", False),
        take_over_constant_data=kwargs.get("take_over_constant_data", True),
    )
    config = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=False)
    return LoweringRecipe(partitioners=[partitioner], edge_compile_config=config)
