"""Operations as `op_selector` sees them, and programs made of them."""

from __future__ import annotations

from ._scopes import Scopes, scopes_of

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
        self.scopes = Scopes()


class Function:
    """A function of a program: its inputs by name, its outputs, and its operations with those of nested blocks."""

    def __init__(self, inputs: dict, outputs: list, operations: list) -> None:
        """`operations` include constants."""
        self.inputs = inputs
        self.outputs = outputs
        self.operations = operations

    def find_ops(self, prefix: str | None = None, op_type: str | None = None) -> list:
        """The operations of a type, or whose name starts with a prefix."""
        return [
            op
            for op in self.operations
            if (prefix is None or op.name.startswith(prefix)) and (op_type is None or op.op_type == op_type)
        ]


class Program:
    """A program to read; changes have no effect on its model."""

    def __init__(self, spec: Any, scopes: dict) -> None:
        """`spec` is a specification, and `scopes` are by the names of values."""
        self.functions: dict = {}
        for name, function in spec.mlProgram.functions.items():
            known = {value.name: _var(value) for value in function.inputs}
            inputs = dict(known)
            block = function.block_specializations[function.opset]
            found = _operations(block, known, is_complete=True)
            for op in found:
                op.scopes = scopes_of(op.name, scopes)
            self.functions[name] = Function(inputs, [known[output] for output in block.outputs], found)


def operations(model: Any, scopes: dict | None = None) -> list:
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
    for op in found:
        op.scopes = scopes_of(op.name, scopes or {})
    return found


def _operations(block: Any, known: dict, is_complete: bool = False) -> list:
    found = []
    for op in block.operations:
        for inner in op.blocks:
            found.extend(_operations(inner, known, is_complete))
        name = op.outputs[0].name if op.outputs else ""
        made = Operation(op.type, name)
        made.outputs = [_var(value, made) for value in op.outputs]
        for parameter, argument in op.inputs.items():
            bound = [known[one.name] for one in argument.arguments if one.name in known]
            if bound:
                made.inputs[parameter] = bound[0] if len(bound) == 1 else bound
        known.update((var.name, var) for var in made.outputs)
        if is_complete or not op.type.startswith("const"):
            found.append(made)
    return found


def _var(value: Any, op: Any = None) -> Var:
    dimensions = value.type.tensorType.dimensions
    shape = tuple(dim.constant.size if dim.HasField("constant") else -1 for dim in dimensions)
    return Var(value.name, shape, op)


def fp32_values(model: Any, selector: Callable[[Any], bool], scopes: dict | None = None) -> list:
    """The values whose operations a selector keeps in fp32."""
    return [op.outputs[0].name for op in operations(model, scopes) if op.outputs and not selector(op)]
