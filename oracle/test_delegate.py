"""ExecuTorch's own runtime executes programs for Core ML on our engine: loaded as a library, and linked by CMake.

Numbers of whole programs are judged where programs are made: `test_lower` and `test_peer_programs` ask ExecuTorch's
runtime, too.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
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

from oracle import stock
from oracle.conftest import ROOT, Command
from oracle.delegated import Counter, Network
from oracle.lowered_programs import Apply
from oracle.zoo import shims  # noqa: F401


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    stock.register()


def lower(module: torch.nn.Module, inputs: tuple[Any, ...], path: Path, coremill: Command, *options: str) -> None:
    torch.export.save(torch.export.export(module, inputs), path.with_suffix(".pt2"))
    coremill("lower", path.with_suffix(".pt2"), "-o", path, "--precision", "fp32", *options)


def test_states_are_each_methods_own(coremill: Command, tmp_path: Path) -> None:
    path, x = tmp_path / "m.pte", torch.randn(2, 3)
    module = Counter().eval().requires_grad_(False)
    lower(module, (x,), path, coremill)
    # A program gives the same instance each time that it is asked for a method.
    one, other = (Peer.get().load_program(path).load_method("forward") for _ in range(2))
    step = module.linear(x) * 2
    for count, method in ((1, one), (2, one), (1, other), (3, one), (2, other)):
        assert torch.allclose(method.execute([x])[0], step * count, atol=1e-4), count


def test_what_does_not_fit_is_refused(coremill: Command, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.pte"
    module = Apply(lambda self, x: (x + 1, x.sum(dim=-1, keepdim=True)))
    lower(module, (torch.tensor([3, -4, 5]),), path, coremill)
    method = Peer.get().load_program(path).load_method("forward")
    more, total = method.execute([torch.tensor([1, 2, 2**31 - 10])])
    assert more.dtype == torch.int64 and more.tolist() == [2, 3, 2**31 - 9]
    with pytest.raises(RuntimeError, match="0x32"):
        method.execute([torch.tensor([1, 2, 2**31])])
    assert "the element 2147483648 does not fit the `int32` that the model takes" in capfd.readouterr().err


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.bool, torch.float16])
def test_types(dtype: torch.dtype, coremill: Command, tmp_path: Path) -> None:
    """Types that Core ML has not at its edge, and scalars."""
    path = tmp_path / "m.pte"
    x = torch.tensor([[-7, 3, 0], [5, -2, 1]]).to(dtype)
    module = Apply(lambda self, x: (x.to(torch.float32) * 2, x.float().sum(), x.flip(0)))
    lower(module, (x,), path, coremill)
    found = Peer.get().load_program(path).load_method("forward").execute([x])
    for one, wanted in zip(found, module(x), strict=True):
        assert one.dtype == wanted.dtype and one.shape == wanted.shape
        assert torch.allclose(one.double(), wanted.double(), atol=1e-3)


def test_inspector(tmp_path: Path) -> None:
    """Operations with times and debug handles, and what they give; that of eager torch's operators."""
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
    lowered.get_etrecord().save(str(tmp_path / "m.etrecord"))
    for buffer in (0, 10_000_000):
        program = Peer.get().load_program(tmp_path / "m.pte", enable_etdump=True, debug_buffer_size=buffer)
        found = program.load_method("forward").execute([x])[0]
        assert torch.allclose(found, module(x), atol=1e-4)
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
        within = sum(event.perf_data.raw[0] for event in events)
        assert 0 < within <= call[0].perf_data.raw[0]
    by_name = {event.name.partition(":")[2]: event.debug_data[0] for event in events if event.debug_data}
    features = torch.relu(module.normalisation(module.convolution(x)))
    assert torch.allclose(by_name["relu"], features, atol=1e-4)
    assert torch.allclose(by_name["softmax"], module(x), atol=1e-4)
    mixed, _ = module.attention(*[features.flatten(2).transpose(1, 2)] * 3, need_weights=False)
    assert torch.allclose(by_name["reduce_mean"], mixed.mean(1), atol=1e-4)


def test_a_name_that_is_taken(tmp_path: Path) -> None:
    """A second library says so, and leaves the first one its programs."""
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


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match="`no-such-compiler`, which builds the backend .*\nhint: install one"):
        stock.module().build_runtime(tmp_path)


def test_cmake(coremill: Command, tmp_path: Path) -> None:
    """An application that is built against the installed ExecuTorch."""
    cmake = Path(sys.executable).with_name("cmake")
    package = next(iter(importlib.util.find_spec("executorch").submodule_search_locations))
    source, build = ROOT / "crates" / "capi" / "examples" / "app", tmp_path / "build"
    library = os.environ["COREMILL_LIBRARY"]
    configure = [cmake, "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={package}", f"-DCOREMILL_LIBRARY={library}"]
    for line in (configure, [cmake, "--build", build]):
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    module = Network().eval().requires_grad_(False)
    x = (torch.arange(3 * 16 * 24) % 17 / 16).reshape(1, 3, 16, 24)
    lower(module, (x,), tmp_path / "m.pte", coremill)
    ran = subprocess.run([build / "app", tmp_path / "m.pte"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = torch.tensor([float(line) for line in ran.stdout.split()])
    assert torch.allclose(found, module(x).flatten(), atol=1e-4)
    # Options that are wrong are refused with what is accepted.
    assert "option `compute_unit` is `gpu`; accepted is cpu_only" in ran.stderr
