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
    """The passes of a conversion. coremill's are its own; removing one that it has too leaves it out."""

    def __init__(self, pass_names: Any = None, pipeline_name: str = "default") -> None:
        """All passes unless names are given."""
        self.passes = None if pass_names is None else list(pass_names)
        self._removed: set = set()
        self._options: dict = {}
        self._pipeline_name = pipeline_name

    def __str__(self) -> str:
        return self._pipeline_name

    def remove_passes(self, passes_names: Any) -> None:
        """Leaves passes out."""
        self._removed.update(passes_names)
        if self.passes is not None:
            self.passes = [name for name in self.passes if name not in self._removed]

    def remove_pass(self, index: int) -> None:
        """Leaves out the pass at an index, which only pipelines of named passes have."""
        if self.passes is None:
            raise ValueError("this pipeline does not list its passes; call `remove_passes` with names")
        del self.passes[index]

    def append_pass(self, pass_name: str) -> None:
        """Passes of coremltools cannot be added."""
        from ._missing import unsupported

        raise unsupported(f"PassPipeline.append_pass({pass_name!r})", "coremill runs the passes that it has")

    insert_pass = append_pass

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
        """Whether the pass that makes floats fp16 was left out."""
        return any(name.endswith("add_fp16_cast") for name in self._removed)

    def skipped(self) -> list:
        """The passes of coremill that are left out."""
        names = {name.rpartition("::")[2] for name in self._removed}
        return sorted({_SAME[name] for name in names if name in _SAME})
