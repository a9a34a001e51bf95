"""Divides a program into what Core ML runs and what ExecuTorch's kernels do."""

import logging
import sys
import weakref
from typing import Callable, Dict, Iterator, List, Optional, Set, Tuple

import torch
from executorch.exir.backend.backend_details import BackendDetails
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from torch.export.exported_program import ExportedProgram
from torch.fx import GraphModule, Node

from ..._errors import ConversionError
from ..compiler.coreml_preprocess import COMPILE_SPEC_KEYS, CoreMLBackend, pairs
from ..logging import get_coreml_log_level
from ._division import (
    Division,
    Refused,
    divide,
    has_delegates,
    has_kernel,
    left_outside,
    operator_name,
    refused_calls,
)

# The name by which users who come from ExecuTorch's backend already listen to it.
logger = logging.getLogger("executorch.backends.apple.coreml.partition.coreml_partitioner")
logger.setLevel(get_coreml_log_level(default_level=logging.INFO))

#: Operators that are decomposed although Core ML supports them: their decompositions are not slower, and have kernels
#: for the calls that stay outside.
_DECOMPOSED = frozenset(
    [
        torch.ops.aten.triu.default,
        torch.ops.aten.tril.default,
        torch.ops.aten.repeat_interleave.self_int,
        torch.ops.aten.repeat_interleave.self_Tensor,
    ]
)


class CoreMLPartitioner(Partitioner):
    """Tags the calls that run on Core ML: the calls that the lowering supports.

    ``skip_ops_for_coreml_delegation`` lists operators that stay outside, such as ``aten.mm.default``. ``compile_specs``
    is the result of ``CoreMLBackend.generate_compile_specs``. With ``take_over_mutable_buffer``, buffers that the program
    writes to become states, which need iOS 18. With ``lower_full_graph`` a call that Core ML cannot run is an error.
    Without ``take_over_constant_data`` weights are inputs of the delegates.
    """

    def __init__(
        self,
        *,
        skip_ops_for_coreml_delegation: Optional[List[str]] = None,
        compile_specs: Optional[List[CompileSpec]] = None,
        take_over_mutable_buffer: Optional[bool] = True,
        lower_full_graph: bool = False,
        take_over_constant_data: bool = True,
    ) -> None:
        self.skip_ops_for_coreml_delegation = skip_ops_for_coreml_delegation or []
        compile_specs = [] if compile_specs is None else compile_specs
        if not lower_full_graph and any(
            spec.key == COMPILE_SPEC_KEYS.ENUMERATED_SHAPES.value for spec in compile_specs
        ):
            raise AssertionError(
                "lower_full_graph must be True in the CoreMLPartitioner when using an enumerated "
                "shape compile spec"
            )
        self.delegation_spec = DelegationSpec(
            backend_id=CoreMLBackend.__name__, compile_specs=compile_specs
        )
        self.take_over_mutable_buffer = take_over_mutable_buffer
        self.lower_full_graph = lower_full_graph
        self.take_over_constant_data = take_over_constant_data
        self._said: Set[str] = set()
        self._kept: Tuple[Callable, List[torch._ops.OpOverload]] = (lambda: None, [])
        if lower_full_graph:
            for is_wrong, remedy in (
                (
                    self.skip_ops_for_coreml_delegation,
                    "you cannot set skip_ops_for_coreml_delegation",
                ),
                (not take_over_constant_data, "you must set take_over_constant_data=True"),
                (not take_over_mutable_buffer, "you must set take_over_mutable_buffer=True"),
            ):
                if is_wrong:
                    raise AssertionError(f"When lower_full_graph=True, {remedy}")

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Mark the calls of a program in the edge dialect."""
        check_backend()
        if _is_deprecated_way():
            warn_of_deprecated_way()
        logger.info("CoreMLPartitioner::partition")
        skipped, is_whole = self.skip_ops_for_coreml_delegation, self.lower_full_graph
        outside = left_outside(exported_program, skipped, is_whole)
        try:
            division = divide(exported_program, self._specs(), outside, **self._options())
        except ConversionError as error:
            if not is_whole:
                raise
            raise NotImplementedError(
                f"{error}\n\nCore ML does not support all of the program, but you have set lower_full_graph=True "
                "in the CoreMLPartitioner.\nhint: set lower_full_graph=False to run what is not supported outside "
                "of Core ML, or rewrite the model to avoid it"
            ) from error
        self._explain(exported_program, division)
        tags = {}
        for node in exported_program.graph.nodes:
            part = division.parts.get(node.name)
            if part is not None:
                tag = f"tag{part}"
                node.meta["delegation_tag"] = tag
                tags[tag] = self.delegation_spec
        if self.take_over_constant_data:
            tag_constant_data(exported_program)
            _untag_returned(exported_program)
        self.announce()
        _tag_states(exported_program, division.states)
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)

    def announce(self) -> None:
        """Logs the consequences of the options for devices."""
        if self.take_over_mutable_buffer:
            logger.info(
                "Core ML partitioner will take over torch mutable buffer as Core ML state, "
                "so if your model contains mutable buffer, "
                "then you will need MacOS15+/iOS18+ to execute. "
                "If you want your mutable buffer model to be compatible with older OS, "
                "then please set `take_over_mutable_buffer=False`"
            )

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> Tuple[List[torch._ops.OpOverload], Optional[Callable[[Node], bool]]]:
        """Operators that Core ML supports in all calls of the program, so that they need no decomposition."""
        # ExecuTorch calls this several times for one program.
        asked, kept = self._kept
        if asked() is ep:
            return kept, None
        calls: Dict[torch._ops.OpOverload, bool] = {}
        # The last call is after delegation, when nothing is left to be decomposed.
        if not has_delegates(ep):
            refused, known = refused_calls(ep, self._specs(), **self._options())
            lowered = known - refused
            for node, is_lowered in _calls(ep, lowered):
                is_wanted = operator_name(node) not in self.skip_ops_for_coreml_delegation
                calls[node.target] = calls.get(node.target, True) and is_lowered and is_wanted
        kept = [
            target
            for target, is_kept in calls.items()
            if is_kept and target not in _DECOMPOSED and not _is_view(target) and _gives_tensors(target)
        ]
        self._kept = (weakref.ref(ep), kept)
        return kept, None

    def _specs(self) -> List[Tuple[str, bytes]]:
        return pairs(self.delegation_spec.compile_specs)

    def _options(self) -> Dict[str, bool]:
        return {
            "take_over_mutable_buffer": bool(self.take_over_mutable_buffer),
            "take_over_constant_data": bool(self.take_over_constant_data),
            "lower_full_graph": bool(self.lower_full_graph),
        }

    def _explain(self, program: ExportedProgram, division: Division) -> None:
        """Logs once per operator why it stays outside."""
        nodes = {node.name: node for node in program.graph.nodes}
        for refused in division.refused:
            node = nodes.get(refused.node)
            if node is not None and refused.needs is not None and not has_kernel(node):
                raise _too_old(refused)
            self._say_once(
                "Skipping op for CoreML delegation because it is not supported by CoreML: "
                f"{refused.told}",
                refused.operator,
            )
        for node in program.graph.nodes:
            name = operator_name(node)
            if name and name in self.skip_ops_for_coreml_delegation:
                self._say_once(
                    "Skipping op for CoreML delegation because it is in skip_ops_for_coreml_delegation: "
                    + name,
                    name,
                )

    def _say_once(self, message: str, about: str) -> None:
        if about not in self._said:
            self._said.add(about)
            logger.info(message)


def _too_old(refused: Refused) -> ValueError:
    """A call that no kernel can do either, and that a later release has."""
    release = "iOS" + (refused.needs or "").removeprefix("ios")
    return ValueError(
        f"{refused.told}\n"
        f"hint: {refused.operator} has no kernel outside Core ML; pass "
        f"`compile_specs=CoreMLBackend.generate_compile_specs(minimum_deployment_target=ct.target.{release})` "
        "to CoreMLPartitioner"
    )


def _calls(program: ExportedProgram, lowered: Set[str]) -> Iterator[Tuple[Node, bool]]:
    """The calls of operators, and whether each is lowered; calls in a branch or loop are lowered together with it."""
    for node in program.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            yield node, node.name in lowered
        if node.op == "get_attr" and isinstance(nested := getattr(program.graph_module, node.target, None), GraphModule):
            is_lowered = all(user.name in lowered for user in node.users)
            for module in nested.modules():
                for call in module.graph.nodes if isinstance(module, GraphModule) else ():
                    if call.op == "call_function" and isinstance(call.target, torch._ops.OpOverload):
                        yield call, is_lowered


def _is_view(target: torch._ops.OpOverload) -> bool:
    arguments = target._schema.arguments
    alias = arguments[0].alias_info if arguments else None
    return alias is not None and not alias.is_write


def _gives_tensors(target: torch._ops.OpOverload) -> bool:
    """Whether all results are tensors. Operators that return numbers, such as ``item``, have kernels only in their
    decomposed form."""
    return all("Tensor" in str(result.type) for result in target._schema.returns)


def _untag_returned(program: ExportedProgram) -> None:
    """Removes the tags of constants that the program returns: ExecuTorch copies constants that partitions share, but
    not for the output."""
    for node in program.graph.output_node().all_input_nodes:
        if node.op == "placeholder":
            node.meta.pop("delegation_tag", None)


def _tag_states(program: ExportedProgram, states: Set[str]) -> None:
    """Tags the buffers that a partition keeps as states.

    ExecuTorch removes the new value of such a buffer from the graph, so only the partition may use it.
    """
    buffers = program.graph_signature.inputs_to_buffers
    written = {buffer: name for name, buffer in program.graph_signature.buffers_to_mutate.items()}
    nodes = {node.name: node for node in program.graph.nodes}
    for node in program.graph.nodes:
        buffer = buffers.get(node.name) if node.op == "placeholder" else None
        if buffer not in states or buffer not in written:
            continue
        new = nodes[written[buffer]]
        tag = new.meta.get("delegation_tag")
        if tag is not None and _stays_within(tag, node, new):
            node.meta["delegation_tag"] = tag


def _stays_within(tag: str, buffer: Node, new: Node) -> bool:
    """Whether nothing outside a partition needs a buffer or its new value, but the program which keeps the value."""
    output = new.graph.output_node()
    users = [user for node in (buffer, new) for user in node.users if user is not output]
    is_kept_once = [given for given in output.args[0] if given in (buffer, new)] == [new]
    return is_kept_once and all(user.meta.get("delegation_tag") == tag for user in users)


def _is_deprecated_way() -> bool:
    """Whether the caller's caller is ``to_backend``, and not ``to_edge_transform_and_lower``."""
    frame, is_to_backend = sys._getframe(1), False
    while frame is not None:
        code = frame.f_code
        if code.co_name == "to_edge_transform_and_lower":
            return False
        is_to_backend |= code.co_name == "to_backend" and "program/_program.py" in code.co_filename
        frame = frame.f_back
    return is_to_backend


def warn_of_deprecated_way() -> None:
    """Recommend ``to_edge_transform_and_lower``."""
    logger.warning(
        "\nDEPRECATION WARNING: You are using the deprecated 'to_edge() + to_backend()' workflow. "
        "It decomposes operators that Core ML supports, such as attention, which makes programs slower. "
        "Use 'to_edge_transform_and_lower()' instead. "
        "See: https://docs.pytorch.org/executorch/main/backends/coreml/coreml-overview.html"
        "#using-the-core-ml-backend"
    )


def check_backend() -> None:
    """Refuse two backends of one name: ExecuTorch looks backends up by the names of their classes."""
    namesakes = [made for made in BackendDetails.__subclasses__() if made.__name__ == "CoreMLBackend"]
    if namesakes != [CoreMLBackend]:
        other = next(made for made in namesakes if made is not CoreMLBackend)
        raise RuntimeError(
            f"{other.__module__} is imported together with coremill.executorch, but ExecuTorch distinguishes backends "
            "by the names of their classes\n"
            "hint: call coremill.executorch.install() before anything imports "
            "executorch.backends.apple.coreml, so that all imports find coremill's"
        )
