"""Helpers with which families describe instances. All results are plain data, which the files hold unchanged."""

from __future__ import annotations

import copy
from typing import Any

Operand = dict[str, Any]
Instance = dict[str, Any]

REFUSED = {"refused": True}

IOS15, IOS16, IOS17, IOS18 = OPSETS = ("iOS15", "iOS16", "iOS17", "iOS18")


def tensor(dtype: str, *shape: int | str) -> Operand:
    """An input of the function. Strings in the shape, `s0` to `s5`, are dynamic dimensions; equal names are equal
    sizes."""
    return {"dtype": dtype, "shape": list(shape)}


def state(dtype: str, *shape: int) -> Operand:
    """A state of the function."""
    return {"dtype": dtype, "shape": list(shape), "state": True}


def const(dtype: str, value: Any) -> Operand:
    """A `const` operation. Nested lists determine the shape; a bare number, string or bool has rank 0."""
    shape, flat = _flatten(value)
    return {"dtype": dtype, "shape": shape, "const": True, "value": flat}


def filled(dtype: str, *shape: int, value: Any = 1) -> Operand:
    """A `const` operation with equal elements: for weights, and for empty tensors."""
    return {"dtype": dtype, "shape": list(shape), "const": True, "fill": value}


def listed(dtype: str, *elements: Any) -> Operand:
    """A `const` operation with a list of scalars."""
    return {"dtype": dtype, "shape": [len(elements)], "const": True, "listed": True, "value": list(elements)}


def list_of(dtype: str, *shape: int | str) -> Operand:
    """The declared type of a block input that is a list of such tensors."""
    return {"dtype": dtype, "shape": list(shape), "list": True}


def values(*operands: Operand) -> Operand:
    """Several bindings of one parameter, as in `concat`."""
    return {"values": list(operands)}


def gives(operation: str, output: int = 0, **inputs: Operand) -> Operand:
    """The output of another operation in the same function: `gives("shape", x=tensor("fp32", "s0", 2))`."""
    return {"op": operation, "inputs": _bound(inputs), "output": output}


def ref(name: str) -> Operand:
    """Inside a block: a block input, or an operand of the surrounding operation by its parameter."""
    return {"ref": name}


def block(outputs: list[Operand], inputs: dict[str, Operand] | None = None) -> dict[str, Any]:
    """A block of `cond` or `while_loop`: its inputs by name with their declared types, and its outputs.

    Declared types are written as in files, with `?` for every dynamic dimension. coremltools' builder ignores them
    and uses the types of the loop variables.
    """
    declared = [[name, operand] for name, operand in (inputs or {}).items()]
    return {"inputs": declared, "outputs": outputs}


def instance(
    operation: str,
    opset: str,
    label: str,
    *,
    attributes: dict[str, Operand] | None = None,
    blocks: list[dict[str, Any]] | None = None,
    because: str | None = None,
    instead: dict[str, Any] | None = None,
    inputs: dict[str, Operand | None] | None = None,
    **more: Operand | None,
) -> Instance:
    """One program of one operation.

    Args:
        operation: Name of the operation.
        opset: The opset of the function, `iOS15` to `iOS18`.
        label: Unique among the instances of the operation and opset.
        attributes: Operands of compressed constants before iOS18, where they are attributes.
        blocks: The operation's blocks.
        because: Why coremltools is wrong about this instance.
        instead: The correct result then: `REFUSED`, or `{"outputs": [{"dtype": ..., "shape": [...]}]}`.
        inputs: Operands whose parameter's name is not usable as a keyword argument.
        more: The other operands, by parameter; `None` leaves the parameter unbound.
    """
    if (because is None) != (instead is None):
        raise ValueError(f"{operation} {label}: `because` and `instead` come together")
    made: Instance = {
        "id": f"{operation}/{opset}/{label}",
        "op": operation,
        "opset": opset,
        "inputs": _bound({**(inputs or {}), **more}),
    }
    for key, value in (("attributes", attributes), ("blocks", blocks), ("because", because), ("instead", instead)):
        if value is not None:
            made[key] = copy.deepcopy(value)
    return made


def _bound(operands: dict[str, Operand | None]) -> dict[str, Operand]:
    return {name: copy.deepcopy(operand) for name, operand in sorted(operands.items()) if operand is not None}


def _flatten(value: Any) -> tuple[list[int], list[Any]]:
    if not isinstance(value, (list, tuple)):
        return [], [value]
    parts = [_flatten(part) for part in value]
    shapes = [shape for shape, _ in parts]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"ragged: {value}")
    return [len(parts), *(shapes[0] if shapes else [])], [element for _, flat in parts for element in flat]
