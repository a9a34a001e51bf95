"""Lists the operators with a kernel in ExecuTorch's runtime: `python -m oracle.dumps.kernels`.

Each line has one functional operator, sorted by name: its name, a space, and the schema of the kernel that implements it.
The kernel is the operator's out variant, or the operator itself if it returns numbers.
"""

import sys

import executorch.exir.passes.dim_order_ops_registry
import executorch.exir.passes.executorch_prim_ops_registry  # noqa: F401
import torch
from executorch.exir.operator.convert import to_out_variant
from executorch.runtime import Runtime

#: Excluded kernels: copies between devices, derivatives, and the emitter's own instructions.
LEFT_OUT = ("et_copy::", "executorch_prim::et_", "backward")


def name(schema: "torch._C.FunctionSchema") -> str:
    """The name with its overload."""
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def functional(schema: "torch._C.FunctionSchema") -> bool:
    """Whether the operator writes to no argument and returns no alias."""
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
                # executorch cannot distinguish its overloads on numbers.
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
            print(f"no operator maps to {kernel}", file=sys.stderr)


if __name__ == "__main__":
    main()
