"""The `Case` type and the helpers that families use to describe cases."""

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
    """A tensor that becomes a parameter of the program instead of an input."""

    tensor: torch.Tensor


@dataclass(frozen=True)
class Free:
    """An input with dynamic sizes: its tensors for further calls, and the range of each dynamic dimension."""

    tensor: torch.Tensor
    others: tuple[torch.Tensor, ...]
    ranges: dict[int, Any]


@dataclass
class Case:
    """One call of one overload."""

    name: str
    #: For example `aten.add.Tensor`. A case with several operators names the main one.
    target: str
    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    #: Inputs of further calls, and the dynamic dimensions of each input.
    further: list[tuple[torch.Tensor, ...]] = field(default_factory=list)
    dynamic: tuple[Any, ...] | None = None
    #: Maximum error by precision, if it differs from the element type's tolerance.
    tolerance: dict[str, float] = field(default_factory=dict)
    #: Maximum relative error of each element, by precision, for cases whose small results must be right, too.
    relative: dict[str, float] = field(default_factory=dict)
    #: Precisions to test. A discontinuous function is not tested in fp16, where rounding its inputs changes the
    #: result.
    precisions: tuple[str, ...] = ("fp32", "fp16")
    #: Part of the expected error message, by target that cannot convert the case; `*` for all targets.
    impossible: dict[str, str] = field(default_factory=dict)
    #: Whether to compare values. Random operators compare only shape and element type.
    exact: bool = True
    #: Whether to test ExecuTorch's kernels.
    outside: bool = True


class Call(nn.Module):
    """A module that calls one operator with constants from the case and tensors from its inputs."""

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
        #: Whether the operator writes to its first operand; it then gets a copy, since inputs must not change.
        self.writes = written is not None and written.is_write

    def template(self, value: Any) -> Callable[[tuple[torch.Tensor, ...]], Any]:
        """Returns a function that computes an argument from the program's inputs."""
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
        # An in-place operator without results: return the operand that it wrote to.
        return arguments[0] if found is None else found


class Program(nn.Module):
    """A module that calls a Python function, for cases that one operator call cannot express."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: torch.Tensor) -> Any:
        return self.function(*given)


def operator(target: str) -> Any:
    """Looks up an overload by name."""
    found: Any = torch.ops
    for part in target.split("."):
        found = getattr(found, part)
    return found


def case(
    target: str, *arguments: Any, taken: slice | None = None, settings: dict[str, Any] | None = None, **keywords: Any
) -> Case:
    """A case that calls one overload. `taken` selects results; `settings` are fields of the case."""
    given = [one for one in leaves((arguments, tuple(keywords.values()))) if isinstance(one, (torch.Tensor, Free))]
    inputs = tuple(one.tensor if isinstance(one, Free) else one for one in given)
    dynamic, further = freedom(given)
    module = Call(target, arguments, keywords, taken)
    return Case(name_of(target, inputs), target, module, inputs, further, dynamic, **(settings or {}))


def program(target: str, function: Callable[..., Any], *given: Any, **settings: Any) -> Case:
    """A case that calls a Python function which exports to the target. Tensors that it captures become constants."""
    inputs = tuple(one.tensor if isinstance(one, Free) else one for one in given)
    dynamic, further = freedom(list(given))
    return Case(name_of(target, inputs), target, Program(function), inputs, further, dynamic, **settings)


def freedom(given: list[Any]) -> tuple[tuple[Any, ...] | None, list[tuple[torch.Tensor, ...]]]:
    """Returns the dynamic dimensions of each input, and the inputs of further calls."""
    free = [one for one in given if isinstance(one, Free)]
    if not free:
        return None, []
    calls = zip(*(one.others if isinstance(one, Free) else [one] * len(free[0].others) for one in given), strict=True)
    return tuple(dict(one.ranges) if isinstance(one, Free) else {} for one in given), list(calls)


def leaves(value: Any) -> Iterable[Any]:
    """Yields the leaves of nested lists and tuples."""
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from leaves(one)
    else:
        yield value


def name_of(target: str, inputs: tuple[torch.Tensor, ...]) -> str:
    """A file name from the target and the inputs' types and shapes; `family_cases` numbers duplicates."""
    kinds = "-".join(f"{short(one.dtype)}{'x'.join(map(str, one.shape)) or '_'}" for one in inputs[:3])
    return f"{target.removeprefix('aten.').replace('.', '-')}-{kinds or 'none'}"


def short(kind: torch.dtype) -> str:
    """Abbreviates an element type: `torch.float32` becomes `f32`."""
    name = str(kind).removeprefix("torch.")
    for long, brief in (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c")):
        if name.startswith(long):
            return brief + name.removeprefix(long)
    return name


def generator(*key: Any) -> torch.Generator:
    """A generator whose seed depends on the key and on the number of generators that this family created before."""
    return torch.Generator().manual_seed(zlib.crc32(repr((key, next(_counts))).encode()))


def restart() -> None:
    """Resets the counter before each family, so that its numbers do not depend on other families."""
    global _counts
    _counts = itertools.count()


def real(*shape: int, scale: float = 1.5, kind: torch.dtype = torch.float32) -> torch.Tensor:
    """Random numbers around zero, rounded so that fp16 represents them: rounding moves none across a discontinuity."""
    return ((torch.randn(shape, generator=generator("real", shape)) * 64 * scale).round() / 64).to(kind)


def positive(*shape: int, low: float = 0.125, high: float = 4.0, kind: torch.dtype = torch.float32) -> torch.Tensor:
    """Random positive numbers that fp16 represents exactly."""
    found = torch.rand(shape, generator=generator("positive", shape)) * (high - low) + low
    return ((found * 128).round() / 128).to(kind)


def unit(*shape: int, kind: torch.dtype = torch.float32) -> torch.Tensor:
    """Random numbers strictly between -1 and 1."""
    return positive(*shape, low=-0.9375, high=0.9375, kind=kind)


def whole(*shape: int, low: int = -9, high: int = 9, kind: torch.dtype = torch.int64) -> torch.Tensor:
    """Random integers."""
    if kind == torch.uint8:
        low = max(low, 0)
    return torch.randint(low, high + 1, shape, generator=generator("whole", shape)).to(kind)


def flags(*shape: int) -> torch.Tensor:
    """Random booleans."""
    return torch.rand(shape, generator=generator("flags", shape)) > 0.5


def of(kind: torch.dtype, *shape: int) -> torch.Tensor:
    """Random values of an element type."""
    if kind == torch.bool:
        return flags(*shape)
    return real(*shape, kind=kind) if kind.is_floating_point else whole(*shape, kind=kind)


def free(
    make: Callable[..., torch.Tensor], shape: tuple[int, ...], *others: tuple[int, ...], least: int = 1, most: int = 32
) -> Free:
    """An input whose dimensions are dynamic if they differ between the shapes."""
    changed = [axis for axis in range(len(shape)) if any(one[axis] != shape[axis] for one in others)]
    ranges = {axis: torch.export.Dim(f"d{axis}", min=least, max=most) for axis in changed}
    return Free(make(*shape), tuple(make(*one) for one in others), ranges)
