"""Dumps coremltools' registry of MIL operations as JSON: `python -m oracle.dumps.registry`.

The output depends only on coremltools. A row describes the opset in which an operation is new or its class changed, and
applies until the next row. Defaults are results of `default_inputs` on instances of many ranks, sizes and element types.
A default that depends on other inputs is written as a rule that explains all results; a default without such a rule is an
error:

- `null`, or no default at all: the parameter has no default
- `{"bool": b}`, `{"int": i}`, `{"text": s}`, `{"ints": [...]}`: always this value
- `{"float": f}`: always this value, the shortest decimal that reads back as the same binary32
- `{"float_by_dtype": {"of": p, "fp16": f, "fp32": g}}`: depends on the element type of the input `p`
- `{"per_spatial_dim": {"value": v, "times": n}}`: `v`, `n` times for each axis of `x` after the first two
- `{"axes_of": p}`: 0, 1, 2, ..., one for each axis of the input `p`
- `{"indices_of": p}`: 0, 1, 2, ..., one for each element of the first axis of the input `p`
- `{"zeros_of": p}`: zeros of the element type of `p`, one for each element of its first axis
"""

import json
import logging
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy

# coremltools logs a line for each library that exists only on macOS.
logging.disable(logging.WARNING)

import coremltools  # noqa: E402
from coremltools.converters.mil.mil import Var, types  # noqa: E402
from coremltools.converters.mil.mil.input_type import (  # noqa: E402
    InternalInputType,
    ListInputType,
    ListOrTensorOrDictInputType,
    PyFunctionInputType,
    StateInputType,
    TensorInputType,
    TupleInputType,
)
from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry  # noqa: E402

#: Version of the format, raised with every incompatible change.
FORMAT = 1

#: The kinds of inputs by their exact class.
KINDS = {
    TensorInputType: "tensor",
    ListInputType: "list",
    TupleInputType: "values",
    StateInputType: "state",
    ListOrTensorOrDictInputType: "any",
    PyFunctionInputType: "block",
    InternalInputType: "internal",
}

#: Number of instances per operation for the computation of defaults.
INSTANCES = 40


class Instance:
    """An operation whose tensor inputs have types but no values, which is enough for `default_inputs`."""

    def __init__(self, operation: type, number: int):
        chosen = random.Random(number)
        self.types: dict[str, tuple[str, tuple[int, ...]]] = {}
        instance = operation.__new__(operation)
        by_variable: dict[str, Any] = {}
        for name, accepted in operation.input_spec.input_types.items():
            setattr(instance, name, None)
            if not isinstance(accepted, TensorInputType):
                continue
            dtypes = domain(operation, accepted)
            dtype = dtypes[number % len(dtypes)]
            if accepted.type_domain_id is not None:
                dtype = by_variable.setdefault(accepted.type_domain_id, dtype)
            shape = tuple(chosen.randrange(2, 30) for _ in range(chosen.randrange(2, 6)))
            self.types[name] = (types.builtin_to_string(dtype), shape)
            if not accepted.optional:
                setattr(instance, name, Var(name, types.tensor(dtype, shape)))
        self.defaults: dict[str, Any] = dict(instance.default_inputs().items())


def instances_of(operation: type) -> list[Instance]:
    """Instances that differ in ranks, sizes and types; those that the operation refuses are skipped."""
    found = []
    for number in range(10 * INSTANCES):
        try:
            found.append(Instance(operation, number))
        except ValueError as error:
            refusal = error
        if len(found) == INSTANCES:
            return found
    raise ValueError(f"`{operation.__name__}` refuses nearly all instances, the last because of: {refusal}")


def domain(operation: type, accepted: TensorInputType) -> tuple:
    """The allowed types of an input.

    Inputs with a type variable are looked up in the class: coremltools stores the types in the input only when the
    class is first instantiated.
    """
    if accepted.type_domain_id is not None:
        return operation.type_domains[accepted.type_domain_id]
    return accepted.type_domain


def plain(value: Any) -> Any:
    """The value as a builtin Python type."""
    if isinstance(value, numpy.generic):
        return value.item()
    if isinstance(value, (range, tuple, list, numpy.ndarray)):
        return [plain(element) for element in value]
    return value


def binary32(value: float) -> float:
    """The shortest decimal of the value as binary32, which is the precision of the generated tables."""
    nearest = numpy.float32(value)
    shortest = float(str(nearest))
    if numpy.float32(shortest) != nearest:
        raise ValueError(f"no decimal of {value!r} reads back as {nearest!r}")
    return shortest


def constant(value: Any) -> dict[str, Any] | None:
    """A default that is always the same."""
    if value is None:
        return None
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    if isinstance(value, float):
        return {"float": binary32(value)}
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, list) and all(type(element) is int for element in value):
        return {"ints": value}
    raise ValueError(f"no rule can represent {value!r}")


def rules(operation: type, instances: list[Instance], values: list[Any]) -> Iterator[dict[str, Any]]:
    """Every rule that explains all the values from the inputs."""
    plains = [plain(value) for value in values]

    def holds(expected: Callable[[Instance], Any]) -> bool:
        return all(value == expected(instance) for instance, value in zip(instances, plains, strict=True))

    required = [name for name, accepted in operation.input_spec.input_types.items() if not accepted.optional]
    for name in required:
        if name not in instances[0].types:
            continue
        if holds(lambda instance: list(range(len(instance.types[name][1])))):
            yield {"axes_of": name}
        if holds(lambda instance: list(range(instance.types[name][1][0]))):
            yield {"indices_of": name}
        same_dtype = all(
            isinstance(value, numpy.ndarray) and value.dtype == types.nptype_from_builtin(types.string_to_builtin(dtype))
            for value, dtype in zip(values, (instance.types[name][0] for instance in instances), strict=True)
        )
        if same_dtype and holds(lambda instance: [0.0] * instance.types[name][1][0]):
            yield {"zeros_of": name}
        by_dtype = {instance.types[name][0]: value for instance, value in zip(instances, values, strict=True)}
        scalars = all(isinstance(value, numpy.floating) for value in values)
        if scalars and set(by_dtype) == {"fp16", "fp32"} and holds(lambda instance: by_dtype[instance.types[name][0]]):
            yield {"float_by_dtype": {"of": name} | {dtype: binary32(by_dtype[dtype]) for dtype in ("fp16", "fp32")}}
    for value in (0, 1):
        for times in (1, 2):
            if "x" in required and holds(lambda instance: [value] * (times * (len(instance.types["x"][1]) - 2))):
                yield {"per_spatial_dim": {"value": value, "times": times}}


def default(operation: type, name: str, instances: list[Instance]) -> dict[str, Any] | None:
    """The rule of a default."""
    values = [instance.defaults[name] for instance in instances]
    plains = [plain(value) for value in values]
    try:
        if all(value == plains[0] and type(value) is type(plains[0]) for value in plains):
            return constant(plains[0])
        (found,) = rules(operation, instances, values)
    except ValueError as error:
        raise ValueError(f"the default of `{name}` of `{operation.__name__}`: {error}") from error
    return found


def inputs(operation: type) -> list[dict[str, Any]]:
    """The inputs, in the order of the registry."""
    instances = instances_of(operation)
    accepts = operation.input_spec.input_types
    unknown = set(instances[0].defaults) - set(accepts)
    if unknown:
        raise ValueError(f"`{operation.__name__}` has defaults for unknown inputs: {sorted(unknown)}")
    rows = []
    for name, accepted in accepts.items():
        row: dict[str, Any] = {
            "name": name,
            "kind": KINDS[type(accepted)],
            "required": not accepted.optional,
            "const": accepted.const,
        }
        if isinstance(accepted, TensorInputType):
            row["variable"] = accepted.type_domain_id
            row["dtypes"] = sorted({types.builtin_to_string(dtype) for dtype in domain(operation, accepted)})
        if name in instances[0].defaults:
            row["default"] = default(operation, name, instances)
        rows.append(row)
    return rows


def definitions(name: str) -> Iterator[tuple[str, type]]:
    """The classes of an operation, each with its first opset, oldest first."""
    versions = SSAOpRegistry.core_ops[name]
    previous = None
    for opset in SSAOpRegistry.SUPPORTED_OPSET_VERSIONS:
        operation = versions.get(opset)
        if operation is None and previous is not None:
            raise ValueError(f"`{name}` ends before {opset.name}")
        if operation is not previous:
            yield opset.name, operation
        previous = operation


def family(operation: type) -> str:
    """The family of a class, which is its module's name."""
    return operation.__module__.rpartition(".")[2]


def operations() -> Iterator[dict[str, Any]]:
    """The core operations, sorted by name."""
    for name in sorted(SSAOpRegistry.core_ops):
        classes = list(definitions(name))
        # If an operation moved between modules, the newest class determines its family.
        _, newest = classes[-1]
        rows = [{"opset": opset, "inputs": inputs(operation)} for opset, operation in classes]
        yield {"name": name, "family": family(newest), "rows": rows}


def dump() -> dict[str, Any]:
    """The whole registry."""
    return {"format": FORMAT, "coremltools": coremltools.__version__, "operations": list(operations())}


if __name__ == "__main__":
    json.dump(dump(), sys.stdout, indent=1)
    sys.stdout.write("\n")
