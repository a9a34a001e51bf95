"""ExecuTorch's own runtime executes Core ML programs on our engine, loaded as a library and linked by CMake.

`test_lower` and `test_peer_programs` compare the results of complete programs in ExecuTorch's runtime, too.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coremltools as ct
import pytest
import torch
from executorch.backends.apple.coreml.compiler import CoreMLBackend
from executorch.backends.apple.coreml.partition import CoreMLPartitioner
from executorch.devtools import Inspector
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.runtime import Runtime as Peer

from oracle.checkers.lowering import BOUND
from oracle.checkers.stock_programs import Program, in_app
from oracle.conftest import Command
from oracle.corpora.delegated import Counter, Network
from oracle.corpora.lowered_programs import ROWS, Apply, Row, export
from oracle.support import stock, stock_app
from oracle.support.cargo import ROOT
from oracle.support.distance import within
from oracle.support.served import Runtime
from oracle.zoo import shims  # noqa: F401


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    stock.register()


def lower(module: torch.nn.Module, inputs: tuple[Any, ...], path: Path, coremill: Command, *options: str) -> None:
    torch.export.save(torch.export.export(module, inputs), path.with_suffix(".pt2"))
    coremill("lower", path.with_suffix(".pt2"), "-o", path, "--precision", "fp32", *options)


def test_loaded_methods_do_not_share_state(coremill: Command, tmp_path: Path) -> None:
    path, x = tmp_path / "m.pte", torch.randn(2, 3)
    module = Counter().eval().requires_grad_(False)
    lower(module, (x,), path, coremill)
    # `Program.load_method` returns a cached instance, so each instance needs its own program.
    one, other = (Peer.get().load_program(path).load_method("forward") for _ in range(2))
    step = module.linear(x) * 2
    for count, method in ((1, one), (2, one), (1, other), (3, one), (2, other)):
        assert within(method.execute([x])[0], step * count, 1e-5, 1e-4), count


def test_rejects_int64_values_out_of_int32_range(coremill: Command, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.pte"
    module = Apply(lambda self, x: (x + 1, x.sum(dim=-1, keepdim=True)))
    lower(module, (torch.tensor([3, -4, 5]),), path, coremill)
    method = Peer.get().load_program(path).load_method("forward")
    more, _total = method.execute([torch.tensor([1, 2, 2**31 - 10])])
    assert more.dtype == torch.int64 and more.tolist() == [2, 3, 2**31 - 9]
    with pytest.raises(RuntimeError, match="0x32"):
        method.execute([torch.tensor([1, 2, 2**31])])
    assert "must be from -2147483648 to 2147483647, got 2147483648" in capfd.readouterr().err


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.bool, torch.float16])
def test_int_bool_and_fp16_inputs_match_torch(dtype: torch.dtype, coremill: Command, tmp_path: Path) -> None:
    """Covers types that Core ML functions do not support as inputs and outputs, and scalar outputs."""
    path = tmp_path / "m.pte"
    x = torch.tensor([[-7, 3, 0], [5, -2, 1]]).to(dtype)
    module = Apply(lambda self, x: (x.to(torch.float32) * 2, x.float().sum(), x.flip(0)))
    lower(module, (x,), path, coremill)
    found = Peer.get().load_program(path).load_method("forward").execute([x])
    for one, wanted in zip(found, module(x), strict=True):
        assert one.dtype == wanted.dtype and one.shape == wanted.shape
        assert within(one.double(), wanted.double(), 1e-5, 1e-3)


def test_inspector_shows_operation_times_and_outputs(tmp_path: Path) -> None:
    """The inspector shows operations with times, debug handles and outputs, next to those of eager torch's operators.
    """
    torch.manual_seed(3)
    module, x = Network().eval().requires_grad_(False), torch.randn(1, 3, 16, 24)
    specs = CoreMLBackend.generate_compile_specs(compute_precision=ct.precision.FLOAT32)
    lowered = to_edge_transform_and_lower(
        torch.export.export(module, (x,)),
        partitioner=[CoreMLPartitioner(compile_specs=specs)],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
        generate_etrecord=True,
    ).to_executorch()
    lowered.write_to_file((tmp_path / "m.pte").open("wb"))
    record = lowered.get_etrecord()
    record.update_representative_inputs([[x]])
    record.save(str(tmp_path / "m.etrecord"))
    for buffer in (0, 10_000_000):
        program = Peer.get().load_program(tmp_path / "m.pte", enable_etdump=True, debug_buffer_size=buffer)
        found = program.load_method("forward").execute([x])[0]
        assert within(found, module(x), 1e-5, 1e-4)
        dump, debug = str(tmp_path / "m.etdump"), str(tmp_path / "m.bin")
        program.write_etdump_result_to_file(dump, debug)
        inspector = Inspector(
            etdump_path=dump, etrecord=str(tmp_path / "m.etrecord"), debug_buffer_path=debug if buffer else None
        )
        events = [event for block in inspector.event_blocks for event in block.events if event.is_delegated_op]
        assert len(events) >= 8 and all(event.perf_data.raw[0] >= 0 for event in events)
        assert sum(bool(event.debug_handles) for event in events) >= 8
        assert all(event.delegate_backend_name == "CoreMLBackend" for event in events)
        call = [event for block in inspector.event_blocks for event in block.events if event.name == "DELEGATE_CALL"]
        inside = sum(event.perf_data.raw[0] for event in events)
        assert 0 < inside <= call[0].perf_data.raw[0]
    # ExecuTorch pairs the outputs with those of eager torch's operators by debug handles, and measures the
    # differences.
    pairs = inspector.calculate_numeric_gap("MSE")
    gaps = {"+".join(ops): max(gap) for ops, gap in zip(pairs["aot_ops"], pairs["gap"], strict=True)}
    assert len(gaps) >= 25 and max(gaps.values()) < 1e-10, gaps
    by_name = {event.name.partition(":")[2]: event.debug_data[0] for event in events if event.debug_data}
    features = torch.relu(module.normalisation(module.convolution(x)))
    assert within(by_name["relu"], features, 1e-5, 1e-4)
    assert within(by_name["softmax"], module(x), 1e-5, 1e-4)
    mixed, _ = module.attention(*[features.flatten(2).transpose(1, 2)] * 3, need_weights=False)
    assert within(by_name["reduce_mean"].flatten(), mixed.mean(1).flatten(), 1e-5, 1e-4)


def test_second_library_fails_to_register_backend(tmp_path: Path) -> None:
    """A second library reports that the name is taken, and the first one keeps working."""
    built = stock.module().build_runtime()
    second = Path(shutil.copy(built, tmp_path / "second.so"))
    script = (
        "import ctypes, sys, executorch.runtime\n"
        "ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)\n"
        "print([ctypes.CDLL(path).coremill_delegate_registration() for path in sys.argv[2:]])\n"
    )
    line = [sys.executable, "-c", script, os.environ["COREMILL_LIBRARY"], str(built), str(second)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[1, 2]")
    assert "another library has registered `CoreMLBackend`" in done.stderr


def test_build_runtime_reports_missing_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match="`no-such-compiler`, which builds the backend .*\nhint: install one"):
        stock.module().build_runtime(tmp_path)


@pytest.fixture(scope="module")
def library() -> Path:
    """The C interface as a static library."""
    return Path(os.environ["COREMILL_LIBRARY"]).with_suffix(".a")


def test_cmake_application_matches_torch(library: Path, coremill: Command, tmp_path: Path) -> None:
    """An application built against the installed ExecuTorch."""
    application = ROOT / "crates" / "capi" / "examples" / "app"
    build = stock_app.build(application, tmp_path / "build", library)
    module = Network().eval().requires_grad_(False)
    x = (torch.arange(3 * 16 * 24) % 17 / 16).reshape(1, 3, 16, 24)
    lower(module, (x,), tmp_path / "m.pte", coremill)
    ran = subprocess.run([build / "app", tmp_path / "m.pte"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = torch.tensor([float(line) for line in ran.stdout.split()])
    assert within(found, module(x).flatten(), 1e-5, 1e-4)
    # Invalid options are refused with the valid values.
    assert "option `compute_unit` must be `cpu_only`" in ran.stderr


#: Maximum overhead of a call of a one-operation program in ExecuTorch's runtime, in nanoseconds: 20 µs if the library
#: is optimized, which it is not in test builds.
NANOSECONDS = 20_000 if "release" in os.environ.get("COREMILL_LIBRARY", "") else 400_000


@pytest.fixture(scope="module")
def app(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    """A C++ application with ExecuTorch's runtime."""
    folder = tmp_path_factory.mktemp("app")
    served = Runtime(folder, stock_app.build(stock_app.SOURCE, folder / "build", library) / "stock_app")
    yield served
    served.close()


#: `python -m oracle.checkers.stock_programs` tests all programs; this sample has one for each kind of inputs and outputs.
SAMPLE = ["count", "swap", "cache"]


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in SAMPLE], ids=lambda row: row.name)
def test_cpp_runtime_matches_torch(row: Row, app: Runtime, coremill: Command, tmp_path: Path) -> None:
    """The C++ program agrees with torch, repeatedly and on 24 threads."""
    program, calls = export(row)
    torch.export.save(program, tmp_path / "m.pt2")
    coremill("lower", tmp_path / "m.pt2", "-o", tmp_path / "m.pte", "--precision", "fp32", *row.options)
    checked = Program(row.name, tmp_path / "m.pte", "forward", calls, BOUND)
    assert max(in_app(app, checked)) <= BOUND


def test_cpp_call_overhead_is_bounded(app: Runtime, coremill: Command, tmp_path: Path) -> None:
    """One operation, called from C++: time, threads with separate programs, loading and unloading."""
    path, x = tmp_path / "m.pte", torch.randn(2, 3)
    lower(Apply(lambda self, x: x * 2), (x,), path, coremill)
    app.ask("load", path)
    app.ask("method", "forward")
    assert torch.equal(app.run([x])[0], x * 2)
    nanoseconds = int(app.ask("time", 2000)[0])
    print(f"a call of one operation takes {nanoseconds / 1000:.1f} µs in ExecuTorch's C++ runtime")
    assert nanoseconds < NANOSECONDS
    app.ask("threads", 24, 20)
    app.ask("cycles", int(os.environ.get("COREMILL_CYCLES", "20")))


def test_rejects_empty_tensors(coremill: Command, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Core ML has no empty tensors: they are refused with the input's name and its shapes."""
    path, rows = tmp_path / "m.pte", torch.export.Dim("rows", min=1, max=8)
    exported = torch.export.export(Apply(lambda self, x: x * 2), (torch.randn(3, 4),), dynamic_shapes={"values": ({0: rows},)})
    torch.export.save(exported, tmp_path / "m.pt2")
    coremill("lower", tmp_path / "m.pt2", "-o", path, "--precision", "fp32")
    method = Peer.get().load_program(path).load_method("forward")
    with pytest.raises(RuntimeError):
        method.execute([torch.randn(0, 4)])
    assert "[0, 4]" in capfd.readouterr().err
    x = torch.randn(1, 4)
    assert torch.equal(method.execute([x])[0], x * 2)
