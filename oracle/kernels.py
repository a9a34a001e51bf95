"""Dumps which operator ExecuTorch's runtime has a kernel for: `python -m oracle.kernels`.

One functional operator a line, sorted by the name as bytes: its name, a space, and the schema of the kernel that a call of
it becomes. That is the operator's out variant where it has one, and the operator itself where it gives numbers.
"""

import sys

import executorch.exir.passes.dim_order_ops_registry
import executorch.exir.passes.executorch_prim_ops_registry  # noqa: F401
import torch
from executorch.exir.operator.convert import to_out_variant
from executorch.runtime import Runtime

#: Kernels of copies between devices, of derivatives, and of the emitter's own instructions.
LEFT_OUT = ("et_copy::", "executorch_prim::et_", "backward")


def name(schema: "torch._C.FunctionSchema") -> str:
    """The name with the overload."""
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def functional(schema: "torch._C.FunctionSchema") -> bool:
    """Whether a call writes to nothing and gives something new."""
    return all(one.alias_info is None for one in [*schema.arguments, *schema.returns])


def main() -> None:
    """Prints all of them."""
    kernels = set(Runtime.get().operator_registry.operator_names)
    lines, reached = {}, set()
    for schema in torch._C._jit_get_all_schemas():
        space, _, rest = name(schema).partition("::")
        if space not in ("aten", "dim_order_ops", "executorch_prim") or not functional(schema):
            continue
        if name(schema) in kernels:
            lines[name(schema)] = str(schema)
            continue
        packet, _, overload = rest.partition(".")
        try:
            operators = getattr(getattr(torch.ops, space), packet)
            if packet == "pow" and overload.startswith(("Tensor", "Scalar")):
                # Its overloads on plain numbers are too many of one kind for executorch to tell apart.
                found = getattr(operators, f"{overload}_out")._schema
            else:
                found = to_out_variant(getattr(operators, overload or "default"))[0]._schema
        except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError):
            continue
        if name(found) in kernels:
            lines[name(schema)] = str(found)
    reached = {line.split("(")[0] for line in lines.values()}
    for key in sorted(lines, key=str.encode):
        if not any(part in key for part in LEFT_OUT):
            sys.stdout.write(f"{key} {lines[key]}\n")
    for kernel in sorted(kernels - reached):
        if not any(part in kernel for part in LEFT_OUT):
            print(f"no operator leads to {kernel}", file=sys.stderr)


if __name__ == "__main__":
    main()
