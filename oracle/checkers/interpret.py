"""Runs a program that `cargo xtask pt2-dump --prepared` printed, call by call, with torch's operators.

It shares only the dump's text with the code under test, and asserts that the program is functional: no operator writes,
no input changes, and every value has the type and sizes in the dump.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree

from oracle.support.distance import within

#: Functions in expressions of symbolic sizes, by sympy's names.
FUNCTIONS: dict[str, Callable] = {
    "Add": lambda *all: sum(all),
    "Mul": lambda *all: math.prod(all),
    "Pow": lambda a, b: a**b,
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "CeilDiv": lambda a, b: -(-a // b),
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "Max": max,
    "Min": min,
}

SYMBOLIC = {"sym_max": max, "sym_min": min, "sym_not": operator.not_, "sym_float": float, "sym_int": int, "sym_sqrt": math.sqrt}


class Interpreter:
    """A dump, and the tensors of its program."""

    def __init__(self, dump: dict, tensors: dict[str, Any]) -> None:
        self.dump = dump
        self.tensors = tensors
        self.symbols: dict[str, int] = {}

    def run(self, inputs: list[Any]) -> list[tuple[str, str | None, Any]]:
        """Returns the outputs for flat user inputs: their kinds, names and values."""
        graph = self.dump["graph"]
        remaining = iter(inputs)
        bound = []
        for kind, name, _, _ in self.dump["inputs"]:
            bound.append(next(remaining) if kind in ("user", "constant") else self.tensors[name])
        assert not list(remaining), "there are more inputs than the program has"
        kept = [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in bound]
        results = self.graph(graph, bound)
        for before, after in zip(kept, bound, strict=True):
            if isinstance(before, torch.Tensor):
                assert within(after, before, relative=0), "an input was written to"
        outputs = self.dump["outputs"]
        return [(kind, name, value) for (kind, name, _), value in zip(outputs, results, strict=True)]

    def graph(self, graph: dict, inputs: list[Any]) -> list[Any]:
        values: dict[str, Any] = {}
        for argument, value in zip(graph["inputs"], inputs, strict=True):
            if isinstance(argument, dict) and "value" in argument:
                self.bind(graph["values"][argument["value"]], value)
                values[argument["value"]] = value
        for argument, value in zip(graph["inputs"], inputs, strict=True):
            if isinstance(argument, dict) and "value" in argument:
                self.check(argument["value"], graph["values"][argument["value"]], value)
        for node in graph["nodes"]:
            results = self.call(node, values)
            assert len(results) == len(node["outputs"]), f"{node['target']} returns {len(results)} results"
            for names, result in zip(node["outputs"], results, strict=True):
                if names is None:
                    continue
                pairs = [(names, result)] if isinstance(names, str) else list(zip(names, result, strict=True))
                for name, value in pairs:
                    assert name not in values, f"`{name}` is defined twice"
                    self.check(name, graph["values"][name], value)
                    values[name] = value
        return [self.argument(output, values) for output in graph["outputs"]]

    def bind(self, meta: Any, value: Any) -> None:
        """Binds the symbols that are sizes of inputs."""
        pairs = []
        if isinstance(value, torch.Tensor):
            pairs = list(zip(meta["sizes"], value.shape, strict=True))
        elif isinstance(meta, dict) and "int" in meta:
            pairs = [(meta["int"], value)]
        for size, number in pairs:
            if isinstance(size, dict) and size["expression"].isidentifier():
                self.symbols.setdefault(size["expression"], number)

    def check(self, name: str, meta: Any, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            assert str(value.dtype) == f"torch.{meta['dtype']}", f"`{name}` is {value.dtype}, but is declared as {meta['dtype']}"
            assert len(meta["sizes"]) == value.ndim, f"`{name}` has sizes {value.shape}, but is declared with {meta['sizes']}"
            for size, found in zip(meta["sizes"], value.shape, strict=True):
                said = self.size(size)
                assert said is None or said == found, f"`{name}` has sizes {value.shape}, but is declared with {meta['sizes']}"
        elif isinstance(meta, dict) and "int" in meta:
            if isinstance(meta["int"], dict) and meta["int"]["expression"].isidentifier():
                self.symbols.setdefault(meta["int"]["expression"], value)
            said = self.size(meta["int"])
            assert said is None or said == value, f"`{name}` is {value}, but is declared as {meta}"

    def size(self, size: Any) -> int | None:
        if not isinstance(size, dict):
            return size
        try:
            return eval(size["expression"], {"__builtins__": {}}, {**FUNCTIONS, **self.symbols})
        except NameError:
            # A size that is unknown before the result is computed.
            return None

    def argument(self, argument: Any, values: dict[str, Any]) -> Any:
        match argument:
            case None | bool():
                return argument
            case list():
                return [self.argument(item, values) for item in argument]
            case {"value": name}:
                return values[name]
            case {"int": value} | {"text": value} | {"graph": value}:
                return value
            case {"float": value}:
                return float(value)
            case {"complex": [real, imaginary]}:
                return complex(float(real), float(imaginary))
            case {"dtype": name} | {"memory_format": name} | {"layout": name}:
                return getattr(torch, name)
            case {"device": name}:
                return torch.device(name)
            case {"map": items}:
                return {key: self.argument(item, values) for key, item in items.items()}
        raise AssertionError(f"{argument} is not an argument")

    def call(self, node: dict, values: dict[str, Any]) -> list[Any]:
        arguments = [self.argument(argument, values) for argument in node["arguments"]]
        keywords = {key: self.argument(argument, values) for key, argument in node["keywords"].items()}
        module, _, name = node["target"].rpartition(".")
        if module == "higher_order":
            return getattr(self, name)(*arguments, **keywords)
        if module in ("_operator", "math"):
            function = getattr(operator if module == "_operator" else math, name)
            return [function(*arguments)]
        if module == "torch":
            return [SYMBOLIC[name](*arguments)]
        namespace, packet, overload = node["target"].split(".")
        function = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
        schema = function._schema
        assert not schema.is_mutable, f"{node['target']} writes to its arguments"
        if node["target"] == "aten.view.default":
            # Values of the new graph may have other strides.
            function = torch.ops.aten.reshape.default
        positional = [value for value, one in zip(arguments, schema.arguments, strict=True) if not one.kwarg_only]
        keywords |= {one.name: value for value, one in zip(arguments, schema.arguments, strict=True) if one.kwarg_only}
        result = function(*positional, **keywords)
        return list(result) if len(schema.returns) > 1 else [result] if schema.returns else []

    def cond(self, condition: Any, yes: dict, no: dict, operands: list) -> list[Any]:
        return self.graph(yes if condition else no, operands)

    def while_loop(self, condition: dict, body: dict, carried: list, additional: list) -> list[Any]:
        while self.graph(condition, [*carried, *additional])[0]:
            carried = self.graph(body, [*carried, *additional])
        return carried

    def scan(self, body: dict, initial: list, over: list, additional: list) -> list[Any]:
        carried, stacked = initial, []
        for index in range(len(over[0])):
            results = self.graph(body, [*carried, *(one[index] for one in over), *additional])
            carried, items = results[: len(initial)], results[len(initial) :]
            stacked.append(items)
        return [*carried, *(torch.stack(items) for items in zip(*stacked, strict=True))]

    def map_impl(self, body: dict, over: list, additional: list) -> list[Any]:
        rows = [self.graph(body, [*(one[index] for one in over), *additional]) for index in range(len(over[0]))]
        return [torch.stack(items) for items in zip(*rows, strict=True)]


def flat_inputs(arguments: tuple, keywords: dict) -> list[Any]:
    return _pytree.tree_leaves((arguments, keywords), is_leaf=lambda value: value is None)
