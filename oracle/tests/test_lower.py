"""`coremill lower` on exported programs: ExecuTorch accepts the results, and both runtimes agree with torch."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir._serialize._program import deserialize_pte_binary

from oracle.checkers.lowering import BOUND, Call, delegates, errors_in_ours, errors_in_peer, loads
from oracle.conftest import Command
from oracle.corpora.lowered_programs import ROWS, Apply, Row, export
from oracle.support.served import Runtime


def check(path: Path, calls: list[Call], runtime: Runtime, method: str = "forward") -> Any:
    """Asserts that both runtimes agree with eager torch; our engine runs the delegates."""
    program = loads(path)
    assert max(errors_in_ours(runtime, path, calls, method)) <= BOUND
    assert max(errors_in_peer(path, calls, method)) <= BOUND
    return program


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_lowered_programs_match_torch_in_both_runtimes(row: Row, runtime: Runtime, coremill: Command, tmp_path: Path) -> None:
    """Lowers as one delegate, as several partitions, and without delegates."""
    program, calls = export(row)
    archive, path = tmp_path / "model.pt2", tmp_path / "model.pte"
    torch.export.save(program, archive)
    coremill("lower", archive, "-o", path, "--precision", "fp32", *row.options)
    assert delegates(check(path, calls, runtime)) == row.delegates
    first = path.read_bytes()
    coremill("lower", archive, "-o", path, "--precision", "fp32", *row.options)
    assert path.read_bytes() == first
    if row.skip:
        coremill("lower", archive, "-o", path, "--precision", "fp32", "--skip-ops", row.skip, *row.options)
        assert delegates(check(path, calls, runtime)) == row.parts
    if row.portable:
        coremill("lower", archive, "-o", path, "--portable", *row.options)
        assert delegates(check(path, calls, runtime)) == 0


def save(module: torch.nn.Module, inputs: tuple[Any, ...], path: Path, dynamic: Any = None) -> list[Call]:
    """Exports a module, and computes its results."""
    torch.export.save(torch.export.export(module, inputs, dynamic_shapes=dynamic), path)
    with torch.no_grad():
        return [Call(list(inputs), [module(*inputs)])]


def network(self: Any, value: torch.Tensor) -> torch.Tensor:
    return torch.sinh(self.linear(value)) @ self.linear.weight


@pytest.mark.parametrize(("strategy", "shared"), [(None, True), ("positional", True), ("disabled", False)])
def test_methods_share_weights_unless_disabled(strategy: str | None, shared: bool, runtime: Runtime, coremill: Command, tmp_path: Path) -> None:
    """Methods share weights by partition, or have separate models."""
    module = Apply(network)
    module.linear = torch.nn.Linear(160, 160)
    calls = {}
    for name, count in (("prefill", 8), ("forward", 1)):
        calls[name] = save(module, (torch.randn(count, 160),), tmp_path / f"{name}.pt2")
    path = tmp_path / "model.pte"
    models = [f"{name}={tmp_path / name}.pt2" for name in calls]
    options = ["--weight-sharing", strategy] if strategy else []
    coremill("lower", *models, "-o", path, "--precision", "fp32", "--skip-ops", "aten.sinh.default", *options)
    for name, expected in calls.items():
        program = check(path, expected, runtime, name)
    assert [plan.name for plan in program.execution_plan] == ["forward", "prefill"]
    assert [len(plan.delegates) for plan in program.execution_plan] == [2, 2]
    weight = module.linear.weight.detach().numpy().tobytes()
    transposed = module.linear.weight.detach().t().contiguous().numpy().tobytes()
    found = sum(path.read_bytes().count(one) for one in (weight, transposed))
    # Each method has two partitions, and both use the weight.
    assert found == (2 if shared else 4)
    named = deserialize_pte_binary(path.read_bytes()).named_data
    assert len(named.pte_data if named else {}) == (2 if shared else 0)


def test_rejects_weight_sharing_with_mismatched_partitions(coremill_fails: Command, tmp_path: Path) -> None:
    """The error when the partitions of methods do not match."""
    save(Apply(network), (torch.randn(2, 4),), tmp_path / "one.pt2")
    save(Apply(lambda self, value: self.linear(value)), (torch.randn(2, 4),), tmp_path / "two.pt2")
    models = [f"{name}={tmp_path / name}.pt2" for name in ("one", "two")]
    error = coremill_fails("lower", *models, "-o", tmp_path / "m.pte", "--skip-ops", "aten.sinh.default")
    assert "`one` has 2 (calls outside: 1), `two` has 1 (calls outside: 0)" in error
    assert "--weight-sharing disabled" in error


def test_constant_methods_return_their_values(runtime: Runtime, coremill: Command, tmp_path: Path) -> None:
    """Methods without computation."""
    calls = save(Apply(network), (torch.randn(2, 4),), tmp_path / "m.pt2")
    path = tmp_path / "m.pte"
    wanted = {"answer": 42, "ratio": 0.5, "ready": True}
    options = [part for name, value in wanted.items() for part in ("--constant", f"{name}={str(value).lower()}")]
    coremill("lower", tmp_path / "m.pt2", "-o", path, "--portable", *options)
    check(path, calls, runtime)
    for name, value in wanted.items():
        assert errors_in_ours(runtime, path, [Call([], [value])], name) == [0.0]
        assert errors_in_peer(path, [Call([], [value])], name) == [0.0]


@pytest.mark.parametrize("name", ["count", "swap", "old_value", "cache"])
def test_keep_mutable_buffers_leaves_state_in_program(name: str, runtime: Runtime, coremill: Command, tmp_path: Path) -> None:
    """Buffers that delegates do not own belong to the program."""
    program, calls = export(next(row for row in ROWS if row.name == name))
    torch.export.save(program, tmp_path / "m.pt2")
    path = tmp_path / "m.pte"
    coremill("lower", tmp_path / "m.pt2", "-o", path, "--precision", "fp32", "--keep-mutable-buffers")
    lowered = check(path, calls, runtime)
    assert delegates(lowered) == 1
    assert "aten::copy_" in {operator.name for operator in lowered.execution_plan[0].operators}


class Chosen(torch.nn.Module):
    """The name generated for the first input would otherwise equal the name of the second input."""

    def forward(self, x: torch.Tensor, x_1: torch.Tensor) -> torch.Tensor:
        return torch.where(x, x_1, x_1 * 2)


def test_generated_names_do_not_clash_with_inputs(runtime: Runtime, coremill: Command, tmp_path: Path) -> None:
    """Shapes are assigned to inputs by name."""
    rows = torch.export.Dim("rows", min=2, max=8)
    inputs = (torch.rand(3, 4) > 0.5, torch.randn(3, 4))
    calls = save(Chosen(), inputs, tmp_path / "m.pt2", {"x": {0: rows}, "x_1": {0: rows}})
    path = tmp_path / "m.pte"
    coremill("lower", tmp_path / "m.pt2", "-o", path, "--precision", "fp32")
    assert delegates(check(path, calls, runtime)) == 1


def test_keep_constant_data_leaves_weights_in_program(runtime: Runtime, coremill: Command, tmp_path: Path) -> None:
    """Weights that delegates do not own are constants of the program."""
    calls = save(Apply(network), (torch.randn(2, 4),), tmp_path / "m.pt2")
    path = tmp_path / "m.pte"
    coremill("lower", tmp_path / "m.pt2", "-o", path, "--precision", "fp32", "--keep-constant-data")
    program = check(path, calls, runtime)
    assert delegates(program) == 1
    assert len(program.constant_buffer) == 3


SPECS = {
    "compute_units": "cpu_and_ne",
    "min_deployment_target": "9",
    "model_compute_precision": "float32",
    "model_type": "compiled_model",
}


def test_compile_specs_are_applied_and_stored(runtime: Runtime, coremill: Command, tmp_path: Path) -> None:
    """Compile specs have the same meaning as in ExecuTorch, and are stored for the device."""
    calls = save(Apply(network), (torch.randn(2, 4),), tmp_path / "m.pt2")
    path = tmp_path / "m.pte"
    specs = [part for key, value in SPECS.items() for part in ("--compile-spec", f"{key}={value}")]
    coremill("lower", tmp_path / "m.pt2", "-o", path, *specs)
    program = check(path, calls, runtime)
    found = program.execution_plan[0].delegates[0].compile_specs
    assert {spec.key: spec.value.decode() for spec in found} == SPECS
    blob = path.read_bytes()
    assert b"model.mlmodelc" not in blob
    assert json.dumps("model.mlmodelc")[::-1].encode() in blob


def test_applies_executorch_enumerated_shapes_spec(runtime: Runtime, coremill: Command, tmp_path: Path) -> None:
    """The compile spec comes from ExecuTorch's own generator."""
    from executorch.backends.apple.coreml.compiler import CoreMLBackend
    from torch.export import Dim

    module, archive, path = Apply(network), tmp_path / "m.pt2", tmp_path / "m.pte"
    save(module, (torch.randn(3, 4),), archive, {"values": ({0: Dim("rows", min=2, max=8)},)})
    loaded = torch.export.load(archive)
    name = loaded.graph_signature.user_inputs[0]
    spec = CoreMLBackend.generate_enumerated_shapes_compile_spec(loaded, {name: [[2, 4], [5, 4]]})
    options = ["--full-graph", "--precision", "fp32", "--compile-spec", f"enumerated_shapes={spec.value.decode()}"]
    coremill("lower", archive, "-o", path, *options)
    with torch.no_grad():
        inputs = [torch.randn(rows, 4) for rows in (5, 2)]
        check(path, [Call([one], [module(one)]) for one in inputs], runtime)
        runtime.ask("method", "forward")
        with pytest.raises(RuntimeError):
            runtime.run([torch.randn(4, 4)])


def test_full_graph_error_locates_unsupported_call(coremill_fails: Command, tmp_path: Path) -> None:
    """A call that cannot be delegated is reported with its location."""
    save(Apply(lambda self, value: torch.linalg.eigvalsh(value)), (torch.randn(4, 4),), tmp_path / "m.pt2")
    error = coremill_fails("lower", tmp_path / "m.pt2", "-o", tmp_path / "m.pte", "--full-graph")
    assert "aten.linalg" in error
    assert "lowered_programs.py" in error
    assert not (tmp_path / "m.pte").exists()


def test_partition_report_lists_excluded_ops(coremill_stderr: Command, tmp_path: Path) -> None:
    """The report lists the calls outside delegates, with reasons, locations and costs."""
    save(Apply(network), (torch.randn(2, 4),), tmp_path / "m.pt2")
    options = ["--skip-ops", "aten.sinh.default,aten.no_such_operator.default", "--partition-report"]
    output = coremill_stderr("lower", tmp_path / "m.pt2", "-o", tmp_path / "m.pte", *options)
    for part in ("aten.sinh.default", "excluded by the options", "aten.no_such_operator.default"):
        assert part in output, output


def test_identifiers_derive_from_content(coremill: Command, tmp_path: Path) -> None:
    """Identifiers depend only on the program's content."""
    found = {}
    for at, scale in enumerate((1.0, 1.0, 2.0)):
        module = Apply(network)
        module.linear = torch.nn.Linear(64, 64)
        torch.nn.init.constant_(module.linear.weight, scale)
        torch.nn.init.zeros_(module.linear.bias)
        save(module, (torch.zeros(2, 64),), tmp_path / f"{at}.pt2")
        coremill("lower", tmp_path / f"{at}.pt2", "-o", tmp_path / f"{at}.pte")
        data = (tmp_path / f"{at}.pte").read_bytes()
        start = data.index(b"executorch_")
        found[at] = data[start : start + 47]
    assert found[0] == found[1]
    assert found[0] != found[2]
