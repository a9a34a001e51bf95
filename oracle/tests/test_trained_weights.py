"""Conversion of weights with compression metadata of `coremltools.optimize.torch`, and further compression of packages.

The operations, their scales, zero points and tables are compared with those of coremltools' own converter.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import coremltools as ct
import coremltools.optimize.coreml as cto
import numpy
import pytest
import torch
from coremltools.converters.mil.frontend.milproto.load import load as load_program
from coremltools.converters.mil.mil import types

import coremill
import coremill.coremltools as dropin
from oracle.tests.test_compress import expand

ENTRIES = torch.tensor([0.5, -1.0, 0.25, 0.0, 2.0, -0.75, 1.5, -2.0, 3.0, -0.125, 0.625, -1.75, 1.0, -3.0, 0.375, 2.5])


class Layer(torch.nn.Module):
    """A convolution with compression metadata (buffers named `_COREML_/…`), and a linear layer without."""

    def __init__(self, weight: torch.Tensor, metadata: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(8, 16, 2)
        self.norm = torch.nn.BatchNorm2d(16)
        self.head = torch.nn.Linear(3, 4)
        with torch.no_grad():
            self.conv.weight.copy_(weight)
            self.norm.weight.uniform_(0.5, 2.0)
            self.norm.running_var.uniform_(0.5, 2.0)
        self.register_buffer("_COREML_/metadata_version", torch.tensor(1))
        for name, value in metadata.items():
            self.conv.register_buffer(f"_COREML_/weight/{name}", value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.conv(x)))


class Normed(Layer):
    """A batch norm follows. Converters fold its scale into uncompressed weights."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))))


SHAPE = (16, 8, 2, 2)


def integers(bits: int, signed: bool, counts: tuple[int, ...], zero: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    scale = torch.rand(counts) + 0.5
    zero_point = torch.randint(low, high, counts) if zero else torch.zeros(counts, dtype=torch.int64)
    codes = torch.randint(low, high, SHAPE)
    codes[0, 0, 0, 0] = low
    blocks = [all_of // count for all_of, count in zip(SHAPE, counts, strict=True)]

    def repeated(parameter: torch.Tensor) -> torch.Tensor:
        for axis, size in enumerate(blocks):
            parameter = parameter.repeat_interleave(size, axis)
        return parameter

    metadata = {"compression_type": torch.tensor([3]), "quantization_n_bits": torch.tensor(bits), "quantization_scale": scale}
    if zero or not signed:
        metadata["zero_point"] = zero_point.to(torch.int8 if signed else torch.uint8)
    return repeated(scale) * (codes - repeated(zero_point)), metadata


def table(groups: int, bits: int, scaled: bool, sparse: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    entries = torch.stack([ENTRIES[: 2**bits] * (1 + group / 4) for group in range(groups)])
    indices = torch.randint(0, 2**bits, SHAPE)
    weight = torch.cat([entries[at][part] for at, part in enumerate(indices.split(16 // groups))])
    metadata = {"compression_type": torch.tensor([1, 2] if sparse else [2]), "lut": entries.reshape(groups, 1, 1, 1, 2**bits, 1)}
    if sparse:
        weight = weight * (torch.rand(SHAPE) < 0.5)
    if scaled:
        scale = torch.rand(16, 1, 1, 1) + 0.5
        metadata["palettization_scale"] = scale
        weight = weight * scale
    return weight, metadata


def vectors(axis: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    entries = torch.rand(16, 2)
    shape = [size // 2 if at == axis else size for at, size in enumerate(SHAPE)]
    indices = torch.randint(0, 16, shape)
    weight = torch.movedim(entries[indices], -1, axis + 1).reshape(SHAPE)
    metadata = {"compression_type": torch.tensor([2]), "lut": entries.reshape(1, 1, 1, 1, 16, 2)}
    return weight, {**metadata, "vector_axis": torch.tensor(axis)}


def integer_table() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    codes = torch.randperm(250)[:16] - 120
    entries = 0.02 * (codes - 5)
    weight = entries[torch.randint(0, 16, SHAPE)]
    one = torch.ones(1, 1, 1, 1, 1, 1)
    return weight, {
        "compression_type": torch.tensor([2, 3]), "lut": entries.reshape(1, 1, 1, 1, 16, 1),
        "quantization_n_bits": torch.tensor(8), "quantization_scale": 0.02 * one, "zero_point": (5 * one).to(torch.int8),
    }  # fmt: skip


def pruned_integers() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    weight, metadata = integers(8, True, (16, 1, 1, 1), zero=False)
    return weight * (torch.rand(SHAPE) < 0.4), {**metadata, "compression_type": torch.tensor([1, 3])}


Made = Callable[[], tuple[torch.Tensor, dict[str, torch.Tensor]]]
CASES: dict[str, tuple[Any, Made]] = {
    "int8 channels": (ct.target.iOS16, lambda: integers(8, True, (16, 1, 1, 1), zero=False)),
    "uint8 with zero points": (ct.target.iOS16, lambda: integers(8, False, (16, 1, 1, 1), zero=True)),
    "int8 with zero points": (ct.target.iOS18, lambda: integers(8, True, (16, 1, 1, 1), zero=True)),
    "int4 blocks": (ct.target.iOS18, lambda: integers(4, True, (16, 4, 1, 1), zero=True)),
    "uint4 tensor": (ct.target.iOS18, lambda: integers(4, False, (1, 1, 1, 1), zero=True)),
    "table before iOS 18": (ct.target.iOS16, lambda: table(1, 4, scaled=False, sparse=False)),
    "tables of groups": (ct.target.iOS18, lambda: table(4, 3, scaled=False, sparse=False)),
    "scaled table": (ct.target.iOS18, lambda: table(1, 4, scaled=True, sparse=False)),
    "scaled tables of groups": (ct.target.iOS18, lambda: table(4, 2, scaled=True, sparse=False)),
    "pruned tables": (ct.target.iOS18, lambda: table(2, 4, scaled=False, sparse=True)),
    "vectors of outputs": (ct.target.iOS18, lambda: vectors(0)),
    "vectors of inputs": (ct.target.iOS18, lambda: vectors(1)),
    "table of integers": (ct.target.iOS18, integer_table),
    "pruned integers": (ct.target.iOS18, pruned_integers),
}


def operations(path: Path) -> list[Any]:
    """The operations of compressed weights."""
    model = ct.models.MLModel(str(path), skip_model_load=True)
    spec = model.get_spec()
    program = load_program(spec, spec.specificationVersion, model.weights_dir)
    return [op for op in program.functions["main"].operations if op.op_type.startswith("constexpr_")]


def is_used(op: Any) -> bool:
    """Whether an operation results in a weight, not in a part of one."""
    users = [user for output in op.outputs for user in output.child_ops]
    return any(not user.op_type.startswith("constexpr_") for user in users)


def attributes(op: Any) -> dict[str, numpy.ndarray]:
    """The constants of an operation, without zero points that are all 0 and have no effect."""
    found = {name: value.val for name, value in op.inputs.items() if value is not None and value.val is not None}
    return {name: value for name, value in found.items() if name != "offset" or numpy.any(value)}


@pytest.mark.parametrize("precision", [ct.precision.FLOAT32, ct.precision.FLOAT16])
@pytest.mark.parametrize("name", CASES)
def test_compression_metadata_converts_like_coremltools(name: str, precision: Any, tmp_path: Path) -> None:
    torch.manual_seed(3)
    target, make = CASES[name]
    weight, metadata = make()
    module = Layer(weight, metadata).eval()
    x = torch.rand(1, 8, 4, 4)
    program = torch.export.export(module, (x,))
    options = {"minimum_deployment_target": target, "compute_precision": precision}
    ct.convert(program.run_decompositions({}), skip_model_load=True, **options).save(str(tmp_path / "theirs.mlpackage"))
    model = dropin.convert(program, **options)
    model.save(str(tmp_path / "ours.mlpackage"))
    ours, theirs = (operations(tmp_path / f"{one}.mlpackage") for one in ("ours", "theirs"))
    assert [op.op_type for op in ours] == [op.op_type for op in theirs]
    for one, other in zip(ours, theirs, strict=True):
        found, expected = attributes(one), attributes(other)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert types.builtin_to_string(one.inputs[key].dtype) == types.builtin_to_string(other.inputs[key].dtype), key
            numpy.testing.assert_array_equal(found[key], value, err_msg=key)
    bound = 1e-5 if precision == ct.precision.FLOAT32 else 2e-3
    dense = expand(ours[-1]).astype(numpy.float32)
    numpy.testing.assert_allclose(dense, weight.numpy(), rtol=bound, atol=bound * float(weight.abs().max()))
    (y,) = model.predict({"x": x}).values()
    wanted = module(x).detach().numpy()
    numpy.testing.assert_allclose(y, wanted, rtol=bound * 5, atol=bound * 5 * numpy.abs(wanted).max())


@pytest.mark.parametrize("name", ["int8 channels", "int4 blocks", "scaled table", "pruned integers"])
def test_weights_before_batch_norm_stay_compressed(name: str, tmp_path: Path) -> None:
    """The scale of the batch norm is folded into the scale of integers; other compressed weights are unchanged."""
    torch.manual_seed(4)
    weight, metadata = CASES[name][1]()
    module = Normed(weight, metadata).eval()
    x = torch.rand(1, 8, 4, 4)
    model = coremill.convert(torch.export.export(module, (x,)), precision="fp32")
    model.save(str(tmp_path / "Normed.mlpackage"))
    assert operations(tmp_path / "Normed.mlpackage")
    (y,) = model.predict({"x": x}).values()
    wanted = module(x).detach().numpy()
    numpy.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4 * numpy.abs(wanted).max())


def test_ignores_stale_compression_metadata() -> None:
    """A weight that was trained further after its lookup table was recorded is not compressed."""
    torch.manual_seed(5)
    weight, metadata = table(1, 4, scaled=False, sparse=False)
    module = Layer(weight + 0.05 * torch.rand(SHAPE), metadata).eval()
    x = torch.rand(1, 8, 4, 4)
    model = coremill.convert(torch.export.export(module, (x,)), precision="fp32")
    (y,) = model.predict({"x": x}).values()
    numpy.testing.assert_allclose(y, module(x).detach().numpy(), rtol=1e-5, atol=1e-5)


def test_compression_metadata_determines_target(tmp_path: Path) -> None:
    """The target is the oldest release that can store a weight; an older one is an error. Archives keep the metadata."""
    torch.manual_seed(6)
    weight, metadata = integers(4, True, (16, 4, 1, 1), zero=True)
    program = torch.export.export(Layer(weight, metadata).eval(), (torch.rand(1, 8, 4, 4),))
    assert coremill.convert(program).target == "ios18"
    path = tmp_path / "layer.pt2"
    torch.export.save(program, path)
    assert coremill.convert(str(path)).target == "ios18"
    with pytest.raises(coremill.ConversionError, match="the compression of `conv.weight` needs iOS18"):
        coremill.convert(program, target="ios17")
    weight, metadata = integers(8, True, (16, 1, 1, 1), zero=False)
    program = torch.export.export(Layer(weight, metadata).eval(), (torch.rand(1, 8, 4, 4),))
    assert coremill.convert(program).target == "ios16"


class Plain(torch.nn.Module):
    """Two layers with channels along different axes."""

    def __init__(self) -> None:
        super().__init__()
        self.down = torch.nn.Conv2d(8, 16, 2)
        self.up = torch.nn.ConvTranspose2d(16, 8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(torch.relu(self.down(x)))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(7)
    program = torch.export.export(Plain().eval(), (torch.rand(1, 8, 4, 4),)).run_decompositions({})
    path = tmp_path_factory.mktemp("plain") / "Plain.mlpackage"
    ct.convert(program, minimum_deployment_target=ct.target.iOS18, skip_model_load=True).save(str(path))
    return path


def quantizer(**options: Any) -> Any:
    return lambda module: module.OptimizationConfig(module.OpLinearQuantizerConfig(weight_threshold=499, **options))


def palettizer(**options: Any) -> Any:
    return lambda module: module.OptimizationConfig(module.OpPalettizerConfig(weight_threshold=499, **options))


def pruner(**options: Any) -> Any:
    return lambda module: module.OptimizationConfig(module.OpMagnitudePrunerConfig(weight_threshold=499, **options))


GROUPS = {"nbits": 4, "mode": "uniform", "granularity": "per_grouped_channel", "group_size": 4}
TENSOR = {"granularity": "per_tensor", "mode": "linear"}
#: Calls in the order in which they apply, and whether the numbers equal those of coremltools.
STEPS: dict[str, tuple[list[tuple[str, Any]], bool]] = {
    "blocks along both channels": ([("linear_quantize_weights", quantizer(granularity="per_block", block_size=[2, 4, 0, 0]))], True),
    "blocks of pixels": ([("linear_quantize_weights", quantizer(granularity="per_block", block_size=[0, 0, 1, 0]))], True),
    "groups of inputs": ([("palettize_weights", palettizer(**GROUPS, channel_axis=1))], True),
    "pruned, quantized": ([("prune_weights", pruner(target_sparsity=0.5)), ("linear_quantize_weights", quantizer(mode="linear"))], True),
    "pruned, palettized": ([("prune_weights", pruner(target_sparsity=0.5)), ("palettize_weights", palettizer(**GROUPS))], True),
    "palettized, quantized": ([("palettize_weights", palettizer(**GROUPS)), ("linear_quantize_weights", quantizer(**TENSOR))], True),
    "quantized, pruned": ([("linear_quantize_weights", quantizer()), ("prune_weights", pruner(target_sparsity=0.5))], False),
    "palettized, pruned": ([("palettize_weights", palettizer(**GROUPS)), ("prune_weights", pruner(target_sparsity=0.5))], False),
    "quantized, palettized": ([("linear_quantize_weights", quantizer(**TENSOR)), ("palettize_weights", palettizer(**GROUPS))], False),
}


@pytest.mark.parametrize("name", STEPS)
def test_saved_package_compresses_like_coremltools(name: str, plain: Path, tmp_path: Path) -> None:
    """Each step reads the package that the previous step saved; for `mixed`, coremltools saved it."""
    steps, is_equal = STEPS[name]
    model = ct.models.MLModel(str(plain), skip_model_load=True)
    paths = {"ours": plain, "mixed": plain}
    for at, (call, config) in enumerate(steps):
        joint = {"joint_compression": at > 0}
        for one, path in paths.items():
            source = tmp_path / f"theirs{at - 1}.mlpackage" if one == "mixed" and at else path
            step = getattr(dropin.optimize.coreml, call)
            step(dropin.models.MLModel(str(source)), config(dropin.optimize.coreml), **joint).save(str(tmp_path / f"{one}{at}.mlpackage"))
            paths[one] = tmp_path / f"{one}{at}.mlpackage"
        model = getattr(cto, call)(model, config(cto), **joint)
        model.save(str(tmp_path / f"theirs{at}.mlpackage"))
    theirs = operations(tmp_path / f"theirs{len(steps) - 1}.mlpackage")
    for path in paths.values():
        ours = operations(path)
        assert [op.op_type for op in ours] == [op.op_type for op in theirs]
        for one, other in zip(ours, theirs, strict=True):
            for key, value in attributes(other).items():
                assert types.builtin_to_string(one.inputs[key].dtype) == types.builtin_to_string(other.inputs[key].dtype), key
                if key == "mask" and key not in attributes(one):
                    # Our operation takes its mask from the preceding operation, not from a constant.
                    continue
                assert key in ("nonzero_data", "indices_nonzero_data") or attributes(one)[key].shape == value.shape, key
        dense = [[expand(op) for op in side if is_used(op)] for side in (ours, theirs)]
        assert len(dense[0]) == len(dense[1]) == 2
        for one, other in zip(*dense, strict=True):
            if is_equal:
                numpy.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-3)
            else:
                # coremltools prunes and palettizes the quantized integers; we use the dequantized values.
                error = numpy.abs(one.astype(numpy.float32) - other.astype(numpy.float32)).mean()
                assert error < 0.2 * numpy.abs(other).mean(), error


def test_rejects_per_channel_scales_for_palettes(plain: Path) -> None:
    compress = dropin.optimize.coreml
    palettized = compress.palettize_weights(dropin.models.MLModel(str(plain)), palettizer(**GROUPS)(compress))
    with pytest.raises(NotImplementedError, match="make sure to use per-tensor quantization"):
        compress.linear_quantize_weights(palettized, quantizer()(compress), joint_compression=True)


def top_values(weight: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
    """A lookup table of zero and the 15 largest elements, and indices that map all other elements to zero."""
    flat = weight.flatten()
    lut = numpy.concatenate([numpy.zeros(1, weight.dtype), numpy.sort(flat)[-15:]])
    found = {value: at for at, value in enumerate(lut)}
    return lut, numpy.array([found.get(value, 0) for value in flat], numpy.uint8)


@pytest.mark.parametrize("options", [{}, {"granularity": "per_grouped_channel", "group_size": 4, "channel_axis": 1}])
def test_custom_palette_function_matches_coremltools(options: dict[str, Any], plain: Path, tmp_path: Path) -> None:
    config = palettizer(mode="custom", lut_function=top_values, **options)
    cto.palettize_weights(ct.models.MLModel(str(plain), skip_model_load=True), config(cto)).save(str(tmp_path / "theirs.mlpackage"))
    compress = dropin.optimize.coreml
    compress.palettize_weights(dropin.models.MLModel(str(plain)), config(compress)).save(str(tmp_path / "ours.mlpackage"))
    ours, theirs = (operations(tmp_path / f"{one}.mlpackage") for one in ("ours", "theirs"))
    assert [op.op_type for op in ours] == [op.op_type for op in theirs] == ["constexpr_lut_to_dense"] * 2
    for one, other in zip(ours, theirs, strict=True):
        for key, value in attributes(other).items():
            numpy.testing.assert_array_equal(attributes(one)[key], value, err_msg=key)
    wrong = palettizer(mode="custom", lut_function=lambda weight: (top_values(weight)[0], weight.flatten()))
    with pytest.raises(ValueError, match="Indices must be a numpy vector of type uint8"):
        compress.palettize_weights(dropin.models.MLModel(str(plain)), wrong(compress))


def test_weights_metadata_matches_coremltools(plain: Path) -> None:
    theirs = cto.get_weights_metadata(ct.models.MLModel(str(plain), skip_model_load=True), weight_threshold=100)
    ours = dropin.optimize.coreml.get_weights_metadata(dropin.models.MLModel(str(plain)), weight_threshold=100)
    assert list(ours) == list(theirs)
    for name, data in theirs.items():
        numpy.testing.assert_array_equal(ours[name].val, data.val)
        assert (ours[name].sparsity, ours[name].unique_values) == (data.sparsity, data.unique_values)
        assert str(ours[name].child_ops[0]) == str(data.child_ops[0])


class Branches(torch.nn.Module):
    """Two convolutions joined by a sum, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.two = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.one(x))
        y = torch.nn.functional.max_pool2d(y + torch.relu(self.two(y)), 2)
        return self.head(y.mean((2, 3)))


@pytest.mark.parametrize("mode", ["linear_symmetric", "linear"])
def test_quantizes_activations_from_sample_ranges(mode: str, tmp_path: Path) -> None:
    """Inputs and results of layers are 8-bit integers, whose ranges come from all samples."""
    torch.manual_seed(8)
    module = Branches().eval()
    samples = [{"x": torch.randn(1, 3, 8, 8).numpy()} for _ in range(4)]
    compress = dropin.optimize.coreml
    program = torch.export.export(module, (torch.rand(1, 3, 8, 8),))
    model = dropin.convert(program, minimum_deployment_target=ct.target.iOS17)
    config = compress.OptimizationConfig(compress.OpLinearQuantizerConfig(mode=mode))
    quantized = compress.linear_quantize_activations(model, config, [dict(sample) for sample in samples])
    quantized.save(str(tmp_path / "Quantized.mlpackage"))
    spec = ct.models.MLModel(str(tmp_path / "Quantized.mlpackage"), skip_model_load=True)
    loaded = load_program(spec.get_spec(), spec.get_spec().specificationVersion, spec.weights_dir)
    ops = loaded.functions["main"].operations
    for op in (op for op in ops if op.op_type in ("conv", "linear", "add", "max_pool")):
        assert op.x.op.op_type == "dequantize", op.op_type
    # The first quantized value is the input, or its cast to fp16.
    quantize = next(op for op in ops if op.op_type == "quantize")
    values = numpy.stack([sample["x"] for sample in samples])
    extent = 2 * numpy.abs(values).max() if mode == "linear_symmetric" else values.max() - values.min()
    assert float(quantize.scale.val) == pytest.approx(extent / (254 if mode == "linear_symmetric" else 255), rel=2e-3)
    errors = []
    for sample in samples:
        (y,) = quantized.predict(sample).values()
        wanted = module(torch.from_numpy(sample["x"])).detach().numpy()
        errors.append(numpy.abs(y - wanted).max() / numpy.abs(wanted).max())
    assert 0 < max(errors) < 0.08
    some = compress.OptimizationConfig(op_type_configs={"linear": compress.OpLinearQuantizerConfig(mode=mode)})
    partly = compress.linear_quantize_activations(model, some, [{None: sample["x"]} for sample in samples])
    assert str(partly._spec.mlProgram).count('type: "quantize"') == 1
    both = compress.linear_quantize_weights(quantized, compress.OptimizationConfig(compress.OpLinearQuantizerConfig(weight_threshold=100)))
    (y,) = both.predict(samples[0]).values()
    wanted = module(torch.from_numpy(samples[0]["x"])).detach().numpy()
    numpy.testing.assert_allclose(y, wanted, atol=0.1 * numpy.abs(wanted).max())
