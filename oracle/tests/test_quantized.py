"""Programs quantized by torchao: packages are no larger than coremltools', and their results match the program in eager torch.

By default, every third scheme is tested; `COREMILL_ALL_CASES=1` tests all of them.
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import coremltools as ct
import numpy
import pytest
import torch

# Registers torchao's remaining operators with coremltools.
from executorch.backends.apple.coreml.compiler import torch_ops  # noqa: F401
from executorch.exir import to_edge
from torch import nn
from torchao.prototype.quantization.codebook_coreml import CodebookWeightOnlyConfig
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    MappingType,
    quantize_,
)
from torchao.quantization.granularity import PerAxis, PerGroup
from torchao.utils import unwrap_tensor_subclass

from oracle.checkers import conversion
from oracle.checkers.programs import loads_in_coremltools
from oracle.conftest import Command
from oracle.support.sampling import ALL

#: Minimum signal-to-noise ratio of the outputs compared with the quantized program in eager torch.
WEIGHT_ONLY_DB, STATIC_DB = 40.0, 30.0

Quantize = Callable[[nn.Module], None]


class Layers(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 96)
        self.down = nn.Linear(96, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Words(nn.Module):
    """An embedding and a layer, the parts of a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(96, 64)
        self.layer = nn.Linear(64, 128)
        self.out = nn.Linear(128, 64)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(nn.functional.gelu(self.layer(self.table(words))))


class Palettized(nn.Module):
    """A palettized weight. torchao's tensor subclass supports only matrices; its operator supports all ranks."""

    def __init__(self, weight: torch.Tensor, bits: int, blocks: list[int]) -> None:
        super().__init__()
        self.bits, self.blocks = bits, blocks
        sizes = [size if size > 0 else extent for size, extent in zip(blocks, weight.shape, strict=True)]
        self.counts = [extent // size for size, extent in zip(sizes, weight.shape, strict=True)]
        books = torch.randn(*self.counts, 2**bits, 1).sort(-2).values * 0.2
        self.register_buffer("books", books)
        self.register_buffer("codes", torch.randint(0, 2**bits, weight.shape, dtype=torch.uint8))

    def forward(self) -> torch.Tensor:
        return torch.ops.quant.dequantize_codebook(self.codes.to(torch.int32), self.books, self.bits, self.blocks)


class Pictures(nn.Module):
    """Convolutions: plain, grouped, depthwise and transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Conv2d(8, 32, 3, padding=1)
        self.groups = nn.Conv2d(32, 32, 3, padding=1, groups=4)
        self.depth = nn.Conv2d(32, 32, 5, padding=2, groups=32)
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.weights = nn.ModuleDict()

    def look_up(self, bits: int, blocks: list[int]) -> None:
        """Palettizes all weights. A block size that does not divide an axis is replaced by -1, the whole axis."""
        for name in ("plain", "groups", "depth", "up"):
            weight = getattr(self, name).weight
            fitting = [-1 if extent % size else size for size, extent in zip(blocks, weight.shape, strict=True)]
            self.weights[name] = Palettized(weight, bits, fitting)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        conv = nn.functional.conv2d
        x = torch.relu(conv(x, self.weights["plain"](), self.plain.bias, padding=1))
        x = torch.relu(conv(x, self.weights["groups"](), self.groups.bias, padding=1, groups=4))
        x = torch.relu(conv(x, self.weights["depth"](), self.depth.bias, padding=2, groups=32))
        return nn.functional.conv_transpose2d(x, self.weights["up"](), self.up.bias, stride=2)


@dataclass
class Case:
    """A scheme, the model that it is applied to, and the expected package."""

    name: str
    model: type[nn.Module]
    quantize: Quantize
    #: The expected target, and the possible element types of the stored weights.
    target: str
    stored: set[str] = field(default_factory=set)
    decibels: float = WEIGHT_ONLY_DB


def is_supported(module: nn.Module, _: str) -> bool:
    """Whether the schemes support a module."""
    return isinstance(module, nn.Linear | nn.Embedding)


def intx(bits: int, granularity: PerAxis | PerGroup, mapping: MappingType) -> Quantize:
    """Integers with scales per row or per group of a row."""
    config = IntxWeightOnlyConfig(
        weight_dtype=getattr(torch, f"int{bits}"), granularity=granularity, mapping_type=mapping
    )
    return lambda module: quantize_(module, config, is_supported)


def codebook(bits: int, blocks: list[int]) -> Quantize:
    """Lookup tables for blocks of rows or columns."""
    config = CodebookWeightOnlyConfig(dtype=getattr(torch, f"uint{bits}"), block_size=blocks)
    return lambda module: quantize_(module, config, is_supported)


def cases() -> Iterator[Case]:
    """Every scheme in torchao's configurations, on every layer type that it supports."""
    #: The type of the indices by their bits: there are no integers of 5 and 7 bits.
    index = {1: "uint1", 2: "uint2", 3: "uint3", 4: "uint4", 5: "uint6", 6: "uint6", 7: "uint8", 8: "uint8"}
    for model in (Layers, Words):
        for bits in range(1, 9):
            for granularity in (PerAxis(0), PerGroup(32)):
                axis = isinstance(granularity, PerAxis)
                for mapping in (MappingType.SYMMETRIC, MappingType.ASYMMETRIC):
                    # A symmetric 1-bit integer is always 0 in torchao.
                    if (bits == 1 and mapping is MappingType.SYMMETRIC) or (model is Words and bits in (3, 5, 7)):
                        continue
                    name = f"{model.__name__}-int{bits}-{'axis' if axis else 'group'}-{mapping.name}".lower()
                    target = "iOS16" if bits > 4 and axis else "iOS18"
                    stored = {"int8"} if bits > 4 else {"int4", index[bits]} if axis else {"int4"}
                    yield Case(name, model, intx(bits, granularity, mapping), target, stored)
        for bits in range(1, 9):
            for blocks in ([16, -1], [-1, 16], [-1, -1], [1, -1]):
                if (blocks[0] == 1 and bits > 4) or (model is Words and blocks[0] != 16):
                    continue
                shown = "x".join("all" if size < 0 else str(size) for size in blocks)
                one_table = blocks == [-1, -1] and bits != 3
                # Before iOS18, several indices are packed into each byte.
                stored = {"uint8"} if one_table else {index[bits]}
                target = "iOS16" if one_table else "iOS18"
                yield Case(
                    f"{model.__name__}-uint{bits}-{shown}".lower(), model, codebook(bits, blocks), target, stored
                )
    for bits in (1, 2, 3, 4, 6, 8):
        for blocks in ([-1, -1, -1, -1], [16, -1, -1, -1], [-1, 4, -1, -1], [8, 1, -1, -1]):
            shown = "x".join("all" if size < 0 else str(size) for size in blocks[:2])
            one_table = max(blocks) < 0 and bits != 3
            yield Case(
                f"pictures-uint{bits}-{shown}",
                Pictures,
                lambda module, b=bits, s=blocks: module.look_up(b, s),
                "iOS16" if one_table else "iOS18",
                {"uint8"} if one_table else {index[bits]},
            )
    for name, config in (
        ("int8-weight-only", Int8WeightOnlyConfig()),
        ("int8-dynamic", Int8DynamicActivationInt8WeightConfig()),
    ):
        decibels = STATIC_DB if "dynamic" in name else WEIGHT_ONLY_DB
        yield Case(name, Layers, lambda module, c=config: quantize_(module, c), "iOS16", {"int8"}, decibels)
    dynamic = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32))
    yield Case("int4-dynamic", Layers, lambda module: quantize_(module, dynamic), "iOS18", {"int4"}, STATIC_DB)


CASES = list(cases())
TESTED = CASES if ALL else [*CASES[:-3:3], *CASES[-3:]]


def quantized(case: Case) -> tuple[nn.Module, torch.Tensor]:
    """The quantized module, and an example input."""
    torch.manual_seed(len(case.name))
    module = case.model().eval()
    case.quantize(module)
    inputs = {
        Layers: lambda: torch.randn(4, 64) * 2 + 0.3,
        Words: lambda: torch.randint(0, 96, (2, 7)),
        Pictures: lambda: torch.randn(2, 8, 6, 6) + 0.1,
    }
    return module, inputs[case.model]()


def size(package: Path) -> int:
    """The size of a package in bytes."""
    return sum(file.stat().st_size for file in package.rglob("*") if file.is_file())


def convert_with_coremltools(program: torch.export.ExportedProgram, target: str, folder: Path) -> tuple[Path | None, str]:
    """Converts a program with coremltools for this release, or for the newest if that fails. Returns the package or
    the reason of the failure."""
    package, reason = folder / "peer.mlpackage", ""
    for release in (target, "iOS18"):
        try:
            model = ct.convert(
                program.run_decompositions({}),
                minimum_deployment_target=getattr(ct.target, release),
                skip_model_load=True,
            )
        except Exception as error:  # coremltools raises many kinds of exceptions.
            reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
            continue
        model.save(str(package))
        return package, ""
    return None, reason


def decibels(found: numpy.ndarray, wanted: torch.Tensor) -> float:
    """The signal-to-noise ratio."""
    signal, other = wanted.detach().numpy().astype(numpy.float64), found.astype(numpy.float64)
    assert other.shape == signal.shape
    noise = ((signal - other) ** 2).sum()
    return math.inf if noise == 0 else 10 * math.log10((signal**2).sum() / noise)


def run_package(package: Path, x: torch.Tensor) -> numpy.ndarray:
    """The only output of a package, rounded as on the device."""
    (name,) = [one.name for one in spec_inputs(package)]
    given = x.numpy().astype(numpy.float32 if x.is_floating_point() else numpy.int32)
    (outputs,) = conversion.run(package, [{name: given}], "fp16")
    return next(iter(outputs.values()))


def spec_inputs(package: Path) -> list:
    """The inputs of a package's function."""
    (function,) = conversion.read(package).model.mlProgram.functions.values()
    return list(function.inputs)


def convert_and_inspect(archive: Path, folder: Path, coremill: Command, *options: str) -> tuple[Path, dict]:
    """Converts an archive, loads the package with coremltools, and returns it with the output of `inspect`."""
    package = folder / "model.mlpackage"
    coremill("convert", archive, "-o", package, *options)
    assert loads_in_coremltools(package) == []
    return package, json.loads(coremill("inspect", package, "--json"))


def weight_types(summary: dict) -> set[str]:
    """The element types of a model's weights, except for the floats of scales, lookup tables and biases."""
    return {one["dtype"] for one in summary["weights"]["by_dtype"]} - {"fp16", "fp32", "int32"}


@pytest.mark.parametrize("case", TESTED, ids=lambda case: case.name)
def test_torchao_weights_stay_compressed_and_accurate(case: Case, coremill: Command, tmp_path: Path) -> None:
    """The weights stay compressed, the package targets the oldest release with the form, and the numbers agree."""
    module, x = quantized(case)
    archive = tmp_path / "model.pt2"
    program = torch.export.export(module, (x,))
    torch.export.save(program, archive)
    package, summary = convert_and_inspect(archive, tmp_path, coremill)
    assert summary["functions"][0]["opset"] == {"iOS16": "CoreML6", "iOS18": "CoreML8"}[case.target]
    assert weight_types(summary) <= case.stored
    assert weight_types(summary)
    found = decibels(run_package(package, x), module(x))
    assert found > case.decibels
    peer, reason = convert_with_coremltools(program, case.target, tmp_path)
    # `pytest -rP` prints these lines as a table.
    comparison = f"coremltools: {size(peer)}" if peer else f"not in coremltools: {reason}"
    print(f"{case.name:32} {case.target} {found:6.1f} dB {size(package):7} bytes, {comparison}")
    assert peer is None or size(package) <= size(peer)


#: `to_edge` decomposes lookup tables to arithmetic.
FORMS = [
    (form, name)
    for form in ("unwrapped", "decomposed", "edge")
    for name in ("words-int4-group-symmetric", "words-int8-axis-asymmetric", "words-uint3-16xall", "int8-weight-only")
    if (form, name) != ("edge", "words-uint3-16xall")
]


@pytest.mark.parametrize(("form", "name"), FORMS)
def test_plain_and_edge_exports_keep_quantized_weights(form: str, name: str, coremill: Command, tmp_path: Path) -> None:
    """Weights that are plain tensors, and programs in ExecuTorch's dialects, yield the same package."""
    (case,) = [one for one in CASES if one.name == name]
    module, x = quantized(case)
    wanted = module(x)
    if form == "unwrapped":
        module = unwrap_tensor_subclass(module)
    program = torch.export.export(module, (x,))
    if form == "decomposed":
        # Without torch's decomposition table, which rewrites quantized weights as arithmetic.
        program = program.run_decompositions({})
    if form == "edge":
        program = to_edge(program).exported_program()
    archive = tmp_path / "model.pt2"
    torch.export.save(program, archive)
    package, summary = convert_and_inspect(archive, tmp_path, coremill)
    assert weight_types(summary) <= case.stored
    assert weight_types(summary)
    assert decibels(run_package(package, x), wanted) > case.decibels
    # `lower` delegates the complete program, with the same weights.
    coremill("lower", archive, "-o", tmp_path / "model.pte", "--full-graph")
    coremill("extract", tmp_path / "model.pte", "-o", tmp_path / "models")
    (inner,) = (tmp_path / "models").glob("*.mlpackage")
    assert weight_types(json.loads(coremill("inspect", inner, "--json"))) == weight_types(summary)


def static(per_channel: bool, dynamic: bool = False) -> Callable[[nn.Module, torch.Tensor], nn.Module]:
    """torchao's quantization of an exported module, including activations."""

    def quantize(module: nn.Module, x: torch.Tensor) -> nn.Module:
        from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
            XNNPACKQuantizer,
            get_symmetric_quantization_config,
        )
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

        quantizer = XNNPACKQuantizer().set_global(
            get_symmetric_quantization_config(is_per_channel=per_channel, is_dynamic=dynamic)
        )
        prepared = prepare_pt2e(torch.export.export(module, (x,)).module(), quantizer)
        for factor in (1.0, 0.7, 1.2):
            prepared(x * factor)
        return convert_pt2e(prepared)

    return quantize


class Picture(nn.Module):
    """Convolutions with operators to fuse, and a sum of two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.head = nn.Linear(16 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = nn.functional.max_pool2d(x + nn.functional.hardtanh(self.second(x)), 2)
        return self.head(nn.functional.adaptive_avg_pool2d(x, 4).flatten(1))


@pytest.mark.parametrize("per_channel", [True, False], ids=["channels", "tensor"])
@pytest.mark.parametrize("edge", [False, True], ids=["aten", "edge"])
def test_static_quantization_keeps_int8_activations(per_channel: bool, edge: bool, coremill: Command, tmp_path: Path) -> None:
    """Activations stay in 8 bits: each layer is between `dequantize` and `quantize`."""
    torch.manual_seed(3)
    x = torch.randn(2, 3, 16, 16)
    module = static(per_channel)(Picture().eval(), x)
    program = torch.export.export(module, (x,))
    archive = tmp_path / "model.pt2"
    torch.export.save(to_edge(program).exported_program() if edge else program, archive)
    package, summary = convert_and_inspect(archive, tmp_path, coremill)
    (function,) = summary["functions"]
    assert function["opset"] == "CoreML7"
    counts = {one["op"]: one["count"] for one in function["histogram"]}
    calls = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert counts["quantize"] == sum("quantize_per_tensor" in one and "dequantize" not in one for one in calls)
    # Quantization is not decomposed to arithmetic.
    assert counts.keys().isdisjoint({"round", "sub", "mul", "real_div"})
    assert "int8" in weight_types(summary)
    assert decibels(run_package(package, x), module(x)) > STATIC_DB
    lines = coremill("text", package).splitlines()
    (conv,) = [line for line in lines if "conv(" in line and "groups" in line][:1]
    source = conv.split("x = ")[-1].rstrip(");")
    assert any(f" {source} = dequantize(" in line for line in lines), conv


class Tokens(nn.Module):
    """Quantizes each row with a range computed at run time, as torch's schemes for language models do."""

    def __init__(self, scheme: str) -> None:
        super().__init__()
        self.choose = getattr(torch.ops.quantized_decomposed, f"choose_qparams_per_token{scheme}")
        self.layer = nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scales, zero_points = self.choose(x, torch.int8)
        parameters = (scales, zero_points, -128, 127, torch.int8)
        codes = torch.ops.quantized_decomposed.quantize_per_token(x, *parameters)
        return self.layer(
            torch.ops.quantized_decomposed.dequantize_per_token(codes, *parameters, torch.float32).to(x.dtype)
        )


@pytest.mark.parametrize("scheme", ["pt2e", "", "_asymmetric"])
def test_dynamic_activation_quantization_matches_torch(scheme: str, coremill: Command, tmp_path: Path) -> None:
    """Activations with ranges that are chosen at run time, by PT2E and by per-token operators."""
    torch.manual_seed(5)
    x = torch.randn(4, 64) * torch.tensor([0.1, 1.0, 3.0, 30.0])[:, None] + 0.4
    module = static(True, True)(Layers().eval(), x) if scheme == "pt2e" else Tokens(scheme).eval()
    program = torch.export.export(module, (x,))
    calls = {str(node.target) for node in program.graph.nodes if "choose_qparams" in str(node.target)}
    assert calls
    archive = tmp_path / "model.pt2"
    torch.export.save(program, archive)
    package, summary = convert_and_inspect(archive, tmp_path, coremill)
    assert scheme != "pt2e" or "int8" in weight_types(summary)
    assert decibels(run_package(package, x), module(x)) > STATIC_DB


def test_rejects_fp8_weights(coremill_fails: Command, tmp_path: Path) -> None:
    """Core ML does not support 8-bit floats; the message lists the supported types."""

    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.randn(8, 8).to(torch.float8_e4m3fn))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight.to(torch.float32)

    torch.export.save(torch.export.export(Narrow(), (torch.randn(2, 8),)), tmp_path / "model.pt2")
    error = coremill_fails("convert", tmp_path / "model.pt2", "-o", tmp_path / "m.mlpackage")
    assert "Core ML has no floats of 8 bits" in error
    assert "quantize to integers" in error


def test_rejects_targets_without_quantization_support(coremill_fails: Command, tmp_path: Path) -> None:
    """Quantization is never dropped: if the target does not support it, the error names the oldest target that does."""
    for name, target, needed in (
        ("layers-int4-group-symmetric", "ios17", "iOS18"),
        ("layers-int8-axis-symmetric", "ios15", "iOS16"),
        ("layers-uint3-allxall", "ios16", "iOS18"),
    ):
        (case,) = [one for one in CASES if one.name == name]
        module, x = quantized(case)
        torch.export.save(torch.export.export(module, (x,)), tmp_path / "model.pt2")
        for command, output in (("convert", "m.mlpackage"), ("lower", "m.pte")):
            error = coremill_fails(command, tmp_path / "model.pt2", "-o", tmp_path / output, "--target", target)
            assert f"needs {needed}" in error, error
            assert f"--target {needed.lower()}" in error, error
