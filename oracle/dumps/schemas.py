"""Dumps the schemas of the operators that exported programs can call: `python -m oracle.dumps.schemas`.

One schema per line, sorted by name. Schemas with types that exported programs lack are excluded. Overloads with `out`
arguments are included for ATen only: `torch.add(a, b, out=c)` is exported unchanged.
"""

import re
import sys

import executorch.exir.dialects.edge._ops
import executorch.exir.passes.dim_order_ops_registry  # noqa: F401
import torch
import torch.ao.quantization.fx._decomposed
import torchao.prototype.quantization.codebook_coreml
import torchao.quantization  # noqa: F401
import torchvision  # noqa: F401

NAMESPACES = {
    "aten",
    "dim_order_ops",
    "export",
    "prims",
    "quant",
    "quantized_decomposed",
    "torchao",
    "torchvision",
}

#: Types that exist in TorchScript only: type variables, dictionaries, futures and so on.
FOREIGN = re.compile(r"\b(t|tVal|Any|AnyEnumType|AnyListType|Dict|Future|List|PyObject|RRef|Stream|Storage|Await)\b[\[(]")


def exported(schema: "torch._C.FunctionSchema") -> bool:
    """Whether a program can call the operator."""
    if schema.name.split("::")[0] not in NAMESPACES:
        return False
    writes_out = any(argument.is_out for argument in schema.arguments)
    if "..." in str(schema) or (writes_out and not schema.name.startswith("aten::")):
        return False
    kinds = [str(part.type) for part in [*schema.arguments, *schema.returns]]
    return not any(re.fullmatch(r"(t|tVal|Any|AnyEnumType|PyObject|Stream|Storage)(\[\])?", kind) for kind in kinds)


def main() -> None:
    """Prints all of them."""
    lines = set()
    for schema in torch._C._jit_get_all_schemas():
        text = str(schema)
        if exported(schema) and not FOREIGN.search(text.split("(", 1)[1]):
            lines.add(text)
    by_name = {}
    for line in lines:
        by_name.setdefault(line.split("(")[0], []).append(line)
    twice = {name: found for name, found in by_name.items() if len(found) > 1}
    assert not twice, f"operators with several schemas: {twice}"
    for name in sorted(by_name, key=str.encode):
        sys.stdout.write(by_name[name][0] + "\n")


if __name__ == "__main__":
    main()
