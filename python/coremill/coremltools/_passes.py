"""Pass pipelines and precisions."""

from __future__ import annotations

from types import SimpleNamespace

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

#: Passes of coremltools by the pass of coremill that does the same. The others have no effect here.
_SAME = {
    "cse": "common_subexpression_elimination",
    "common_subexpression_elimination": "common_subexpression_elimination",
    "fuse_conv_batchnorm": "fuse_affine",
    "fuse_conv_bias": "fuse_affine",
    "fuse_conv_scale": "fuse_affine",
    "fuse_gelu_exact": "fuse_activations",
    "fuse_gelu_tanh_approximation": "fuse_activations",
    "fuse_layernorm_or_instancenorm": "fuse_norms",
    "fuse_pad_conv": "fuse_padding",
    "merge_affine_dequantize_with_consecutive_ops": "fuse_affine",
    "noop_elimination": "noop_elimination",
    "reduce_transposes": "sink_transposes",
    "scaled_dot_product_attention_sliced_q": "fuse_attention",
}


#: The names of coremltools' passes, all of which begin with `common::`, in its order.
_COMMON = """
    lower_complex_dialect_ops update_output_dtypes cast_optimization noop_elimination int_op_canonicalization
    nullify_redundant_quantization_zero_point dequantize_quantize_pair_elimination
    distributive_quantized_binary_op_scale_normalization dequantize_to_constexpr canonicalize_quantized_lut_pattern
    const_elimination sanitize_input_output_names divide_to_multiply select_optimization
    add_conv_transpose_output_shape const_elimination const_deduplication loop_invariant_elimination
    remove_symbolic_reshape noop_elimination fuse_matmul_weight_bias fuse_linear_bias fuse_gelu_tanh_approximation
    fuse_gelu_exact fuse_leaky_relu rank0_expand_dims_swap fuse_squeeze_expand_dims compose_conv1d
    use_reflection_padding merge_consecutive_paddings fuse_pad_conv image_input_preprocess replace_stack_reshape
    reduce_transposes fuse_dilated_conv fuse_conv_scale fuse_conv_bias fuse_onehot_matmul_to_gather
    fuse_layernorm_or_instancenorm fuse_elementwise_to_batchnorm fuse_reduce_mean fuse_conv_batchnorm fuse_conv_scale
    fuse_conv_bias fuse_conv_batchnorm detect_concat_interleave concat_to_pixel_shuffle fuse_prelu prelu_to_lrelu
    merge_consecutive_relus merge_consecutive_reshapes merge_consecutive_transposes fuse_transpose_matmul
    expand_high_rank_reshape_and_transpose fuse_stack_split reduce_transposes remove_redundant_ops
    dedup_op_and_var_names add_fp16_cast add_int16_cast update_output_dtypes guard_negative_gather_indices
    const_elimination dead_code_elimination cast_optimization dead_code_elimination add_int16_cast const_elimination
    dead_code_elimination cast_optimization dead_code_elimination const_elimination canonicalize_inplace_pattern
    prefer_state_in_downstream const_elimination dead_code_elimination
""".split()
_CLEANUP = """
    dead_code_elimination const_elimination cast_optimization dead_code_elimination const_elimination
    const_deduplication dead_code_elimination merge_affine_dequantize_with_consecutive_ops expand_dynamic_linear
    fuse_transpose_matmul dead_code_elimination const_deduplication loop_invariant_elimination noop_elimination
    dedup_op_and_var_names reduce_transposes remove_redundant_ops topological_reorder dead_code_elimination
""".split()
#: Passes that pipelines may add: they compress weights after the conversion.
_COMPRESSION = ("compression::prune_weights", "compression::palettize_weights", "compression::linear_quantize_weights")


def _pass_names(pipeline_name: str) -> list:
    """coremltools' passes of a pipeline."""
    first = {"default_palettization": _COMPRESSION[1:2], "default_sparsification": _COMPRESSION[:1]}
    if pipeline_name == "empty":
        return []
    common = _CLEANUP if pipeline_name == "cleanup" else _COMMON + _CLEANUP
    return [*first.get(pipeline_name, ()), *(f"common::{name}" for name in common)]


def _check_name(name: str) -> None:
    kind, _, own = name.rpartition("::")
    if name not in _COMPRESSION and not (kind == "common" and own in (*_COMMON, *_CLEANUP)):
        from ._missing import unsupported

        raise unsupported(f"the pass {name!r}", "coremill runs its own passes, and the passes that compress weights")


#: Options of coremltools' passes. Only those of `add_fp16_cast` and of compression have an effect.
_OPTIONS = {
    "add_fp16_cast": ("op_selector", "skip_ops_by_type"),
    "add_int16_cast": ("op_selector", "skip_ops_by_type"),
    "const_deduplication": ("const_threshold",),
    "const_elimination": ("skip_const_by_size",),
    "linear_quantize_weights": ("config", "joint_compression"),
    "palettize_weights": ("config", "joint_compression"),
    "prune_weights": ("config", "joint_compression"),
    "scaled_dot_product_attention_sliced_q": ("min_seq_length", "seq_length_divider"),
}


def check_options(pipeline: Any) -> None:
    """Checks the options of a pipeline's passes."""
    for pass_name, options in getattr(pipeline, "_options", {}).items():
        name = pass_name.rpartition("::")[2]
        for option, value in options.items():
            if option not in _OPTIONS.get(name, ()):
                raise NotImplementedError(f"The graph pass `{name}` doesn't support option `{option}`.")
            if option == "skip_const_by_size":
                try:
                    float(value)
                except (TypeError, ValueError):
                    raise ValueError(
                        f"Expected to get float threshold, but got `{value}` which cannot be converted to float"
                    ) from None


class FP16ComputePrecision:
    """fp16 for the operations that a function selects."""

    def __init__(self, op_selector: Callable[[Any], bool] | None = None) -> None:
        """`op_selector` takes an operation, and returns whether it computes in fp16; all do if left out."""
        self.op_selector = op_selector


transform = SimpleNamespace(FP16ComputePrecision=FP16ComputePrecision)


class _Pipelines(type):
    """The pipelines by name. Each use makes a new one, which its user may change."""

    @property
    def DEFAULT(cls) -> PassPipeline:
        return cls(pipeline_name="default")

    @property
    def DEFAULT_PALETTIZATION(cls) -> PassPipeline:
        from .optimize.coreml import OpPalettizerConfig, OptimizationConfig

        made = cls(pipeline_name="default_palettization")
        config = OptimizationConfig(global_config=OpPalettizerConfig(mode="unique"))
        made.set_options("compression::palettize_weights", {"config": config})
        return made

    @property
    def DEFAULT_PRUNING(cls) -> PassPipeline:
        from .optimize.coreml import OpThresholdPrunerConfig, OptimizationConfig

        made = cls(pipeline_name="default_sparsification")
        config = OptimizationConfig(global_config=OpThresholdPrunerConfig(threshold=1e-12))
        made.set_options("compression::prune_weights", {"config": config})
        return made

    @property
    def CLEANUP(cls) -> PassPipeline:
        return cls(pipeline_name="cleanup")

    @property
    def EMPTY(cls) -> PassPipeline:
        return cls(pipeline_name="empty")


class PassPipeline(metaclass=_Pipelines):
    """The passes of a conversion, by coremltools' names.

    coremill's are its own. One that does the same as a pass is left out if the pipeline does not have that pass.
    """

    def __init__(self, pass_names: Any = None, pipeline_name: str = "default") -> None:
        """The passes of the default pipeline unless names are given."""
        self.passes = _pass_names(pipeline_name) if pass_names is None else pass_names
        self._options: dict = {}
        #: Removed passes, of which coremill may have some that coremltools has not.
        self._removed: set = set()
        self._pipeline_name = pipeline_name

    def __str__(self) -> str:
        return self._pipeline_name

    @property
    def passes(self) -> list:
        """The names of the passes."""
        return self._passes

    @passes.setter
    def passes(self, passes: Any) -> None:
        passes = list(passes)
        for name in passes:
            _check_name(name)
        self._passes = passes

    def remove_passes(self, passes_names: Any) -> None:
        """Leaves passes out."""
        self._removed.update(passes_names)
        self._passes = [name for name in self._passes if name not in self._removed]

    def remove_pass(self, index: int) -> None:
        """Leaves out the pass at an index."""
        del self._passes[index]

    def append_pass(self, pass_name: str) -> None:
        """Adds a pass at the end. Only passes of compression have an effect."""
        self.insert_pass(len(self._passes), pass_name)

    def insert_pass(self, index: int, pass_name: str) -> None:
        """Adds a pass. Only passes of compression have an effect, in their order."""
        _check_name(pass_name)
        self._passes.insert(index, pass_name)

    def set_options(self, pass_name: str, options: dict, override: bool = True) -> None:
        """Sets the options of a pass; `op_selector` and `skip_ops_by_type` of `add_fp16_cast` have an effect."""
        if pass_name in self._options and not override:
            raise ValueError(f"The pass {pass_name} already has associated options.")
        self._options[pass_name] = dict(options)

    def get_options(self, pass_name: str) -> Any:
        """The options of a pass."""
        return self._options.get(pass_name)

    @property
    def is_fp32(self) -> bool:
        """Whether the pass that makes floats fp16 is missing."""
        return "common::add_fp16_cast" not in self._passes

    def skipped(self) -> list:
        """The passes of coremill that are left out: those that do the same as passes that are missing or were removed."""
        names = {name.rpartition("::")[2] for name in self._passes}
        missing = {name for name in (*_COMMON, *_CLEANUP) if name not in names}
        missing.update(name.rpartition("::")[2] for name in self._removed)
        return sorted({ours for theirs, ours in _SAME.items() if theirs in missing})

    def compression(self) -> list:
        """The names of the functions that compress weights, in the order of the passes."""
        return [name.rpartition("::")[2] for name in self._passes if name in _COMPRESSION]
