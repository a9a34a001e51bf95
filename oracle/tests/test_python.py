"""The Python package: conversion of programs in memory, predictions on arrays, states, errors, Ctrl-C, threads, memory use."""

import ast
import gc
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from executorch import exir
from torch import nn

import coremill
from coremill import _verify
from oracle.support.distance import within
from oracle.tests.test_pt2 import CASES, exported

TOLERANCE = {"relative": 1e-3, "absolute": 1e-3}
ROOT = Path(__file__).parents[2]
DOCUMENTS = ROOT / "docs"


class Digits(nn.Module):
    """A small network with a convolution, a normalization and a matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.linear = nn.Linear(4 * 36, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.relu(self.norm(self.conv(x))).flatten(1))


class Counter(nn.Module):
    """Accumulates its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 2


class Refused(nn.Module):
    """Calls an operator that Core ML lacks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svdvals(x) + torch.linalg.svdvals(x + 1)


def program(module: nn.Module, *inputs: torch.Tensor, **options: object) -> torch.export.ExportedProgram:
    torch.manual_seed(3)
    return torch.export.export(module.eval(), inputs, **options)


def digits() -> torch.export.ExportedProgram:
    torch.manual_seed(2)
    return program(Digits(), torch.rand(1, 1, 8, 8) - 0.3)


def files(path: Path) -> dict[str, bytes]:
    if path.is_file():
        return {"": path.read_bytes()}
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def converted_files(source: object, path: Path, archive: Path) -> dict[str, bytes] | str:
    """The converted files, or the error message."""
    try:
        coremill.convert(source).save(path)
    except coremill.Error as error:
        return str(error).replace(f"{archive}: ", "")
    return files(path)


@pytest.mark.parametrize("name", CASES)
def test_in_memory_program_converts_like_archive(name: str, tmp_path: Path) -> None:
    archive = tmp_path / "model.pt2"
    forms = [exported(name)]
    if name in ("mutating", "cond", "batch_dynamic"):
        forms.append(forms[0].run_decompositions())
    for form in forms:
        torch.export.save(form, archive)
        in_memory = converted_files(form, tmp_path / "memory.mlpackage", archive)
        assert in_memory == converted_files(archive, tmp_path / "archive.mlpackage", archive)


@pytest.mark.parametrize("name", ["mobilenet", "mutating", "batch_dynamic", "tied"])
def test_in_memory_edge_program_converts_like_archive(name: str, tmp_path: Path) -> None:
    edge = exir.to_edge(exported(name)).exported_program()
    archive = tmp_path / "edge.pt2"
    torch.export.save(edge, archive)
    in_memory = converted_files(edge, tmp_path / "memory.mlpackage", archive)
    assert isinstance(in_memory, dict)
    assert in_memory == converted_files(archive, tmp_path / "archive.mlpackage", archive)


def test_in_memory_program_lowers_like_archive(tmp_path: Path) -> None:
    form = digits()
    torch.export.save(form, tmp_path / "model.pt2")
    coremill.lower(form).save(tmp_path / "memory.pte")
    coremill.lower({"forward": tmp_path / "model.pt2"}).save(tmp_path / "archive.pte")
    assert files(tmp_path / "memory.pte") == files(tmp_path / "archive.pte")


def test_converts_torchao_subclass_tensors_in_memory(tmp_path: Path) -> None:
    from torchao.quantization import IntxWeightOnlyConfig, PerAxis, quantize_

    torch.manual_seed(5)
    module = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8))
    quantize_(module, IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0)))
    x = torch.rand(2, 32) - 0.5
    form = program(module, x)
    torch.export.save(form, tmp_path / "model.pt2")
    in_memory = converted_files(form, tmp_path / "memory.mlpackage", tmp_path / "model.pt2")
    assert isinstance(in_memory, dict)
    assert in_memory == converted_files(tmp_path / "model.pt2", tmp_path / "archive.mlpackage", tmp_path / "model.pt2")
    found = coremill.convert(form, precision="fp32").predict({"input": x})
    assert within(next(iter(found.values())), module(x), **TOLERANCE)


def test_predict_matches_torch_for_tensors_and_arrays() -> None:
    form = digits()
    model = coremill.convert(form, precision="fp32")
    x = torch.rand(1, 1, 8, 8) - 0.3
    expected = form.module()(x).detach()
    (found,) = model.predict({"x": x}).values()
    assert isinstance(found, torch.Tensor)
    assert within(found, expected, **TOLERANCE)
    # Arrays that are not contiguous or have another type, keyword arguments, and lists.
    strided = np.asfortranarray(x.numpy().astype(np.float64))
    for given in (strided, x.numpy(), x.numpy().tolist()):
        (found,) = model.predict(x=given).values()
        assert isinstance(found, np.ndarray)
        assert within(found, expected.numpy(), **TOLERANCE)
    found[0, 0] = 7.0
    (again,) = model.predict(x=x.numpy()).values()
    assert again[0, 0] != 7.0


def test_saves_loads_checks_and_compares_models(tmp_path: Path) -> None:
    model = coremill.convert(digits(), author="somebody", metadata={"key": "value"}, verify=True)
    for name in ("Model.mlpackage", "Model.mlmodelc"):
        model.save(tmp_path / name)
        loaded = coremill.load(tmp_path / name)
        x = np.random.default_rng(1).random((1, 1, 8, 8), np.float32)
        one, two = model.predict(x=x), loaded.predict(x=x)
        assert all(np.array_equal(one[key], two[key]) for key in one)
        report = coremill.check(loaded)
        assert report.ok and "<pre>" in report._repr_html_()
    summary = model.inspect()
    assert summary["metadata"]["author"] == "somebody"
    assert summary["metadata"]["user_defined"]["key"] == "value"
    assert "coremill.Model" in repr(model) and "<table>" in model._repr_html_()
    comparison = coremill.compare(model, coremill.convert(digits(), precision="fp32"))
    assert comparison.ok and "SNR" in comparison._repr_html_()
    different = coremill.compare({"y": np.ones(3, np.float32)}, {"y": np.array([1, 2, 1], np.float32)})
    assert not different.ok


def test_state_persists_across_calls_and_can_be_set(tmp_path: Path) -> None:
    form = program(Counter(), torch.ones(2, 3))
    model = coremill.convert(form, precision="fp32")
    x = np.arange(6, dtype=np.float32).reshape(2, 3) / 8
    model.predict(x=x)
    (second,) = model.predict(x=x).values()
    assert within(second, x * 4, **TOLERANCE)
    ((name, total),) = model.states.items()
    assert within(total, x * 2, **TOLERANCE)
    separate = model.session()
    (first,) = separate.predict(x=x).values()
    assert within(first, x * 2, **TOLERANCE)
    model.set_state(name, total * 0 + 1)
    (third,) = model.predict(x=x).values()
    assert within(third, (x + 1) * 2, **TOLERANCE)
    model.reset()
    assert not model.states[name].any()
    coremill.lower(form).save(tmp_path / "model.pte")
    method = coremill.load(tmp_path / "model.pte").method("forward")
    method(torch.from_numpy(x))
    found = method(torch.from_numpy(x))
    assert within(found, torch.from_numpy(x * 4), relative=1e-2, absolute=1e-2)
    assert len(method.states) == 1
    method.reset()
    assert within(method(x), x * 2, relative=1e-2, absolute=1e-2)


def test_edit_exposes_states_as_inputs_and_outputs() -> None:
    model = coremill.convert(program(Counter(), torch.ones(2, 3)), precision="fp32")
    edited = coremill.edit(model, expose_states=["total"])
    assert not edited.states
    counter, total = Counter(), np.zeros((2, 3), np.float16)
    for step in range(3):
        x = np.arange(6, dtype=np.float32).reshape(2, 3) / 8 - step
        found = edited.predict(x=x, total=total)
        total = found.pop("new_total")
        (result,) = found.values()
        assert within(result, counter(torch.from_numpy(x)).numpy(), **TOLERANCE)
        assert within(total, counter.total.numpy(), **TOLERANCE)
    with pytest.raises(coremill.Error, match="`x` is not a state"):
        coremill.edit(model, expose_states=["x"])


def test_states_mapping_supports_assignment() -> None:
    model = coremill.convert(program(Counter(), torch.ones(2, 3)), precision="fp32")
    x = np.ones((2, 3), np.float32)
    for owner in (model, model.session()):
        owner.states["total"] = x * 3
        assert (owner.states["total"] == 3).all()
        (found,) = owner.predict(x).values()
        assert within(found, x * 8, **TOLERANCE)
        with pytest.raises(ValueError, match="read-only"):
            owner.states["total"][0] = 1
    method = coremill.lower(program(Counter(), torch.ones(2, 3)), target="ios18").method()
    ((name, _),) = method.states.items()
    method.states[name] = x * 3
    assert within(method(x), x * 8, relative=1e-2, absolute=1e-2)


def test_predict_returns_intermediate_values() -> None:
    """Compares them with the same layers computed in torch."""
    form, x = digits(), torch.rand(1, 1, 8, 8) - 0.3
    module = form.module()
    weights = dict(form.state_dict)
    expected = torch.relu(
        nn.functional.batch_norm(
            nn.functional.conv2d(x, weights["conv.weight"], weights["conv.bias"]),
            weights["norm.running_mean"], weights["norm.running_var"], weights["norm.weight"], weights["norm.bias"],
        )
    )  # fmt: skip
    for options in ({"precision": "fp32"}, {"target": "ios16"}):
        model = coremill.convert(form, output_names=["scores"], **options)
        name = "relu"
        found = model.predict(x, outputs=[name, "scores", "x"])
        assert list(found) == [name, "scores", "x"]
        assert within(found[name].float(), expected.detach(), relative=1e-2, absolute=1e-2)
        assert within(found["scores"], module(x).detach(), relative=1e-2, absolute=1e-2)
        assert torch.equal(found["x"], x)
        assert list(model.predict(x, outputs="scores")) == ["scores"]


def test_single_input_can_be_passed_positionally() -> None:
    form, x = digits(), torch.rand(1, 1, 8, 8)
    model = coremill.convert(form)
    (by_name,), (by_position,) = model.predict(x=x).values(), model.predict(x).values()
    assert torch.equal(by_name, by_position)
    two = coremill.convert(program(Two(), torch.ones(3), torch.ones(3)))
    with pytest.raises(coremill.OptionError, match="inputs are `x`, `y`") as caught:
        two.predict(torch.ones(3))
    assert "by name" in (caught.value.hint or "")


def test_input_names_match_between_python_and_command(tmp_path: Path) -> None:
    """Packages, compiled models and programs, complete or partitioned, use the same names."""
    form = program(Two(), torch.ones(3), torch.ones(3))
    model = coremill.convert(form)
    paths = [tmp_path / name for name in ("two.mlpackage", "two.mlmodelc", "two.pte", "parts.pte")]
    for path in paths[:2]:
        model.save(path)
    coremill.lower(form).save(paths[2])
    coremill.lower(form, skip_ops=["aten.mul.Tensor"]).save(paths[3])
    array = tmp_path / "array.npy"
    np.save(array, np.ones(3, np.float32))
    for path in paths:
        opened = coremill.load(path)
        if isinstance(opened, coremill.Program):
            names = opened.method().inputs
        else:
            with pytest.raises(coremill.Error) as caught:
                opened.predict(unknown=np.ones(3, np.float32))
            names = re.findall("`(.+?)`", str(caught.value).split("inputs are", 1)[1])
        command = [os.environ["COREMILL"], "run", path, "--input", f"unknown={array}"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        rows = result.stderr.split("inputs:\n", 1)[1].splitlines()
        listed = [row.split()[0] for row in itertools.takewhile(lambda row: row.startswith("  "), rows)]
        assert result.returncode == 1 and names == listed and len(names) == 2, path.name


class Two(nn.Module):
    """A module with two inputs."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y * 2


class Overflowing(nn.Module):
    """A module whose values exceed fp16."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x) * 3e4
        return torch.log(y * y + 1)


def test_auto_precision_avoids_fp16_overflow(tmp_path: Path) -> None:
    torch.manual_seed(3)
    form, xs = program(Overflowing(), torch.rand(2, 8)), [torch.rand(2, 8) for _ in range(3)]
    plain = coremill.convert(form)
    assert plain.precision_report is None
    (overflowed,) = plain.session(precision="faithful").predict(xs[0]).values()
    assert not torch.isfinite(overflowed.float()).all()
    np.savez(tmp_path / "one.npz", x=xs[0].numpy())
    for samples in ((), [{"x": x} for x in xs], tmp_path / "one.npz", [tmp_path]):
        model = coremill.convert(form, precision="auto", samples=samples, verify=True)
        (found,) = model.session(precision="faithful").predict(xs[0]).values()
        assert within(found.float(), form.module()(xs[0]).detach(), relative=2e-2, absolute=2e-2)
        report = model.precision_report
        assert report["cures"] and report["samples"] == (3 if isinstance(samples, list) and len(samples) == 3 else 1)
        assert report["cures"][0]["name"] in str(report) and "output" in str(report)
    lowered = coremill.lower(form, precision="auto")
    assert within(lowered.method(faithful=True)(xs[0]).float(), form.module()(xs[0]).detach(), relative=2e-2, absolute=2e-2)
    wide = coremill.convert(form, fp32_values=["log", "mul", "mul_1", "add"])
    assert isinstance(wide, coremill.Model)
    with pytest.raises(coremill.VerificationError) as caught:
        coremill.convert(form, verify=True)
    assert 'precision="auto"' in (caught.value.hint or "")


class Doubled:
    """A program whose module returns twice the outputs of its graph, as if the fp16 and fp32 conversions shared an error."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self.program = program

    def __getattr__(self, name: str) -> Any:
        return getattr(self.program, name)

    def module(self) -> Any:
        return lambda *inputs: 2 * self.program.module()(*inputs)


def test_verify_compares_models_with_torch() -> None:
    torch.manual_seed(0)
    form = program(nn.Sequential(nn.Linear(8, 4), nn.Tanh()), torch.rand(2, 8))
    example = _verify.torch_example(form)
    assert example is not None
    (inputs,), (outputs,) = example
    assert np.array_equal(inputs, form.example_inputs[0][0].numpy()) and outputs.shape == (2, 4)
    model = coremill.convert(form)
    assert _verify.agrees_with_torch(model, example, 1e-2)
    doubled = _verify.torch_example(Doubled(form))
    with pytest.raises(coremill.VerificationError, match="differs from torch: the relative error is 5.00e-01"):
        _verify.agrees_with_torch(model, doubled, 1e-2)
    # 40,000 is in the range of fp16, but exceeds the range of sums on the Neural Engine.
    large = program(Sum(), torch.full((1, 64), 625.0))
    coremill.convert(large, verify=True)
    with pytest.raises(coremill.VerificationError, match="finite in only one result"):
        coremill.convert(large, verify=True, numerics="ane")
    counting = program(Counter(), torch.ones(2, 3))
    assert _verify.torch_example(counting) is None
    assert not any(tensor.any() for tensor in counting.state_dict.values()), "verification modified a buffer of the program"
    in_place = program(InPlace(), torch.ones(2, 4))
    assert _verify.torch_example(in_place) is not None and (in_place.example_inputs[0][0] == 1).all()
    random = program(Noise(), torch.ones(2, 4))
    assert _verify.torch_example(random) is None and coremill.convert(random) is not None


class InPlace(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2) + 1


class Sum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, torch.ones(1, 64))


class Noise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(2, 4)


def test_converts_programs_to_multifunction_model(tmp_path: Path) -> None:
    module = nn.Linear(4, 4)
    one, many = (program(module, torch.rand(rows, 4)) for rows in (1, 5))
    model = coremill.convert({"decode": one, "prefill": many}, verify=True)
    assert [function["name"] for function in model.inspect()["functions"]] == ["decode", "prefill"]
    model.save(tmp_path / "Functions.mlpackage")
    for opened in (model, coremill.load(tmp_path / "Functions.mlpackage")):
        for name, rows in (("decode", 1), ("prefill", 5)):
            x = torch.rand(rows, 4)
            (found,) = opened.session(name).predict(x).values()
            assert within(found, module(x).detach(), relative=1e-2, absolute=1e-2)


def test_round_trips_metadata(tmp_path: Path) -> None:
    import coremltools as ct

    model = coremill.convert(digits(), author="Ada", metadata={"first": "1"})
    assert model.author == "Ada" and model.license == "" and model.metadata["first"] == "1"
    model.author, model.license, model.description, model.model_version = "Bea", "MIT", "Digits", "2"
    model.metadata["second"] = "2"
    del model.metadata["first"]
    model.metadata.update(third="3")
    model.save(tmp_path / "Model.mlpackage")
    # coremltools reads the metadata.
    spec = ct.utils.load_spec(str(tmp_path / "Model.mlpackage")).description.metadata
    assert (spec.author, spec.license, spec.shortDescription, spec.versionString) == ("Bea", "MIT", "Digits", "2")
    notes = dict(spec.userDefined)
    assert notes["second"] == "2" and notes["third"] == "3" and "first" not in notes
    loaded = coremill.load(tmp_path / "Model.mlpackage")
    assert loaded.author == "Bea" and loaded.metadata == notes
    loaded.metadata = {"only": "this"}
    assert loaded.metadata == {"only": "this"}


def test_docstrings_describe_every_option() -> None:
    import inspect

    for function in (coremill.convert, coremill.lower, coremill.quantize):
        names = [name for name, one in inspect.signature(function).parameters.items() if one.kind is not one.VAR_KEYWORD]
        text = inspect.getdoc(function) or ""
        assert [name for name in names if f"    {name}: " not in text] == []
    # The wrappers have all options of the native functions.
    with pytest.raises(coremill.OptionError) as caught:
        coremill.convert(digits(), presicion="fp32")
    known = set((caught.value.hint or "").removeprefix("the options are ").split(", "))
    # The wrapper converts these options to the native option `edits`.
    edits = {"images", "types", "labels", "scores", "label_name", "descriptions"}
    assert known - {"edits"} == set(inspect.signature(coremill.convert).parameters) - {"program", "unknown"} - edits


def test_reports_print_as_text() -> None:
    model = coremill.convert(digits(), author="Ada")
    text = str(model.inspect())
    assert "function main" in text and "x  fp32  1 × 1 × 8 × 8" in text and "author: Ada" in text
    assert "method forward" in str(coremill.lower(digits()).inspect())
    _, report = coremill.compress(model, linear="int8", min_elements=1)
    assert f"{report['bytes_before']} -> {report['bytes_after']} bytes" in str(report)
    assert all(weight["name"] in str(report) for weight in report["weights"])
    for printed in (model.inspect(), model.check(), coremill.lower(digits()).inspect(), report):
        assert not str(printed).startswith("{")


def test_check_diagnostics_depend_on_device() -> None:
    class Sine(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(x) @ torch.ones(64, 64)

    program = torch.export.export(Sine(), (torch.ones(8, 64),))
    model, lowered = coremill.convert(program), coremill.lower(program)

    def codes(report: coremill.Report) -> set[str]:
        return {one["code"] for one in report["diagnostics"]}

    # The Neural Engine of A14 has no `sin`, that of A15 does.
    assert "unsupported-on-ane" in codes(coremill.check(model))
    assert "unsupported-on-ane" in codes(coremill.check(model, device="a14"))
    assert "unsupported-on-ane" not in codes(coremill.check(model, device="iphone13"))
    assert codes(model.check(device="A14")) == codes(coremill.check(model, device="iphone12"))
    assert codes(lowered.check(device="a14")) == codes(coremill.check(lowered, device="a14")) >= {"unsupported-on-ane"}
    # Small models are reported only if a chip is selected.
    assert "small-model" in codes(coremill.check(model, device="m4")) - codes(coremill.check(model))
    (warning,) = (one for one in coremill.check(model)["diagnostics"] if one["code"] == "unsupported-on-ane")
    evidence = warning["evidence"]
    assert evidence["engines"] == ["Neural Engine"] and evidence["confidence"] == "confirmed"
    assert evidence["systems"] == "macOS 27.0.1" and len(evidence["sources"]) == 2 and evidence["chips"] == "every chip"
    with pytest.raises(coremill.OptionError, match="unknown chip or device `m99`"):
        coremill.check(model, device="m99")
    with pytest.raises(coremill.OptionError, match="a str"):
        coremill.check(model, device=4)


def test_lowers_runs_and_extracts_programs(tmp_path: Path) -> None:
    form = digits()
    lowered = coremill.lower({"forward": form, "second": form}, constant_methods={"vocabulary": 32000}, target="ios18")
    assert sorted(lowered.methods) == ["forward", "second", "vocabulary"]
    x = torch.rand(1, 1, 8, 8) - 0.3
    assert within(lowered.method("second")(x), form.module()(x).detach(), relative=2e-2, absolute=2e-2)
    assert lowered.method("vocabulary")() is not None
    (path,) = lowered.extract(tmp_path / "models")
    assert coremill.check(path).ok and coremill.check(lowered).ok
    divided = coremill.lower(form, skip_ops="aten.linear.default")
    outside = divided.report["forward"]["outside"]
    assert [call.operator for call in outside if call.kind == "asked"] == ["aten.linear.default"]
    assert "aten.linear" in str(divided.report) and "<table>" in divided.report._repr_html_()
    assert "forward" in repr(divided) and "<table>" in divided._repr_html_()


def test_compress_shrinks_weights_and_keeps_accuracy(tmp_path: Path) -> None:
    torch.manual_seed(7)
    module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    x = torch.rand(3, 64) - 0.5
    form = program(module, x)
    model = coremill.convert(form)
    small, report = coremill.compress(model, linear="int8")
    assert report["bytes_after"] < report["bytes_before"] * 0.6
    (found,) = small.predict(input=x).values()
    assert within(found, module(x).detach(), relative=5e-2, absolute=2e-2)
    assert all(weight["form"] for weight in report["weights"] if len(weight["shape"]) == 2)
    lowered, _ = coremill.compress(coremill.lower(form, target="ios18"), palettize=6, rules=[{"name": "*2*", "keep": True}])
    assert within(lowered.method()(x), module(x).detach(), relative=0.2, absolute=5e-2)
    with pytest.raises(coremill.Error, match="int5"):
        coremill.compress(model, linear="int5")
    with pytest.raises(coremill.OptionError, match="unknown field"):
        coremill.compress(model, liner="int8")
    with pytest.raises(coremill.OptionError, match="no compression is selected"):
        coremill.compress(model)


def test_compress_meets_target_size_and_snr() -> None:
    torch.manual_seed(7)
    module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    x = torch.rand(3, 64) - 0.5
    model = coremill.convert(program(module, x))
    whole = sum(weight["bytes_before"] for weight in coremill.compress(model, linear="int8")[1]["weights"])
    for size in (whole // 3, f"{whole / 2500:.3f}KB"):
        small, report = coremill.compress(model, target_size=size)
        limit = size if isinstance(size, int) else whole / 2.5
        assert 0.4 * limit < report["bytes_after"] <= limit
        (found,) = small.predict(input=x).values()
        assert within(found, module(x).detach(), relative=0.2, absolute=0.1)
    coarse, fine = (coremill.compress(model, target_snr=decibels)[1] for decibels in (15, 40))
    assert coarse["bytes_after"] < fine["bytes_after"] < whole
    assert all(weight["snr"] is None or weight["snr"] >= 15 for weight in coarse["weights"] if weight["form"])
    with pytest.raises(coremill.OptionError, match="are mutually exclusive"):
        coremill.compress(model, target_size=100, target_snr=3)
    for size in ("12 parsecs", -3):
        with pytest.raises(coremill.OptionError, match="`target_size`: expected"):
            coremill.compress(model, target_size=size)


def test_quantizes_programs_with_calibration_samples() -> None:
    torch.manual_seed(8)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)).eval()
    form = program(module, torch.rand(1, 3, 8, 8))
    samples = [torch.rand(1, 3, 8, 8) for _ in range(8)]
    x = torch.rand(1, 3, 8, 8)
    forms = ([{"input": one.numpy()} for one in samples], [(one,) for one in samples], iter(samples))
    reports = []
    for given in forms:
        model, report = coremill.quantize(form, "int8-static", given, output_names=["y"])
        assert "\"dequantize\"" in json.dumps(model.inspect())
        assert within(model.predict(input=x)["y"], module(x).detach(), relative=0.1, absolute=0.1)
        assert report["samples"] == 8 and report["model_db"] > 15 and model.target == report["target"] == "ios17"
        reports.append(dict(report))
    assert reports[0] == reports[1] == reports[2]
    assert "layers quantized" in str(report) and "<table>" in report._repr_html_()
    _kept, report = coremill.quantize(form, "int8-static", samples, keep_worst=1, observer="mse", effort=1)
    assert any("worst" in (layer["kept"] or "") for layer in report["layers"]), report
    _, report = coremill.quantize(form, "int4-per-group", group_size=16, target="ios18")
    assert report["model_db"] is None and report["samples"] == 0
    rules = [{"op": "conv", "keep": True}, {"module": "4", "recipe": "int8-weight-only"}]
    lowered, report = coremill.quantize(form, "int8-static", samples, output="program", rules=rules)
    assert within(lowered.method()(x), module(x).detach(), relative=0.1, absolute=0.1)
    assert {layer["op"]: layer["recipe"] for layer in report["layers"]}["linear"] == "int8-weight-only", report
    for call, message in (
        (lambda: coremill.quantize(form, "int3"), "int4-per-group"),
        (lambda: coremill.quantize(form, "int8-static"), "samples are needed"),
        (lambda: coremill.quantize(form, "int8-static", samples[0]), "expected a list"),
        (lambda: coremill.quantize(form, "int8-static", [(x, 3)]), "without labels"),
        (lambda: coremill.quantize(form, "int8-static", [x[:, :2]]), "input"),
        (lambda: coremill.quantize(form, "int8-static", "no/folder"), "no/folder"),
        (lambda: coremill.quantize(form, "int8-static", 3), "samples"),
        (lambda: coremill.quantize(form, "codebook", bits=9), "`bits` must be from 1 to 8"),
        (lambda: coremill.quantize(form, "codebook", block=(0, 1)), "block"),
        (lambda: coremill.quantize(form, "fp16", effort=3), "effort"),
        (lambda: coremill.quantize(form, "fp16", output="onnx"), "onnx"),
        (lambda: coremill.quantize(form, "int8-static", samples, rules=[{"recipe": "int5"}]), "rule 1"),
        (lambda: coremill.quantize(form, "fp16", efort=2), "unknown option `efort`"),
        (lambda: coremill.quantize(form, "fp16", observer="mean"), "observer"),
    ):
        with pytest.raises(coremill.Error, match=re.escape(message)) as caught:
            call()
        assert not isinstance(caught.value, coremill.InternalError)
    with pytest.raises(coremill.ConversionError) as caught:
        coremill.quantize(program(Refused(), torch.rand(3, 3)), "int8-per-channel")
    error = caught.value
    assert error.operator and "svd" in error.operator and len(error.refused) >= 2
    assert error.source is not None and error.source[0] == __file__


def test_quantize_accepts_images_as_samples(tmp_path: Path) -> None:
    from PIL import Image

    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))
    form = program(module, torch.rand(1, 3, 8, 8))
    rng = np.random.default_rng(4)
    pictures = [Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)) for _ in range(4)]
    for at, picture in enumerate(pictures):
        picture.save(tmp_path / f"{at}.png")
    options = {"mean": (0.5, 0.4, 0.3), "std": 0.25}
    scaled = [(np.asarray(picture, np.float32) / 255 - np.float32(options["mean"])) / np.float32(0.25) for picture in pictures]
    arrays = [picture.transpose(2, 0, 1)[None].copy() for picture in scaled]
    reports = []
    for samples in (pictures, [{"input": picture} for picture in pictures], tmp_path):
        reports.append(dict(coremill.quantize(form, "int8-static", samples, **options)[1]))
    assert reports[0] == reports[1] == reports[2] and reports[0]["samples"] == 4
    assert abs(reports[0]["model_db"] - coremill.quantize(form, "int8-static", arrays)[1]["model_db"]) < 0.1
    with pytest.raises(coremill.Error, match="unknown input `photo`"):
        coremill.quantize(form, "int8-static", [{"photo": pictures[0]}])


def test_convert_quantizes_weights(tmp_path: Path) -> None:
    form = program(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)), torch.rand(3, 64))
    options = {"dtype": "int8", "mode": "linear_symmetric"}
    plain, quantized = coremill.convert(form), coremill.convert(form, quantization=options)
    bytes_of = [model.inspect()["weights"]["bytes"] for model in (plain, quantized)]
    assert bytes_of[1] < 0.6 * bytes_of[0]
    x = np.random.default_rng(1).random((3, 64), np.float32)
    (one,), (two,) = plain.predict(input=x).values(), quantized.predict(input=x).values()
    assert within(one, two, relative=5e-2, absolute=2e-2)
    coremill.lower(form, quantization=json.dumps(options)).save(tmp_path / "small.pte")
    coremill.lower(form).save(tmp_path / "plain.pte")
    assert (tmp_path / "small.pte").stat().st_size < 0.7 * (tmp_path / "plain.pte").stat().st_size
    for wrong in ({"dtype": "int5"}, 3, {"dtype": object()}, {"nbits": 4}):
        with pytest.raises(coremill.OptionError, match="quantization"):
            coremill.convert(form, quantization=wrong)


def test_compare_per_op_reports_drift() -> None:
    form = digits()
    exact, model = coremill.convert(form, precision="fp32"), coremill.convert(form)
    x = np.random.default_rng(1).random((1, 1, 8, 8), np.float32)
    comparison = coremill.compare(exact, model, {"x": x}, per_op=True, precision=("fast", "faithful"))
    assert comparison.ok and comparison.per_op.drift is None
    names = [value["name"] for value in comparison.per_op["values"]]
    assert len(names) >= 3 and all(value["snr_db"] > 40 for value in comparison.per_op["values"])
    assert "no value is below" in str(comparison) and names[0] in comparison._repr_html_()
    drifting = coremill.compare(exact, model, {"x": x}, per_op=True, precision=("fast", "faithful"), threshold=200)
    assert drifting.per_op.drift is not None and "← drift begins" in str(drifting.per_op)
    divided = coremill.compare(exact, coremill.lower(form), {"x": x}, per_op=True)
    assert divided.per_op["values_in_both"] >= 3
    outputs = exact.predict(x=x)
    for sides, message in (((exact, outputs), "value by value"), ((exact, 3), "cannot be compared")):
        with pytest.raises(coremill.OptionError, match=message):
            coremill.compare(*sides, {"x": x}, per_op=True)
    with pytest.raises(coremill.OptionError, match="two"):
        coremill.compare(exact, model, precision=("fast",) * 3)


def test_compares_programs_with_converted_models(tmp_path: Path) -> None:
    form = digits()
    model, archive = coremill.convert(form), tmp_path / "digits.pt2"
    torch.export.save(form, archive)
    for program in (form, archive, str(archive)):
        assert coremill.compare(program, model).ok
        assert coremill.compare(model, program, per_op=True).per_op["values_in_both"] >= 3
    x = torch.rand(1, 1, 8, 8)
    assert coremill.compare(lambda x: form.module()(x), model, {"x": x}).ok
    assert not coremill.compare(lambda x: -form.module()(x), model, {"x": x}).ok


def test_predict_accepts_pil_images(tmp_path: Path) -> None:
    import coremltools as ct
    from PIL import Image

    class Pixels(nn.Module):
        def forward(self, picture: torch.Tensor) -> torch.Tensor:
            return picture * torch.tensor([1.0, 2.0, 4.0]).reshape(1, 3, 1, 1)

    traced = torch.jit.trace(Pixels(), torch.rand(1, 3, 4, 6))
    picture = ct.ImageType(name="picture", shape=(1, 3, 4, 6), color_layout=ct.colorlayout.RGB)
    package = ct.convert(traced, inputs=[picture], compute_precision=ct.precision.FLOAT32, convert_to="mlprogram")
    package.save(str(tmp_path / "Pixels.mlpackage"))
    model = coremill.load(tmp_path / "Pixels.mlpackage")
    pixels = np.random.default_rng(2).integers(0, 256, (4, 6, 3), np.uint8)
    expected = pixels.transpose(2, 0, 1)[None].astype(np.float32) * np.array([1, 2, 4], np.float32).reshape(1, 3, 1, 1)
    for mode in ("RGB", "RGBA"):
        (found,) = model.predict(picture=Image.fromarray(pixels).convert(mode)).values()
        np.testing.assert_array_equal(found, expected)
    gray = Image.fromarray(pixels[..., 0])
    (found,) = model.predict({"picture": gray}).values()
    np.testing.assert_array_equal(found[0, 1], pixels[..., 0] * np.float32(2))
    with pytest.raises(coremill.Error, match="4 × 5 pixels"):
        model.predict(picture=Image.fromarray(pixels[:, :5]))
    with pytest.raises(coremill.Error, match="unknown input `photo`"):
        model.predict(photo=gray)
    with pytest.raises(coremill.Error, match="is not an image"):
        coremill.convert(digits()).predict(x=gray)


def test_errors_report_operator_source_and_hint(tmp_path: Path) -> None:
    with pytest.raises(coremill.ConversionError) as caught:
        coremill.convert(program(Refused(), torch.rand(3, 3)))
    error = caught.value
    assert error.operator and "svd" in error.operator
    assert error.reason and error.node
    assert error.source is not None and error.source[0] == __file__ and "svdvals" in (error.source[2] or "")
    assert len(error.refused) >= 2 and "2 calls cannot be lowered" in str(error) and __file__ in str(error)
    # The command prints the same message: the operator and the reason once, then the source lines of the model.
    archive = tmp_path / "model.pt2"
    torch.export.save(program(Refused(), torch.rand(3, 3)), archive)
    command = [os.environ["COREMILL"], "convert", str(archive), "-o", str(tmp_path / "Model.mlpackage")]
    stderr = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    # The command wraps lines.
    assert " ".join(stderr.split()).replace(f"{archive}: ", "") == " ".join(str(error).split()), stderr
    with pytest.raises(coremill.OptionError, match="(?s)`ios12`.*hint: releases are") as caught:
        coremill.convert(digits(), target="ios12")
    assert isinstance(caught.value, ValueError) and caught.value.hint


def test_run_error_includes_engine_hint(tmp_path: Path) -> None:
    """The engine's hint is part of the error, in Python and in the command."""
    path = tmp_path / "gather.mil"
    path.write_text(
        "program(1.3)\n{\n    func main<ios17>(tensor<fp32, [3, 2]> x, tensor<int32, [1]> p) {\n"
        "tensor<fp32, [1, 2]> y = gather(x = x, indices = p, axis = int32(0));\n} -> (y);\n}\n"
    )
    given = {"x": np.zeros((3, 2), np.float32), "p": np.array([-1], np.int32)}
    expected = "from iOS17 on, negative indices do not count from the end; add the size of the axis"
    with pytest.raises(coremill.RunError, match="index -1 is outside axis 0") as caught:
        coremill.load(path).predict(given)
    assert caught.value.hint == expected
    np.savez(tmp_path / "inputs.npz", **given)
    command = [os.environ["COREMILL"], "run", str(path), "--inputs", str(tmp_path / "inputs.npz")]
    stderr = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert f"hint: {expected}" in " ".join(stderr.split()), stderr


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: coremill.convert(Digits()), "export the module first"),
        (lambda form: coremill.convert({}), "expected at least one program"),
        (lambda form: coremill.convert({"two words": form}), "`two words` is not a valid function name"),
        (lambda form: coremill.convert({"a": form, "b": form}, precision="auto"), "cannot be chosen at once"),
        (lambda form: coremill.convert(form, samples=["x.npz"]), "are only used to choose the precision"),
        (lambda form: coremill.convert(form, precision="auto", samples=["no/file.npz"]), "no/file.npz"),
        (lambda form: coremill.convert(form, precision="auto", samples=[3]), "`samples`"),
        (lambda form: coremill.convert(form, fp32_values=["linaer"]), "unknown value `linaer`; did you mean `linear`?"),
        (lambda form: coremill.lower(form, fp32_values=["linaer"]), "unknown value `linaer`"),
        (lambda form: coremill.convert(form).predict(x=np.ones((1, 1, 8, 8)), outputs=["rleu"]), "unknown value `rleu`"),
        (lambda form: coremill.convert(form).predict(x=np.ones((1, 1, 8, 8)), outputs=[3]), "a list of names"),
        (lambda form: coremill.convert(form).metadata.update(key=3), "a dict of str to str"),
        (lambda form: coremill.convert(program(Counter(), torch.ones(2, 3))).states.pop("total"), "cannot be removed"),
        (lambda form: coremill.convert(program(Counter(), torch.ones(2, 3))).states.update(sum=1), "unknown state `sum`"),
        (lambda form: coremill.load(3), "expected a path"),
        (lambda form: coremill.convert(form).session(threads=-1), "found -1; expected a non-negative integer"),
        (lambda form: coremill.convert(form).session(precision=16), "found 16; expected a str"),
        (lambda form: coremill.convert(form).set_state(3, 1), "found 3; expected a str"),
        (lambda form: setattr(coremill.convert(form), "author", 3), "found 3; expected a str"),
        (lambda form: coremill.lower(form).method(faithful=1), "found 1; expected True or False"),
        (lambda _: coremill.convert(program(Counter(), torch.ones(2, 3)), target="ios16"), 'target="ios18"'),
        (lambda _: coremill.convert(None), "NoneType"),
        (lambda _: coremill.convert("there/is/nothing.pt2"), "nothing"),
        (lambda form: coremill.convert(form, presicion="fp32"), "unknown option `presicion`"),
        (lambda form: coremill.convert(form, precision=16), "`precision` is 16"),
        (lambda form: coremill.convert(form, precision="int8"), "`int8`"),
        (lambda form: coremill.convert(form, shapes={"x": [10**30]}), "shapes"),
        (lambda form: coremill.convert(form, shapes={"y": [1, 1, 8, 8]}), "y"),
        (lambda form: coremill.convert(form, input_names=["a", "b"]), "2 names"),
        (lambda form: coremill.convert(form, verify="yes"), "verify"),
        (lambda form: coremill.convert(form, target=object()), "target"),
        (lambda form: coremill.lower({}), "expected at least one program"),
        (lambda form: coremill.lower(form, constant_methods={"n": 2**70}), "64-bit integer"),
        (lambda form: coremill.lower(form, compile_specs=[("no_key", b"1")]), "no_key"),
        (lambda form: coremill.lower(form, compile_specs=[3]), "key and value"),
        (lambda form: coremill.convert(form).save("no/directory/Model.mlpackage"), "no"),
        (lambda form: coremill.convert(form).save("model.zip"), "extension"),
        (lambda form: coremill.convert(form).predict({"x": np.ones((1, 1, 8))}), "x"),
        (lambda form: coremill.convert(form).predict({"y": np.ones((1, 1, 8, 8))}), "`y`"),
        (lambda form: coremill.convert(form).predict({3: 1}), "by name"),
        (lambda form: coremill.convert(form).predict({"x": object()}), "expected an array"),
        (lambda form: coremill.convert(form).predict({"x": np.ones((1, 1, 8, 8), np.complex64)}), "complex64"),
        (lambda form: coremill.convert(form).predict({}), "not given"),
        (lambda form: coremill.convert(form).session(precision="slow"), "slow"),
        (lambda form: coremill.lower(form).method("backward"), "backward"),
        (lambda form: coremill.lower(form).method()(1, 2, 3), "3 inputs"),
        (lambda _: coremill.load(__file__), ""),
    ],
)
def test_invalid_arguments_raise_descriptive_errors(call: object, message: str) -> None:
    with pytest.raises(coremill.Error, match=re.escape(message)) as caught:
        call(digits())
    assert not isinstance(caught.value, coremill.InternalError)


def test_corrupted_graphs_raise_without_panic() -> None:
    """Arbitrary changes of a graph cause exceptions, but no panic."""
    values = [None, 10**40, -1, "text", object(), float("nan"), [1, "a"], {"a": 1}, torch.float32, b"bytes", (1, (2,))]
    for at, value in enumerate(values * 3):
        form = digits()
        nodes = [node for node in form.graph.nodes if node.op == "call_function"]
        node = nodes[at % len(nodes)]
        if at % 3 == 0:
            node.args = (value, *node.args[1:])
        elif at % 3 == 1:
            node.meta["val"] = value
        else:
            node.kwargs = {"unknown": value}
        try:
            coremill.convert(form)
        except coremill.InternalError:
            raise
        except Exception as error:
            assert not type(error).__name__.startswith("Panic")


def test_arbitrary_arguments_raise_without_panic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls every function and method with unexpected arguments; no Rust panic may reach Python."""

    class Lying:
        """Pretends to be an array, a path and a program."""

        __array_interface__ = {"shape": (2**40,), "typestr": "<f4", "data": (0, True), "version": 3}
        forward = __iter__ = None
        dtype = "float32"

        def __fspath__(self) -> int:
            return 3

        def __len__(self) -> int:
            return -1

        def __getattr__(self, name: str) -> object:
            raise RecursionError(name)

    monkeypatch.chdir(tmp_path)
    closed = (tmp_path / "closed").open("wb")
    closed.close()
    huge, nested = 10**400, []
    for _ in range(5000):
        nested = [nested]
    values = [None, True, -1, huge, -(2**63), 2**64, float("nan"), 1e308, "", "\x00", "\ud800", b"\xff", object(), Lying(), closed, nested,
              [], [None], [1, "a"], (), {}, {"x": None}, {1: 2}, {"x": [huge]}, {"x": {}}, set(), range(3), lambda: 1, int, np.float32("nan"),
              np.zeros((0, 3)), np.array([object()]), np.array(["a"]), np.zeros(3, "M8[s]"), np.zeros(2, [("a", int)]), torch.zeros(0),
              torch.zeros(2, 2).to_sparse(), torch.zeros(3, device="meta"), torch.zeros(2, dtype=torch.complex64), tmp_path]  # fmt: skip
    form = digits()
    model, lowered = coremill.convert(form), coremill.lower(form)
    session, method = model.session(), lowered.method()
    options = [*"target precision fp32_ops fp32_modules decompose_sdpa skip_passes shapes quantization".split()]
    converted = [*options, *"states input_names output_names author metadata verify".split()]
    divided = [*options, *"skip_ops full_graph weight_sharing constant_methods compiled compile_specs".split()]
    quantized = [*"observer output rules mean group_size bits block keep keep_ops min_elements keep_worst effort target".split()]
    calls = [
        *((coremill.convert, (form,), name) for name in converted),
        *((coremill.lower, (form,), name) for name in divided),
        *((coremill.quantize, (form, "int8-per-channel"), name) for name in quantized),
        *((coremill.compress, (model,), name) for name in ("rules", "target", "target_size", "target_snr", "linear", "palettize", "prune", "name")),
        *((model.session, (), name) for name in ("function", "precision", "threads")),
        *((lowered.method, (), name) for name in ("name", "threads", "faithful", "data")),
        *((function, (), None) for function in (coremill.convert, coremill.lower, coremill.load, coremill.check, coremill.inspect)),
        *((function, (), None) for function in (model.predict, session.predict, method)),
        *((function, (), None) for function in (model.save, lowered.save, lowered.extract)),
        *((function, (np.ones((1, 1, 8, 8), np.float32),), "outputs") for function in (model.predict, session.predict)),
        *((setattr, (model, name), None) for name in ("author", "metadata")),
        *((save, (tmp_path / name,), "sync") for save, name in ((model.save, "M.mlpackage"), (lowered.save, "m.pte"), (lowered.extract, "m"))),
    ]
    tried = 0
    for call, fixed, name in calls:
        # Valid thread counts are skipped: they are slow, and cause no error.
        for value in values if name != "threads" else values[2:]:
            try:
                call(*fixed, value) if name is None else call(*fixed, **{name: value})
            except coremill.InternalError as error:
                raise AssertionError(f"{call} {name}={value!r:.80}") from error
            except Exception as error:
                assert "Panic" not in type(error).__name__, (call, name, value)
            tried += 1
    assert tried > 2000
    (found,) = model.predict(x=np.ones((1, 1, 8, 8), np.float32)).values()
    assert np.isfinite(found).all()


def test_survives_concurrent_writes_to_inputs_and_weights() -> None:
    """Another thread changes the input, the weights and the metadata of the graph."""
    form, unmodified = digits(), digits()
    model = coremill.convert(unmodified)
    x = np.random.default_rng(3).random((1, 1, 8, 8), np.float32)
    done = threading.Event()

    def write() -> None:
        weights = form.state_dict["linear.weight"]
        while not done.is_set():
            x[...] = np.random.random(x.shape)
            with torch.no_grad():
                weights.mul_(1.0001)
            form.graph_module.meta["noise"] = object()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(30):
            (found,) = model.predict(x=x).values()
            assert np.isfinite(found).all()
            coremill.convert(form)
    finally:
        done.set()
        writer.join()


def test_save_rejects_weights_modified_after_convert(tmp_path: Path) -> None:
    module = Digits().eval()
    form = torch.export.export(module, (torch.rand(1, 1, 8, 8),))
    model = coremill.convert(form)
    with torch.no_grad():
        form.state_dict["linear.weight"].add_(1)
    with pytest.raises(coremill.Error, match="`linear.weight` was written to"):
        model.save(tmp_path / "Model.mlpackage")
    assert not (tmp_path / "Model.mlpackage").exists()
    coremill.convert(form).save(tmp_path / "Model.mlpackage")


def test_threads_share_a_model() -> None:
    form = digits()
    model = coremill.convert(form, precision="fp32")
    xs = [np.full((1, 1, 8, 8), index / 8, np.float32) for index in range(8)]
    expected = [next(iter(model.predict(x=x).values())) for x in xs]
    wrong = []

    def work(index: int) -> None:
        for _ in range(10):
            (found,) = model.predict(x=xs[index]).values()
            if not np.array_equal(found, expected[index]):
                wrong.append(index)
            coremill.convert(form)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_memory_stays_flat_over_conversions() -> None:
    form = digits()

    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    if not Path("/proc/self/statm").exists():
        pytest.skip("/proc/self/statm does not exist on this system")
    x, native = np.zeros((1, 1, 8, 8), np.float32), coremill._native
    options = {"take_over_mutable_buffer": True, "take_over_constant_data": True, "lower_full_graph": False}

    def work() -> None:
        coremill.convert(form).predict(x=x)
        coremill.lower(form).method()(x)
        native.edge_partition(form, [], [], **options)
        native.edge_preprocess(form, [])
        with pytest.raises(coremill.RunError):
            coremill.convert(form).predict(x=3)

    for _ in range(20):
        work()
    before = resident()
    for _ in range(200):
        work()
    assert resident() - before < 16 << 20


SLOW = """
import os, signal, sys, threading, time
# A process that a shell starts in the background inherits an ignored SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
import torch, coremill
class Loop(torch.nn.Module):
    def forward(self, x):
        for _ in range(150):
            x = torch.sin(x @ x)
        return x
form = torch.export.export(Loop(), (torch.rand(64, 64),))
model = coremill.convert(form, precision="fp32")
session = model.session()
def interrupt():
    global at
    time.sleep(0.3)
    at = time.perf_counter()
    os.kill(os.getpid(), signal.SIGINT)
def work(call):
    while True:
        call()
for call in (lambda: session.predict(x=torch.rand(64, 64)), lambda: coremill.convert(form), lambda: model.save(sys.argv[1])):
    times = []
    for _ in range(3):
        threading.Thread(target=interrupt).start()
        try:
            work(call)
        except KeyboardInterrupt:
            times.append(time.perf_counter() - at)
    print(min(times))
"""


@pytest.mark.alone
def test_ctrl_c_interrupts_predict_convert_and_save(tmp_path: Path) -> None:
    script = [sys.executable, "-c", SLOW, str(tmp_path / "Model.mlpackage")]
    result = subprocess.run(script, capture_output=True, text=True, timeout=300, check=True)
    times = [float(line) for line in result.stdout.split()]
    # A tenth of a second, plus the delay of a busy machine for the fastest of three interrupts.
    assert len(times) == 3 and max(times) < 0.3, times
    assert all(path.name == "Model.mlpackage" for path in tmp_path.iterdir())


@pytest.mark.alone
def test_ane_numerics_are_less_than_twenty_times_slower() -> None:
    from torchvision.models import mobilenet_v2

    image = torch.rand(1, 3, 224, 224)
    model = coremill.convert(program(mobilenet_v2(weights=None), image))

    def best(numerics: str, runs: int) -> float:
        """CPU time of the fastest run, which other processes hardly affect."""
        session = model.session(numerics=numerics, threads=1)
        session.predict(x=image)
        times = []
        for _ in range(runs):
            start = time.process_time()
            session.predict(x=image)
            times.append(time.process_time() - start)
        return min(times)

    fast, ane = best("fast", 9), best("ane", 6)
    assert ane < 20 * fast, f"ane: {ane:.3f} s, fast: {fast:.3f} s"


@pytest.mark.alone
def test_import_is_fast_and_loads_no_dependencies() -> None:
    script = "import sys, time\nstart = time.perf_counter()\nimport coremill\nprint(time.perf_counter() - start)\n"
    script += "print([name for name in ('torch', 'executorch', 'coremltools', 'numpy', 'json') if name in sys.modules])"
    runs = [subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True) for _ in range(5)]
    outputs = [run.stdout.split("\n") for run in runs]
    assert {output[1] for output in outputs} == {"[]"}
    assert min(float(output[0]) for output in outputs) < 0.05


def test_shows_progress_in_terminals_and_notebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    from coremill import _progress

    class Screen:
        closed = False
        written = ""

        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> None:
            self.written += text

        def flush(self) -> None:
            pass

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    shown = _progress.start()
    shown.update("converting", 1.2)
    shown.finish()
    assert "converting (1 s)" in screen.written and screen.written.endswith("\r\x1b[K")
    displayed = []

    class Display:
        @staticmethod
        def display(content: dict, **_: object) -> "Display":
            displayed.append(content["text/plain"])
            return Display()

        def update(self, content: dict, **_: object) -> None:
            displayed.append(content["text/plain"])

    notebook = _progress.Notebook(Display)
    notebook.update("running", 1.0)
    notebook.update("running", 1.1)
    notebook.update("running", 2.0)
    notebook.finish()
    assert displayed == ["running (1 s)", "running (2 s)", ""]


def test_import_keeps_sigint_handler() -> None:
    """Importing the package does not change signal handlers."""
    script = "import signal; before = signal.getsignal(signal.SIGINT); import coremill; print(signal.getsignal(signal.SIGINT) == before)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "True\n"


def test_type_stubs_match_native_module(tmp_path: Path) -> None:
    stubtest = [sys.executable, "-m", "mypy.stubtest", "coremill._native"]
    package = str(Path(coremill.__file__).parent.parent.absolute())
    environment = os.environ | {"MYPYPATH": package, "PYTHONPATH": package}
    result = subprocess.run(stubtest, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("document", ["README.md", "python/README.md"])
def test_readme_snippets_run(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Network(torch.nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return image.mean((2, 3))

    (snippet,) = re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    image = torch.rand(1, 3, 8, 8)
    exec(compile(snippet, document, "exec"), {"module": Network(), "image": image, "example_inputs": (image,)})
    assert (tmp_path / "Model.mlpackage" / "Manifest.json").is_file()


@pytest.mark.parametrize("document", ["python.md", "coremltools.md"])
def test_documentation_snippets_run(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snippets = re.findall(r"^```python\n(.*?)^```", (DOCUMENTS / document).read_text(), re.DOTALL | re.MULTILINE)
    assert len(snippets) >= 4
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for snippet in snippets:
        exec(compile(snippet, document, "exec"), names)
    saved = {"python.md": "Quantized.mlpackage", "coremltools.md": "Network.mlpackage"}[document]
    assert (tmp_path / saved / "Manifest.json").is_file()


def test_example_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs every cell, and checks the displayed results."""
    cells = json.loads((ROOT / "examples" / "convert.ipynb").read_text())["cells"]
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    shown = 0
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == [], "the notebook must be committed without cell outputs, which would become outdated"
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, cell["id"], "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), cell["id"], "eval"), names)
            if hasattr(value, "_repr_html_"):
                assert value._repr_html_().startswith("<")
                shown += 1
    assert shown >= 4
    assert (tmp_path / "Classifier.mlpackage").is_dir() and (tmp_path / "classifier.pte").is_file()
