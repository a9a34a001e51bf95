"""Managers of ExecuTorch for directly lowered programs, which build ExecuTorch's graphs on demand."""

import copy
import io
import math
from typing import Any, Callable, Dict, Optional, Set, TextIO

import torch
from executorch.exir._serialize._cord import Cord
from executorch.exir._serialize._program import PTEFile, deserialize_pte_binary, serialize_pte_binary
from executorch.exir.capture._config import EdgeCompileConfig, ExecutorchBackendConfig
from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, greedy, naive
from executorch.exir.passes import MemoryPlanningPass, ToOutVarPass
from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
from executorch.exir.passes.sym_shape_eval_pass import ConstraintBasedSymShapeEvalPass
from executorch.exir.print_program import pretty_print, print_program
from executorch.exir.program import EdgeProgramManager, ExecutorchProgramManager
from executorch.exir.schema import ExecutionPlan, Program, Tensor
from executorch.exir.tensor import get_scalar_type
from torch.export.graph_signature import InputKind

from ._direct import (
    Call,
    Unsuitable,
    call_of,
    explain,
    logger,
    lowered,
    names_ours,
    partitioners_of,
    refuse_if_slow,
)
from ._edge import edge_manager
from .partition.coreml_partitioner import warn_of_deprecated_way

#: The attributes that ExecuTorch's constructors set.
_EDGE_FIELDS = frozenset(EdgeProgramManager.__init__.__code__.co_names)
_PROGRAM_FIELDS = frozenset(ExecutorchProgramManager.__init__.__code__.co_names)

#: Offsets in memory that are planned are multiples of this.
_ALIGNMENT = 16
_STANDARD_ALGORITHMS = (greedy, naive)


def to_edge_transform_and_lower(
    standard: Callable[..., EdgeProgramManager],
    programs: Any,
    transform_passes: Any = None,
    partitioner: Any = None,
    constant_methods: Optional[Dict[str, Any]] = None,
    compile_config: Optional[EdgeCompileConfig] = None,
    generate_etrecord: bool = False,
    **more: Any,
) -> EdgeProgramManager:
    """Stand in for ExecuTorch's function ``standard``."""
    direct = None
    try:
        refuse_if_slow()
        for is_given, what in (
            (transform_passes is not None, "`transform_passes` are given"),
            (generate_etrecord, "an ETRecord is generated"),
            (more, f"`{next(iter(more), '')}` is given"),
        ):
            if is_given:
                raise Unsuitable(what)
        call = call_of(
            programs, constant_methods, standard, partitioner=partitioner, compile_config=compile_config
        )
        direct = DirectEdgeManager.lowered(call, partitioner)
    except Unsuitable as reason:
        if names_ours(partitioner):
            explain(reason)
    if direct is not None:
        return direct
    return standard(
        programs, transform_passes, partitioner, constant_methods, compile_config, generate_etrecord, **more
    )


def to_edge(
    standard: Callable[..., EdgeProgramManager],
    programs: Any,
    constant_methods: Optional[Dict[str, Any]] = None,
    compile_config: Optional[EdgeCompileConfig] = None,
    generate_etrecord: bool = False,
    **more: Any,
) -> EdgeProgramManager:
    """Stand in for ExecuTorch's function ``standard``."""
    call = None
    try:
        refuse_if_slow()
        if not generate_etrecord and not more:
            call = call_of(programs, constant_methods, standard, compile_config=compile_config)
    except Unsuitable:
        # The partitioner that comes may be another's.
        pass
    if call is not None:
        return DirectEdgeManager(call, None)
    return standard(programs, constant_methods, compile_config, generate_etrecord, **more)


class DirectEdgeManager(EdgeProgramManager):
    """An ``EdgeProgramManager`` of a program that was lowered directly, or of one that may be.

    ExecuTorch's graphs are built on first access; from then on this is ExecuTorch's manager.
    """

    def __init__(self, call: Call, data: Optional[bytes]) -> None:
        self._call: Optional[Call] = call
        self._data: Optional[bytes] = data
        self._config_methods = call.constant_methods
        self._etrecord = None

    @classmethod
    def lowered(cls, call: Call, partitioner: Any) -> EdgeProgramManager:
        """Lower the programs of a call."""
        partitioners = partitioners_of(partitioner, call)
        try:
            data, has_kernels = lowered(call, partitioners)
        except Unsuitable as reason:
            try:
                return edge_manager(call, partitioners)
            except Unsuitable:
                raise reason from None
        return cls(call.with_partitioners(partitioners, has_kernels), data)

    def __getattr__(self, name: str) -> Any:
        if name not in _EDGE_FIELDS or self.__dict__.get("_call") is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self._build()
        return getattr(self, name)

    def _build(self) -> None:
        if self._call is not None:
            built, self._call, self._data = self._call.build(), None, None
            self.__dict__.update(vars(built))

    def __deepcopy__(self, memo: Dict[int, Any]) -> EdgeProgramManager:
        # ETRecords make copies, whose graphs and programs belong together.
        self._build()
        made = EdgeProgramManager.__new__(EdgeProgramManager)
        memo[id(self)] = made
        own = {name: value for name, value in vars(self).items() if name not in ("_call", "_data")}
        made.__dict__.update(copy.deepcopy(own, memo))
        return made

    @property
    def methods(self) -> Set[str]:
        return set(self._call.programs) if self._call is not None else super().methods

    def to_backend(self, partitioner: Any) -> EdgeProgramManager:
        call = self._call
        if call is not None and self._data is None:
            again = call._replace(standard=lambda: call.build().to_backend(partitioner))
            try:
                direct = DirectEdgeManager.lowered(again, partitioner)
                warn_of_deprecated_way()
                return direct
            except Unsuitable as reason:
                if names_ours(partitioner):
                    explain(reason)
        return super().to_backend(partitioner)

    def to_executorch(self, config: Optional[ExecutorchBackendConfig] = None) -> ExecutorchProgramManager:
        if self._call is not None and self._data is not None:
            try:
                if self._etrecord is not None:
                    raise Unsuitable("an ETRecord is kept")
                config = config or ExecutorchBackendConfig()
                return DirectProgramManager(self._call, config, _serialized(self._data, config, self._call))
            except Unsuitable as reason:
                explain(reason)
        return super().to_executorch(config)


class DirectProgramManager(ExecutorchProgramManager):
    """An ``ExecutorchProgramManager`` of a program that was lowered directly.

    ExecuTorch's graphs and maps of debug handles are built on first access. They belong to ExecuTorch's own program,
    which then replaces this one.
    """

    def __init__(self, call: Call, config: ExecutorchBackendConfig, data: Cord) -> None:
        self._call: Optional[Call] = call
        self._config = config
        self._config_methods = call.constant_methods
        self._pte_data = data
        self._tensor_data: Dict[str, Cord] = {}
        self._buffer: Optional[bytes] = None
        self._etrecord = None
        self._program: Optional[Program] = None
        self._is_given = False

    def __getattr__(self, name: str) -> Any:
        call = self.__dict__.get("_call")
        if name not in _PROGRAM_FIELDS or call is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if self._is_given:
            logger.warning(
                "ExecuTorch's graph is built after the program was written, and replaces the program: write it again"
            )
        built = call.build().to_executorch(self._config)
        self._call = None
        self.__dict__.update(vars(built))
        return getattr(self, name)

    @property
    def methods(self) -> Set[str]:
        return set(self._call.programs) if self._call is not None else super().methods

    @property
    def executorch_program(self) -> Program:
        if self._call is None:
            return super().executorch_program
        if self._program is None:
            self._program = deserialize_pte_binary(bytes(self._pte_data)).program
        return self._program

    def dump_executorch_program(self, verbose: bool = False, out: Optional[TextIO] = None) -> None:
        (pretty_print if verbose else print_program)(self.executorch_program, out=out)

    @property
    def buffer(self) -> bytes:
        self._is_given = True
        return super().buffer

    def write_to_file(self, open_file: io.BufferedIOBase) -> None:
        self._is_given = True
        super().write_to_file(open_file)


def _serialized(data: bytes, config: ExecutorchBackendConfig, call: Call) -> Cord:
    """The file of a program with the options of a config."""
    _check(config, call)
    plans = {name: _memory(config, name) for name in call.programs}
    default = ExecutorchBackendConfig()
    layout = ("extract_delegate_segments", "segment_alignment", "constant_tensor_alignment", "delegate_alignment")
    is_default = all(getattr(config, name) == getattr(default, name) for name in layout)
    keeps_io = all(memory.alloc_graph_input and memory.alloc_graph_output for memory in plans.values())
    of_buffers = [name for name in ("run_reinplace_pass", "reinplace_extra_ops") if getattr(config, name)]
    if any(memory.share_mutable_buffers or not memory.alloc_mutable_buffers for memory in plans.values()):
        of_buffers.append("memory_planning_pass")
    if is_default and keeps_io and not of_buffers:
        return Cord(data)
    file = deserialize_pte_binary(data)
    for plan in file.program.execution_plan:
        if plan.name in plans:
            if of_buffers and plan.operators:
                raise Unsuitable(f"`{of_buffers[0]}` affects buffers outside Core ML")
            _forget(plan, plans[plan.name])
    return _written(file, config)


def _written(file: PTEFile, config: ExecutorchBackendConfig) -> Cord:
    return serialize_pte_binary(
        file,
        extract_delegate_segments=config.extract_delegate_segments,
        segment_alignment=config.segment_alignment,
        constant_tensor_alignment=config.constant_tensor_alignment,
        delegate_alignment=config.delegate_alignment,
    )


def _check(config: ExecutorchBackendConfig, call: Call) -> None:
    """Refuse what only ExecuTorch's own path does."""
    if type(config) is not ExecutorchBackendConfig:
        raise Unsuitable(f"the config has type {type(config).__name__}")
    is_dynamic = any(program.range_constraints for program in call.programs.values())
    default = ExecutorchBackendConfig()
    shapes = config.sym_shape_eval_pass
    shapes = list(shapes.values()) if isinstance(shapes, dict) else [shapes]
    devices = config.propagate_device_config
    for is_other, what in (
        (config.passes, "`passes` are given"),
        (type(config.to_out_var_pass) is not ToOutVarPass, "`to_out_var_pass` is given"),
        (config.emit_stacktrace, "`emit_stacktrace` is set"),
        (is_dynamic and any(type(one) is not ConstraintBasedSymShapeEvalPass for one in shapes), "`sym_shape_eval_pass` is given"),
        (
            is_dynamic and config.dynamic_memory_planning_mode != default.dynamic_memory_planning_mode,
            "`dynamic_memory_planning_mode` is set",
        ),
        (devices != PropagateDeviceConfig(), "`propagate_device_config` is given"),
        (
            call.has_kernels and (config.do_quant_fusion_and_const_prop or not config.remove_view_copy),
            "the config changes calls outside Core ML",
        ),
        (
            (config.external_constants or config.external_mutable_weights) and not _takes_all(call),
            "`external_constants` affects constants outside Core ML",
        ),
    ):
        if is_other:
            raise Unsuitable(what)


def _takes_all(call: Call) -> bool:
    """Whether delegates own all parameters, buffers and constants, so that none can be external data."""
    return not call.keeps_tensors and not any(
        not node.users
        for program in call.programs.values()
        for node, spec in zip(program.graph.nodes, program.graph_signature.input_specs)
        if spec.kind != InputKind.USER_INPUT
    )


def _memory(config: ExecutorchBackendConfig, name: str) -> MemoryPlanningPass:
    """Plans the memory of a method."""
    memory = config.memory_planning_pass
    if isinstance(memory, dict):
        memory = memory.get(name, ExecutorchBackendConfig().memory_planning_pass)
    if type(memory) is not MemoryPlanningPass:
        raise Unsuitable(f"the memory of `{name}` is planned by {type(memory).__name__}")
    algorithm = memory.memory_planning_algo
    algorithms = algorithm.algo_list if type(algorithm) is MemoryPlanningAlgorithmSuite else [algorithm]
    if any(one not in _STANDARD_ALGORITHMS for one in algorithms):
        raise Unsuitable(f"the memory of `{name}` is planned by a custom algorithm")
    if _ALIGNMENT % memory.alignment != 0:
        raise Unsuitable(f"the memory of `{name}` is aligned to {memory.alignment} bytes")
    return memory


def _forget(plan: ExecutionPlan, memory: MemoryPlanningPass) -> None:
    """Leave the memory of inputs and outputs to the caller, and plan for no more than the rest needs."""
    given = set(() if memory.alloc_graph_input else plan.inputs)
    given.update(() if memory.alloc_graph_output else plan.outputs)
    if not given:
        return
    planned = []
    for at, value in enumerate(plan.values):
        tensor = value.val
        if isinstance(tensor, Tensor) and tensor.allocation_info is not None:
            if at in given:
                tensor.allocation_info = None
            else:
                planned.append(tensor)
    if plan.operators:
        # Some tensors reuse the memory of earlier ones.
        ends = [
            tensor.allocation_info.memory_offset_low
            + (tensor.allocation_info.memory_offset_high << 32)
            + _bytes(tensor)
            for tensor in planned
        ]
        total = max(ends, default=0)
    else:
        total = 0
        for tensor in planned:
            tensor.allocation_info.memory_offset_low = total & 0xFFFFFFFF
            tensor.allocation_info.memory_offset_high = total >> 32
            total += _bytes(tensor)
    plan.non_const_buffer_sizes = [0, total] if planned else [0]


def _bytes(tensor: Tensor) -> int:
    """The size of a tensor in bytes for memory planning."""
    element = torch.empty((), dtype=get_scalar_type(tensor.scalar_type)).element_size()
    size = math.prod(tensor.sizes) * element
    return max(1, -(-size // _ALIGNMENT)) * _ALIGNMENT
