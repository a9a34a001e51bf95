"""Builds instances in coremltools and records what it infers.

Instances are built with coremltools' builder inside a function of their opset, with constants as exactly typed `const`
operations. coremltools' package loader does the same, so the same checks apply.
"""

from __future__ import annotations

import logging
import re
from typing import Any

import coremltools as ct
import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Function, Placeholder, get_new_symbol, types
from coremltools.converters.mil.mil.operation import mil_list
from coremltools.converters.mil.mil.program import StateTensorPlaceholder
from coremltools.converters.mil.mil.types.symbolic import is_symbolic

from .language import Instance, Operand

# Values of the symbols s0, s1, ... when expressions are compared; the Rust test uses the same.
ASSIGNMENTS = ((7, 11, 13, 17, 19, 23), (12, 20, 16, 24, 28, 36), (37, 41, 43, 47, 53, 59))

# Larger values are not recorded.
MAX_VALUE_ELEMENTS = 256

MAX_MESSAGE = 160

_SYMBOLS = {f"s{index}": get_new_symbol(f"s{index}") for index in range(len(ASSIGNMENTS[0]))}
_PLACES = {symbol: index for index, symbol in enumerate(_SYMBOLS.values())}

logging.getLogger("coremltools").setLevel(logging.ERROR)


def judge(instance: Instance) -> dict[str, Any]:
    """Runs coremltools' inference: returns `{"outputs": [...]}` or `{"refused": message}`."""
    placeholders: dict[str, Placeholder] = {}
    _declare(instance["inputs"], "", placeholders)
    for role, block in zip(_roles(instance), instance.get("blocks", []), strict=True):
        _declare({f"{role}_{at}": output for at, output in enumerate(block["outputs"])}, "", placeholders)
    target = getattr(ct.target, instance["opset"])
    with Function(placeholders, opset_version=target) as function:
        bound = _build_all(instance["inputs"], "", function.inputs, {})
        stated = {name: _array(operand) for name, operand in instance.get("attributes", {}).items()}
        blocks = _blocks(instance, function.inputs, bound)
        mb.name_count.clear()
        try:
            given = _add(instance["op"], {**bound, **stated, **blocks, "name": "op"})
            outputs = [_described(output) for output in given]
        except Exception as error:  # coremltools raises many kinds of exceptions.
            return {"refused": _message(error)}
    return {"outputs": outputs}


def with_symbols_fixed(instance: Instance) -> Instance | None:
    """The instance with numbers in place of the symbols in its shapes; `None` if it has no symbols.

    coremltools often infers only that a dimension is dynamic. The results for fixed dimensions test our symbolic
    expressions.
    """
    found = False

    def fixed(value: Any, inside_shape: bool) -> Any:
        nonlocal found
        if isinstance(value, dict):
            return {key: fixed(part, key == "shape") for key, part in value.items()}
        if isinstance(value, list):
            return [fixed(part, inside_shape) for part in value]
        if inside_shape and value in _SYMBOLS:
            found = True
            return ASSIGNMENTS[0][int(value.removeprefix("s"))]
        return value

    if "instead" in instance:
        return None
    variant = fixed(instance, False)
    return {**variant, "id": f"{instance['id']}/fixed"} if found else None


def _declare(operands: dict[str, Operand], prefix: str, placeholders: dict[str, Placeholder]) -> None:
    """Adds the function inputs that operands refer to, named by the path to the operand."""
    for name, operand in operands.items():
        path = f"{prefix}{name}"
        if "values" in operand:
            _declare({str(at): part for at, part in enumerate(operand["values"])}, f"{path}_", placeholders)
        elif "op" in operand:
            _declare(operand["inputs"], f"{path}_", placeholders)
        elif "ref" not in operand and "const" not in operand:
            shape = [_SYMBOLS[dim] if isinstance(dim, str) else dim for dim in operand["shape"]]
            dtype = types.string_to_builtin(operand["dtype"])
            if operand.get("state"):
                placeholders[path] = StateTensorPlaceholder(shape, dtype, name=path)
            else:
                placeholders[path] = Placeholder(shape, dtype, name=path, allow_rank0_input=True)


def _build_all(operands: dict[str, Operand], prefix: str, inputs: Any, scope: dict[str, Any]) -> dict[str, Any]:
    return {name: _build(operand, f"{prefix}{name}", inputs, scope) for name, operand in operands.items()}


def _build(operand: Operand, path: str, inputs: Any, scope: dict[str, Any]) -> Any:
    if "values" in operand:
        return [_build(part, f"{path}_{at}", inputs, scope) for at, part in enumerate(operand["values"])]
    if "ref" in operand:
        return scope[operand["ref"]]
    if "op" in operand:
        bound = _build_all(operand["inputs"], f"{path}_", inputs, scope)
        given = _add(operand["op"], {**bound, "name": path})
        operand["outputs"] = len(given)
        return given[operand["output"]]
    if operand.get("const"):
        return mb.const(val=_array(operand), name=path)
    return inputs[path]


def _blocks(instance: Instance, inputs: Any, bound: dict[str, Any]) -> dict[str, Any]:
    """The blocks of `cond` and `while_loop`, as functions for the builder."""

    def function_of(block: dict[str, Any], role: str) -> Any:
        def run(*block_inputs: Any) -> Any:
            names = [name for name, _ in block["inputs"]]
            scope = {**bound, **dict(zip(names, block_inputs, strict=True))}
            outputs = [_build(output, f"{role}_{at}", inputs, scope) for at, output in enumerate(block["outputs"])]
            return outputs[0] if len(outputs) == 1 else tuple(outputs)

        return run

    described = zip(_roles(instance), instance.get("blocks", []), strict=True)
    return {role: function_of(block, role) for role, block in described}


def _roles(instance: Instance) -> tuple[str, ...]:
    if "blocks" not in instance:
        return ()
    return {"cond": ("_true_fn", "_false_fn"), "while_loop": ("_cond", "_body")}[instance["op"]]


def _add(operation: str, arguments: dict[str, Any]) -> list[Any]:
    if operation == "write_state":
        arguments = {"state": arguments["input"], "value": arguments["data"]}
        mb.coreml_update_state(**arguments)
        return []
    given = getattr(mb, operation)(**arguments)
    return list(given) if isinstance(given, (tuple, list)) else [given]


def _array(operand: Operand) -> Any:
    """The value of a constant, as coremltools' package loader creates it."""
    shape, dtype = tuple(operand["shape"]), operand["dtype"]
    if operand.get("listed"):
        elements = operand["value"]
        return mil_list(elements if dtype == "string" else [getattr(np, dtype)(element) for element in elements])
    if dtype == "string":
        elements = operand.get("value", [operand.get("fill")] * int(np.prod(shape)))
        return np.array(elements, dtype=np.str_).reshape(shape) if shape else elements[0]
    if dtype == "bool" and not shape:
        # The loader would make a numpy.bool, which numpy since version 2 does not convert to an integer.
        return bool(operand["value"][0])
    element = types.nptype_from_builtin(types.string_to_builtin(dtype))
    if "fill" in operand:
        array = np.full(shape, operand["fill"]).astype(element)
    else:
        array = np.array([_number(value) for value in operand["value"]]).astype(element).reshape(shape)
    return array if shape else element(array.item()) if isinstance(element, type) else array


def _number(value: Any) -> Any:
    """Numbers that JSON lacks are written as strings."""
    return float(value) if isinstance(value, str) else value


def _described(var: Any) -> dict[str, Any]:
    ty = var.sym_type
    if types.is_list(ty):
        element = ty.T[0]
        described = {"list": True, "dtype": None, "shape": None}
        if types.is_tensor(element):
            described["dtype"] = types.builtin_to_string(element.get_primitive())
            described["shape"] = [_dim(dim) for dim in element.get_shape()]
        elif element is not types.unknown:
            described["dtype"] = types.builtin_to_string(element)
            described["shape"] = []
        if not ty.T[2] and ty.T[1] is not None:
            described["length"] = _dim(ty.T[1])
        return described
    if types.is_state(ty):
        return {"state": True, **_tensor(ty.wrapped_type())}
    if types.is_dict(ty):
        return {"dict": [types.builtin_to_string(part) for part in ty.T]}
    described = _tensor(ty)
    value = var.sym_val
    if value is not None and np.size(value) <= MAX_VALUE_ELEMENTS:
        described["value"] = [_element(element) for element in np.asarray(value, dtype=object).flatten().tolist()]
    return described


def _tensor(ty: Any) -> dict[str, Any]:
    if types.is_tensor(ty):
        shape = [_dim(dim) for dim in ty.get_shape()]
        return {"dtype": types.builtin_to_string(ty.get_primitive()), "shape": shape}
    return {"dtype": types.builtin_to_string(ty), "shape": []}


def _dim(dim: Any) -> Any:
    if not is_symbolic(dim):
        return int(dim)
    if not dim.free_symbols:
        return int(dim)
    if not dim.free_symbols <= set(_PLACES):
        return "?"
    at = [dim.subs({symbol: values[place] for symbol, place in _PLACES.items()}) for values in ASSIGNMENTS]
    return {"expr": str(dim), "at": [int(value) for value in at]}


def _element(element: Any) -> Any:
    if is_symbolic(element):
        return _dim(element)
    if isinstance(element, (bool, np.bool_)):
        return bool(element)
    if isinstance(element, (int, np.integer)):
        return int(element)
    if isinstance(element, (float, np.floating)):
        # Six digits, because numpy's rounding of further ones depends on the machine.
        return float(f"{element:.6g}") if np.isfinite(element) else str(float(element))
    return str(element)


def _message(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0] if lines else ''}"
    # Names that differ between runs.
    text = re.sub(r"\bis\d+\b", "is?", re.sub(r"0x[0-9a-f]+", "0x?", text))
    # Python's order of sets varies.
    text = re.sub(r"\{('[^{}]*')\}", lambda found: "{" + ", ".join(sorted(found[1].split(", "))) + "}", text)
    return text[:MAX_MESSAGE]
