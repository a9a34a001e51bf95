"""Options of the quantizer, for users without coremltools.

The classes have the fields, defaults and checks of ``coremltools.optimize.torch.quantization``. The quantizer accepts
both: it reads fields and never checks the class.
"""

import operator
from collections import OrderedDict
from dataclasses import dataclass, field, fields
from enum import Enum, unique
from typing import Any, Callable, Dict, List, Optional, Union

import torch


@unique
class ObserverType(Enum):
    """Method that determines the range of a tensor."""

    moving_average_min_max = "moving_average_min_max"
    min_max = "min_max"
    ema_min_max = "ema_min_max"


@unique
class QuantizationScheme(Enum):
    """Whether zero is the center of the range, or anywhere."""

    symmetric = "symmetric"
    affine = "affine"


_WEIGHT_DTYPES = {
    "qint4": (torch.qint8, 4),
    "quint4": (torch.quint8, 4),
    "qint8": (torch.qint8, 8),
    "quint8": (torch.quint8, 8),
    "float32": (torch.float32, 32),
    torch.qint8: (torch.qint8, 8),
    torch.quint8: (torch.quint8, 8),
    torch.float32: (torch.float32, 32),
}
_ACTIVATION_DTYPES = {
    "quint8": torch.quint8,
    "float32": torch.float32,
    torch.quint8: torch.quint8,
    torch.float32: torch.float32,
}


def _accepted(name: str, value: Any, table: Dict[Any, Any]) -> Any:
    key = value.lower() if isinstance(value, str) else value
    if key not in table:
        accepted = ", ".join(str(key) for key in table)
        raise ValueError(f"{name} must be one of {accepted}, not {value}")
    return table[key]


@dataclass
class ModuleLinearQuantizerConfig:
    """Quantization of one kind of module. Weights or activations of ``float32`` are not quantized."""

    algorithm: str = "vanilla"
    weight_dtype: Union[str, torch.dtype] = torch.qint8
    weight_observer: ObserverType = ObserverType.moving_average_min_max
    weight_per_channel: bool = True
    activation_dtype: Union[str, torch.dtype] = torch.quint8
    activation_observer: ObserverType = ObserverType.moving_average_min_max
    quantization_scheme: QuantizationScheme = QuantizationScheme.symmetric
    milestones: Optional[List[int]] = None
    weight_n_bits: int = field(init=False)

    def __post_init__(self) -> None:
        if self.algorithm not in ("vanilla", "learnable"):
            raise ValueError(f"algorithm must be vanilla or learnable, not {self.algorithm}")
        if not isinstance(self.weight_per_channel, bool):
            raise TypeError(f"weight_per_channel must be a bool, not {self.weight_per_channel!r}")
        self.weight_dtype, self.weight_n_bits = _accepted(
            "weight_dtype", self.weight_dtype, _WEIGHT_DTYPES
        )
        self.activation_dtype = _accepted(
            "activation_dtype", self.activation_dtype, _ACTIVATION_DTYPES
        )
        self.weight_observer = ObserverType(_value(self.weight_observer))
        self.activation_observer = ObserverType(_value(self.activation_observer))
        self.quantization_scheme = QuantizationScheme(_value(self.quantization_scheme))
        if self.milestones is not None and len(self.milestones) != 4:
            raise ValueError(f"milestones must be four numbers, not {self.milestones}")

    @classmethod
    def from_dict(cls, config_dict: Dict[str, Any]) -> "ModuleLinearQuantizerConfig":
        """Make a config of a dictionary of its fields."""
        _check_keys(cls, config_dict)
        return cls(**config_dict)


_Config = Optional[ModuleLinearQuantizerConfig]


@dataclass
class LinearQuantizerConfig:
    """Quantization of a model's modules: by name, otherwise by type, otherwise globally. ``None`` excludes modules."""

    global_config: _Config = None
    module_type_configs: Dict[Union[Callable, str], _Config] = field(default_factory=OrderedDict)
    module_name_configs: Dict[str, _Config] = field(default_factory=OrderedDict)
    non_traceable_module_names: List[str] = field(default_factory=list)
    preserved_attributes: List[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if (
            self.global_config is None
            and not self.module_type_configs
            and not self.module_name_configs
        ):
            self.global_config = ModuleLinearQuantizerConfig()
        self.module_type_configs = {
            _module_type(key): config for key, config in self.module_type_configs.items()
        }
        every = [
            self.global_config,
            *self.module_type_configs.values(),
            *self.module_name_configs.values(),
        ]
        configs = [config for config in every if config is not None]
        for name in ("quantization_scheme", "algorithm"):
            if len({_value(getattr(config, name)) for config in configs}) > 1:
                raise ValueError(f"{name} must be the same in all configs of a model")

    def set_global(self, global_config: _Config) -> "LinearQuantizerConfig":
        """Set what holds for all modules that no other config names."""
        self.global_config = global_config
        return self

    def set_module_type(
        self, object_type: Union[Callable, str], opt_config: _Config
    ) -> "LinearQuantizerConfig":
        """Set what holds for modules of a type, or for calls of a function."""
        self.module_type_configs[object_type] = opt_config
        return self

    def set_module_name(self, module_name: str, opt_config: _Config) -> "LinearQuantizerConfig":
        """Set what holds for the module of this name."""
        self.module_name_configs[module_name] = opt_config
        return self

    @classmethod
    def from_dict(cls, config_dict: Dict[str, Any]) -> "LinearQuantizerConfig":
        """Make a config of nested dictionaries."""
        _check_keys(cls, config_dict)
        values = dict(config_dict)
        if "global_config" in values:
            values["global_config"] = _module_config(values["global_config"])
        for name in ("module_type_configs", "module_name_configs"):
            if name in values:
                values[name] = OrderedDict(
                    (key, _module_config(config)) for key, config in values[name].items()
                )
        return cls(**values)


def _module_config(config: Any) -> _Config:
    return ModuleLinearQuantizerConfig.from_dict(config) if isinstance(config, dict) else config


def _value(member: Any) -> Any:
    return getattr(member, "value", member)


def _check_keys(cls: type, config: Dict[str, Any]) -> None:
    accepted = [entry.name for entry in fields(cls) if entry.init]
    unknown = [key for key in config if key not in accepted]
    if unknown:
        raise ValueError(f"{cls.__name__} has no field {unknown[0]!r}; the fields are {', '.join(accepted)}")


def _module_type(key: Union[Callable, str]) -> Union[Callable, str]:
    """The type or function with a name."""
    if not isinstance(key, str):
        return key
    module, _, name = key.rpartition(".")
    for owner in {"operator": (operator,), "torch": (torch,)}.get(
        module, (torch.nn, torch.nn.functional)
    ):
        if hasattr(owner, name if module in ("operator", "torch") else key):
            return getattr(owner, name if module in ("operator", "torch") else key)
    return key
