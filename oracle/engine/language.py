"""Helpers with which families describe cases.

A case is a program of one or a few operations, with inputs, and with the outputs of an independent reference.
Programs are written as MIL text that Core ML would accept. Functions cannot have scalars, bools and short integers as
inputs or outputs, so those enter as `int32` or `fp32` arrays and are cast.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

IOS15, IOS16, IOS17, IOS18 = OPSETS = ("iOS15", "iOS16", "iOS17", "iOS18")

_NUMPY = {
    "fp32": np.float32,
    "fp16": np.float16,
    "int32": np.int32,
    "int16": np.int16,
    "uint16": np.uint16,
    "int8": np.int8,
    "uint8": np.uint8,
    "bool": np.bool_,
}
_MIL = {np.dtype(numpy): mil for mil, numpy in _NUMPY.items()}

#: Default relative and absolute tolerance.
RELATIVE, ABSOLUTE = 1e-5, 1e-6


@dataclass(frozen=True)
class Typed:
    """Elements with their type's name, for types that numpy lacks: `Typed("uint4", array)`."""

    dtype: str
    elements: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.elements.shape


@dataclass(frozen=True)
class Text:
    """An operand as MIL text, for constants that are not tensors: `Text('list<string, 2>(["a", "b"])')`."""

    text: str


@dataclass(frozen=True)
class Const:
    """An operand that is a constant of the program."""

    value: Any


Operand = Any
Case = dict[str, Any]


def const(value: Any, dtype: str | None = None) -> Const:
    """A constant. Bools, ints, floats and strings become scalars of `bool`, `int32`, `fp32`, `string`; lists become
    arrays of these; numpy arrays keep their type. `dtype` overrides the type."""
    return Const(as_typed(value, dtype))


def as_typed(value: Any, dtype: str | None = None) -> Typed:
    if isinstance(value, Typed):
        return value
    elements = np.asarray(value)
    if dtype is None:
        if elements.dtype.kind in "US":
            dtype = "string"
        elif isinstance(value, (np.ndarray, np.generic)):
            if elements.dtype not in _MIL:
                raise ValueError(f"{elements.dtype} is not an element type of MIL: cast it, or state the type")
            dtype = _MIL[elements.dtype]
        else:
            dtype = {"b": "bool", "i": "int32", "f": "fp32"}[elements.dtype.kind]
    return Typed(dtype, elements.astype(_NUMPY.get(dtype, elements.dtype)))


def numpy_type(dtype: str) -> Any:
    """The numpy type of an element type's name."""
    return _NUMPY[dtype]


def draw(label: str, *shape: int, low: float = -2.0, high: float = 2.0, dtype: str = "fp32") -> np.ndarray:
    """Random values within bounds, seeded by the label: floats with two decimals, or integers up to and including
    `high`."""
    random = np.random.Generator(np.random.PCG64(zlib.crc32(label.encode())))
    if dtype == "bool":
        return np.asarray(random.integers(0, 2, shape), np.bool_)
    if dtype.startswith(("int", "uint")):
        return np.asarray(random.integers(int(low), int(high) + 1, shape), _NUMPY.get(dtype, np.int32))
    return np.asarray(np.round(low + (high - low) * random.random(shape), 2), _NUMPY[dtype])


def type_text(dtype: str, shape: Sequence[int | str]) -> str:
    """`fp32` for a scalar, `tensor<fp32, [2, ?]>` for an array."""
    return f"tensor<{dtype}, [{', '.join(map(str, shape))}]>" if len(shape) else dtype


def literal(value: Typed) -> str:
    """`tensor<fp32, [2]>([0.5, 1.5])`."""

    def nested(elements: np.ndarray) -> str:
        if elements.ndim == 0:
            return _element_text(value.dtype, elements.item() if value.dtype == "string" else elements[()])
        if 0 in elements.shape[1:] and elements.shape[0] == 0:
            return "[]"
        return f"[{', '.join(nested(part) for part in elements)}]"

    return f"{type_text(value.dtype, value.shape)}({nested(value.elements)})"


def _element_text(dtype: str, element: Any) -> str:
    if dtype == "string":
        escaped = str(element).replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if dtype == "bool":
        return "true" if element else "false"
    if dtype.startswith(("int", "uint")):
        return str(int(element))
    return str(readable(dtype, element))


def readable(dtype: str, element: Any) -> Any:
    """An element as a JSON value: the shortest number that parses to the same value, or "nan", "inf", "-inf"."""
    if dtype == "string":
        return str(element)
    if dtype == "bool" or dtype.startswith(("int", "uint")):
        return int(element)
    if np.isnan(element):
        return "nan"
    if np.isinf(element):
        return "inf" if element > 0 else "-inf"
    number = float(str(_NUMPY.get(dtype, np.float32)(element)))
    return int(number) if number == int(number) and abs(number) < 1e6 and str(number)[0] != "-" else number


@dataclass(frozen=True)
class Name:
    """A value of the program under construction; `shape` is `None` unless it is a tensor."""

    text: str
    dtype: str
    shape: tuple[int | str, ...] | None


@dataclass
class Program:
    """Builds a program of several operations:

        program = Program("iOS17")
        x = program.input("x", array)
        y = program.op("relu", {"x": x}, ("fp32", [2, 3]))
        yield program.case("relu", "of-input", outputs=[y], expected=[judged])
    """

    opset: str
    inputs: list[tuple[str, Typed]] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def fresh(self) -> str:
        return f"v{len(self.lines)}"

    def input(self, name: str, array: Any) -> Name:
        """Adds an input of the function, in the element type of the array."""
        value = as_typed(array)
        passed, cast = _edge(value.dtype, self.opset), value.dtype
        shape = value.shape or (1,)
        self.inputs.append((name, Typed(passed, value.elements.reshape(shape).astype(_NUMPY[passed]))))
        made = Name(name, passed, shape)
        if not value.shape:
            made = self.op("squeeze", {"x": made, "axes": const([0])}, (made.dtype, ()))
        if passed != cast:
            made = self.op("cast", {"x": made, "dtype": const(cast)}, (cast, made.shape))
        return made

    def state(self, name: str, *shape: int) -> Name:
        """Adds a state of the function, which starts with zeros."""
        self.states.append(f"state<tensor<fp16, [{', '.join(map(str, shape))}]>> {name}")
        return Name(name, "fp16", shape)

    def const(self, value: Any, dtype: str | None = None) -> Name:
        """Adds a `const` operation."""
        return self._stated(as_typed(value, dtype))

    def op(
        self,
        operation: str,
        inputs: dict[str, Operand],
        *gives: tuple[str, Sequence[int | str]] | str,
        attributes: dict[str, Any] | None = None,
        blocks: str = "",
    ) -> Any:
        """Adds an operation. `gives` lists each output's element type and shape, or its complete type as text.

        Returns one output or a tuple of them. Numpy arrays among the inputs become inputs of the function.
        """
        bound = ", ".join(f"{name} = {self._bound(name, operand)}" for name, operand in inputs.items())
        outputs = []
        for at, given in enumerate(gives):
            name = f"{self.fresh()}_{at}"
            if isinstance(given, str):
                outputs.append((given, Name(name, given, None)))
            else:
                outputs.append((type_text(*given), Name(name, given[0], tuple(given[1]))))
        stated = {name: value.value if isinstance(value, Const) else as_typed(value) for name, value in (attributes or {}).items()}
        brackets = ", ".join(f"{name} = {literal(value)}" for name, value in stated.items())
        declared = ", ".join(f"{ty} {name.text}" for ty, name in outputs)
        self.lines.append(
            f"{f'{declared} = ' if declared else ''}{operation}({bound})"
            f"{f'[{brackets}]' if brackets else ''}{f' {blocks}' if blocks else ''};"
        )
        names = tuple(name for _, name in outputs)
        return names[0] if len(names) == 1 else names

    def case(
        self,
        operation: str,
        label: str,
        outputs: Sequence[Name],
        expected: Sequence[Any],
        *,
        rel: float = RELATIVE,
        abs: float = ABSOLUTE,
        also: Sequence[str] = (),
        again: Sequence[Sequence[Any]] = (),
        faithful: Sequence[Any] | None = None,
    ) -> Case:
        """The finished case.

        Args:
            operation: The operation under test; `also` names further ones.
            label: Unique among the cases of the operation and opset.
            outputs: The outputs of the function.
            expected: Their values before any rounding to fp16.
            rel: Relative tolerance; fp16 results may differ by its rounding in addition.
            abs: Absolute tolerance.
            again: Outputs of further runs, for functions with states.
            faithful: Values if every operation rounds, unless rounding `expected` is enough.
        """
        given = []
        for output in outputs:
            passed = output.dtype if output.shape is None else _edge(output.dtype, self.opset)
            if passed != output.dtype:
                output = self.op("cast", {"x": output, "dtype": const(passed)}, (passed, output.shape))
            given.append(output)
        declared = [f"{type_text(value.dtype, value.shape)} {name}" for name, value in self.inputs]
        head = f"func main<{self.opset.lower()}>({', '.join([*declared, *self.states])})"
        body = " ".join(self.lines)
        text = f"program(1.3) {{ {head} {{ {body} }} -> ({', '.join(name.text for name in given)}); }}"
        made: Case = {
            "id": f"{operation}/{self.opset}/{label}",
            "op": operation,
            "opset": self.opset,
            "program": text,
            "inputs": [{"name": name, **_json(value)} for name, value in self.inputs],
            "expected": _results(outputs, expected),
            "rel": rel,
            "abs": abs,
        }
        if also:
            made["also"] = list(also)
        if again:
            made["again"] = [_results(outputs, arrays) for arrays in again]
        if faithful is not None:
            made["faithful"] = _results(outputs, faithful, rounded=True)
        return made

    def _bound(self, name: str, operand: Operand) -> str:
        if isinstance(operand, (Name, Text)):
            return operand.text
        if isinstance(operand, (list, tuple)):
            return f"({', '.join(self._bound(f'{name}_{at}', part) for at, part in enumerate(operand))})"
        if isinstance(operand, Const):
            value = operand.value
            # Small arguments are written inline, arrays as `const` operations: both forms are common.
            if value.elements.ndim == 0 or (value.elements.ndim == 1 and value.dtype in ("int32", "bool")):
                return literal(value)
            return self._stated(value).text
        return self.input(name, operand).text

    def _stated(self, value: Typed) -> Name:
        name = f"{self.fresh()}_const"
        self.lines.append(f"{type_text(value.dtype, value.shape)} {name} = const()[val = {literal(value)}];")
        return Name(name, value.dtype, value.shape)


def case(
    label: str,
    operation: str,
    opset: str,
    inputs: dict[str, Operand],
    expected: Sequence[Any],
    *,
    dtypes: Sequence[str] | None = None,
    declared: Sequence[tuple[str, Sequence[int | str]] | str] | None = None,
    rel: float = RELATIVE,
    abs: float = ABSOLUTE,
    attributes: dict[str, Any] | None = None,
) -> Case:
    """A case of one operation.

    Args:
        label: Unique among the cases of the operation and opset.
        operation: Name of the operation.
        opset: The opset of the function, `iOS15` to `iOS18`.
        inputs: Operands by parameter: arrays, which become inputs of the function, constants (`const`), or lists of both.
        expected: The value of each output. Floats should not be rounded to the output's type.
        dtypes: Element types of the outputs, if they differ from those of `expected`.
        declared: Types of the outputs, if the shapes of `expected` differ: `[("int32", ["?", 2])]`.
        rel: Relative tolerance.
        abs: Absolute tolerance.
        attributes: Constants that are attributes of the operation, as in `constexpr_*` before iOS18.
    """
    program = Program(opset)
    arrays = [value.elements if isinstance(value, Typed) else np.asarray(value) for value in expected]
    if dtypes is None:
        dtypes = [as_typed(value).dtype for value in expected]
    gives = declared or [(dtype, array.shape) for dtype, array in zip(dtypes, arrays, strict=True)]
    outputs = program.op(operation, inputs, *gives, attributes=attributes)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return program.case(operation, label, outputs, arrays, rel=rel, abs=abs)


def _edge(dtype: str, opset: str) -> str:
    """The element type in which a function passes values of a type."""
    if dtype in ("fp32", "int32") or (dtype == "fp16" and opset != IOS15):
        return dtype
    if dtype == "fp16":
        return "fp32"
    if dtype == "bool" or (dtype in _NUMPY and opset in (IOS17, IOS18)):
        return "int32"
    raise ValueError(f"`{dtype}` cannot be an input or output of a function of {opset}: make it a constant")


def _results(outputs: Sequence[Name], expected: Sequence[Any], rounded: bool = False) -> list[dict[str, Any]]:
    results = []
    for output, array in zip(outputs, expected, strict=True):
        # A classifier's label or scores.
        dtype = as_typed(array).dtype if output.shape is None else output.dtype
        array = np.asarray(array.elements if isinstance(array, Typed) else array)
        if output.shape is not None and len(output.shape) != array.ndim:
            raise ValueError(f"an output of shape {output.shape} is expected to have the shape {array.shape}")
        integral = dtype == "bool" or dtype.startswith(("int", "uint"))
        kept = Typed(dtype, array if integral or dtype == "string" else array.astype(np.float32))
        # fp16 results are stored unrounded, unless the reference is fp16 itself.
        results.append(_json(kept, "fp32" if dtype == "fp16" and not rounded else dtype))
    return results


def _json(value: Typed, digits: str | None = None) -> dict[str, Any]:
    digits = digits or value.dtype
    flat = value.elements.reshape(-1)
    return {
        "dtype": value.dtype,
        "shape": list(value.shape),
        "values": [readable(digits, element) for element in flat],
    }
