"""Finds operations of a package that do nothing or cancel each other."""

from collections.abc import Iterator
from typing import Any

from coremltools.proto import MIL_pb2

#: For each type, the types that represent all its values.
HELD_BY = {"fp16": ("fp32",), "bool": ("fp16", "fp32", "int32"), "int8": ("int32", "fp32"), "int16": ("int32", "fp32")}


def operations(program: Any) -> Iterator[Any]:
    """Every operation, including those in nested blocks."""
    blocks = [block for one in program.functions.values() for block in one.block_specializations.values()]
    while blocks:
        for operation in blocks.pop().operations:
            yield operation
            blocks += operation.blocks


def needless(program: Any) -> list[str]:
    """Casts and transposes that do nothing, and pairs that cancel each other."""
    made = {output.name: one for one in operations(program) for output in one.outputs}
    # The types of all values, by name.
    types = {output.name: output.type for one in operations(program) for output in one.outputs}
    for function in program.functions.values():
        types |= {one.name: one.type for one in function.inputs}
    found = []
    for one in operations(program):
        name = one.outputs[0].name if one.outputs else ""
        if one.type == "transpose":
            permutation = integers(one, "perm", made)
            if permutation is None:
                continue
            before = producer(one, "x", made)
            if permutation == list(range(len(permutation))):
                found.append(f"the transpose `{name}` does nothing")
            elif before is not None and before.type == "transpose":
                earlier = integers(before, "perm", made)
                if earlier is not None and [earlier[axis] for axis in permutation] == list(range(len(permutation))):
                    found.append(f"the transpose `{name}` reverses the previous one")
        elif one.type == "cast":
            source = argument(one, "x")
            now = element(types.get(name))
            given = element(types.get(source)) if source in types else None
            before = producer(one, "x", made)
            if given == now:
                found.append(f"the cast `{name}` does nothing")
            elif before is not None and before.type == "cast":
                first = element(types.get(argument(before, "x")))
                if first == now and given in HELD_BY.get(first or "", ()):
                    found.append(f"the cast `{name}` reverses the previous one")
    return found


def argument(operation: Any, name: str) -> str:
    """The name that an operand is bound to."""
    bound = operation.inputs[name].arguments if name in operation.inputs else []
    return bound[0].name if bound else ""


def producer(operation: Any, name: str, made: dict[str, Any]) -> Any:
    """The operation that produces an operand."""
    return made.get(argument(operation, name))


def integers(operation: Any, name: str, made: dict[str, Any]) -> list[int] | None:
    """A constant integer operand."""
    bound = operation.inputs[name].arguments if name in operation.inputs else []
    if not bound:
        return None
    if bound[0].WhichOneof("binding") == "value":
        value = bound[0].value
    else:
        source = made.get(bound[0].name)
        if source is None or source.type != "const":
            return None
        value = source.attributes["val"]
    return list(value.immediateValue.tensor.ints.values)


def element(kind: Any) -> str | None:
    """The element type of a value, by MIL's name."""
    names = {
        MIL_pb2.FLOAT16: "fp16",
        MIL_pb2.FLOAT32: "fp32",
        MIL_pb2.INT32: "int32",
        MIL_pb2.INT16: "int16",
        MIL_pb2.UINT16: "uint16",
        MIL_pb2.INT8: "int8",
        MIL_pb2.UINT8: "uint8",
        MIL_pb2.BOOL: "bool",
    }
    return names.get(kind.tensorType.dataType) if kind is not None else None
