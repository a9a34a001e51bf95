"""Describes an exported program from Python's side, in the form of `cargo xtask pt2-dump`.

It reads the FX graph instead of the archive, and runs with every torch from 2.5 on, so that archives of older versions
have a description by their own torch.
"""

import hashlib
import json
import operator
import re
from typing import Any

import torch
from torch.utils import _pytree

#: Symbolic sizes are compared by value: each symbol gets two values, derived from its name.
SCALES = (2, 4)

#: Namespaces whose schemas declare every side effect, so that unused calls can be removed.
PURE = {"aten", "prims", "quant", "quantized_decomposed", "dim_order_ops", "torchvision", "torchao"}
PURE_HIGHER_ORDER = {"cond", "while_loop", "scan", "map_impl", "associative_scan", "wrap_with_set_grad_enabled"}

#: Codes of c10's enumerations, which schemas use as defaults.
DTYPES = {4: torch.int64, 6: torch.float32}
MEMORY_FORMATS = {0: torch.contiguous_format, 1: torch.preserve_format}


def plain(kind: object) -> str:
    """`torch.float32` as `float32`."""
    return str(kind).removeprefix("torch.")


def schema_of(target: Any) -> Any:
    """The schema of an operator, including the edge dialect's; `None` for other callables."""
    return getattr(target, "_schema", None)


def higher_order(target: Any) -> bool:
    return isinstance(target, torch._ops.HigherOrderOperator)


def name_of(target: Any) -> str:
    """The target as `pt2-dump` prints it."""
    schema = schema_of(target)
    if schema is not None:
        return f"{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}"
    if higher_order(target):
        return f"higher_order.{target.name()}"
    module = "torch" if target.__name__.startswith("sym_") else target.__module__
    return f"{module}.{target.__name__}"


def scalar(value: float) -> Any:
    """A float; NaN and infinities become strings."""
    return value if value == value and abs(value) != float("inf") else str(value)


def tensor(value: torch.Tensor) -> dict:
    """A tensor with its elements."""
    value = value.detach()
    flat = value.resolve_conj().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    content = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return {
        "dtype": plain(value.dtype),
        "sizes": list(value.shape),
        "strides": list(value.stride()),
        "offset": value.storage_offset(),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def sample(value: Any) -> Any:
    """A sample input."""
    match value:
        case None | bool():
            return value
        case int():
            return {"int": value}
        case float():
            return {"float": scalar(value)}
        case complex():
            return {"complex": [value.real, value.imag]}
        case str():
            return {"text": value}
        case torch.Tensor():
            return tensor(value)
        case tuple():
            return {"tuple": [sample(one) for one in value]}
        case list():
            return [sample(one) for one in value]
        case dict():
            return {"dict": [[sample(key), sample(one)] for key, one in value.items()]}
    raise TypeError(type(value))


def size(value: Any) -> Any:
    """A size, symbolic or not."""
    if isinstance(value, int):
        return value
    expression = value.node.expr
    if expression.is_Integer:
        return int(expression)
    found = []
    for scale in SCALES:
        values = {symbol: scale * (sum(symbol.name.encode()) % 50 + 3) for symbol in expression.free_symbols}
        result = expression.subs(values)
        found.append(int(result) if result.is_integer else None)
    return {"at": found}


def meta(value: Any) -> Any:
    """The type of a value."""
    if isinstance(value, torch.Tensor):
        return {
            "dtype": plain(value.dtype),
            "sizes": [size(one) for one in value.shape],
            "strides": [size(one) for one in value.stride()],
            "layout": plain(value.layout),
            "device": str(value.device),
        }
    if isinstance(value, (bool, torch.SymBool)):
        return "bool"
    if isinstance(value, (float, torch.SymFloat)):
        return "float"
    if isinstance(value, (int, torch.SymInt)):
        return {"int": size(value)}
    raise TypeError(type(value))


class Graph:
    """One FX graph."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self.module = module
        self.nodes = list(module.graph.nodes)
        self.items: dict[torch.fx.Node, dict[Any, torch.fx.Node]] = {}
        for node in self.nodes:
            if node.target is operator.getitem:
                self.items.setdefault(node.args[0], {})[node.args[1]] = node
        self.live = self.find_live()

    def pure(self, node: torch.fx.Node) -> bool:
        if node.op != "call_function":
            return True
        schema = schema_of(node.target)
        if schema is not None:
            written = any(one.alias_info is not None and one.alias_info.is_write for one in schema.arguments)
            return schema.name.split("::")[0] in PURE and not written and len(schema.returns) > 0
        if higher_order(node.target):
            graphs = [getattr(self.module, one.target) for one in node.all_input_nodes if one.op == "get_attr"]
            inner = all(Graph(graph).pure(one) for graph in graphs for one in graph.graph.nodes)
            return node.target.name() in PURE_HIGHER_ORDER and inner
        return True

    def find_live(self) -> set[torch.fx.Node]:
        live: set[torch.fx.Node] = set()
        for node in reversed(self.nodes):
            if node.op in ("placeholder", "output") or not self.pure(node) or any(user in live for user in node.users):
                live.add(node)
        return live

    def argument(self, value: Any) -> Any:
        match value:
            case None | bool():
                return value
            case torch.fx.Node():
                if value.op == "get_attr":
                    return {"graph": Graph(getattr(self.module, value.target)).describe()}
                return {"value": value.name}
            case int():
                return {"int": value}
            case float():
                return {"float": scalar(value)}
            case complex():
                return {"complex": [value.real, value.imag]}
            case str():
                return {"text": value}
            case torch.dtype():
                return {"dtype": plain(value)}
            case torch.memory_format():
                return {"memory_format": plain(value)}
            case torch.layout():
                return {"layout": plain(value)}
            case torch.device():
                return {"device": str(value)}
            case list() | tuple():
                return [self.argument(one) for one in value]
        raise TypeError(f"{value!r}: {type(value)}")

    def call(self, node: torch.fx.Node) -> tuple[list, dict]:
        """Arguments and keywords, by the schema if there is one."""
        schema = schema_of(node.target)
        if schema is None:
            return [self.argument(one) for one in node.args], {
                key: self.argument(one) for key, one in node.kwargs.items()
            }
        found = []
        for index, parameter in enumerate(schema.arguments):
            kind = str(parameter.real_type).removeprefix("Optional[").removesuffix("?")
            if parameter.name in node.kwargs:
                value = node.kwargs[parameter.name]
            elif index < len(node.args):
                value = node.args[index]
            else:
                assert parameter.has_default_value(), f"{node.format_node()}: {parameter.name}"
                value = parameter.default_value
                if value is not None and "ScalarType" in kind:
                    value = DTYPES[value]
                elif value is not None and "MemoryFormat" in kind:
                    value = MEMORY_FORMATS[value]
            if kind.startswith("float") and isinstance(value, int) and not isinstance(value, bool):
                value = float(value)
            if kind.startswith(("List[float", "float[")) and isinstance(value, (list, tuple)):
                value = [float(one) if isinstance(one, int) else one for one in value]
            if parameter.N and isinstance(value, int):
                value = [value] * parameter.N
            found.append(self.argument(value))
        return found, {}

    def outputs(self, node: torch.fx.Node) -> list:
        """Names of results, nested where a result is a list."""
        value = node.meta.get("val")
        schema = schema_of(node.target)
        if schema is not None and not schema.returns:
            return []
        if not isinstance(value, (tuple, list)):
            return [node.name]
        items = self.items.get(node, {})

        def name(index: int) -> str | None:
            return items[index].name if index in items else f"{node.name}_unused_{index}"

        if schema is not None and len(schema.returns) == 1:
            return [[name(index) for index in range(len(value))]]
        several = len(value) > 1
        used = [index in items and any(user in self.live for user in items[index].users) for index in range(len(value))]
        return [name(index) if used[index] or not several else None for index in range(len(value))]

    def values(self, node: torch.fx.Node) -> dict:
        """The types of results by name."""
        value = node.meta.get("val")
        found = {}
        for index, name in enumerate(self.outputs(node)):
            if isinstance(name, list):
                found.update((one, meta(value[at])) for at, one in enumerate(name))
            elif name is not None:
                found[name] = meta(value[index] if isinstance(value, (tuple, list)) else value)
        return found

    def describe(self) -> dict:
        """The whole graph."""
        nodes, values, inputs, outputs = [], {}, [], []
        for node in self.nodes:
            if node.op == "placeholder":
                value = node.meta.get("val")
                if isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
                    inputs.append({"value": node.name})
                    values[node.name] = meta(value)
                else:
                    inputs.append(self.argument(value))
            elif node.op == "output":
                result = node.args[0]
                outputs = [self.argument(one) for one in (result if isinstance(result, (tuple, list)) else [result])]
            elif node.op == "call_function" and node.target is not operator.getitem and node in self.live:
                arguments, keywords = self.call(node)
                values.update(self.values(node))
                nodes.append(
                    {
                        "target": name_of(node.target),
                        "arguments": arguments,
                        "keywords": keywords,
                        "outputs": self.outputs(node),
                        **origin(node),
                    }
                )
        return {"inputs": inputs, "outputs": outputs, "nodes": nodes, "values": values}


def origin(node: torch.fx.Node) -> dict:
    """The module path and source line of a node."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1] if stack else (None, None)
    if isinstance(kind, type):
        kind = f"{kind.__module__}.{kind.__qualname__}"
    lines = re.findall(r'File "([^"]*)", line (\d+)', node.meta.get("stack_trace") or "")
    source = [lines[-1][0], int(lines[-1][1])] if lines else None
    return {"module": path, "class": kind, "source": source}


def tree(spec: Any) -> Any:
    """A tree specification."""

    def build(wire: dict) -> Any:
        if wire["type"] is None:
            return None
        context = wire["context"]
        try:
            context = json.loads(context)
        except (TypeError, ValueError):
            pass
        return [wire["type"], context, [build(child) for child in wire["children_spec"]]]

    return build(json.loads(_pytree.treespec_dumps(spec))[1])


def bound(value: Any) -> int | None:
    """A bound of a range; `None` if infinite, in either of sympy's and torch's types."""
    return None if str(value).endswith("oo") else int(value)


def describe(program: torch.export.ExportedProgram) -> dict:
    """The program."""
    graph = Graph(program.graph_module).describe()
    inputs, outputs, tensors = [], [], {}
    kinds = {"USER_INPUT": "user", "CUSTOM_OBJ": "custom_object", "CONSTANT_TENSOR": "tensor_constant"}
    for spec, argument in zip(program.graph_signature.input_specs, graph["inputs"], strict=True):
        kind, name = kinds.get(spec.kind.name, spec.kind.name.lower()), spec.target
        if kind == "user" and type(spec.arg).__name__ == "ConstantArgument":
            kind, name = "constant", spec.arg.name
        inputs.append([kind, name, spec.persistent if kind == "buffer" else None, argument])
        if kind in ("parameter", "buffer", "tensor_constant"):
            held = program.state_dict if spec.target in program.state_dict else program.constants
            tensors[spec.target] = tensor(held[spec.target])
    for spec, argument in zip(program.graph_signature.output_specs, graph["outputs"], strict=True):
        kind = {"USER_OUTPUT": "user", "LOSS_OUTPUT": "loss"}.get(spec.kind.name, spec.kind.name.lower())
        outputs.append([kind, spec.target, argument])
    signature = program.module_call_graph[0].signature
    samples = None
    if program.example_inputs is not None:
        positional, keywords = program.example_inputs
        samples = [[sample(one) for one in positional], sample(keywords)]
    return {
        "symbols": {
            str(symbol): [bound(interval.lower), bound(interval.upper)]
            for symbol, interval in program.range_constraints.items()
            if symbol.is_Symbol
        },
        "inputs": inputs,
        "outputs": outputs,
        "graph": graph,
        "tensors": tensors,
        "in_spec": tree(signature.in_spec),
        "out_spec": tree(signature.out_spec),
        "modules": [entry.fqn for entry in program.module_call_graph],
        "samples": samples,
    }
