"""Types of the rows in the table."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

#: The inputs of one call.
Call = tuple[torch.Tensor, ...]


@dataclass
class Source:
    """A torch module and its arguments of `coremltools.convert`."""

    module: torch.nn.Module
    example: Call
    #: "trace" for `torch.jit.trace`, "export" for `torch.export` with the core decompositions.
    frontend: str = "trace"
    #: Further arguments of `convert`: inputs, outputs, states, classifier_config.
    arguments: dict[str, Any] = field(default_factory=dict)
    #: Calls for which the reference is computed, in order; by default two calls similar to the example.
    calls: Callable[[], list[Call]] | None = None
    #: Factors for the random weights of parameters by the end of their name; see `weights.enliven`.
    damped: dict[str, float] = field(default_factory=dict)


@dataclass
class Written:
    """A program in coremltools' intermediate representation, which is converted unchanged."""

    program: Any
    arguments: dict[str, Any] = field(default_factory=dict)


#: Returns one of the two types above, or a function that writes a (multifunction) package itself and returns the
#: source of each function.
Built = Source | Written | Callable[[Path], dict[str, Source]]


@dataclass(frozen=True)
class Entry:
    """One package of the zoo."""

    name: str
    build: Callable[[], Built]
    target: str = "iOS15"
    precision: str = "fp16"
    steps: tuple[Callable[[Any], Any], ...] = ()


def varied(*shape: int) -> torch.Tensor:
    """Random values that differ along every dimension, with structure that pooling does not average out."""
    values = 0.5 * torch.randn(shape)
    for dimension, size in enumerate(shape):
        if size > 1:
            outline = [1] * len(shape)
            outline[dimension] = size
            # Random walks: neighbors are similar, so that pooling keeps some structure. Each dimension has its own.
            walk = torch.randn(size).cumsum(0) / size**0.5 + 0.5 * torch.randn(size)
            values = values + walk.reshape(outline)
    return values
