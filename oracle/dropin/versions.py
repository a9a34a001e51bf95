"""Checks that must pass with every torch and ExecuTorch version that the Python package supports. It needs no other
test dependencies.

    python -m oracle.dropin.versions [--record]

`--record` adds the result to docs/versions.json and to the table in docs/python.md.

Programs are converted in memory and run. ExecuTorch's flow runs with our partitioner, backend, quantizer and recipes.
Its results run in our runtime, because ExecuTorch's runtime accepts other delegates only from 1.5 on. Exits with 1 if
a check fails.
"""

import argparse
import importlib.metadata
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import coremill
import coremill.coremltools as ct
import coremill.executorch
from oracle.dumps import versions

CHECKS: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    """Registers a check."""
    CHECKS.append(function)
    return function


class Network(nn.Module):
    """A small network with various layers."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, stride=2)
        self.normalisation = nn.BatchNorm2d(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 4)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.normalisation(self.convolution(picture))).flatten(2).transpose(1, 2)
        mixed, _ = self.attention(features, features, features, need_weights=False)
        return torch.softmax(self.out(mixed.mean(1)), -1)


class Counter(nn.Module):
    """A module that accumulates its inputs in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 2


def agree(found: Any, wanted: torch.Tensor, tolerance: float = 0.02) -> None:
    """Asserts that two results are close."""
    torch.testing.assert_close(torch.as_tensor(found), wanted.detach(), rtol=tolerance, atol=tolerance)


def run(program: Any, *inputs: torch.Tensor, method: str = "forward") -> Any:
    """Runs an ExecuTorch program in our runtime."""
    with tempfile.NamedTemporaryFile(suffix=".pte") as file:
        file.write(program.buffer)
        file.flush()
        return coremill.load(file.name).method(method)(*inputs)


def lowered(programs: Any, **options: Any) -> Any:
    """Lowers programs with ExecuTorch's flow."""
    from executorch.exir import to_edge_transform_and_lower

    partitioner = coremill.executorch.CoreMLPartitioner(**options)
    edge = to_edge_transform_and_lower(programs, partitioner=[partitioner])
    for method in edge.methods:
        nodes = edge.exported_program(method).graph.nodes
        assert any("call_delegate" in str(node.target) for node in nodes), "nothing is delegated"
    return edge.to_executorch()


@check
def programs_are_handed_over() -> None:
    model, picture = Network().eval(), torch.randn(1, 3, 16, 16)
    program = torch.export.export(model, (picture,))
    for form in (program, program.run_decompositions({})):
        converted = coremill.convert(form, verify=True)
        agree(converted.predict({converted.inspect()["functions"][0]["inputs"][0]["name"]: picture}).popitem()[1], model(picture))
        agree(coremill.lower(form).method()(picture), model(picture))
    with tempfile.TemporaryDirectory() as folder:
        torch.export.save(program, f"{folder}/model.pt2")
        agree(coremill.convert(f"{folder}/model.pt2").predict(picture=picture).popitem()[1], model(picture))


@check
def states_and_sizes() -> None:
    x = torch.randn(2, 3)
    counter = coremill.convert(torch.export.export(Counter(), (x,)))
    counter.predict(x=x)
    agree(counter.predict(x=x).popitem()[1], x * 4)
    program = torch.export.export(nn.Linear(3, 5).eval(), (x,), dynamic_shapes=({0: torch.export.Dim("n", min=2, max=9)},))
    linear = coremill.convert(program)
    for rows in (2, 7):
        x = torch.randn(rows, 3)
        agree(linear.predict(input=x).popitem()[1], program.module()(x))


@check
def coremltools_scripts() -> None:
    layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 4), nn.Softmax(-1)
    model, picture = nn.Sequential(*layers).eval(), torch.randn(1, 3, 16, 16)
    traced = torch.jit.trace(model, picture)
    for form in (traced, torch.export.export(model, (picture,))):
        inputs = [ct.TensorType(name="picture", shape=picture.shape)]
        converted = ct.convert(form, inputs=inputs, outputs=[ct.TensorType(name="scores")])
        agree(converted.predict({"picture": picture.numpy()})["scores"], model(picture))
    image = ct.ImageType(name="picture", shape=picture.shape, scale=1 / 255)
    classifier = ct.convert(traced, inputs=[image], classifier_config=ct.ClassifierConfig(["a", "b", "c", "d"]))
    assert [output.name for output in classifier.get_spec().description.output][0] == "classLabel"


@check
def the_flow() -> None:
    model, picture = Network().eval(), torch.randn(1, 3, 16, 16)
    agree(run(lowered(torch.export.export(model, (picture,))), picture), model(picture))
    divided = lowered(torch.export.export(model, (picture,)), skip_ops_for_coreml_delegation=["aten.convolution.default"])
    agree(run(divided, picture), model(picture))


@check
def several_methods() -> None:
    linear = nn.Linear(8, 8).eval()
    inputs = {"forward": torch.randn(1, 1, 8), "prefill": torch.randn(1, 6, 8)}
    programs = {name: torch.export.export(linear, (x,)) for name, x in inputs.items()}
    program = lowered(programs)
    for name, x in inputs.items():
        agree(run(program, x, method=name), linear(x))


@check
def quantizers() -> None:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    from coremill.executorch import CoreMLBackend, CoreMLQuantizer, LinearQuantizerConfig, ModuleLinearQuantizerConfig, target

    config = ModuleLinearQuantizerConfig(
        quantization_scheme="symmetric", activation_dtype=torch.quint8, weight_dtype=torch.qint8, weight_per_channel=True
    )
    model, picture = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5)).eval(), torch.randn(1, 3, 4, 4)
    prepared = prepare_pt2e(torch.export.export(model, (picture,)).module(), CoreMLQuantizer(LinearQuantizerConfig(global_config=config)))
    prepared(picture)
    converted = convert_pt2e(prepared)
    specs = CoreMLBackend.generate_compile_specs(minimum_deployment_target=target.iOS17)
    agree(run(lowered(torch.export.export(converted, (picture,)), compile_specs=specs), picture), model(picture), 0.1)


@check
def recipes() -> None:
    from coremill.executorch.recipes import CoreMLRecipeProvider, CoreMLRecipeType

    for kind in (CoreMLRecipeType.FP16, CoreMLRecipeType.PT2E_INT8_STATIC):
        recipe = CoreMLRecipeProvider().create_recipe(kind)
        assert recipe.lowering_recipe.partitioners[0].delegation_spec.compile_specs


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m oracle.dropin.versions", description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="add the result to docs/versions.json and docs/python.md")
    is_recorded = parser.parse_args().record
    warnings.simplefilter("ignore")
    print("Python", sys.version.split()[0], *(f"{name} {importlib.metadata.version(name)}" for name in versions.PACKAGES))
    failed = []
    for one in CHECKS:
        torch.manual_seed(0)
        try:
            one()
            print("ok  ", one.__name__, flush=True)
        except Exception:
            failed.append(one.__name__)
            print("FAIL", one.__name__, traceback.format_exc(), flush=True)
    if is_recorded:
        versions.record(len(CHECKS) - len(failed), failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
