"""Configurations of compression, as rules of `coremill.compress`."""

from __future__ import annotations

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _OpConfig:
    """The configuration of some weights."""

    weight_threshold: int | None

    def _rule(self) -> dict:
        raise NotImplementedError

    def _needs_ios_18(self) -> str | None:
        """The feature that needs iOS 18."""
        return None

    def _selected(self) -> dict:
        """Weights of more elements than the threshold; all without one."""
        return {"min_elements": 1 if self.weight_threshold is None else self.weight_threshold + 1}

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None


def _granularity(value: Any, known: tuple) -> str:
    name = str(getattr(value, "name", value)).lower()
    if name not in known:
        raise ValueError(f"`granularity` is {value!r}; expected one of {', '.join(known)}")
    return name


def _check_threshold(value: Any) -> None:
    if value is not None and (not isinstance(value, int) or value < 0):
        raise ValueError(f"\"weight_threshold\" must be a non-negative integer. Got {value}.")


class OpLinearQuantizerConfig(_OpConfig):
    """Weights as integers."""

    def __init__(
        self,
        mode: str = "linear_symmetric",
        dtype: Any = "int8",
        granularity: Any = "per_channel",
        block_size: Any = 32,
        weight_threshold: int | None = 2048,
    ) -> None:
        """`mode` is `linear` or `linear_symmetric`; `block_size` is for `granularity="per_block"`."""
        self.mode = str(mode).upper()
        if self.mode not in ("LINEAR", "LINEAR_SYMMETRIC"):
            raise ValueError(f"Only mode linear or linear_symmetric supported for weight affine quantization. Got mode: {mode}")
        self.dtype = _integer_name(dtype)
        if self.dtype not in ("int8", "uint8", "int4", "uint4"):
            raise ValueError(f"Should be int4/8 or uint4/8, but got {self.dtype}")
        self.granularity = _granularity(granularity, ("per_tensor", "per_channel", "per_block"))
        _check_threshold(weight_threshold)
        self.block_size = block_size
        self.weight_threshold = weight_threshold

    def _needs_ios_18(self) -> str | None:
        if self.granularity == "per_block":
            return "per_block"
        return "4-bit" if self.nbits == 4 else None

    @property
    def nbits(self) -> int:
        """The bits of an element."""
        return 4 if self.dtype.endswith("4") else 8

    @property
    def signed(self) -> bool:
        """Whether elements can be negative."""
        return not self.dtype.startswith("u")

    def _activations(self) -> dict:
        """The fields of a rule for activations."""
        if self.nbits != 8:
            raise ValueError(f"activations can only be quantized to 8 bits, got dtype {self.dtype}")
        return {"dtype": self.dtype, "symmetric": self.mode == "LINEAR_SYMMETRIC"}

    def _rule(self) -> dict:
        rule = {"linear": self.dtype, "mode": "symmetric" if self.mode == "LINEAR_SYMMETRIC" else "linear"}
        if self.granularity == "per_block":
            rule.update(_granularity_of_blocks(self.block_size))
        else:
            rule["per"] = self.granularity.removeprefix("per_")
        return {**self._selected(), **rule}


def _integer_name(dtype: Any) -> str:
    """The name of an integer type of numpy or of coremltools, which has types of four bits."""
    if hasattr(dtype, "get_bitwidth"):
        return f"{'u' if dtype.is_unsigned() else ''}int{dtype.get_bitwidth()}"
    return str(getattr(dtype, "__name__", dtype)).lower()


def _granularity_of_blocks(size: Any) -> dict:
    """The rule for blocks of a size. It is 0 for a whole axis."""
    if isinstance(size, int):
        return {"block": size} if size else {"per": "channel"}
    sizes = list(size)
    if len(sizes) > 1 and not any(sizes):
        return {"per": "tensor"}
    if len(sizes) > 1 and sizes[0] == 1 and not any(sizes[2:]):
        return {"block": int(sizes[1])} if sizes[1] else {"per": "channel"}
    return {"block": [int(size) for size in sizes]}


class OpPalettizerConfig(_OpConfig):
    """Weights as indices of tables."""

    def __init__(
        self,
        mode: str = "kmeans",
        nbits: int | None = None,
        lut_function: Any = None,
        granularity: Any = "per_tensor",
        group_size: int = 32,
        channel_axis: int | None = None,
        cluster_dim: int = 1,
        enable_per_channel_scale: bool = False,
        num_kmeans_workers: int = 1,
        weight_threshold: int | None = 2048,
    ) -> None:
        """`mode` is `kmeans`, `uniform`, `unique` or `custom`; `nbits` is 1, 2, 3, 4, 6 or 8."""
        self.mode = str(mode).upper()
        if self.mode not in ("KMEANS", "UNIFORM", "UNIQUE", "CUSTOM"):
            raise ValueError(f"Only modes kmeans, uniform, unique and custom are supported for weight palettization. Got \"mode\": \"{mode}\".")
        if nbits is None and self.mode in ("KMEANS", "UNIFORM"):
            raise ValueError(f'"nbits" must be provided for {self.mode} mode')
        if nbits is not None and self.mode in ("UNIQUE", "CUSTOM"):
            raise ValueError(f'"nbits" must NOT be provided for {self.mode} mode')
        if nbits is not None and nbits not in (1, 2, 3, 4, 6, 8):
            raise ValueError(f'Invalid value of "nbits" ({nbits}) for palettization. Supported "nbits" are {{1, 2, 3, 4, 6, 8}}')
        if lut_function is None and self.mode == "CUSTOM":
            raise ValueError('"lut_function" can not be None, if "mode" is "custom".')
        if lut_function is not None and self.mode != "CUSTOM":
            raise ValueError('"lut_function" must be None, if "mode" is not "custom".')
        if lut_function is not None and not callable(lut_function):
            raise ValueError(f'A function object must be provided as "lut_function". Got a "lut_function" as type {type(lut_function)}')
        self.nbits = nbits
        self.granularity = _granularity(granularity, ("per_tensor", "per_grouped_channel"))
        self.group_size = group_size
        self.lut_function = lut_function
        self.channel_axis = channel_axis
        self.cluster_dim = cluster_dim
        self.enable_per_channel_scale = enable_per_channel_scale
        self.num_kmeans_workers = num_kmeans_workers
        _check_threshold(weight_threshold)
        self.weight_threshold = weight_threshold

    def _needs_ios_18(self) -> str | None:
        if self.granularity == "per_grouped_channel":
            return "per_grouped_channel"
        if self.cluster_dim > 1:
            return "vector"
        return "per_channel_scale" if self.enable_per_channel_scale else None

    def _rule(self) -> dict:
        if self.mode == "CUSTOM":
            return {**self._selected(), "keep": True}
        rule: dict = {**self._selected(), "palettize": self.nbits or "unique"}
        if self.mode == "UNIFORM":
            rule["algorithm"] = "uniform"
        if self.granularity == "per_grouped_channel" and self.group_size:
            rule["group"] = self.group_size
        if self.granularity == "per_grouped_channel" and self.channel_axis is not None:
            rule["group_axis"] = self.channel_axis
        if self.cluster_dim > 1:
            rule["vector"] = self.cluster_dim
        if self.enable_per_channel_scale:
            rule["channel_scale"] = True
        return rule


class OpThresholdPrunerConfig(_OpConfig):
    """Weights whose small elements become zero."""

    def __init__(
        self,
        threshold: float = 1e-12,
        minimum_sparsity_percentile: float = 0.5,
        weight_threshold: int | None = 2048,
    ) -> None:
        """A weight is not pruned if a smaller share than `minimum_sparsity_percentile` would become zero."""
        if threshold < 0:
            raise ValueError(f"Invalid value of \"threshold\": {threshold}. Needs to be in [0, inf)")
        if not 0 <= minimum_sparsity_percentile <= 1:
            raise ValueError(
                f"Invalid value of \"minimum_sparsity_percentile\": {minimum_sparsity_percentile}. Needs to be in [0, 1]"
            )
        self.threshold = threshold
        self.minimum_sparsity_percentile = minimum_sparsity_percentile
        _check_threshold(weight_threshold)
        self.weight_threshold = weight_threshold

    def _rule(self) -> dict:
        return {
            **self._selected(),
            "prune": f">{float(self.threshold)!r}",
            "prune_least": float(self.minimum_sparsity_percentile),
        }


class OpMagnitudePrunerConfig(_OpConfig):
    """Weights whose smallest elements become zero."""

    def __init__(
        self,
        target_sparsity: float | None = None,
        block_size: int | None = None,
        n_m_ratio: Any = None,
        dim: int | None = None,
        weight_threshold: int | None = 2048,
    ) -> None:
        """Either `target_sparsity` or `n_m_ratio`."""
        if (target_sparsity is None) == (n_m_ratio is None):
            raise ValueError('Either "target_sparsity" or "n_m_ratio" need to be set. They cannot be set at the same time.')
        if target_sparsity is not None and not 0 <= target_sparsity <= 1:
            raise ValueError(f'Invalid value of "target_sparsity": {target_sparsity}. Needs to be in [0, 1].')
        if block_size is not None and n_m_ratio is not None:
            raise ValueError('"block_size" and "n_m_ratio" cannot be set at the same time.')
        if dim is not None and dim not in (0, 1):
            raise ValueError(f'"dim" must be 1 or 0. Got {dim}.')
        self.target_sparsity = target_sparsity
        self.block_size = block_size
        self.n_m_ratio = None if n_m_ratio is None else tuple(n_m_ratio)
        self.dim = dim
        _check_threshold(weight_threshold)
        self.weight_threshold = weight_threshold

    def _rule(self) -> dict:
        rule = self._selected()
        if self.n_m_ratio is not None:
            zeros, of = self.n_m_ratio
            rule["prune"] = f"{zeros}:{of}"
        else:
            rule["prune"] = repr(float(self.target_sparsity))
        if self.block_size is not None and self.block_size > 1:
            rule["prune_block"] = self.block_size
        if self.dim is not None:
            rule["prune_dim"] = self.dim
        return rule


_CLASSES = {
    kind.__name__: kind
    for kind in (OpLinearQuantizerConfig, OpPalettizerConfig, OpThresholdPrunerConfig, OpMagnitudePrunerConfig)
}


class OptimizationConfig:
    """Configurations for weights by name, by the operation that uses them, and for the others."""

    def __init__(
        self, global_config: Any = None, op_type_configs: dict | None = None, op_name_configs: dict | None = None
    ) -> None:
        """A configuration of `None` leaves weights as they are."""
        self.global_config = global_config
        self.op_type_configs = dict(op_type_configs or {})
        self.op_name_configs = dict(op_name_configs or {})
        for config in self._configs():
            self._check(config)

    def _configs(self) -> list:
        return [self.global_config, *self.op_type_configs.values(), *self.op_name_configs.values()]

    @staticmethod
    def _check(config: Any) -> None:
        if config is not None and not isinstance(config, _OpConfig):
            raise ValueError(f"config must be type of OpCompressorConfig. Got {type(config)}.")

    def set_global(self, op_config: Any) -> None:
        """Sets the configuration of weights that no other is for."""
        self._check(op_config)
        self.global_config = op_config

    def set_op_type(self, op_type: str, op_config: Any) -> None:
        """Sets the configuration of weights that an operation uses."""
        self._check(op_config)
        self.op_type_configs[op_type] = op_config

    def set_op_name(self, op_name: str, op_config: Any) -> None:
        """Sets the configuration of a weight."""
        self._check(op_config)
        self.op_name_configs[op_name] = op_config

    @classmethod
    def from_dict(cls, config_dict: dict) -> OptimizationConfig:
        """A configuration of dictionaries: `{"config_type": ..., "global_config": {...}}`."""
        known = ("config_type", "global_config", "op_type_configs", "op_name_configs")
        for key in config_dict:
            if key not in known:
                raise ValueError(f"Invalid key {key} to construct an OptimizationConfig object. Supported keys are {known}.")
        kind = _CLASSES.get(config_dict.get("config_type", ""))
        if kind is None:
            raise ValueError(f"config_type must be one of {sorted(_CLASSES)}.")

        def made(fields: Any) -> Any:
            return None if fields is None else kind(**fields)

        return cls(
            made(config_dict.get("global_config")),
            {key: made(value) for key, value in config_dict.get("op_type_configs", {}).items()},
            {key: made(value) for key, value in config_dict.get("op_name_configs", {}).items()},
        )

    @classmethod
    def from_yaml(cls, yml: Any) -> OptimizationConfig:
        """A configuration of a YAML file, by its path or opened."""
        import yaml

        if isinstance(yml, str):
            with open(yml, encoding="utf-8") as file:
                return cls.from_dict(yaml.safe_load(file))
        return cls.from_dict(yaml.safe_load(yml))

    def _selections(self) -> list:
        """What selects weights, and the configuration for them, the most special first."""
        selected = [({"name": name}, config) for name, config in self.op_name_configs.items()]
        selected += [({"op": name}, config) for name, config in self.op_type_configs.items()]
        return [*selected, ({}, self.global_config)]

    def _rules(self, kinds: Any) -> list:
        """The configurations as rules, the most special first."""
        rules = []
        for selection, config in self._selections():
            if config is not None and not isinstance(config, kinds):
                raise ValueError(f"{type(config).__name__} does not apply to this kind of compression")
            rules.append({**selection, **({"keep": True} if config is None else config._rule())})
        return rules
