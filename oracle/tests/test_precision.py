"""`--precision auto`: networks that overflow fp16 are converted correctly, and most fixes keep fp16."""

import json
import math
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from oracle.checkers import conversion
from oracle.checkers.programs import loads_in_coremltools
from oracle.conftest import Command
from oracle.corpora import ranges


def decibels(wanted: numpy.ndarray, found: numpy.ndarray) -> float:
    """The signal-to-noise ratio."""
    noise = float(((wanted - found) ** 2).sum())
    return math.inf if noise == 0 else 10 * math.log10(float((wanted**2).sum()) / noise)


def exported(name: str, folder: Path) -> tuple[Path, torch.Tensor, numpy.ndarray]:
    """The export of a network, its input, and torch's output."""
    torch.manual_seed(0)
    model, x = ranges.NETWORKS[name]()
    archive = folder / "model.pt2"
    torch.export.save(torch.export.export(model, (x,)), archive)
    with torch.no_grad():
        return archive, x, model(x).numpy()


@pytest.mark.parametrize("name", list(ranges.NETWORKS))
def test_auto_precision_fixes_fp16_overflow(name: str, coremill: Command, tmp_path: Path) -> None:
    """Plain `fp16` fails; the fixed package, rounded as on the device, is close to torch."""
    archive, x, wanted = exported(name, tmp_path)
    package = tmp_path / "model.mlpackage"
    report = json.loads(coremill("convert", archive, "-o", package, "--precision", "auto", "--json"))
    chosen = report["conversions"][0]["chosen"]
    assert chosen["holds"]
    assert chosen["samples"] == 1
    assert chosen["cures"]
    for cure in chosen["cures"]:
        assert cure["reason"] and cure["remedy"] and cure["cost"]
    (outcome,) = chosen["outputs"]
    # JSON cannot represent an infinite ratio.
    assert outcome["before"] is None or outcome["before"] < 40
    assert outcome["after"] >= 40
    in_fp16 = [cure for cure in chosen["cures"] if not cure["in_fp32"]]
    assert 2 * len(in_fp16) >= len(chosen["cures"])
    inputs = {"x": x.numpy()} if x.is_floating_point() else {"tokens": x.numpy().astype(numpy.int32)}
    (found,) = conversion.run(package, [inputs], "fp16")
    assert decibels(wanted, next(iter(found.values()))) > 40
    assert loads_in_coremltools(package) == []


def test_auto_precision_applies_to_executorch_programs(coremill: Command, tmp_path: Path) -> None:
    """Fixes apply to ExecuTorch programs as to packages."""
    archive, _, _ = exported("dpt-large", tmp_path)
    program = tmp_path / "model.pte"
    report = json.loads(coremill("lower", archive, "-o", program, "--precision", "auto", "--verify", "--json"))
    assert report["chosen"]["holds"]
    assert report["methods"][0]["verified"]["holds"]


class Sharp(nn.Module):
    """A case that scaling by a power of two cannot fix: the logarithm of an exponential of large numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(torch.exp(x).sum(-1)) + x.mean(-1)


def test_unfixable_overflow_falls_back_to_fp32(coremill: Command, tmp_path: Path) -> None:
    """Only the necessary operations are in fp32; the report lists them with reasons."""
    archive, package = tmp_path / "model.pt2", tmp_path / "model.mlpackage"
    x = torch.rand(4, 16) * 10 + 20
    torch.export.save(torch.export.export(Sharp(), (x,)), archive)
    report = json.loads(coremill("convert", archive, "-o", package, "--precision", "auto", "--json"))
    chosen = report["conversions"][0]["chosen"]
    assert chosen["holds"]
    in_fp32 = {name for cure in chosen["cures"] for name in cure["in_fp32"]}
    assert any("exp" in name for name in in_fp32)
    (found,) = conversion.run(package, [{"x": x.numpy()}], "fp16")
    assert decibels(Sharp()(x).numpy(), next(iter(found.values()))) > 40


def test_auto_precision_keeps_fp16_without_overflow(coremill: Command, coremill_fails: Command, tmp_path: Path) -> None:
    """If no fix is needed, the package equals the package of plain `fp16`. Samples with large values require fixes, and
    invalid samples are errors."""
    archive = tmp_path / "model.pt2"
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
    torch.export.save(torch.export.export(model, (torch.randn(3, 16),)), archive)
    plain, auto = (tmp_path / name / "model.mil" for name in ("plain", "auto"))
    for text in (plain, auto):
        text.parent.mkdir()
    coremill("convert", archive, "-o", plain)
    coremill("convert", archive, "-o", auto, "--precision", "auto")
    assert plain.read_text() == auto.read_text()
    large = tmp_path / "large.npz"
    numpy.savez(large, input=1e5 * numpy.random.default_rng(0).standard_normal((3, 16), numpy.float32))
    report = json.loads(
        coremill("convert", archive, "-o", tmp_path / "large.mlpackage", "--precision", "auto", "--samples", large, "--json")
    )
    chosen = report["conversions"][0]["chosen"]
    assert chosen["holds"]
    assert chosen["cures"]
    assert chosen["outputs"][0]["after"] >= 40
    wrong = tmp_path / "wrong.npz"
    numpy.savez(wrong, input=numpy.zeros((3, 15), numpy.float32))
    common = ("convert", archive, "-o", tmp_path / "no.mlpackage")
    assert "wrong.npz" in coremill_fails(*common, "--precision", "auto", "--samples", wrong)
    numpy.savez(wrong, input=numpy.full((3, 16), math.nan, numpy.float32))
    assert "wrong.npz: `input` holds NaN" in coremill_fails(*common, "--precision", "auto", "--samples", wrong)
    assert "also pass `--precision auto`" in coremill_fails(*common, "--samples", large)
    for number, held in ((math.nan, "NaN"), (math.inf, "an infinite number")):
        with torch.no_grad():
            model[2].bias[1] = number
        torch.export.save(torch.export.export(model, (torch.randn(3, 16),)), archive)
        assert f"the `bias` of `linear_1` holds {held}" in coremill_fails(*common, "--precision", "auto")
    assert not (tmp_path / "no.mlpackage").exists()
