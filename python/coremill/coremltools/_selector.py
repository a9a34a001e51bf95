"""Operations as `op_selector` sees them."""

from __future__ import annotations

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


class Var:
    """A value of a program."""

    def __init__(self, name: str, shape: tuple, op: Any = None) -> None:
        """`shape` is empty for values that are no tensors."""
        self.name = name
        self.shape = shape
        self.rank = len(shape)
        self.op = op


class Operation:
    """An operation of a program."""

    def __init__(self, op_type: str, name: str) -> None:
        """`outputs` and `inputs` are filled in later."""
        self.op_type = op_type
        self.name = name
        self.outputs: list = []
        self.inputs: dict = {}
        self.scopes: dict = {}


def operations(model: Any) -> list:
    """The operations of a model that compute something, in order."""
    from .proto import model_of

    program = model_of(model).mlProgram
    known: dict = {}
    found = []
    for function in program.functions.values():
        for value in function.inputs:
            known[value.name] = _var(value)
        for block in function.block_specializations.values():
            found.extend(_operations(block, known))
    return found


def _operations(block: Any, known: dict) -> list:
    found = []
    for op in block.operations:
        for inner in op.blocks:
            found.extend(_operations(inner, known))
        name = op.outputs[0].name if op.outputs else ""
        made = Operation(op.type, name)
        made.outputs = [_var(value, made) for value in op.outputs]
        for parameter, argument in op.inputs.items():
            bound = [known[one.name] for one in argument.arguments if one.name in known]
            if bound:
                made.inputs[parameter] = bound[0] if len(bound) == 1 else bound
        known.update((var.name, var) for var in made.outputs)
        if op.type != "const" and not op.type.startswith("constexpr_"):
            found.append(made)
    return found


def _var(value: Any, op: Any = None) -> Var:
    dimensions = value.type.tensorType.dimensions
    shape = tuple(dim.constant.size if dim.HasField("constant") else -1 for dim in dimensions)
    return Var(value.name, shape, op)


def fp32_values(model: Any, selector: Callable[[Any], bool]) -> list:
    """The values whose operations a selector keeps in fp32."""
    return [op.outputs[0].name for op in operations(model) if op.outputs and not selector(op)]
