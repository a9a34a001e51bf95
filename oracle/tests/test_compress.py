"""Compression by `coremill compress` and by coremltools.

coremltools decompresses our packages to the numbers of its own compression, or to numbers with at most the same error. We
decompress coremltools' packages to the same bits.
"""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import coremltools as ct
import coremltools.optimize.coreml as cto
import numpy
import pytest
import torch
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.frontend.milproto.load import load as load_program
from coremltools.converters.mil.mil import types

from oracle.conftest import Command
from oracle.support.sampling import ALL

LINEAR, PALETTE = cto.OpLinearQuantizerConfig, cto.OpPalettizerConfig
MAGNITUDE, THRESHOLD = cto.OpMagnitudePrunerConfig, cto.OpThresholdPrunerConfig


class Network(torch.nn.Module):
    """Weights of each kind, all with different shapes; the embedding table is also a layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(96, 32)
        self.down = torch.nn.Conv2d(8, 16, 3, padding=1)
        self.up = torch.nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = torch.nn.Linear(64, 40)
        self.mix = torch.nn.Parameter(0.3 * torch.randn(64, 8))

    def forward(self, picture: torch.Tensor, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.up(torch.relu(self.down(picture))).flatten(2)
        return self.mix @ self.out(features), torch.nn.functional.linear(self.table(words), self.table.weight)


SHAPES = {(96, 32), (16, 8, 3, 3), (16, 8, 2, 2), (40, 64), (64, 8)}


def make(target: ct.target, precision: ct.precision, has_few_values: bool = False) -> ct.models.MLModel:
    torch.manual_seed(0)
    network = Network().eval()
    if has_few_values:
        for parameter in network.parameters():
            parameter.data = torch.round(parameter.data * 8).clamp(-6, 6) / 8
    example = (torch.randn(1, 8, 4, 4), torch.randint(0, 96, (1, 8)))
    program = torch.export.export(network, example).run_decompositions({})
    return ct.convert(program, minimum_deployment_target=target, compute_precision=precision, skip_model_load=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[ct.models.MLModel, Path]]:
    """Models by name, each created once."""
    kinds: dict[str, Any] = {
        "ios16": (ct.target.iOS16, ct.precision.FLOAT16),
        "ios18": (ct.target.iOS18, ct.precision.FLOAT16),
        # numpy computes percentiles of fp16 arrays in fp16.
        "single": (ct.target.iOS18, ct.precision.FLOAT32),
        "single16": (ct.target.iOS16, ct.precision.FLOAT32),
        "few": (ct.target.iOS16, ct.precision.FLOAT16, True),
    }
    models: dict[str, tuple[ct.models.MLModel, Path]] = {}
    folder = tmp_path_factory.mktemp("plain")

    def model(name: str) -> tuple[ct.models.MLModel, Path]:
        if name not in models:
            path = folder / f"{name}.mlpackage"
            make(*kinds[name]).save(str(path))
            models[name] = (ct.models.MLModel(str(path), skip_model_load=True), path)
        return models[name]

    return model


def expand(op: Any) -> Any:
    """Decompresses a constant; coremltools itself does not decompress quantized lookup tables."""
    known = lambda value: expand(value.op) if value.val is None else value.val  # noqa: E731
    axis = None if getattr(op, "vector_axis", None) is None else op.vector_axis.val
    if op.op_type == "constexpr_lut_to_dense" and hasattr(op, "vector_axis"):
        return op.decompress(op.indices.val, known(op.lut), axis)
    if op.op_type == "constexpr_lut_to_sparse":
        return op.decompress(op.indices_mask.val, op.indices_nonzero_data.val, known(op.lut), axis)
    if op.op_type == "constexpr_sparse_to_dense" and op.nonzero_data.val is None:
        mask, nonzero = expand(op.nonzero_data.op)
        dense = numpy.zeros(mask.shape, nonzero.dtype)
        dense[mask != 0] = nonzero
        return dense
    return op.materialized_val_inference()


def weights(model: ct.models.MLModel) -> tuple[dict[tuple[int, ...], numpy.ndarray], set[str]]:
    """The decompressed weights of a package by shape, and the operations of their constants."""
    program = load_program(
        model_spec=model.get_spec(),
        specification_version=model.get_spec().specificationVersion,
        file_weights_dir=model.weights_dir,
    )
    found, kinds = {}, set()
    for op in program.functions["main"].operations:
        is_constexpr = op.op_type.startswith("constexpr_")
        if is_constexpr:
            kinds.add(op.op_type.removeprefix("constexpr_"))
        users = [user for output in op.outputs for user in output.child_ops]
        is_weight = any(not user.op_type.startswith("constexpr_") for user in users)
        if is_weight and (is_constexpr or op.op_type == "const") and op.outputs[0].shape in SHAPES:
            value = expand(op) if is_constexpr else op.outputs[0].val
            found[op.outputs[0].shape] = numpy.asarray(value)
    assert found.keys() == SHAPES
    return found, kinds


def opened(path: Path) -> ct.models.MLModel:
    return ct.models.MLModel(str(path), skip_model_load=True)


def config(op_config: Any) -> cto.OptimizationConfig:
    return cto.OptimizationConfig(global_config=op_config)


def quantize(**options: Any) -> Callable[[ct.models.MLModel], ct.models.MLModel]:
    joint = options.pop("joint", False)
    settings = config(LINEAR(weight_threshold=499, **options))
    return lambda model: cto.linear_quantize_weights(model, settings, joint_compression=joint)


def palettize(**options: Any) -> Callable[[ct.models.MLModel], ct.models.MLModel]:
    joint = options.pop("joint", False)
    settings = config(PALETTE(weight_threshold=499, **options))
    return lambda model: cto.palettize_weights(model, settings, joint_compression=joint)


def prune(**options: Any) -> Callable[[ct.models.MLModel], ct.models.MLModel]:
    kind = THRESHOLD if "threshold" in options else MAGNITUDE
    settings = config(kind(weight_threshold=499, **options))
    return lambda model: cto.prune_weights(model, settings)


def chain(*steps: Callable[[ct.models.MLModel], ct.models.MLModel]) -> Callable[[ct.models.MLModel], ct.models.MLModel]:
    def apply_steps(model: ct.models.MLModel) -> ct.models.MLModel:
        for step in steps:
            model = step(model)
        return model

    return apply_steps


GROUPED = {"granularity": "per_grouped_channel"}
BLOCKS = {"granularity": "per_block"}

#: The model, our options, coremltools' equivalent, and whether the weights must be equal. Otherwise (k-means), the error must
#: not exceed that of coremltools.
CASES: list[tuple[str, str, Callable[[ct.models.MLModel], ct.models.MLModel], bool]] = [
    ("ios16", "--linear int8", quantize(), True),
    ("ios16", "--linear uint8 --per tensor --mode linear",
     quantize(dtype="uint8", granularity="per_tensor", mode="linear"), True),
    ("ios18", "--linear int8 --per channel --mode linear", quantize(mode="linear"), True),
    ("ios18", "--linear int4 --per tensor", quantize(dtype="int4", granularity="per_tensor"), True),
    ("ios18", "--linear int4 --block 8", quantize(dtype="int4", block_size=8, **BLOCKS), True),
    ("single", "--linear uint4 --block 4 --mode linear",
     quantize(dtype="uint4", mode="linear", block_size=4, **BLOCKS), True),
    ("ios16", "--palettize 4 --algorithm uniform", palettize(nbits=4, mode="uniform"), True),
    ("ios18", "--palettize 3 --algorithm uniform --group 8",
     palettize(nbits=3, mode="uniform", group_size=8, **GROUPED), True),
    ("ios18", "--palettize 4 --algorithm uniform --group 4 --group-axis 1",
     palettize(nbits=4, mode="uniform", group_size=4, channel_axis=1, **GROUPED), True),
    ("single", "--palettize 6 --algorithm uniform", palettize(nbits=6, mode="uniform"), True),
    ("few", "--palettize unique", palettize(mode="unique"), True),
    ("ios16", "--palettize 1", palettize(nbits=1), False),
    ("ios16", "--palettize 2", palettize(nbits=2), False),
    ("ios16", "--palettize 4", palettize(nbits=4), False),
    ("ios16", "--palettize 6", palettize(nbits=6), False),
    ("ios16", "--palettize 8", palettize(nbits=8), False),
    ("ios18", "--palettize 3", palettize(nbits=3), False),
    ("single", "--palettize 4 --group 8", palettize(nbits=4, group_size=8, **GROUPED), False),
    ("ios18", "--palettize 2 --group 4", palettize(nbits=2, group_size=4, **GROUPED), False),
    ("ios18", "--palettize 4 --vector 2", palettize(nbits=4, cluster_dim=2), False),
    ("ios18", "--palettize 2 --vector 4 --group 8", palettize(nbits=2, cluster_dim=4, group_size=8, **GROUPED), False),
    ("ios18", "--palettize 4 --lut int8",
     chain(palettize(nbits=4), quantize(granularity="per_tensor", joint=True)), False),
    ("single16", "--prune 0.6", prune(target_sparsity=0.6), True),
    ("single", "--prune 0.75", prune(target_sparsity=0.75), True),
    ("ios16", "--prune >0.1", prune(threshold=0.1), True),
    ("single", "--prune 0.5 --prune-block 4", prune(target_sparsity=0.5, block_size=4, dim=0), True),
    ("single", "--prune 0.7 --prune-block 2 --prune-dim 1", prune(target_sparsity=0.7, block_size=2, dim=1), True),
    ("single16", "--prune 0.6 --prune-block 3", prune(target_sparsity=0.6, block_size=3, dim=0), True),
    ("single", "--prune 0.6 --linear int8", chain(prune(target_sparsity=0.6), quantize(joint=True)), True),
    ("single", "--prune 0.5 --linear int4 --block 8",
     chain(prune(target_sparsity=0.5), quantize(dtype="int4", block_size=8, joint=True, **BLOCKS)), True),
    ("ios18", "--prune 0.6 --palettize 4", chain(prune(target_sparsity=0.6), palettize(nbits=4, joint=True)), False),
    ("ios18", "--prune 0.6 --palettize 4 --lut int8",
     chain(prune(target_sparsity=0.6), palettize(nbits=4, joint=True), quantize(granularity="per_tensor", joint=True)),
     False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "peer", "same"), CASES, ids=[f"{case[0]} {case[1]}" for case in CASES])
def test_compressed_weights_match_coremltools(
    name: str,
    options: str,
    peer: Callable[[ct.models.MLModel], ct.models.MLModel],
    same: bool,
    made: Callable[[str], tuple[ct.models.MLModel, Path]],
    coremill: Command,
    tmp_path: Path,
) -> None:
    model, path = made(name)
    plain, _ = weights(model)
    coremill("compress", path, "-o", tmp_path / "ours.mlpackage", "--min-elements", 500, *options.split())
    peer(model).save(str(tmp_path / "theirs.mlpackage"))
    ours, our_kinds = weights(opened(tmp_path / "ours.mlpackage"))
    theirs, their_kinds = weights(opened(tmp_path / "theirs.mlpackage"))
    assert our_kinds == their_kinds
    for shape, wanted in theirs.items():
        assert ours[shape].dtype == wanted.dtype
        if same:
            numpy.testing.assert_array_equal(ours[shape], wanted, err_msg=str(shape))
            continue
        our_error, their_error = (
            float(numpy.square(of[shape].astype(numpy.float64) - plain[shape].astype(numpy.float64)).sum())
            for of in (ours, theirs)
        )
        # Lookup tables are rounded to the weight's type, which may round differently; with vectors, both find a local
        # optimum.
        margin = 1.03 if "--vector" in options else 1.001
        assert our_error <= their_error * margin + 1e-12, f"{shape}: {our_error / their_error} times the error of coremltools"
    for one, expected in (("ours", ours), ("theirs", theirs)):
        coremill("compress", tmp_path / f"{one}.mlpackage", "-o", tmp_path / "plain.mlpackage", "--decompress")
        expanded, kinds = weights(opened(tmp_path / "plain.mlpackage"))
        assert not kinds
        for shape, wanted in expected.items():
            numpy.testing.assert_array_equal(expanded[shape], wanted, err_msg=f"{one} {shape}")


def test_n_m_pruning_matches_coremltools(made: Callable[[str], tuple[ct.models.MLModel, Path]], coremill: Command, tmp_path: Path) -> None:
    """Of each four input channels the two larger ones are kept, as in coremltools, unless magnitudes are equal."""
    model, path = made("single")
    coremill("compress", path, "-o", tmp_path / "ours.mlpackage", "--min-elements", 500, "--prune", "2:4")
    ours, kinds = weights(opened(tmp_path / "ours.mlpackage"))
    theirs, _ = weights(prune(n_m_ratio=(2, 4), dim=1)(model))
    assert kinds == {"sparse_to_dense"}
    for shape in ((40, 64), (16, 8, 3, 3)):
        numpy.testing.assert_array_equal(ours[shape], theirs[shape])
        assert numpy.mean(ours[shape] == 0) == 0.5


def test_channel_scaled_palettes_keep_weights_accurate(
    made: Callable[[str], tuple[ct.models.MLModel, Path]], coremill: Command, tmp_path: Path
) -> None:
    """Scales are per output channel, and the lookup tables are not larger than necessary."""
    model, path = made("ios18")
    plain, _ = weights(model)
    options = ["--min-elements", 500, "--palettize", 4, "--group", 8, "--channel-scale"]
    coremill("compress", path, "-o", tmp_path / "ours.mlpackage", *options)
    ours, kinds = weights(opened(tmp_path / "ours.mlpackage"))
    assert kinds == {"lut_to_dense"}
    for shape, found in ours.items():
        power, noise = (float(numpy.square(of.astype(numpy.float64)).sum()) for of in (found, found - plain[shape]))
        assert 10 * numpy.log10(power / noise) > 18, shape


def test_compressed_and_decompressed_outputs_match(
    made: Callable[[str], tuple[ct.models.MLModel, Path]], coremill: Command, tmp_path: Path
) -> None:
    """The engine computes the same with compressed and with decompressed weights."""
    _, path = made("ios18")
    for index, options in enumerate(
        ["--linear int4 --block 8", "--palettize 3 --group 8", "--prune 0.5 --palettize 4 --lut uint8",
         "--palettize 4 --vector 2", "--prune 0.5 --linear int8", "--palettize 2 --channel-scale"]
    ):  # fmt: skip
        small, plain = tmp_path / f"{index}.mlpackage", tmp_path / f"{index}plain.mlpackage"
        coremill("compress", path, "-o", small, "--min-elements", 500, *options.split())
        coremill("compress", small, "-o", plain, "--decompress")
        coremill("compare", small, plain, "--random", 1, "--fail-below", 60)


def test_applies_first_matching_compression_rule(made: Callable[[str], tuple[ct.models.MLModel, Path]], coremill: Command, tmp_path: Path) -> None:
    """The first rule that selects a weight applies; a weight that two operations share is compressed once."""
    _, path = made("ios18")
    output = coremill("compress", path, "-o", tmp_path / "out.mlpackage", "--json", "--prune", "0.5")
    names = {tuple(weight["shape"]): weight["name"] for weight in json.loads(output)["models"][0]["weights"]}
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[[rule]]\nop = "gather"\nlinear = "int8"\n'
        '[[rule]]\nop = ["conv", "conv_transpose"]\nmin_elements = 1000\nmax_elements = 1200\npalettize = 6\n'
        f'[[rule]]\nname = "*{names[64, 8][1:]}"\nmin_elements = 10\nkeep = true\n'
    )
    output = coremill(
        "compress", path, "-o", tmp_path / "out.mlpackage", "--json", "--rules", rules,
        "--linear", "int4", "--min-elements", 100,
    )  # fmt: skip
    (report,) = json.loads(output)["models"]
    forms = {tuple(weight["shape"]): weight["form"] for weight in report["weights"]}
    assert forms[(96, 32)] == "int8 per channel"
    assert forms[(16, 8, 3, 3)] == "6-bit palette per tensor"
    assert forms[(16, 8, 2, 2)] == forms[(40, 64)] == "int4 per channel"
    assert forms[(64, 8)] is None
    assert report["target"] == "ios18"
    assert len(report["weights"]) == len(SHAPES)
    before = (tmp_path / "out.mlpackage/Data/com.apple.CoreML/weights/weight.bin").read_bytes()
    coremill("compress", path, "-o", tmp_path / "again.mlpackage", "--rules", rules, "--linear", "int4",
             "--min-elements", 100)  # fmt: skip
    assert (tmp_path / "again.mlpackage/Data/com.apple.CoreML/weights/weight.bin").read_bytes() == before


def test_meets_target_size_and_target_snr(made: Callable[[str], tuple[ct.models.MLModel, Path]], coremill: Command, tmp_path: Path) -> None:
    """Bits are allocated where they help most, and the reported sizes and errors are correct."""
    model, path = made("single")
    plain, _ = weights(model)
    common = ["compress", path, "-o", tmp_path / "out.mlpackage", "--json", "--min-elements", 500]
    (report,) = json.loads(coremill(*common, "--target-size", "6KB"))["models"]
    assert 5000 < report["bytes_after"] <= 6000
    assert len({weight["form"] for weight in report["weights"]}) > 1
    (report,) = json.loads(coremill(*common, "--target-snr", 24))["models"]
    found, _ = weights(opened(tmp_path / "out.mlpackage"))
    for weight in report["weights"]:
        original = plain[tuple(weight["shape"])].astype(numpy.float64)
        error = numpy.square(found[tuple(weight["shape"])] - original).sum()
        assert abs(10 * numpy.log10(numpy.square(original).sum() / error) - weight["snr"]) < 0.01
        assert weight["snr"] >= 24


def test_rejects_invalid_compression_options(
    made: Callable[[str], tuple[ct.models.MLModel, Path]], coremill_fails: Command, coremill: Command, tmp_path: Path
) -> None:
    """Invalid options are reported before work begins, and the specification version depends on the compression."""
    _, path = made("ios16")

    def error_of(*options: str) -> str:
        return coremill_fails("compress", path, "-o", tmp_path / "out.mlpackage", *options)

    assert "no compression is selected" in error_of()
    assert "`linear` must be `int8`, `uint8`, `int4` or `uint4`, got `int5`" in error_of("--linear", "int5")
    assert "need iOS18; the target is iOS16" in error_of("--linear", "int4", "--target", "ios16")
    assert "cannot be converted to iOS15" in error_of("--linear", "int8", "--target", "ios15")
    assert "the share to prune must be from 0 to 1, got 1.5" in error_of("--prune", "1.5")
    assert "the weights take at least" in error_of("--target-size", "100B")
    assert "expected a number of bytes" in error_of("--target-size", "1Mo")
    assert "no rules" in error_of("--rules", "/dev/null")
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nname = "decoder*"\nlinear = "int8"\n[[rule]]\npalettize = 4\n')
    found = coremill("compress", path, "-o", tmp_path / "idle.mlpackage", "--rules", rules)
    assert "warning: rule 1 selects no weight" in found and "rule 2" not in found
    found = error_of("--linear", "int4", "--block", 7, "--min-elements", 500)
    assert "no weight can be compressed" in found
    assert "the block size does not divide its shape" in found
    assert not (tmp_path / "out.mlpackage").exists()
    for options, version in (("--linear int8", 7), ("--linear int4", 9), ("--palettize 3", 9), ("--prune 0.5", 7)):
        coremill("compress", path, "-o", tmp_path / "out.mlpackage", *options.split())
        assert opened(tmp_path / "out.mlpackage").get_spec().specificationVersion == version


def test_compresses_models_inside_pte_programs(coremill: Command, tmp_path: Path) -> None:
    """The models inside a program are compressed, and the program still runs."""
    torch.manual_seed(0)
    example = (torch.randn(1, 8, 4, 4), torch.randint(0, 96, (1, 8)))
    torch.export.save(torch.export.export(Network().eval(), example), tmp_path / "m.pt2")
    coremill("lower", tmp_path / "m.pt2", "-o", tmp_path / "m.pte")
    coremill("compress", tmp_path / "m.pte", "-o", tmp_path / "small.pte", "--linear", "int8", "--min-elements", 500)
    assert (tmp_path / "small.pte").stat().st_size < 0.8 * (tmp_path / "m.pte").stat().st_size
    coremill("compare", tmp_path / "m.pt2", tmp_path / "small.pte", "--positional", "--fail-below", 25)
    coremill("extract", tmp_path / "small.pte", "-o", tmp_path / "models")
    (package,) = (tmp_path / "models").glob("*.mlpackage")
    _, kinds = weights(opened(package))
    assert kinds == {"affine_dequantize"}


def write_sparse_package(path: Path, width: int, layers: int) -> None:
    """Writes a package of square layers whose weights are a sparse file, which needs hardly any disk space."""
    small = 72

    @mb.program(input_specs=[mb.TensorSpec((1, small), types.fp16)], opset_version=ct.target.iOS18)
    def program(x: Any) -> Any:
        for index in range(layers):
            weight = numpy.full((small, small), index + 1, numpy.float16)
            x = mb.matmul(x=x, y=weight, transpose_y=True, name=f"layer_{index}")
        return x

    made = ct.convert(
        program,
        minimum_deployment_target=ct.target.iOS18,
        skip_model_load=True,
        pass_pipeline=ct.PassPipeline.EMPTY,
    )
    made.save(str(path))
    data = path / "Data" / "com.apple.CoreML"
    specification = ct.utils.load_spec(str(path))

    def widen(message: Any) -> None:
        """Scales every dimension of a message and of nested ones to the real width."""
        for field, value in message.ListFields():
            if field.name == "size" and value == small and message.DESCRIPTOR.name == "ConstantDimension":
                message.size = width
            elif field.name == "shape" and message.DESCRIPTOR.name == "ArrayFeatureType":
                message.shape[:] = [width if extent == small else extent for extent in message.shape]
            elif field.type == field.TYPE_MESSAGE:
                of_map = field.message_type.GetOptions().map_entry
                for one in value.values() if of_map else value if field.is_repeated else [value]:
                    if hasattr(one, "ListFields"):
                        widen(one)

    widen(specification)
    (function,) = specification.mlProgram.functions.values()
    (block,) = function.block_specializations.values()
    consts = [op for op in block.operations if op.type == "const" and op.attributes["val"].HasField("blobFileValue")]
    assert len(consts) == layers
    size = 2 * width * width
    step = 64 + -(-size // 64) * 64
    generator = numpy.random.default_rng(0)
    with (data / "weights" / "weight.bin").open("wb") as file:
        file.write(struct.pack("<II", layers, 2).ljust(64, b"\0"))
        file.truncate(64 + layers * step)
        for index, op in enumerate(consts):
            at = 64 + index * step
            op.attributes["val"].blobFileValue.offset = at
            file.seek(at)
            # The entry of the file: sentinel, type (fp16), size in bytes, and offset.
            file.write(struct.pack("<IIQQ", 0xDEADBEEF, 1, size, at + 64).ljust(64, b"\0"))
            # All layers differ.
            file.write(generator.standard_normal(width).astype(numpy.float16).tobytes())
    (data / "model.mlmodel").write_bytes(specification.SerializeToString())


def test_memory_is_bounded(tmp_path: Path) -> None:
    """Compressing 400 MB of weights needs little memory; with COREMILL_ALL_CASES=1, 8 billion weights need less than
    a gigabyte."""
    width, layers, limit = (4096, 478, 700) if ALL else (2048, 48, 200)
    package, small = tmp_path / "large.mlpackage", tmp_path / "small.mlpackage"
    write_sparse_package(package, width, layers)
    command = [os.environ["COREMILL"], "compress", package, "-o", small, "--linear", "int4", "--block", "32"]
    # A process inherits the peak memory of its parent, so a small process starts the command.
    program = (
        "import resource, subprocess, sys\n"
        "code = subprocess.call(sys.argv[1:])\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
        "sys.exit(code)"
    )
    command = [sys.executable, "-S", "-c", program, *map(str, command)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    peak = int(output.splitlines()[-1]) / 1024
    assert f"{layers} of {layers} weights compressed" in output
    size = (small / "Data/com.apple.CoreML/weights/weight.bin").stat().st_size
    parameters = layers * width * width
    # Half a byte per weight, and an fp16 scale per 32 weights.
    assert parameters * (1 / 2 + 2 / 32) <= size < parameters * 0.57
    print(f"{parameters / 1e9:.2f} billion parameters compressed in {peak:.0f} MB of memory")
    assert peak < limit
