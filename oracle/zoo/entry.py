"""What a row of the table is made of."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass
class Source:
    """A torch module and all that `coremltools.convert` must be told about it."""

    module: torch.nn.Module
    example: tuple[torch.Tensor, ...]
    #: "trace" takes `torch.jit.trace`, "export" takes `torch.export` with the core decompositions.
    frontend: str = "trace"
    #: Further arguments of `convert`: inputs, outputs, states, classifier_config.
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class Written:
    """A program in coremltools' own intermediate form, to be converted as it is."""

    program: Any
    arguments: dict[str, Any] = field(default_factory=dict)


#: A builder returns one of the two above, or a function which writes a package itself (for multifunction packages).
Built = Source | Written | Callable[[Path], None]


@dataclass(frozen=True)
class Entry:
    """One package of the zoo."""

    name: str
    build: Callable[[], Built]
    target: str = "iOS15"
    precision: str = "fp16"
    steps: tuple[Callable[[Any], Any], ...] = ()
