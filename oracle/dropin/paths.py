"""Lowers programs directly and by ExecuTorch's own path, and compares the results in ExecuTorch's runtime.

It runs in its own process, as `worker.py` does:

    python -m coremill.executorch oracle/dropin/paths.py RESULTS [CASE...]
    python -m coremill.executorch oracle/dropin/paths.py RESULTS --exports EXPORTS [NAME...]

The second form reads exports of the zoo, which `python -m oracle.zoo.exports` writes. Writes the error, or `null`, for each
case.
"""

import contextlib
import copy
import json
import logging
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import coremltools as ct
import torch
from executorch.backends.apple.coreml.compiler import CoreMLBackend
from executorch.backends.apple.coreml.compiler.coreml_preprocess import MULTIMETHOD_WEIGHT_SHARING_STRATEGY as STRATEGY
from executorch.backends.apple.coreml.partition import CoreMLPartitioner
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge, to_edge_transform_and_lower
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.schema import ScalarType
from executorch.runtime import Runtime, Verification
from torch import nn
from torch.export import Dim

from oracle.support.distance import distance

CASES: dict[str, Callable[[], None]] = {}
#: Maximum difference of the two paths relative to the largest element: both compute in fp16, in different orders.
TOLERANCE = 5e-3
VARIABLE = "COREMILL_EXECUTORCH"
#: The logged reasons why programs took ExecuTorch's path.
reasons: list[str] = []

Inputs = tuple[Any, ...]


class Reasons(logging.Handler):
    """Records the log messages."""

    def emit(self, record: logging.LogRecord) -> None:
        reasons.append(record.getMessage())


def case(function: Callable[[], None]) -> Callable[[], None]:
    """Registers a case."""
    CASES[function.__name__] = function
    return function


@dataclass
class Method:
    """A method: a module, the calls to compare, and the shapes of its inputs."""

    module: nn.Module
    calls: list[Inputs]
    dynamic: Any = None
    program: Any = None

    def __post_init__(self) -> None:
        self.module.eval()
        if self.program is None:
            self.program = torch.export.export(self.module, self.calls[0], dynamic_shapes=self.dynamic)


@dataclass
class Flow:
    """Options of the lowering."""

    partitioner: Callable[[str], CoreMLPartitioner] = lambda name: CoreMLPartitioner()
    options: dict[str, Any] = field(default_factory=dict)
    config: Callable[[], ExecutorchBackendConfig | None] = lambda: None
    #: Whether to use the older flow of `to_edge` and `to_backend`.
    is_older: bool = False

    def edge(self, programs: Any) -> Any:
        names = list(programs) if isinstance(programs, dict) else ["forward"]
        if self.is_older:
            return to_edge(programs, **self.options).to_backend({name: self.partitioner(name) for name in names})
        partitioner = {name: [self.partitioner(name)] for name in names}
        return to_edge_transform_and_lower(programs, partitioner=partitioner, **self.options)


def both(methods: dict[str, Method], flow: Flow | None = None, tolerance: float = TOLERANCE, is_direct: bool = True) -> tuple[Any, Any]:
    """Lowers both ways, compares, and returns both programs."""
    flow = flow or Flow()
    programs = {name: method.program for name, method in methods.items()}
    given = programs["forward"] if list(programs) == ["forward"] else programs
    fast = lower(given, flow, "fast")
    assert is_direct is (not reasons), reasons
    slow = lower(given, flow, "slow")
    compare(fast, slow, methods, tolerance)
    return fast, slow


def lower(programs: Any, flow: Flow, path: str) -> Any:
    """Lowers on one of the paths; `reasons` has the reason if the fast path was not possible."""
    reasons.clear()
    os.environ[VARIABLE] = path
    try:
        return flow.edge(programs).to_executorch(flow.config())
    finally:
        os.environ[VARIABLE] = "fast"


def outline(plan: Any) -> dict[str, Any]:
    """The interface of a method, and its delegates."""

    def values(numbers: list[int]) -> list[Any]:
        found = [plan.values[at].val for at in numbers]
        return [
            (str(one.scalar_type), list(one.sizes), str(one.shape_dynamism), one.allocation_info is None)
            if type(one).__name__ == "Tensor"
            else one
            for one in found
        ]

    kernels = {f"{one.name}.{one.overload}" for one in plan.operators}
    ends = [plan.values[at].val for at in [*plan.inputs, *plan.outputs]]
    if any(getattr(one, "scalar_type", None) == ScalarType.BFLOAT16 for one in ends):
        # Core ML has no arrays of bf16. The direct path converts them by kernels; ExecuTorch's passes them to the delegate.
        kernels.discard("dim_order_ops::_to_dim_order_copy.out")
    return {
        "inputs": values(plan.inputs),
        "outputs": values(plan.outputs),
        "delegates": [(one.id, [(spec.key, bytes(spec.value)) for spec in one.compile_specs]) for one in plan.delegates],
        "trees": [(text or "").replace(" ", "") for text in vars(plan.container_meta_type).values()],
        "kernels": sorted(kernels),
    }


def compare(fast: Any, slow: Any, methods: dict[str, Method], tolerance: float) -> None:
    """Asserts that both programs have the same interface and compute the same."""
    plans = [{plan.name: plan for plan in deserialize_pte_binary(one.buffer).program.execution_plan} for one in (fast, slow)]
    assert set(plans[0]) == set(plans[1]), (set(plans[0]), set(plans[1]))
    assert fast.methods == slow.methods and fast.config_methods == slow.config_methods
    for name in plans[0]:
        ours, theirs = outline(plans[0][name]), outline(plans[1][name])
        for key in ours:
            assert ours[key] == theirs[key], f"{name}: {key} are {ours[key]}, and {theirs[key]} by ExecuTorch's path"
    loaded = [Runtime.get().load_program(one.buffer, verification=Verification.InternalConsistency) for one in (fast, slow)]
    for name in fast.config_methods:
        found = [list(program.load_method(name).execute(())) for program in loaded]
        equal = [torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in zip(*found, strict=True)]
        assert all(equal), (name, found)
    for name, method in methods.items():
        ours, theirs = (program.load_method(name) for program in loaded)
        for number, inputs in enumerate(method.calls):
            kept = [copy.deepcopy(inputs) for _ in range(2)]
            one, two = (run(runner, values) for runner, values in zip((ours, theirs), kept, strict=True))
            assert len(one) == len(two), f"{len(one)} results in place of {len(two)}"
            for at, (x, y) in enumerate(zip(one, two, strict=True)):
                where = f"{name}, call {number}, result {at}"
                assert type(x) is type(y), f"{where}: {type(x)} in place of {type(y)}"
                if not isinstance(x, torch.Tensor):
                    assert x == y, f"{where}: {x} in place of {y}"
                    continue
                assert (x.dtype, x.shape) == (y.dtype, y.shape), f"{where}: {x.dtype} {x.shape}, not {y.dtype} {y.shape}"
                assert (off := distance(x, y, 1e-6)) <= tolerance, f"{where} differs by {off}"


def run(method: Any, inputs: Inputs) -> list[Any]:
    """Runs a method in ExecuTorch's runtime."""
    return [one.clone() if isinstance(one, torch.Tensor) else one for one in method.execute(list(inputs))]


class Call(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(self, *args)


class Network(nn.Module):
    """A small network with various layers."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.normalisation = nn.BatchNorm2d(16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.out = nn.Linear(16, 10)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.normalisation(self.convolution(picture))).flatten(2).transpose(1, 2)
        mixed, _ = self.attention(features, features, features, need_weights=False)
        return torch.softmax(self.out(mixed.mean(1)), -1)


class Counter(nn.Module):
    """Accumulates its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2, 3))
        self.linear = nn.Linear(3, 3).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(self.linear(x))
        return self.total * 2


def layers() -> dict[str, Method]:
    """A program that ExecuTorch's path lowers fast."""
    return {"forward": Method(nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)), [(torch.randn(2, 16),)])}


def network() -> dict[str, Method]:
    return {"forward": Method(Network(), [(torch.randn(1, 3, 16, 24),) for _ in range(2)])}


def specs(**options: Any) -> list[Any]:
    return CoreMLBackend.generate_compile_specs(**options)


def with_specs(*more: Any, own: dict[str, Any] | None = None, **options: Any) -> Callable[[str], CoreMLPartitioner]:
    """Partitioners with these compile specs, and with further options."""
    return lambda name: CoreMLPartitioner(compile_specs=[*specs(**options), *more], **(own or {}))


# Options of the partitioner.


@case
def no_options() -> None:
    fast, _ = both(network())
    assert type(fast).__name__ == "DirectProgramManager"


@case
def compile_specs() -> None:
    for options in (
        {"compute_precision": ct.precision.FLOAT32, "compute_unit": ct.ComputeUnit.CPU_ONLY},
        {"minimum_deployment_target": ct.target.iOS17},
        {"minimum_deployment_target": ct.target.iOS18, "model_type": CoreMLBackend.MODEL_TYPE.COMPILED_MODEL},
        {"op_linear_quantizer_config": {"mode": "linear_symmetric", "dtype": "int8", "weight_threshold": 10}},
        {"pass_names": ["common::noop_elimination"]},
    ):
        both(layers(), Flow(with_specs(**options)))


@case
def constants_as_inputs() -> None:
    both(layers(), Flow(lambda name: CoreMLPartitioner(take_over_constant_data=False)))


@case
def full_graph() -> None:
    both(layers(), Flow(lambda name: CoreMLPartitioner(lower_full_graph=True)))


@case
def dynamic_shapes() -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    calls = [(torch.randn(shape),) for shape in ((2, 5, 8), (3, 9, 8), (4, 2, 8))]
    both({"forward": Method(module, calls, [{0: Dim("a", max=4), 1: Dim("b", max=12)}])})


@case
def enumerated_shapes() -> None:
    module = Call(lambda self, x, y: self.left(x).sum() + self.right(y), left=nn.Linear(10, 5), right=nn.Linear(11, 5))
    calls = [(torch.randn(4, 6, 10), torch.randn(5, 11)), (torch.randn(1, 5, 10), torch.randn(3, 11))]
    dynamic = {"args": ({0: Dim.AUTO(min=1, max=4), 1: Dim.AUTO(min=5, max=6)}, {0: Dim.AUTO(min=3, max=5)})}
    method = Method(module, calls, dynamic)
    names = [spec.arg.name for spec in method.program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    shapes = dict(zip(names, ([[1, 5, 10], [4, 6, 10]], [[3, 11], [5, 11]]), strict=True))
    spec = CoreMLBackend.generate_enumerated_shapes_compile_spec(method.program, shapes)
    flow = Flow(with_specs(spec, minimum_deployment_target=ct.target.iOS18, own={"lower_full_graph": True}))
    both({"forward": method}, flow)


@case
def states() -> None:
    for target in (None, ct.target.iOS18):
        for takes_over in (True, False):
            methods = {"forward": Method(Counter(), [(torch.randn(2, 3),) for _ in range(3)])}
            both(methods, Flow(with_specs(minimum_deployment_target=target, own={"take_over_mutable_buffer": takes_over})))


@case
def integer_buffers_stay_in_program() -> None:
    """Integer buffers stay in the program."""

    class Count(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1, dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> Any:
            self.count.add_(1)
            return x * self.count, self.count + 0

    both({"forward": Method(Count(), [(torch.randn(3),) for _ in range(3)])})


@case
def inputs_and_outputs_of_several_dtypes() -> None:
    def several(self: Any, x: torch.Tensor, index: torch.Tensor, flag: torch.Tensor) -> tuple[torch.Tensor, ...]:
        picked = torch.index_select(x, 0, index)
        return picked.sum(1), torch.where(flag, x, -x), index + 1, picked.argmax(1), x > 0

    flag = torch.tensor([[True], [False], [True], [False]])
    both({"forward": Method(Call(several), [(torch.randn(4, 5), torch.tensor([3, 0, 2]), flag)])})


# Several methods.


def shared(lengths: dict[str, int]) -> dict[str, Method]:
    module = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
    return {name: Method(module, [(torch.randn(1, length, 64),)]) for name, length in lengths.items()}


@case
def methods_sharing_weights() -> None:
    for strategy in (None, STRATEGY.POSITIONAL, STRATEGY.DISABLED):
        more = [CoreMLBackend.generate_multimethod_weight_sharing_strategy_compile_spec(strategy)] if strategy else []
        fast, slow = both(shared({"prefill": 8, "forward": 1, "four": 4}), Flow(with_specs(*more, minimum_deployment_target=ct.target.iOS18)))
        assert len(fast.buffer) <= len(slow.buffer) * 1.02, (len(fast.buffer), len(slow.buffer))


@case
def compile_specs_per_method() -> None:
    disabled = CoreMLBackend.generate_multimethod_weight_sharing_strategy_compile_spec(STRATEGY.DISABLED)
    of = {
        "forward": [*specs(minimum_deployment_target=ct.target.iOS17), disabled],
        "prefill": [*specs(minimum_deployment_target=ct.target.iOS18, compute_precision=ct.precision.FLOAT32), disabled],
    }
    both(shared({"forward": 1, "prefill": 8}), Flow(lambda name: CoreMLPartitioner(compile_specs=of[name])))


@case
def constant_methods() -> None:
    options = {"constant_methods": {"answer": 42, "ratio": 0.5, "ready": True, "name": "a model"}}
    both(layers(), Flow(options=options))
    both(shared({"forward": 1, "prefill": 8}), Flow(options=options))


@case
def constant_methods_with_tensors() -> None:
    """Tensors, lists and dictionaries, beside methods that share weights, with an alignment of their own."""
    rows = torch.randn(6, 4)
    constants = {
        "tensor": rows, "again": rows.clone(), "halves": rows.half(), "scalar": torch.tensor(3), "flags": rows > 0,
        "list": [1, 2], "nested": {"a": [2.5, "x"], "b": (True, torch.arange(3))}, "type": torch.float16, "plain": 7,
    }  # fmt: skip
    flow = Flow(options={"constant_methods": constants})
    fast, slow = both(layers(), flow)
    program = Runtime.get().load_program(fast.buffer)
    assert torch.equal(program.load_method("again").execute(())[0], rows)
    trees = [{plan.name: plan.container_meta_type.encoded_out_str for plan in made.executorch_program.execution_plan} for made in (fast, slow)]
    assert all(trees[0][name] == trees[1][name] for name in constants), trees
    flow.config = lambda: ExecutorchBackendConfig(segment_alignment=4096, constant_tensor_alignment=64)
    both(shared({"forward": 1, "prefill": 8}), flow)


@case
def constant_methods_with_views() -> None:
    """ExecuTorch stores views with their whole storage or not at all, so that they take its path."""
    options = {"constant_methods": {"view": torch.randn(4, 6)[:, :3].T}}
    assert not direct(layers()["forward"].program, Flow(options=options))
    assert "the constant method `view` returns a Tensor" in reasons[-1], reasons


# Calls outside Core ML.


def skipping(*operators: str, **options: Any) -> Flow:
    """Leaves operators outside."""
    return Flow(lambda name: CoreMLPartitioner(skip_ops_for_coreml_delegation=list(operators)), **options)


def direct(program: Any, flow: Flow) -> bool:
    """Whether a program is lowered directly."""
    reasons.clear()
    try:
        flow.edge(program)
    except Exception:  # ExecuTorch may reject what it is given.
        assert reasons
    return not reasons


@case
def calls_outside_delegates() -> None:
    def chain(self: Any, a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.mm(torch.mm(a, x) + b - a, x) + b

    method = Method(Call(chain), [tuple(torch.randn(2, 2) for _ in range(3))])
    both({"forward": method}, skipping("aten.mm.default"))
    for operators in (("aten.relu.default",), ("aten.relu.default", "aten.mean.dim")):
        both(network(), skipping(*operators))
    both(shared({"forward": 1, "prefill": 8}), skipping("aten.gelu.default"))
    both(network(), skipping("aten.relu.default", is_older=True))
    both(network(), skipping("aten.relu.default", config=lambda: ExecutorchBackendConfig(segment_alignment=4096)))
    memory = lambda: ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False))  # noqa: E731
    both(network(), skipping("aten.relu.default", config=memory))


@case
def calls_outside_delegates_with_dynamic_shapes() -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    calls = [(torch.randn(shape),) for shape in ((2, 5, 8), (3, 9, 8), (4, 2, 8))]
    dynamic = [{0: Dim("a", max=4), 1: Dim("b", max=12)}]
    both({"forward": Method(module, calls, dynamic)}, skipping("aten.gelu.default"))


@case
def calls_outside_delegates_with_decompositions() -> None:
    """Kernels may differ for calls that ExecuTorch decomposes, so they take its path."""

    def program(function: Callable[..., Any]) -> Any:
        return torch.export.export(Call(function), (torch.randn(4, 4),))

    def several(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.sort(torch.erfc(x * 2))[0] + 1

    for operators in (["aten.sort.default"], ["aten.erfc.default"], ["aten.erf.default"]):
        assert not direct(program(several), skipping(*operators)), operators
    assert not direct(layers()["forward"].program, skipping("aten.linear.default"))
    assert not direct(program(lambda self, x: torch.relu(x).reshape(1, 1, 1, 1, 4, 4)), Flow())
    config = EdgeCompileConfig(_skip_dim_order=True)
    assert not direct(network()["forward"].program, skipping("aten.relu.default", options={"compile_config": config}))


# Quantized programs.


@case
def pt2e() -> None:
    from executorch.backends.apple.coreml.quantizer import CoreMLQuantizer
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    from oracle.dropin.annotated import config

    torch.manual_seed(1)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 5)).eval()
    inputs = (torch.randn(1, 3, 8, 8),)
    for kind in ("static", "weights"):
        quantizer = CoreMLQuantizer(config("coremill.executorch.quantizer.config", kind))
        prepared = prepare_pt2e(torch.export.export(module, inputs).module(), quantizer)
        prepared(*inputs)
        program = torch.export.export(convert_pt2e(prepared), inputs)
        both({"forward": Method(module, [inputs], program=program)}, Flow(with_specs(minimum_deployment_target=ct.target.iOS17)))


@case
def quantized_linear_layers() -> None:
    from torchao.quantization.granularity import PerGroup
    from torchao.quantization.quant_api import IntxWeightOnlyConfig, quantize_

    module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32)).eval()
    quantize_(module, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)))
    both({"forward": Method(module, [(torch.randn(2, 64),)])}, Flow(with_specs(minimum_deployment_target=ct.target.iOS18)))


# Options of ExecuTorch.


@case
def compile_config() -> None:
    for config in (EdgeCompileConfig(_check_ir_validity=False), EdgeCompileConfig(_skip_dim_order=True)):
        before = copy.deepcopy(vars(config))
        both(layers(), Flow(options={"compile_config": config}))
        assert list(vars(config)) == list(before)


@case
def backend_config() -> None:
    for options in (
        {"segment_alignment": 4096},
        {"constant_tensor_alignment": 64, "delegate_alignment": 64},
        {"extract_delegate_segments": False, "delegate_alignment": 64},
        {"do_quant_fusion_and_const_prop": True, "run_reinplace_pass": True, "emit_mutable_buffer_names": True},
    ):
        both(layers(), Flow(config=lambda options=options: ExecutorchBackendConfig(**options)))


@case
def external_data() -> None:
    """Weights of delegates are not external data; an unused buffer is, on ExecuTorch's path."""
    config = lambda: ExecutorchBackendConfig(external_constants=True, external_mutable_weights=True)  # noqa: E731
    fast, slow = both({"forward": Method(nn.Linear(4, 4), [(torch.randn(2, 4),)])}, Flow(config=config))
    assert fast._tensor_data == slow._tensor_data == {}
    made = Flow(config=config).edge(network()["forward"].program).to_executorch(config())
    assert list(made._tensor_data) == ["_default_external_constant"], list(made._tensor_data)
    assert "`external_constants` affects constants outside Core ML" in reasons[-1], reasons


@case
def alignment_of_segments() -> None:
    """Segments begin at the alignment of the config."""
    from executorch.exir._serialize._program import _get_extended_header

    for alignment in (128, 4096):
        fast, slow = both(layers(), Flow(config=lambda alignment=alignment: ExecutorchBackendConfig(segment_alignment=alignment)))
        for made in (fast, slow):
            assert _get_extended_header(made.buffer).segment_base_offset % alignment == 0


@case
def memory_planning() -> None:
    for options in (
        {"alloc_graph_input": False},
        {"alloc_graph_output": False},
        {"alloc_graph_input": False, "alloc_graph_output": False},
        {"share_mutable_buffers": True},
    ):
        def config(options: dict[str, bool] = options) -> ExecutorchBackendConfig:
            return ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass(**options))

        fast, slow = both(layers(), Flow(config=config))
        sizes = [one.executorch_program.execution_plan[0].non_const_buffer_sizes for one in (fast, slow)]
        assert sum(sizes[0]) <= sum(sizes[1]), (options, sizes)

    def by_method() -> ExecutorchBackendConfig:
        return ExecutorchBackendConfig(memory_planning_pass={"prefill": MemoryPlanningPass(alloc_graph_input=False)})

    both(shared({"forward": 1, "prefill": 8}), Flow(config=by_method))


@case
def mutable_buffers_outside_delegates() -> None:
    """Names of buffers, and memory that the caller provides."""
    options = {"take_over_mutable_buffer": False}
    flow = Flow(
        lambda name: CoreMLPartitioner(**options),
        config=lambda: ExecutorchBackendConfig(
            emit_mutable_buffer_names=True, segment_alignment=1024, memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False)
        ),
    )
    fast, slow = both({"forward": Method(Counter(), [(torch.randn(2, 3),) for _ in range(3)])}, flow)

    def names(made: Any) -> set[str]:
        values = made.executorch_program.execution_plan[0].values
        extra = [getattr(value.val, "extra_tensor_info", None) for value in values]
        return {one.fully_qualified_name for one in extra if one is not None and one.fully_qualified_name}

    assert names(fast) == names(slow) == {"total"}, (names(fast), names(slow))


@case
def separate_to_edge_and_to_backend() -> None:
    both(network(), Flow(is_older=True))
    assert type(to_edge(network()["forward"].program)).__name__ == "DirectEdgeManager"


# Programs that take ExecuTorch's path.


@case
def unsupported_programs_fall_back_to_executorch_path() -> None:
    """Such programs take ExecuTorch's path, and the log contains the reason."""

    class Unknown(CoreMLPartitioner):
        pass

    def unchanged(module: Any) -> Any:
        from torch.fx.passes.infra.pass_base import PassResult

        return PassResult(module, False)

    def refused(expected: str, flow: Flow, function: Callable[..., Any] = lambda self, x: torch.relu(x) + 1) -> None:
        reasons.clear()
        method = Method(Call(function), [(torch.randn(2, 3),)])
        made = flow.edge(method.program).to_executorch(flow.config())
        assert type(made).__name__ == "ExecutorchProgramManager", expected
        assert len(reasons) == 1 and expected in reasons[0], (expected, reasons)

    skipped = {"skip_ops_for_coreml_delegation": ["aten.erf.default"]}
    refused("`transform_passes` are given", Flow(options={"transform_passes": []}))
    refused("the partitioner of `forward` has type Unknown", Flow(lambda name: Unknown()))
    refused("an ETRecord is generated", Flow(options={"generate_etrecord": True}))
    refused("does not call `aten.erf.default`, which", Flow(lambda name: CoreMLPartitioner(**skipped)))
    refused("the constant method `rows` returns a Tensor", Flow(options={"constant_methods": {"rows": torch.ones(2, 3).T}}))
    refused("without a dimension", Flow(), lambda self, x: x.argmax() + 1)
    refused("which is random", Flow(), lambda self, x: x + torch.rand(3))
    refused("writes to its input", Flow(), lambda self, x: x.mul_(2) + 1)
    refused("writes to its input", Flow(), lambda self, x: x.T[1:].add_(1).sum(0) + x[0, 0])
    refused("writes to its input", Flow(), lambda self, x: x.split(1)[0].mul_(2) + 1)
    refused("stays outside Core ML", Flow(), lambda self, x: torch.relu(x).reshape(1, 1, 1, 1, 2, 3))
    for options in (
        {"passes": [unchanged]},
        {"emit_stacktrace": True},
        {"memory_planning_pass": MemoryPlanningPass(alignment=64)},
    ):
        refused("`passes` are given" if "passes" in options else "", Flow(config=lambda o=options: ExecutorchBackendConfig(**o)))


@case
def errors_match_executorch() -> None:
    """Programs that cannot be lowered cause the same errors as without the direct path."""
    method = Method(Call(lambda self, x: torch.linalg.eigvalsh(x)), [(torch.randn(4, 4),)])
    found = {}
    for path in ("fast", "slow"):
        os.environ[VARIABLE] = path
        try:
            Flow(lambda name: CoreMLPartitioner(lower_full_graph=True)).edge(method.program)
        except Exception as error:
            found[path] = (type(error), str(error).splitlines()[0])
    assert found["fast"] == found["slow"], found
    os.environ[VARIABLE] = "quick"
    try:
        Flow().edge(method.program)
    except ValueError as error:
        assert "COREMILL_EXECUTORCH=quick; expected `slow` or `fast`" in str(error), error
    else:
        raise AssertionError("nothing was raised")


# ExecuTorch's graphs on demand.


@case
def graph_modules_on_demand() -> None:
    from executorch.devtools.backend_debug import get_delegation_info
    from executorch.exir import EdgeProgramManager, ExecutorchProgramManager
    from executorch.exir.backend.utils import format_delegated_graph

    method = layers()["forward"]
    edge = to_edge_transform_and_lower(method.program, partitioner=[CoreMLPartitioner()])
    assert isinstance(edge, EdgeProgramManager) and edge.methods == {"forward"} and edge.config_methods == set()
    direct = edge.to_executorch()
    assert isinstance(direct, ExecutorchProgramManager)
    stream, folder = BytesIO(), Path.cwd() / "direct.pte"
    direct.write_to_file(stream)
    direct.save(str(folder))
    direct.write_tensor_data_to_file(".")
    assert stream.getvalue() == direct.buffer == folder.read_bytes()
    folder.unlink()
    graph = edge.exported_program().graph_module
    assert "CoreMLBackend" in format_delegated_graph(graph)
    assert get_delegation_info(graph).num_delegated_subgraphs == 1
    assert [node.name for node in direct.exported_program().graph.nodes if "call_delegate" in str(node.target)]
    assert direct.debug_handle_map and direct.delegate_map and direct.instruction_id_to_num_outs_map
    # From here on both use ExecuTorch's path.
    os.environ[VARIABLE] = "slow"
    slow = to_edge_transform_and_lower(method.program, partitioner=[CoreMLPartitioner()]).to_executorch()
    assert direct.buffer == slow.buffer and edge.to_executorch().buffer == slow.buffer


@case
def transform_and_to_backend_after_lowering() -> None:
    """`transform` and `to_backend` continue from ExecuTorch's graph."""

    class Count:
        calls = 0

        def __call__(self, module: Any) -> Any:
            from torch.fx.passes.infra.pass_base import PassResult

            Count.calls += 1
            return PassResult(module, False)

    method = layers()["forward"]
    def edge() -> Any:
        return to_edge_transform_and_lower(method.program, partitioner=[CoreMLPartitioner()])

    direct = edge().to_executorch()
    for one in (edge().transform([Count()]), edge().to_backend(CoreMLPartitioner())):
        compare(one.to_executorch(), direct, {"forward": method}, TOLERANCE)
    plain = [to_edge(method.program), to_edge(method.program).transform([Count()])]
    compare(*(one.to_executorch() for one in plain), {"forward": method}, 0.0)
    assert Count.calls == 2


@case
def etrecords() -> None:
    from executorch.devtools import generate_etrecord
    from executorch.devtools.etrecord import parse_etrecord

    method = layers()["forward"]
    edge = to_edge_transform_and_lower(method.program, partitioner=[CoreMLPartitioner()])
    kept = copy.deepcopy(edge)
    program = edge.to_executorch()
    generate_etrecord("record.bin", kept, program)
    record = parse_etrecord("record.bin")
    Path("record.bin").unlink()
    assert record.edge_dialect_program is not None and record._debug_handle_map == json_of(program.debug_handle_map)


def json_of(value: Any) -> Any:
    return json.loads(json.dumps(value))


@case
def weights_are_captured_at_lowering() -> None:
    """A program contains the weights at the time of lowering; a graph with other weights is refused."""
    module = nn.Linear(4, 4)
    method = Method(module, [(torch.randn(2, 4),)])
    edge = to_edge_transform_and_lower(method.program, partitioner=[CoreMLPartitioner()])
    wanted = module(*method.calls[0])
    with torch.no_grad():
        module.weight.zero_()
    program = edge.to_executorch()
    found = run(Runtime.get().load_program(program.buffer).load_method("forward"), method.calls[0])
    assert distance(found[0], wanted, 1.0) < TOLERANCE
    try:
        edge.exported_program()
    except RuntimeError as error:
        assert "`weight` was written to after the program was lowered" in str(error), error
    else:
        raise AssertionError("nothing was raised")


def zoo(archive: Path) -> Callable[[], None]:
    """An export of the zoo, both ways."""
    from oracle.checkers.lowering import recorded
    from oracle.zoo.peer.worker import import_structures

    def check() -> None:
        import_structures(archive)
        program = torch.export.load(archive)
        user_inputs = set(program.graph_signature.user_inputs)
        examples = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in user_inputs]
        # Numpy has no bf16, so that the records have fp32 instead.
        calls = [
            tuple(one.to(example.dtype) for one, example in zip(call.inputs, examples, strict=True))
            for call in recorded(archive.with_suffix(".npz"))
        ]
        record = archive.with_suffix(".json")
        half_error = json.loads(record.read_text()).get("half_error") if record.exists() else None
        for precision, tolerance in ((ct.precision.FLOAT32, 1e-3), (ct.precision.FLOAT16, max(1e-2, 3 * (half_error or 0)))):
            flow = Flow(with_specs(minimum_deployment_target=ct.target.iOS18, compute_precision=precision))
            fast = None
            with contextlib.suppress(Exception):
                fast = lower(program, flow, "fast")
            if reasons:
                # Both use ExecuTorch's path, so there is nothing to compare.
                print(f"     {archive.stem}: {reasons[-1]}", flush=True)
                return
            try:
                slow = lower(program, flow, "slow")
            except Exception as error:
                # ExecuTorch's verifier, for instance, rejects programs that are lowered directly.
                print(f"     {archive.stem}: ExecuTorch's path ends with {str(error).splitlines()[0][:120]}", flush=True)
                return
            assert fast is not None, "only ExecuTorch's path lowers it"
            compare(fast, slow, {"forward": Method(nn.Identity(), calls, program=program)}, tolerance)

    return check


def main(results: str, names: list[str]) -> None:
    """Runs all cases, or the named ones."""
    warnings.simplefilter("ignore")
    log = logging.getLogger("executorch.backends.apple.coreml.direct")
    log.addHandler(Reasons())
    logging.getLogger("executorch.backends.apple.coreml.compiler.coreml_preprocess").setLevel(logging.ERROR)
    cases = CASES
    if names[:1] == ["--exports"]:
        archives = [path for path in sorted(Path(names[1]).glob("*.pt2")) if path.stem.count(".") == 0]
        cases = {path.stem: zoo(path) for path in archives if path.with_suffix(".npz").exists()}
        names = names[2:]
    found: dict[str, str | None] = {}
    for name in names or cases:
        torch.manual_seed(0)
        torch._dynamo.reset()
        os.environ[VARIABLE] = "fast"
        reasons.clear()
        start = time.time()
        try:
            cases[name]()
            found[name] = None
        except Exception:
            found[name] = traceback.format_exc()
        print(f"{'ok  ' if found[name] is None else 'FAIL'} {name} {time.time() - start:.1f} s", flush=True)
        if found[name] is not None:
            print(found[name], flush=True)
    Path(results).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
