"""Where operations come from: the line of the model's code, and its module."""

from __future__ import annotations

import re

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Scopes(dict):
    """What is known of an operation, by the name of a member of coremltools' `ScopeSource`, or by the member itself."""

    def __getitem__(self, source: Any) -> list:
        return super().get(getattr(source, "name", source), [])

    def __contains__(self, source: Any) -> bool:
        return super().__contains__(getattr(source, "name", source))

    def get(self, source: Any, default: Any = None) -> Any:
        """The entries of a source."""
        return self[source] or default


def scopes_by_value(program: Any) -> dict:
    """The scopes of the calls of an exported program, by the names that their results may have in the converted model."""
    found: dict = {}
    for node in getattr(getattr(program, "graph", None), "nodes", ()):
        if node.op != "call_function":
            continue
        modules = list((node.meta.get("nn_module_stack") or {}).values())
        paths = [path for path, _ in modules if path]
        scopes = Scopes()
        if node.meta.get("stack_trace"):
            scopes["EXIR_STACK_TRACE"] = [_trace(node.meta["stack_trace"])]
        if node.meta.get("debug_handle") is not None:
            scopes["EXIR_DEBUG_HANDLE"] = [node.meta["debug_handle"]]
        if modules:
            scopes["TORCHSCRIPT_MODULE_NAME"] = [*paths, node.name]
            kinds = [kind if isinstance(kind, str) else kind.__name__ for _, kind in modules]
            scopes["TORCHSCRIPT_MODULE_TYPE"] = [kind.rpartition(".")[2] for kind in kinds]
        found[node.name] = scopes
        if paths:
            # Values of a module have its path in front.
            found[f"{re.sub('[^a-zA-Z0-9_]', '_', paths[-1])}_{node.name}"] = scopes
    return found


def _trace(text: str) -> str:
    """A stack trace that ends in the model's code, not in torch's modules, as older releases of torch write it."""
    frames = re.split(r'(?m)^(?=\s*File ")', text)
    while len(frames) > 1 and re.match(r'\s*File "[^"]*[/\\]torch[/\\]nn[/\\]', frames[-1]):
        frames.pop()
    return "".join(frames).rstrip("\n") + "\n"


def scopes_of(name: str, known: dict) -> Scopes:
    """The scopes of the operation with a result of this name: the converter appends `_fp16` and numbers."""
    plain = name.removesuffix("_fp16")
    for candidate in (name, plain, re.sub(r"_\d+$", "", plain)):
        if candidate in known:
            return known[candidate]
    return Scopes()
