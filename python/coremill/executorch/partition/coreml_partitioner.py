"""Divides a program into what Core ML runs and what ExecuTorch's kernels do."""

import logging
import sys
from typing import Callable, Dict, List, Optional, Set, Tuple

import torch
from executorch.exir.backend.backend_details import BackendDetails
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data, tag_mutated_buffer
from torch.export.exported_program import ExportedProgram

from ..compiler.coreml_preprocess import COMPILE_SPEC_KEYS, CoreMLBackend
from ..logging import get_coreml_log_level
from .support import Answer, answers

# The name by which users who come from ExecuTorch's backend already listen to it.
logger = logging.getLogger("executorch.backends.apple.coreml.partition.coreml_partitioner")
logger.setLevel(get_coreml_log_level(default_level=logging.INFO))

#: Operators that are taken apart although Core ML could run them whole.
_DECOMPOSED = frozenset(
    [
        # Executorch has kernels for the two only under other names, so nothing but a delegate could run them whole.
        torch.ops.aten.triu.default,
        torch.ops.aten.tril.default,
        torch.ops.aten.repeat_interleave.self_int,
        torch.ops.aten.repeat_interleave.self_Tensor,
    ]
)


class CoreMLPartitioner(Partitioner):
    """Marks the calls that Core ML runs.

    ``skip_ops_for_coreml_delegation`` names operators that stay outside, as ``aten.mm.default``. ``compile_specs`` are
    what ``CoreMLBackend.generate_compile_specs`` gives. With ``take_over_mutable_buffer`` buffers that the program
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
        if lower_full_graph:
            for is_wrong, remedy in (
                (self.skip_ops_for_coreml_delegation, "you cannot set skip_ops_for_coreml_delegation"),
                (not take_over_constant_data, "you must set take_over_constant_data=True"),
                (not take_over_mutable_buffer, "you must set take_over_mutable_buffer=True"),
            ):
                if is_wrong:
                    raise AssertionError(f"When lower_full_graph=True, {remedy}")

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Mark the calls of a program in the edge dialect."""
        _check_backend()
        if _is_deprecated_way():
            logger.warning(
                "\nDEPRECATION WARNING: You are using the deprecated 'to_edge() + to_backend()' workflow. "
                "It takes apart operators that Core ML has, such as attention, which makes programs slower. "
                "Use 'to_edge_transform_and_lower()' instead. "
                "See: https://docs.pytorch.org/executorch/main/backends/coreml/coreml-overview.html"
                "#using-the-core-ml-backend"
            )
        logger.info("CoreMLPartitioner::partition")
        found = answers(exported_program, self)
        self._explain(found)
        tags: Dict[str, DelegationSpec] = {}
        for node in exported_program.graph.nodes:
            pass
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)
