"""Patterns of calls that are quantized together.

A pattern is a chain of calls. The first argument of each call is the result of the previous one, which has no other
user. The tables list the chains in the order in which they are matched: calls of a matched chain are not matched again.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch.fx import Graph, Node

_aten = torch.ops.aten

#: Activations, and the forms of them that write to their argument.
_WITH_INPLACE = (
    (_aten.relu, _aten.relu_),
    (_aten.relu6, _aten.relu6_),
    (_aten.leaky_relu, _aten.leaky_relu_),
    (_aten.silu, _aten.silu_),
    (_aten.elu, _aten.elu_),
    (_aten.celu, _aten.celu_),
    (_aten.selu, _aten.selu_),
    (_aten.mish, _aten.mish_),
    (_aten.hardtanh, _aten.hardtanh_),
    (_aten.hardswish, _aten.hardswish_),
    (_aten.hardsigmoid, _aten.hardsigmoid_),
)
_WITHOUT_INPLACE = (_aten.gelu, _aten.sigmoid, _aten.log_sigmoid, _aten.tanh)

_CONVS = (_aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default)
_LINEAR = (_aten.linear.default,)
_NORM = (_aten.batch_norm.default,)
_ADDS = (_aten.add.Tensor, _aten.add_.Tensor)
_MULS = (_aten.mul.Tensor, _aten.mul_.Tensor)
_MATMUL = (_aten.matmul.default,)

#: Number of tensor arguments of a chain's first call, all of which must differ: input, weight and bias, or two
#: operands. A norm has four in addition to the result of the previous call.
_TENSORS = {target: 3 for target in (*_CONVS, *_LINEAR)}
_TENSORS.update({target: 2 for target in (*_ADDS, *_MULS, *_MATMUL)})
_TENSORS.update({target: 5 for target in _NORM})

Target = torch._ops.OpOverload
Chain = Tuple[Target, ...]


def _activated(firsts: Sequence[Target], between: Sequence[Target] = ()) -> Iterator[Chain]:
    """Chains that end in an activation."""
    for first, (act, in_place) in product(firsts, _WITH_INPLACE):
        yield (first, *between, in_place.default)
        yield (first, *between, act.default)
    for first, act in product(firsts, _WITHOUT_INPLACE):
        yield (first, *between, act.default)


#: By the kind of call that carries a chain, the chains in the order in which they are looked for.
WEIGHTED: Tuple[Tuple[Chain, ...], ...] = (
    tuple(_activated(_CONVS)),
    tuple(_activated(_CONVS, _NORM)),
    tuple((conv, *_NORM) for conv in _CONVS),
    tuple((conv,) for conv in _CONVS),
    tuple(_activated(_LINEAR)),
    tuple(_activated(_LINEAR, _NORM)),
    (_LINEAR + _NORM,),
    (_LINEAR,),
)
BINARY: Tuple[Tuple[Chain, ...], ...] = (
    tuple(_activated(_ADDS)),
    tuple((add,) for add in _ADDS),
    tuple(_activated(_MULS)),
    tuple((mul,) for mul in _MULS),
    tuple(_activated(_MATMUL)),
    (_MATMUL,),
)

_functional = torch.nn.functional
#: Modules and functions whose result has the range of their argument.
SAME_RANGE: Tuple[Tuple[Callable, ...], ...] = (
    (torch.nn.MaxPool1d, _functional.max_pool1d, torch.max_pool1d),
    (torch.nn.MaxPool2d, _functional.max_pool2d, torch.max_pool2d),
    (torch.nn.MaxPool3d, _functional.max_pool3d, torch.max_pool3d),
    (torch.nn.AdaptiveAvgPool1d, _functional.adaptive_avg_pool1d, torch.adaptive_avg_pool1d),
    (torch.nn.AdaptiveAvgPool2d, _functional.adaptive_avg_pool2d),
    (torch.nn.AdaptiveAvgPool3d, _functional.adaptive_avg_pool3d),
    (torch.nn.AvgPool1d, _functional.avg_pool1d, torch.avg_pool1d, torch.mean),
    (torch.nn.AvgPool2d, _functional.avg_pool2d, torch._C._nn.avg_pool2d),
    (torch.nn.AvgPool3d, _functional.avg_pool3d, torch._C._nn.avg_pool3d),
    (torch.nn.Flatten, torch.flatten),
)


@dataclass(frozen=True)
class Match:
    """A chain that was found."""

    #: The arguments of the first call: nodes, or numbers and `None` instead of tensors.
    tensors: Tuple[Any, ...]
    first: Node
    last: Node


class Calls:
    """The calls of a graph by their targets."""

    def __init__(self, graph: Graph) -> None:
        self._calls: Dict[Any, List[Node]] = {}
        for node in graph.nodes:
            if node.op == "call_function":
                self._calls.setdefault(node.target, []).append(node)

    def matches(self, chain: Chain) -> Iterator[Match]:
        """Find a chain, in the order of the calls that it ends with."""
        if all(target in self._calls for target in chain):
            for last in self._calls[chain[-1]]:
                match = _match(chain, last)
                if match is not None:
                    yield match


def _match(chain: Chain, last: Node) -> Optional[Match]:
    node, taken, seen = last, (), []
    for at in reversed(range(len(chain))):
        target = chain[at]
        if not isinstance(node, Node) or node.target != target:
            return None
        taken = _arguments(target, node)
        if taken is None:
            return None
        is_first = at == 0
        count = _TENSORS.get(target, 1)
        seen.extend(taken[0 if is_first else 1 : count])
        if not is_first:
            before = taken[0]
            if not isinstance(before, Node) or set(before.users) != {node}:
                return None
            node = before
    # Each argument must be another tensor: `x + x` is not a sum of two tensors.
    nodes = [value for value in seen if isinstance(value, Node)]
    if len(set(nodes)) != len(nodes):
        return None
    return Match(tuple(taken[: _TENSORS[chain[0]]]), node, last)


def _arguments(target: Target, node: Node) -> Optional[List[Any]]:
    """The arguments of a call in the order of the operator's schema, with defaults filled in."""
    values = []
    for at, argument in enumerate(target._schema.arguments):
        default = argument.default_value
        if argument.name in node.kwargs:
            value = node.kwargs[argument.name]
        elif not argument.kwarg_only and at < len(node.args):
            value = node.args[at]
        else:
            value = default
        # Numbers do not matter, but their count does.
        if isinstance(default, list) and isinstance(value, (list, tuple)):
            if len(default) != len(value):
                return None
        values.append(value)
    return values
