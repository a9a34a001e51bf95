"""What a case is, and the words that families are written in."""

import itertools
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
NUMBERS = (*FLOATS, *WHOLE)
ALL = (*NUMBERS, torch.bool)

_counts = itertools.count()


@dataclass(frozen=True)
class Weight:
    """A tensor that is a parameter of the program, not an input."""

    tensor: torch.Tensor


@dataclass(frozen=True)
class Free:
    """An input whose sizes are free: its further forms, and the lowest and highest size of each free dimension."""

    tensor: torch.Tensor
    others: tuple[torch.Tensor, ...]
    ranges: dict[int, Any]


@dataclass
class Case:
    """One call of one overload."""

    name: str
    #: As `aten.add.Tensor`; what a family makes of several operators has the main one here.
    target: str
    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    #: Inputs of further calls, and the free dimensions of each input.
    further: list[tuple[torch.Tensor, ...]] = field(default_factory=list)
    dynamic: tuple[Any, ...] | None = None
    #: The largest error by precision, where that of the element type does not do.
    tolerance: dict[str, float] = field(default_factory=dict)
    #: What part of its own magnitude each element may be off by, by precision: where small results must be right, too.
    relative: dict[str, float] = field(default_factory=dict)
    #: Which precisions it says something in; what jumps where fp16 rounds says nothing there.
    precisions: tuple[str, ...] = ("fp32", "fp16")
    #: Words of the reason why a target cannot have it, by target; `*` for all.
    impossible: dict[str, str] = field(default_factory=dict)
    #: Whether the values matter; those of random operators do not, only shape and type.
    exact: bool = True


class Call(nn.Module):
    """Calls an operator with what it is given and what it was made with."""

    def __init__(self, target: str, arguments: tuple[Any, ...], keywords: dict[str, Any], taken: slice | None) -> None:
        super().__init__()
        self.operator = operator(target)
        self.taken = taken
        self.count = 0
        self.weights = nn.ParameterList()
        self.arguments = [self.template(one) for one in arguments]
        self.keywords = {key: self.template(one) for key, one in keywords.items()}
        schema = getattr(self.operator, "_schema", None)
        written = schema.arguments[0].alias_info if schema is not None and schema.arguments else None
        #: An operator that writes to its first operand writes to a copy: inputs are not for writing.
        self.writes = written is not None and written.is_write

    def template(self, value: Any) -> Callable[[tuple[torch.Tensor, ...]], Any]:
        """How a value is got, once the inputs are there."""
        if isinstance(value, (torch.Tensor, Free)):
            index = self.count
            self.count += 1
            return lambda given: given[index]
        if isinstance(value, Weight):
            position = len(self.weights)
            self.weights.append(nn.Parameter(value.tensor, requires_grad=False))
            return lambda given: self.weights[position]
        if isinstance(value, (list, tuple)):
            parts = [self.template(one) for one in value]
            return lambda given: [part(given) for part in parts]
        return lambda given: value

    def forward(self, *given: torch.Tensor) -> Any:
        arguments = [get(given) for get in self.arguments]
        keywords = {key: get(given) for key, get in self.keywords.items()}
        if self.writes:
            arguments[0] = arguments[0].clone()
        found = self.operator(*arguments, **keywords)
        if self.taken is not None:
            found = tuple(found)[self.taken]
        # An operator without results has written.
        return arguments[0] if found is None else found


class Program(nn.Module):
    """A function of its inputs, for what one call cannot show."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: torch.Tensor) -> Any:
        return self.function(*given)


def operator(target: str) -> Any:
    """The overload by its name."""
    found: Any = torch.ops
    for part in target.split("."):
        found = getattr(found, part)
    return found


def case(
    target: str, *arguments: Any, taken: slice | None = None, settings: dict[str, Any] | None = None, **keywords: Any
) -> Case:
    """One call. `taken` picks results; `settings` are fields of the case."""
    given = [one for one in leaves((arguments, tuple(keywords.values()))) if isinstance(one, (torch.Tensor, Free))]
    inputs = tuple(one.tensor if isinstance(one, Free) else one for one in given)
    dynamic, further = freedom(given)
    module = Call(target, arguments, keywords, taken)
    return Case(name_of(target, inputs), target, module, inputs, further, dynamic, **(settings or {}))


def program(target: str, function: Callable[..., Any], *given: Any, **settings: Any) -> Case:
    """A function of tensors that leads to the target; what it closes over becomes constants."""
    inputs = tuple(one.tensor if isinstance(one, Free) else one for one in given)
    dynamic, further = freedom(list(given))
    return Case(name_of(target, inputs), target, Program(function), inputs, further, dynamic, **settings)


def freedom(given: list[Any]) -> tuple[tuple[Any, ...] | None, list[tuple[torch.Tensor, ...]]]:
    """The free dimensions, and the inputs of further calls."""
    free = [one for one in given if isinstance(one, Free)]
    if not free:
        return None, []
    calls = zip(*(one.others if isinstance(one, Free) else [one] * len(free[0].others) for one in given), strict=True)
    return tuple(dict(one.ranges) if isinstance(one, Free) else {} for one in given), list(calls)


def leaves(value: Any) -> Iterable[Any]:
    """What is not a list."""
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from leaves(one)
    else:
        yield value


def name_of(target: str, inputs: tuple[torch.Tensor, ...]) -> str:
    """A file name that says what is in it; `families` numbers those that are alike."""
    kinds = "-".join(f"{short(one.dtype)}{'x'.join(map(str, one.shape)) or '_'}" for one in inputs[:3])
    return f"{target.removeprefix('aten.').replace('.', '-')}-{kinds or 'none'}"


def short(kind: torch.dtype) -> str:
    """`torch.float32` as `f32`."""
    name = str(kind).removeprefix("torch.")
    for long, brief in (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c")):
        if name.startswith(long):
            return brief + name.removeprefix(long)
    return name


def generator(*key: Any) -> torch.Generator:
    """Random numbers that depend on what they are for, and on how many were made before in this family."""
    return torch.Generator().manual_seed(zlib.crc32(repr((key, next(_counts))).encode()))


def restart() -> None:
    """Before each family, so that its numbers depend on nothing else."""
    global _counts
    _counts = itertools.count()


def real(*shape: int, scale: float = 1.5, kind: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers around zero that fp16 has, so that what jumps does not jump elsewhere after rounding."""
    return ((torch.randn(shape, generator=generator("real", shape)) * 64 * scale).round() / 64).to(kind)


def positive(*shape: int, low: float = 0.125, high: float = 4.0, kind: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers above zero that fp16 has."""
    found = torch.rand(shape, generator=generator("positive", shape)) * (high - low) + low
    return ((found * 128).round() / 128).to(kind)


def unit(*shape: int, kind: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers between -1 and 1, neither of them."""
    return positive(*shape, low=-0.9375, high=0.9375, kind=kind)


def whole(*shape: int, low: int = -9, high: int = 9, kind: torch.dtype = torch.int64) -> torch.Tensor:
    """Whole numbers."""
    if kind == torch.uint8:
        low = max(low, 0)
    return torch.randint(low, high + 1, shape, generator=generator("whole", shape)).to(kind)


def flags(*shape: int) -> torch.Tensor:
    """Truth values of both kinds."""
    return torch.rand(shape, generator=generator("flags", shape)) > 0.5


def of(kind: torch.dtype, *shape: int) -> torch.Tensor:
    """Values of a type."""
    if kind == torch.bool:
        return flags(*shape)
    return real(*shape, kind=kind) if kind.is_floating_point else whole(*shape, kind=kind)


def free(
    make: Callable[..., torch.Tensor], shape: tuple[int, ...], *others: tuple[int, ...], least: int = 1, most: int = 32
) -> Free:
    """An input whose dimensions are free where the shapes differ."""
    changed = [axis for axis in range(len(shape)) if any(one[axis] != shape[axis] for one in others)]
    ranges = {axis: torch.export.Dim(f"d{axis}", min=least, max=most) for axis in changed}
    return Free(make(*shape), tuple(make(*one) for one in others), ranges)
