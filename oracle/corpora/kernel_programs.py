"""Programs with single calls of ExecuTorch's kernels, created with ExecuTorch's own schema and serializer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from executorch.exir import schema
from executorch.exir._serialize._program import PTEFile, serialize_pte_binary
from executorch.exir.operator.convert import to_out_variant
from executorch.exir.tensor import dim_order_from_stride, scalar_type_enum

#: Alignment of tensors.
ALIGNMENT = 16


@dataclass
class Case:
    """A call of an operator in its functional form."""

    name: str
    operator: Any
    arguments: Sequence[Any]
    keywords: dict[str, Any] = field(default_factory=dict)
    #: Whether the outputs' maximum sizes are larger than the actual ones.
    dynamic: bool = False
    #: The operator that the program calls, if it is not the out variant.
    kernel: Any = None
    #: "all", or "shape" if elements are undefined.
    compare: str = "all"
    #: Element types of the outputs, if they differ from eager torch's.
    types: Sequence[torch.dtype] | None = None

    def eager(self) -> list[torch.Tensor]:
        """Computes the results with torch."""
        result = self.operator(*clone(self.arguments), **self.keywords)
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        if self.types:
            results = [one.to(dtype) for one, dtype in zip(results, self.types, strict=True)]
        return results


def clone(value: Any) -> Any:
    """Copies the tensors of arguments, which may be written to."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, (list, tuple)):
        return [clone(one) for one in value]
    return value


class Builder:
    """Builds a method value by value."""

    def __init__(self, name: str) -> None:
        self.plan = schema.ExecutionPlan(
            name=name,
            container_meta_type=schema.ContainerMetadata("", ""),
            values=[],
            inputs=[],
            outputs=[],
            chains=[schema.Chain([], [], [], None)],
            operators=[],
            delegates=[],
            non_const_buffer_sizes=[0, 0],
        )
        self.given: list[torch.Tensor] = []

    def add(self, value: Any) -> int:
        """Adds a value and returns its index."""
        self.plan.values.append(schema.EValue(value))
        return len(self.plan.values) - 1

    def tensor(self, tensor: torch.Tensor, dynamic: bool = False, place: int | None = None) -> int:
        """Adds a tensor to the arena, after the others unless an offset is given."""
        sizes = [size + 1 if dynamic else size for size in tensor.shape]
        length = tensor.element_size()
        for size in sizes:
            length *= size
        offset = self.plan.non_const_buffer_sizes[1] if place is None else place
        end = -(-(offset + length) // ALIGNMENT) * ALIGNMENT
        self.plan.non_const_buffer_sizes[1] = max(self.plan.non_const_buffer_sizes[1], end)
        order = dim_order_from_stride(tensor.stride()) if tensor.dim() else []
        if tensor.numel() == 0 or tensor.is_contiguous():
            order = list(range(tensor.dim()))
        kind = schema.TensorShapeDynamism.DYNAMIC_BOUND if dynamic else schema.TensorShapeDynamism.STATIC
        return self.add(
            schema.Tensor(
                scalar_type=scalar_type_enum(tensor.dtype),
                storage_offset=0,
                sizes=sizes,
                dim_order=[int(axis) for axis in order],
                requires_grad=False,
                layout=0,
                data_buffer_idx=0,
                allocation_info=schema.AllocationDetails(1, offset, 0),
                shape_dynamism=kind,
            )
        )

    def input(self, tensor: torch.Tensor) -> int:
        """Adds a tensor that is an input."""
        index = self.tensor(tensor)
        self.plan.inputs.append(index)
        self.given.append(tensor)
        return index

    def value(self, value: Any, kind: str) -> int:
        """Adds an argument of a kernel, with its schema's type."""
        if value is None:
            return self.add(schema.Null())
        if isinstance(value, torch.Tensor):
            return self.input(value)
        if isinstance(value, torch.dtype):
            return self.add(schema.Int(int(scalar_type_enum(value))))
        if isinstance(value, torch.memory_format):
            return self.add(schema.Int(0))
        if isinstance(value, str):
            return self.add(schema.String(value))
        if isinstance(value, (list, tuple)):
            return self.list(list(value), kind)
        if isinstance(value, bool):
            return self.add(schema.Bool(value))
        if isinstance(value, float) or "float" in kind:
            return self.add(schema.Double(float(value)))
        return self.add(schema.Int(value))

    def list(self, items: list[Any], kind: str) -> int:
        """Adds a list with its schema's type."""
        if "Tensor" in kind:
            places = [-1 if item is None else self.input(item) for item in items]
            optional = "Optional[Tensor]" in kind
            return self.add((schema.OptionalTensorList if optional else schema.TensorList)(places))
        if "bool" in kind:
            return self.add(schema.BoolList(items))
        if "float" in kind:
            return self.add(schema.DoubleList([float(item) for item in items]))
        return self.add(schema.IntList([self.add(schema.Int(item)) for item in items]))

    def call(self, name: str, overload: str, arguments: list[int]) -> None:
        """Adds a call of a kernel."""
        operator = schema.Operator(name, overload)
        if operator not in self.plan.operators:
            self.plan.operators.append(operator)
        call = schema.KernelCall(self.plan.operators.index(operator), arguments)
        self.plan.chains[0].instructions.append(schema.Instruction(call))


def kernel_of(case: Case) -> "torch._C.FunctionSchema":
    """The schema of the kernel that a case calls."""
    if case.kernel is not None:
        return case.kernel._schema
    packet, overload = case.operator._schema.name, case.operator._overloadname
    if packet == "aten::pow":
        return getattr(torch.ops.aten.pow, f"{overload}_out")._schema
    return to_out_variant(case.operator)[0]._schema


def build(case: Case, results: list[torch.Tensor]) -> Builder:
    """The method of a case with the given results."""
    builder = Builder(case.name)
    kernel = kernel_of(case)
    positional, keywords = list(case.arguments), dict(case.keywords)
    places, outs = [], []
    outputs = list(results)
    for argument in kernel.arguments:
        kind = str(argument.type)
        if argument.is_out or (argument.alias_info is not None and argument.kwarg_only):
            if "List" in kind:
                found = [builder.tensor(one, case.dynamic) for one in outputs]
                places.append(builder.add(schema.TensorList(found)))
                outs += found
            else:
                outs.append(builder.tensor(outputs.pop(0), case.dynamic))
                places.append(outs[-1])
            continue
        if argument.name in keywords:
            value = keywords.pop(argument.name)
        elif positional and not argument.kwarg_only:
            value = positional.pop(0)
        else:
            value = argument.default_value
        places.append(builder.value(value, kind))
    single = len(outs) == 1 and len(kernel.returns) == 1
    returned = outs[0] if single else builder.add(schema.TensorList(outs))
    name, overload = kernel.name, kernel.overload_name
    builder.call(name, overload, [*places, returned])
    builder.plan.outputs = outs
    return builder


def write(path: Path, builders: Sequence[Builder]) -> None:
    """Writes a program with a method per builder."""
    program = schema.Program(
        version=0,
        execution_plan=[builder.plan for builder in builders],
        constant_buffer=[schema.Buffer(b"")],
        backend_delegate_data=[],
        segments=[],
        constant_segment=schema.SubsegmentOffsets(0, []),
    )
    file = PTEFile(program=program, mutable_data=None, named_data=None)
    path.write_bytes(bytes(serialize_pte_binary(file, extract_delegate_segments=True)))
