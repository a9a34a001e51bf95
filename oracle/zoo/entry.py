"""What a row of the table is made of."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

#: The inputs of one call.
Call = tuple[torch.Tensor, ...]


@dataclass
class Source:
    """A torch module and all that `coremltools.convert` must be told about it."""

    module: torch.nn.Module
    example: Call
    #: "trace" takes `torch.jit.trace`, "export" takes `torch.export` with the core decompositions.
    frontend: str = "trace"
    #: Further arguments of `convert`: inputs, outputs, states, classifier_config.
    arguments: dict[str, Any] = field(default_factory=dict)
    #: What the reference is computed on, in order; the default is two calls in the manner of the example.
    calls: Callable[[], list[Call]] | None = None
    #: Factors for the random weights of parameters whose names end so, see `weights.enliven`.
    damped: dict[str, float] = field(default_factory=dict)


@dataclass
class Written:
    """A program in coremltools' own intermediate form, to be converted as it is."""

    program: Any
    arguments: dict[str, Any] = field(default_factory=dict)


#: A builder returns one of the two above, or a function which writes a package itself (for multifunction packages) and
#: returns the source of each function.
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
    """Random values that differ by position along every dimension, with structure that averaging does not remove."""
    values = 0.5 * torch.randn(shape)
    for dimension, size in enumerate(shape):
        if size > 1:
            outline = [1] * len(shape)
            outline[dimension] = size
            # Neighbours move together, so that pooling keeps some of it; each dimension has walks of its own.
            walk = torch.randn(size).cumsum(0) / size**0.5 + 0.5 * torch.randn(size)
            values = values + walk.reshape(outline)
    return values
