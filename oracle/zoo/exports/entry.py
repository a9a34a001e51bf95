"""What a row of the table is made of."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

#: Positional arguments and keywords of one call.
Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class Source:
    """A module and what it is exported with."""

    module: nn.Module
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    dynamic_shapes: Any = None
    #: Calls after the first one.
    further: Callable[[], list[Call]] | None = None
    #: Factors for the random weights of parameters whose names end so, see `oracle.zoo.weights.enliven`.
    damped: dict[str, float] = field(default_factory=dict)
    #: Whether the weights are drawn anew; a sample of a few lines may have its own.
    redrawn: bool = True


@dataclass(frozen=True)
class Row:
    """One program of the zoo."""

    name: str
    family: str
    build: Callable[[], Source]
    notes: str = ""
    #: Whether it is also saved decomposed and in the edge dialect.
    dialects: bool = False
    #: Whether its conversion is tested with every change; the whole zoo is for `cargo xtask zoo`.
    everyday: bool = False
    #: The package that it comes from, if that is one which the other tests do not need.
    needs: str = ""

    @property
    def is_there(self) -> bool:
        """Whether its package is installed."""
        return not self.needs or importlib.util.find_spec(self.needs) is not None


class Function(nn.Module):
    """A function of the module and its inputs, with the tensors that it uses."""

    def __init__(self, function: Callable[..., Any], **state: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, value in state.items():
            if isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            else:
                self.register_buffer(name, value)

    def forward(self, *values: Any) -> Any:
        return self.function(self, *values)
