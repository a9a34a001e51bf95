"""Weight quantization by `coremill lower`: operations and numbers equal coremltools'."""

import json
from pathlib import Path
from typing import Any

import coremltools as ct
import numpy
import pytest
import torch
from coremltools.converters.mil.frontend.milproto.load import load as load_program
from executorch.backends.apple.coreml.compiler import CoreMLBackend
from executorch.exir._serialize._program import deserialize_pte_binary

from oracle.conftest import Command

KEY = "op_linear_quantizer_config"


class Dense(torch.nn.Module):
    """Convolutions and transposed convolutions, and layers with output channels along either axis."""

    def __init__(self) -> None:
        super().__init__()
        self.down = torch.nn.Conv2d(4, 16, 3, padding=1)
        self.up = torch.nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = torch.nn.Linear(64, 40)
        # More elements than one chunk.
        self.mix = torch.nn.Parameter(torch.randn(40, 501))

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        features = self.up(torch.relu(self.down(picture)))
        return self.out(features.flatten(2)) @ self.mix


class Tied(torch.nn.Module):
    """An embedding table that is also a layer's weight, and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(48, 32)
        self.places = torch.nn.Embedding(40, 32)
        self.layer = torch.nn.Linear(32, 32)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        mixed = self.layer(self.table(words) + self.places(words))
        return torch.nn.functional.linear(mixed, self.table.weight)


MODELS: dict[str, tuple[type[torch.nn.Module], torch.Tensor]] = {
    "dense": (Dense, torch.randn(1, 4, 4, 4)),
    "tied": (Tied, torch.randint(0, 40, (1, 5))),
}

#: The model, the target, the precision, the quantizer's config, and the number of quantized weights.
CASES: list[tuple[str, ct.target, str, dict[str, Any], int]] = [
    ("dense", ct.target.iOS16, "float32", {"weight_threshold": 500}, 4),
    ("dense", ct.target.iOS17, "float16", {"mode": "linear", "dtype": "uint8", "weight_threshold": 500}, 4),
    ("dense", ct.target.iOS16, "float16", {"mode": "linear", "granularity": "per_tensor", "weight_threshold": 500}, 4),
    ("dense", ct.target.iOS18, "float16", {"weight_threshold": 500}, 4),
    ("dense", ct.target.iOS18, "float32", {"mode": "linear", "dtype": "int4", "weight_threshold": 500}, 4),
    (
        "dense",
        ct.target.iOS18,
        "float16",
        {"dtype": "uint4", "granularity": "per_block", "block_size": 8, "weight_threshold": 500},
        # 8 does not divide the 4 input channels of one convolution.
        3,
    ),
    (
        "tied",
        ct.target.iOS18,
        "float32",
        {"mode": "linear", "dtype": "uint4", "granularity": "per_block", "block_size": 16, "weight_threshold": 500},
        2,
    ),
    ("tied", ct.target.iOS16, "float16", {"dtype": "uint8", "weight_threshold": 500}, 2),
    ("dense", ct.target.iOS18, "float32", {}, 2),
]


def weights(model: ct.models.MLModel) -> list[tuple[str, tuple[int, ...], dict[str, numpy.ndarray]]]:
    """The quantized weights of a package: the operation, the shape, the operands, and the decompressed value."""
    program = load_program(
        model_spec=model.get_spec(),
        specification_version=model.get_spec().specificationVersion,
        file_weights_dir=model.weights_dir,
    )
    found = []
    for function in program.functions.values():
        for op in function.operations:
            if op.op_type.startswith("constexpr_"):
                bound = {name: numpy.asarray(value.val) for name, value in op.inputs.items() if value is not None}
                dense = numpy.asarray(op.materialized_val_inference())
                bound["dense"] = dense
                found.append((op.op_type, dense.shape, bound))
    return sorted(found, key=lambda entry: (entry[1], numpy.abs(entry[2]["dense"]).sum()))


@pytest.mark.parametrize(("name", "target", "precision", "config", "count"), CASES)
def test_lower_quantizes_weights_like_coremltools(
    name: str,
    target: ct.target,
    precision: str,
    config: dict[str, Any],
    count: int,
    coremill: Command,
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    kind, example = MODELS[name]
    program = torch.export.export(kind().eval(), (example,)).run_decompositions({})
    archive, path = tmp_path / "model.pt2", tmp_path / "model.pte"
    torch.export.save(program, archive)

    spec = CoreMLBackend.generate_op_linear_quantizer_config_compile_spec(config)
    specs = CoreMLBackend.generate_compile_specs(
        compute_precision=ct.precision(precision), minimum_deployment_target=target, op_linear_quantizer_config=config
    )
    assert spec in specs
    wanted = weights(CoreMLBackend._convert_to_mlmodel(program, specs))
    assert len(wanted) == count

    options = [part for one in specs for part in ("--compile-spec", f"{one.key}={one.value.decode()}")]
    coremill("lower", archive, "-o", path, "--full-graph", *options)
    delegate = deserialize_pte_binary(path.read_bytes()).program.execution_plan[0].delegates[0]
    assert json.loads({one.key: one.value for one in delegate.compile_specs}[KEY]) == config
    coremill("extract", path, "-o", tmp_path / "models")
    (package,) = (tmp_path / "models").glob("*.mlpackage")
    found = weights(ct.models.MLModel(str(package), skip_model_load=True))

    assert [entry[:2] for entry in found] == [entry[:2] for entry in wanted]
    for (_, _, ours), (_, _, theirs) in zip(found, wanted, strict=True):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            numpy.testing.assert_array_equal(ours[key], theirs[key], err_msg=key)
    if name == "dense":
        coremill("compare", archive, path, "--positional", "--fail-below", 15)


def test_rejects_invalid_quantizer_configs(coremill_fails: Command, tmp_path: Path) -> None:
    """Configurations that the target does not support, and invalid ones."""
    kind, example = MODELS["dense"]
    torch.export.save(torch.export.export(kind().eval(), (example,)), tmp_path / "m.pt2")

    def error(config: str, *options: str) -> str:
        spec = ["--compile-spec", f"{KEY}={config}"]
        return coremill_fails("lower", tmp_path / "m.pt2", "-o", tmp_path / "m.pte", *spec, *options)

    assert "needs iOS18; this program targets iOS17" in error('{"dtype": "int4"}', "--target", "ios17")
    assert "unknown key `bits`; the keys are `mode`, `dtype`" in error('{"bits": 4}')
    blocks = '{"granularity": "per_block", "block_size": [1, 0], "weight_threshold": 100}'
    assert "`block_size` has 2 elements" in error(blocks)
    assert not (tmp_path / "m.pte").exists()


def test_chooses_oldest_target_for_integer_dtype(coremill: Command, tmp_path: Path) -> None:
    """Without a target, the oldest release that supports the integer type is chosen."""
    kind, example = MODELS["dense"]
    torch.export.save(torch.export.export(kind().eval(), (example,)), tmp_path / "m.pt2")
    for dtype, version in (("uint8", 7), ("uint4", 9)):
        coremill(
            "lower", tmp_path / "m.pt2", "-o", tmp_path / "m.pte", "--compile-spec", f'{KEY}={{"dtype": "{dtype}"}}'
        )
        coremill("extract", tmp_path / "m.pte", "-o", tmp_path / dtype)
        (package,) = (tmp_path / dtype).glob("*.mlpackage")
        model = ct.models.MLModel(str(package), skip_model_load=True)
        assert model.get_spec().specificationVersion == version
        assert len(weights(model)) == 2
