"""Types of the rows in the table."""

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
    """A module and its export arguments."""

    module: nn.Module
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    dynamic_shapes: Any = None
    #: Calls after the first one.
    further: Callable[[], list[Call]] | None = None
    #: Factors for the random weights of parameters by the end of their name; see `oracle.zoo.weights.enliven`.
    damped: dict[str, float] = field(default_factory=dict)
    #: Whether to draw new weights; small samples may keep their own.
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
    #: Whether its conversion is tested with every change; `cargo xtask zoo` tests all of them.
    everyday: bool = False
    #: The package that defines the model, if no other test needs it.
    needs: str = ""

    @property
    def is_there(self) -> bool:
        """Whether its package is installed."""
        return not self.needs or importlib.util.find_spec(self.needs) is not None


class Function(nn.Module):
    """A module that calls a function with itself and the inputs; it holds the tensors that the function uses."""

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
