"""Lowers models with our partitioner and executes them in ExecuTorch's own runtime.

It runs in its own process, because two backends of the same name must not be registered in one:

    python -m coremill.executorch oracle/dropin/worker.py RESULTS [CASE...]

Writes the error, or `null`, for each case.
"""

import json
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from oracle.support.distance import distance, within

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "executorch-python.md"
CASES: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    """Registers a case."""
    CASES[function.__name__] = function
    return function


def lower(model: nn.Module, inputs: tuple, dynamic_shapes: Any = None, **options: Any) -> Any:
    """Lowers a model with the calls that users write."""
    from executorch.backends.apple.coreml.partition import CoreMLPartitioner
    from executorch.exir import to_edge_transform_and_lower

    program = torch.export.export(model.eval(), inputs, dynamic_shapes=dynamic_shapes)
    return to_edge_transform_and_lower(program, partitioner=[CoreMLPartitioner(**options)])


def calls(edge: Any) -> list[str]:
    """Names of the calls outside delegates in an edge program."""
    names = [node.target.__name__ for node in edge.exported_program().graph.nodes if node.op == "call_function"]
    return [name for name in names if name != "getitem"]


def agree(program: Any, model: nn.Module, inputs: tuple, method: str = "forward", tolerance: float = 0.02) -> None:
    """Executes a program, and compares its outputs with torch."""
    from executorch.runtime import Runtime

    found = Runtime.get().load_program(program.buffer).load_method(method).execute(inputs)
    with torch.no_grad():
        wanted = model(*inputs)
    wanted = list(wanted) if isinstance(wanted, (tuple, list)) else [wanted]
    assert len(found) == len(wanted), f"{len(found)} results in place of {len(wanted)}"
    for ours, theirs in zip(found, wanted, strict=False):
        assert ours.dtype == theirs.dtype, f"{ours.dtype} in place of {theirs.dtype}"
        assert ours.shape == theirs.shape, f"{tuple(ours.shape)} in place of {tuple(theirs.shape)}"
        assert (off := distance(ours, theirs, 1.0)) <= tolerance, f"differs by {off}"


def delegated(model: nn.Module, inputs: tuple, outside: tuple[str, ...] = (), delegates: int = 1, **options: Any) -> None:
    """Lowers a model, counts delegates and calls, executes it and compares the outputs."""
    edge = lower(model, inputs, **options)
    found = calls(edge)
    assert found.count("executorch_call_delegate") == delegates, found
    assert sorted(set(found) - {"executorch_call_delegate"}) == sorted(outside), found
    agree(edge.to_executorch(), model, inputs)


class Call(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


# Models that ExecuTorch's own backend cannot lower.


@case
def abs_of_uint8() -> None:
    delegated(Call(lambda x: (x.abs().to(torch.float32) + 0.5)), (torch.randint(0, 200, (3, 4), dtype=torch.uint8),))


@case
def bf16() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).to(torch.bfloat16)
    edge = lower(model, (torch.randn(2, 8, dtype=torch.bfloat16),))
    assert "executorch_call_delegate" in calls(edge), calls(edge)
    edge.to_executorch()


@case
def int32_relu() -> None:
    delegated(Call(lambda x: torch.relu(x) * 2), (torch.randint(-9, 9, (3, 4), dtype=torch.int32),))


@case
def fp16_at_default_target() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU()).half()
    delegated(model, (torch.randn(2, 8).half(),))


@case
def rank_6() -> None:
    def shuffle(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x).reshape(2, 3, 2, 2, 2, 2).permute(0, 1, 4, 2, 5, 3).reshape(6, 16) * 2

    delegated(Call(shuffle), (torch.randn(2, 48),))


@case
def operators_unsupported_by_coremltools() -> None:
    def several(x: torch.Tensor) -> torch.Tensor:
        return torch.add(torch.asinh(x), x, alpha=2) + torch.diagonal(x @ x.T).sum() + torch.acosh(x.abs() + 1.5)

    delegated(Call(several), (torch.randn(4, 4),))


# Partitioning.


@case
def operators_outside_core_aten() -> None:
    """The guide explains how ExecuTorch's verifier learns of these operators."""
    from executorch.backends.apple.coreml.partition import CoreMLPartitioner
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    model, x = Call(lambda x: torch.erfc(x) + torch.cumprod(x, 1)), torch.rand(3, 4)
    config = EdgeCompileConfig(_core_aten_ops_exception_list=[torch.ops.aten.erfc.default, torch.ops.aten.cumprod.default])
    edge = to_edge_transform_and_lower(
        torch.export.export(model, (x,)), partitioner=[CoreMLPartitioner()], compile_config=config
    )
    assert calls(edge) == ["executorch_call_delegate"], calls(edge)
    agree(edge.to_executorch(), model, (x,))


@case
def skipped_operators() -> None:
    def chain(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.mm(torch.mm(a, x) + b - a, x) + b

    inputs = tuple(torch.randn(2, 2) for _ in range(3))
    delegated(Call(chain), inputs, ("aten.mm.default",), 2, skip_ops_for_coreml_delegation=["aten.mm.default"])


@case
def sizes_do_not_cross_partitions() -> None:
    """Sizes are not passed between partitions."""
    class Dynamic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x).view(x.shape[0] * 2, 3)
            y = torch.mm(y, y.T) @ y
            return self.second(y.view(x.shape[0], 6)) + x

    model, inputs = Dynamic(), (torch.randn(4, 6),)
    shapes = ({0: torch.export.Dim("n", min=2, max=9)},)
    for skip in ([], ["aten.mm.default"]):
        edge = lower(model, inputs, shapes, skip_ops_for_coreml_delegation=skip)
        for node in edge.exported_program().graph.nodes:
            if "executorch_call_delegate" in str(node.target):
                given = [other.meta.get("val") for other in node.args[1:]]
                assert all(isinstance(value, torch.Tensor) for value in given), given
        program = edge.to_executorch()
        for rows in (2, 4, 7):
            agree(program, model, (torch.randn(rows, 6),))


@case
def float_buffers_become_states() -> None:
    """A float buffer becomes a state; a counter does not."""
    import coremltools as ct
    from executorch.backends.apple.coreml.compiler import CoreMLBackend
    from executorch.runtime import Runtime

    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sum", torch.zeros(4))
            self.register_buffer("count", torch.zeros(1, dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> Any:
            self.sum.add_(x)
            self.count.add_(1)
            return self.sum * 2, self.count + 0

    for specs in ([], CoreMLBackend.generate_compile_specs(minimum_deployment_target=ct.target.iOS18)):
        for takes_over in (True, False):
            edge = lower(Cache(), (torch.ones(4),), compile_specs=specs, take_over_mutable_buffer=takes_over)
            program = edge.to_executorch()
            method = Runtime.get().load_program(program.buffer).load_method("forward")
            reference = Cache()
            for _ in range(3):
                x = torch.randn(4)
                for ours, theirs in zip(method.execute((x,)), reference(x), strict=False):
                    assert within(ours, theirs, 1e-5, 0.02), (ours, theirs)


@case
def state_used_by_one_of_two_partitions() -> None:
    """A buffer whose new value the other partition may need."""
    import coremltools as ct
    from executorch.backends.apple.coreml.compiler import CoreMLBackend
    from executorch.runtime import Runtime

    class Accumulate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)
            self.register_buffer("state", torch.zeros(1, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.state.add_(x)
            return torch.mm(self.linear(x).relu(), torch.ones(16, 16)) / 8 + self.state

    specs = CoreMLBackend.generate_compile_specs(minimum_deployment_target=ct.target.iOS18)
    for skipped in ("aten.mm.default", "aten.relu.default"):
        model = Accumulate().eval()
        edge = lower(model, (torch.randn(1, 16),), compile_specs=specs, skip_ops_for_coreml_delegation=[skipped])
        assert calls(edge).count("executorch_call_delegate") == 2, calls(edge)
        assert list(edge.exported_program().graph_signature.buffers) == [], "the buffer is no state"
        program = edge.to_executorch()
        method = Runtime.get().load_program(program.buffer).load_method("forward")
        for _ in range(3):
            x = torch.randn(1, 16)
            (found,), wanted = method.execute((x,)), model(x)
            assert distance(found, wanted, 1.0) <= 0.02, (found, wanted)


@case
def constants_stay_inputs_of_delegates() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    inputs = (torch.randn(1, 3, 4, 4),)
    edge = lower(model, inputs, take_over_constant_data=False)
    node = next(node for node in edge.exported_program().graph.nodes if "call_delegate" in str(node.target))
    assert len(node.args) == 1 + 1 + 4, node.args
    agree(edge.to_executorch(), model, inputs)


@case
def weight_shared_by_two_partitions() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.mm(torch.sin(x + self.weight), x) * self.weight

    delegated(Tied(), (torch.randn(4, 4),), ("aten.mm.default",), 2, skip_ops_for_coreml_delegation=["aten.mm.default"])


@case
def methods_with_different_partition_counts() -> None:
    from executorch.backends.apple.coreml.partition import CoreMLPartitioner
    from executorch.exir import to_edge_transform_and_lower

    def program(function: Callable) -> Any:
        return torch.export.export(Call(function), (torch.randn(2, 2),))

    programs = {"one": program(lambda x: torch.sin(x)), "two": program(lambda x: torch.sin(torch.mm(torch.cos(x), x)))}
    partitioner = CoreMLPartitioner(skip_ops_for_coreml_delegation=["aten.mm.default"])
    try:
        to_edge_transform_and_lower(programs, partitioner=[partitioner])
    except ValueError as error:
        assert "Method 'two' has 2 partitions, but 'one' has 1" in str(error), error
    else:
        raise AssertionError("nothing was raised")


@case
def assertions_on_sizes_are_removed() -> None:
    """Calls that only assertions use are removed together with calls on the same numbers or inputs."""

    class Asserted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, position: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            at = position.item()
            torch._check(at >= 0)
            torch._check(at < 5)
            longest = (ids != 2).sum(1).max().item()
            torch._check(longest <= 6)
            return self.linear(x.narrow(0, at, 2)) * 2

    delegated(Asserted(), (torch.randn(6, 4), torch.tensor(3), torch.randint(0, 9, (2, 6))))


@case
def branches_and_loops() -> None:
    """Higher-order calls in the edge dialect, inside and outside a delegate."""
    from torch._higher_order_ops.map import map as torch_map
    from torch._higher_order_ops.while_loop import while_loop

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: self.first(x), lambda x: torch.tanh(self.second(x)), (x + 1,)) * 2

    class Loop(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            count = torch.tensor(0)
            _, x = while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, torch.sin(x) + x), (count, x * 2))
            return x - 1

    class Rows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch_map(lambda row: row.cumsum(0) * 2, x) + 1

    for model in (Branches(), Loop(), Rows()):
        for inputs in ((torch.randn(3, 4) + 2,), (torch.randn(3, 4) - 2,)):
            program = lower(model, inputs)
            assert "executorch_call_delegate" in calls(program), calls(program)
            agree(program.to_executorch(), model, inputs)


@case
def nodes_of_other_backends_are_kept() -> None:
    """Nodes that another partitioner delegated are left alone."""
    from executorch.backends.apple.coreml.partition import CoreMLPartitioner
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    model, inputs = nn.Sequential(nn.Linear(8, 8), nn.Softplus(), nn.Linear(8, 8)).eval(), (torch.randn(2, 8),)
    edge = to_edge_transform_and_lower(
        torch.export.export(model, inputs), partitioner=[XnnpackPartitioner(), CoreMLPartitioner()]
    )
    backends = {m.backend_id for _, m in edge.exported_program().graph_module.named_modules() if hasattr(m, "backend_id")}
    assert backends == {"XnnpackBackend", "CoreMLBackend"}, backends
    agree(edge.to_executorch(), model, inputs)


# Refused models.


@torch.library.custom_op("coremill_test::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    """An operator without a lowering."""
    return x + 1


@unknown.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@case
def lower_full_graph_names_unsupported_operator() -> None:
    model = Call(lambda x: torch.ops.coremill_test.unknown(torch.sin(x)) + x)
    assert calls(lower(model, (torch.randn(4),))).count("executorch_call_delegate") == 2
    try:
        lower(model, (torch.randn(4),), lower_full_graph=True)
    except NotImplementedError as error:
        assert "coremill_test.unknown" in str(error) and "lower_full_graph=False" in str(error), error
    else:
        raise AssertionError("nothing was raised")


@case
def too_old_target_is_reported() -> None:
    import coremltools as ct
    from executorch.backends.apple.coreml.compiler import CoreMLBackend
    from torchao.quantization import IntxWeightOnlyConfig, PerGroup, quantize_

    model = nn.Linear(64, 64)
    quantize_(model, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)))
    specs = CoreMLBackend.generate_compile_specs(minimum_deployment_target=ct.target.iOS17)
    try:
        lower(model, (torch.randn(1, 64),), compile_specs=specs)
    except ValueError as error:
        assert "minimum_deployment_target=ct.target.iOS18" in str(error), error
    else:
        raise AssertionError("nothing was raised")


@case
def rejects_invalid_compute_units() -> None:
    from executorch.backends.apple.coreml.compiler import CoreMLBackend

    for wrong in ("ios18", 9, None):
        try:
            CoreMLBackend.generate_compute_unit_compile_spec(wrong)
        except TypeError as error:
            assert "expected one of ComputeUnit.ALL" in str(error), error
        else:
            raise AssertionError(f"{wrong!r} was taken")


@case
def recipe_keeps_newer_target() -> None:
    import coremltools as ct
    from executorch.backends.apple.coreml.recipes import CoreMLRecipeProvider, CoreMLRecipeType

    for kind in (CoreMLRecipeType.PT2E_INT8_STATIC, CoreMLRecipeType.TORCHAO_INT8_WEIGHT_ONLY_PER_CHANNEL):
        recipe = CoreMLRecipeProvider().create_recipe(kind, minimum_deployment_target=ct.target.iOS18)
        specs = recipe.lowering_recipe.partitioners[0].delegation_spec.compile_specs
        values = {spec.key: spec.value for spec in specs}
        assert values["min_deployment_target"] == b"9", values


@case
def debug_handles_reach_the_program() -> None:
    from executorch.exir.lowered_backend_module import LoweredBackendModule

    edge = lower(nn.Sequential(nn.Linear(4, 4), nn.GELU()), (torch.randn(1, 4),))
    modules = [m for _, m in edge.exported_program().graph_module.named_modules() if isinstance(m, LoweredBackendModule)]
    handles = modules[0].meta["debug_handle_map"]
    assert handles and all(":" in symbol and all(isinstance(one, int) for one in of) for symbol, of in handles.items()), handles


@case
def weights_are_not_copied() -> None:
    """Partitioning and preprocessing 256 MB of weights use little memory in addition to the payload."""
    import resource

    model, inputs = nn.Sequential(nn.Linear(8192, 8192, bias=False)), (torch.randn(1, 8192),)
    from executorch.backends.apple.coreml.compiler import CoreMLBackend

    program = torch.export.export(model.eval(), inputs)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    made = CoreMLBackend.preprocess(program, [])
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    payload = len(made.processed_bytes) >> 10
    assert payload > 128 << 10, payload
    assert after - before < payload + (64 << 10), f"{(after - before) >> 10} MB for {payload >> 10} MB"


# The guide, snippet by snippet.


def snippets() -> dict[str, str]:
    """The guide's code snippets by name."""
    found = re.findall(r"<!-- test: ([\w-]+) -->\n```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(found) == GUIDE.read_text().count("```python"), "a snippet has no name"
    return dict(found)


def run(*names: str) -> dict[str, Any]:
    """Runs snippets in one namespace."""
    namespace: dict[str, Any] = {"__name__": "snippet"}
    for name in names:
        exec(compile(snippets()[name], f"{GUIDE.name}: {name}", "exec"), namespace)
    return namespace


@case
def guide_mobilenet() -> None:
    made = run("mobilenet")
    agree(made["et_program"], made["mobilenet_v2"], made["sample_inputs"])
    Path("mv2_coreml.pte").unlink()


@case
def guide_enumerated() -> None:
    made = run("enumerated")
    for shapes in (((1, 5, 10), (3, 11)), ((4, 6, 10), (5, 11))):
        agree(made["et_prog"], made["model"], tuple(torch.randn(shape) for shape in shapes))


@case
def guide_multifunction() -> None:
    made = run("multifunction", "multifunction-runtime")
    for ours, inputs in ((made["decode_output"], made["decode_inputs"]), (made["prefill_output"], made["prefill_inputs"])):
        assert within(ours[0], made["model"](*inputs), 1e-5, 0.02)
    Path("multifunction_model.pte").unlink()


@case
def guide_pt2e() -> None:
    made = run("pt2e")
    agree(made["et_program"], made["quantized_model"], made["sample_inputs"], tolerance=0.1)


@case
def guide_weight_only() -> None:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    made = run("weight-only")
    model, inputs = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5)).eval(), (torch.randn(1, 3, 4, 4),)
    prepared = prepare_pt2e(torch.export.export(model, inputs).module(), made["quantizer"])
    prepared(*inputs)
    converted = convert_pt2e(prepared)
    program = torch.export.export(converted, inputs)
    from executorch.backends.apple.coreml.partition import CoreMLPartitioner
    from executorch.exir import to_edge_transform_and_lower

    agree(to_edge_transform_and_lower(program, partitioner=[CoreMLPartitioner()]).to_executorch(), converted, inputs)


@case
def guide_quantize() -> None:
    for name in ("quantize", "codebook"):
        model = run(name)["eager_model"]
        delegated(model, (torch.tensor([3, 60]),))


@case
def guide_to_backend() -> None:
    made = run("to-backend")
    agree(made["partitioned"], made["model"], made["sample_inputs"])
    agree(made["composite"], Call(lambda x: made["model"](x * 2) + 1), made["sample_inputs"])
    assert [delegate.id for delegate in made["composite"].executorch_program.execution_plan[0].delegates] == ["CoreMLBackend"]


@case
def guide_recipe() -> None:
    made = run("recipe")
    inputs = made["example_inputs"][0]
    assert within(made["session"].run_method("forward", inputs)[0], made["model"](*inputs), 1e-5, 0.02)


def main(results: str, names: list[str]) -> None:
    """Runs all cases, or the named ones."""
    warnings.simplefilter("ignore")
    found: dict[str, str | None] = {}
    for name in names or CASES:
        torch.manual_seed(0)
        torch._dynamo.reset()
        start = time.time()
        try:
            CASES[name]()
            found[name] = None
        except Exception:
            found[name] = traceback.format_exc()
        print(f"{'ok  ' if found[name] is None else 'FAIL'} {name} {time.time() - start:.1f} s", flush=True)
        if found[name] is not None:
            print(found[name], flush=True)
    Path(results).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
