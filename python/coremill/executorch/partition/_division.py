"""Partitions an FX graph with the result of the native lowering."""

import sys
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.dialects._ops import ops as edge_ops
from torch.export.exported_program import ExportedProgram
from torch.fx import Node

from ... import _native

#: Operators that stay outside although they could be lowered: apps rely on ExecuTorch's random numbers, and Core ML
#: has ended processes that search all of a tensor for its extreme (ExecuTorch's issues 11722 and 11715).
_RANDOM = (torch.ops.aten.rand.default, edge_ops.edge.aten.rand.default)
_EXTREMES = (
    torch.ops.aten.argmax.default,
    torch.ops.aten.argmin.default,
    edge_ops.edge.aten.argmax.default,
    edge_ops.edge.aten.argmin.default,
)


class Refused(NamedTuple):
    """A call that cannot be lowered."""

    node: str
    operator: str
    reason: str
    hint: Optional[str]
    #: The release that has it.
    needs: Optional[str]
    #: The message with the location in the model.
    told: str


class Division(NamedTuple):
    """The partitions of a program."""

    #: By the name of a node, the number of its partition.
    parts: Dict[str, int]
    #: Buffers that are states.
    states: Set[str]
    refused: List[Refused]


def operator_name(node: Node) -> str:
    """The name of an operator as users write it: ``aten.mm.default``."""
    return getattr(node.target, "__name__", "").lower()


def left_outside(program: ExportedProgram, skipped: Iterable[str], is_whole: bool) -> List[str]:
    """The calls that are not to be delegated."""
    names = set(skipped)
    return [
        node.name
        for node in program.graph.nodes
        if node.op == "call_function"
        and (operator_name(node) in names or (not is_whole and is_unwanted(node)))
    ]


def is_unwanted(node: Node) -> bool:
    """Whether a call stays outside although it could be lowered."""
    if node.target in _RANDOM:
        return True
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    return node.target in _EXTREMES and dim is None


class _WithTensors:
    """A copy of a program with other tensors."""

    def __init__(self, program: ExportedProgram, tensors: Dict[str, torch.Tensor]) -> None:
        self._program = program
        self.state_dict = tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)


def with_weights(program: ExportedProgram) -> Any:
    """The program with its weights: ExecuTorch hands its partitioners copies that have none."""
    state = program.state_dict
    if not any(_is_fake(tensor) for tensor in state.values()):
        return program
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "executorch.exir.backend.backend_api":
            original = frame.f_locals.get("edge_program")
            if isinstance(original, ExportedProgram) and state.keys() <= original.state_dict.keys():
                return _WithTensors(program, original.state_dict)
        frame = frame.f_back
    # The weights are unavailable here. Whether a call can be lowered hardly ever depends on them.
    made = {
        name: torch.zeros((), dtype=tensor.dtype).expand(tensor.shape) if _is_fake(tensor) else tensor
        for name, tensor in state.items()
    }
    return _WithTensors(program, made)


def _is_fake(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "fake_mode") or tensor.device.type == "meta"


def divide(
    program: ExportedProgram, specs: List[Tuple[str, bytes]], outside: List[str], **options: bool
) -> Division:
    """Divide a program so that a graph of fx can be cut: nothing but tensors goes from part to part."""
    whole, outside = with_weights(program), list(outside)
    while True:
        cut, states, refused, known = _native.edge_partition(whole, specs, outside, **options)
        parts = {name: at for at, names in enumerate(cut) for name in names}
        _add_followers(program, parts, set(known))
        _add_idle(program, parts, set(known))
        crossed = _users_of_crossing_numbers(program, parts)
        if not crossed:
            return Division(parts, set(states), [Refused(*one) for one in refused])
        outside += crossed


def _add_followers(program: ExportedProgram, parts: Dict[str, int], known: Set[str]) -> None:
    """Put nodes where they belong that lowering has no calls for: items of tuples, graphs of branches, assertions and
    calls that do nothing."""
    for node in program.graph.nodes:
        if node.name in parts or node.name in known or node.op not in ("call_function", "get_attr"):
            continue
        before = [given for given in node.all_input_nodes if given.op != "placeholder"]
        around = {parts.get(other.name) for other in (*before, *node.users)}
        if getattr(node.target, "__name__", "") == "getitem":
            around = {parts.get(given.name) for given in before}
        if len(around) == 1 and None not in around:
            parts[node.name] = around.pop()


def _add_idle(program: ExportedProgram, parts: Dict[str, int], known: Set[str]) -> None:
    """Moves calls without effect, such as assertions and their operands, to the partitions of their operands.
    Outside, they would use numbers that the calls of a partition use as well."""
    if not parts:
        return
    idle: Set[Node] = set()
    for node in reversed(program.graph.nodes):
        is_call = node.op in ("call_function", "get_attr")
        if is_call and node.name not in parts and node.name not in known and idle.issuperset(node.users):
            idle.add(node)
    for group in _connected(idle):
        operands = {given for node in group for given in node.all_input_nodes if given not in idle}
        places = {parts.get(given.name) for given in operands if given.op != "placeholder"}
        # Partitions are numbered in the order in which they run, so that the last one can use the results of the
        # others; but it may depend on calls outside.
        if None not in places:
            place = max(places, default=0)
            parts.update((node.name, place) for node in group)


def _connected(nodes: Set[Node]) -> Iterator[Set[Node]]:
    """The groups of nodes that use one another."""
    left = set(nodes)
    while left:
        group, pending = set(), [left.pop()]
        while pending:
            node = pending.pop()
            group.add(node)
            near = left.intersection((*node.all_input_nodes, *node.users))
            left -= near
            pending += near
        yield group


def _users_of_crossing_numbers(program: ExportedProgram, parts: Dict[str, int]) -> List[str]:
    """Calls of partitions that use numbers from elsewhere, or whose numbers are used elsewhere."""
    found = []
    for node in program.graph.nodes:
        if not isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool)):
            continue
        places = {parts.get(user.name) for user in node.users if user.op != "placeholder"}
        places.add(parts.get(node.name))
        if len(places) > 1:
            found += [user.name for user in node.users if user.name in parts]
            if node.name in parts:
                found.append(node.name)
    return found


def refused_calls(program: ExportedProgram, specs: List[Tuple[str, bytes]], **options: bool) -> Tuple[Set[str], Set[str]]:
    """The calls that cannot be lowered, and all calls that were examined."""
    refused, known = _native.edge_refused(with_weights(program), specs, **options)
    return {one[0] for one in refused}, set(known)


def has_delegates(program: ExportedProgram) -> bool:
    """Whether parts of a program were delegated already."""
    return any(node.target is executorch_call_delegate for node in program.graph.nodes)


def has_kernel(node: Node) -> bool:
    """Whether a call can stay outside delegates: whether ExecuTorch has an out variant of it."""
    to_out_variant = getattr(node.target, "to_out_variant", None)
    if to_out_variant is None:
        return True
    try:
        to_out_variant()
    except RuntimeError:
        return False
    return True
