"""`coremill quantize`: a trained network keeps its accuracy, and the layer reported as the worst is the worst."""

import itertools
import json
import math
from pathlib import Path

import coremltools
import coremltools.optimize.coreml as compress
import numpy
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

from oracle.checkers import conversion
from oracle.checkers.programs import loads_in_coremltools
from oracle.conftest import Command
from oracle.support.distance import within

#: The batch size of the network; each sample file contains one batch.
BATCH = 300


class Digits(nn.Module):
    """A small network for scikit-learn's digits."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 32, 3, padding=1)
        self.hidden = nn.Linear(32 * 4 * 4, 64)
        self.out = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = nn.functional.max_pool2d(torch.relu(self.second(x)), 2)
        return self.out(torch.relu(self.hidden(x.flatten(1))))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Digits, torch.Tensor, torch.Tensor, Path]:
    """The trained network, test images, their labels, and a folder with the export and samples."""
    folder = tmp_path_factory.mktemp("digits")
    pictures, labels = load_digits(return_X_y=True)
    x = torch.tensor(pictures, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    y = torch.tensor(labels)
    torch.manual_seed(0)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    network = Digits()
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(12):
        for start in range(0, 1197, 64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[start : start + 64]), y[start : start + 64]).backward()
            optimizer.step()
    network.eval()
    torch.export.save(torch.export.export(network, (x[:BATCH],)), folder / "digits.pt2")
    (folder / "samples").mkdir()
    for index in range(2):
        numpy.savez(folder / "samples" / f"{index}.npz", x=x[index * BATCH : (index + 1) * BATCH].numpy())
    return network, x[1197:], y[1197:], folder


def outputs(package: Path, x: torch.Tensor) -> torch.Tensor:
    """A package's outputs, rounded as on the device, batch by batch."""
    parts = [{"x": x[start : start + BATCH].numpy()} for start in range(0, len(x), BATCH)]
    found = [next(iter(one.values())) for one in conversion.run(package, parts, "fp16")]
    return torch.tensor(numpy.concatenate(found))


def accuracy(found: torch.Tensor, labels: torch.Tensor) -> float:
    """The accuracy in percent."""
    return 100 * float((found.argmax(1) == labels).float().mean())


#: The recipe, further options, the opset, and the weights' type.
RECIPES = [
    ("fp32", [], "CoreML5", None),
    ("fp16", [], "CoreML5", None),
    ("int8-static", [], "CoreML7", "int8"),
    ("int8-static", ["--observer", "mse", "--effort", "1"], "CoreML7", "int8"),
    ("int8-static", ["--observer", "entropy"], "CoreML7", "int8"),
    ("int8-static", ["--observer", "percentile", "--keep-worst", "1"], "CoreML7", "int8"),
    ("int8-static", ["--observer", "moving-average"], "CoreML7", "int8"),
    ("int8-weight-only", [], "CoreML6", "int8"),
    ("int8-per-channel", [], "CoreML6", "int8"),
    ("int8-per-group", ["--group-size", "16"], "CoreML8", "int8"),
    ("int4-per-channel", ["--effort", "1"], "CoreML8", "int4"),
    ("int4-per-group", [], "CoreML8", "int4"),
    ("codebook", ["--bits", "3", "--block", "2,-1"], "CoreML8", "uint3"),
]


@pytest.mark.parametrize(("recipe", "options", "opset", "stored"), RECIPES)
def test_recipes_preserve_accuracy(
    recipe: str, options: list[str], opset: str, stored: str | None, trained: tuple, coremill: Command, tmp_path: Path
) -> None:
    """Accuracy decreases by at most half a percentage point with 8 bits, and by at most one with fewer."""
    network, x, y, folder = trained
    package = tmp_path / "model.mlpackage"
    samples = ["--samples", folder / "samples"] if recipe.startswith("int") else []
    output = coremill(
        "quantize", folder / "digits.pt2", "-o", package, "--recipe", recipe, *samples, *options, "--json"
    )
    report = json.loads(output)
    assert loads_in_coremltools(package) == []
    inspected = json.loads(coremill("inspect", package, "--json"))
    assert inspected["functions"][0]["opset"] == opset
    kinds = {one["dtype"] for one in inspected["weights"]["by_dtype"]}
    assert stored is None or stored in kinds
    found = outputs(package, x[:BATCH])
    with torch.no_grad():
        wanted = network(x[:BATCH])
    allowed = 0.5 if "8" in recipe or stored is None else 1.0
    assert accuracy(found, y[:BATCH]) >= accuracy(wanted, y[:BATCH]) - allowed
    if recipe == "int8-static":
        counts = {one["op"]: one["count"] for one in inspected["functions"][0]["histogram"]}
        assert counts["quantize"] == counts["dequantize"] >= 3
        assert report["samples"] == 2
        assert report["model_db"] > 20
        assert sum(one["kept"] is not None for one in report["layers"]) == ("--keep-worst" in options)


@pytest.mark.parametrize(("recipe", "options"), [("int8-static", []), ("int4-per-group", ["--effort", "1"])])
def test_quantized_program_matches_package(
    recipe: str, options: list[str], trained: tuple, coremill: Command, tmp_path: Path
) -> None:
    """An ExecuTorch program contains the same model as a package, and computes the same."""
    _, x, _, folder = trained
    common = ["quantize", folder / "digits.pt2", "--recipe", recipe, "--samples", folder / "samples", *options, "--json"]
    reports, found = [], []
    for name in ("model.mlpackage", "model.pte"):
        reports.append(json.loads(coremill(*common, "-o", tmp_path / name)))
        numpy.savez(tmp_path / "x.npz", x=x[:BATCH].numpy())
        coremill("run", tmp_path / name, "--inputs", tmp_path / "x.npz", "--output", tmp_path / "y.npz")
        with numpy.load(tmp_path / "y.npz") as file:
            found.append(next(iter(file.values())))
    assert reports[0]["layers"] == reports[1]["layers"]
    assert reports[0]["target"] == reports[1]["target"]
    assert within(found[0], found[1], relative=1e-7, absolute=1e-5)


FOUR_BITS = """
[[rule]]
op = ["conv", "linear"]
min_elements = 2049
recipe = "int4-per-group"
group_size = 16

[[rule]]
keep = true
"""


def test_int4_error_is_below_half_of_coremltools(trained: tuple, coremill: Command, tmp_path: Path) -> None:
    """Both quantize the same two layers with the same group size; coremltools also uses zero points."""
    network, x, _, folder = trained
    package, peer, rules = tmp_path / "model.mlpackage", tmp_path / "peer.mlpackage", tmp_path / "rules.toml"
    rules.write_text(FOUR_BITS)
    common = ["quantize", folder / "digits.pt2", "-o", package, "--recipe", "int4-per-group", "--rules", rules]
    output = coremill(*common, "--samples", folder / "samples", "--effort", "2", "--json")
    quantized = [one for one in json.loads(output)["layers"] if one["kept"] is None]
    assert {one["op"] for one in quantized} == {"conv", "linear"}
    inputs = [coremltools.TensorType(name="x", shape=(BATCH, 1, 8, 8))]
    converted = coremltools.convert(
        torch.jit.trace(network, x[:BATCH]),
        inputs=inputs,
        minimum_deployment_target=coremltools.target.iOS18,
        skip_model_load=True,
    )
    form = compress.OpLinearQuantizerConfig(mode="linear", dtype="int4", granularity="per_block", block_size=16)
    compress.linear_quantize_weights(converted, compress.OptimizationConfig(global_config=form)).save(str(peer))
    with torch.no_grad():
        wanted = network(x[:BATCH])
    ours, theirs = (float(((outputs(path, x[:BATCH]) - wanted) ** 2).sum()) for path in (package, peer))
    assert ours < 0.5 * theirs


@pytest.mark.parametrize("recipe", ["int8-static", "int4-per-channel"])
def test_higher_effort_never_lowers_snr(recipe: str, coremill: Command, tmp_path: Path) -> None:
    """The ratios are measured on the samples: in the report, and from the outputs of the packages. With 8 bits, effort 1
    falls back to effort 0, because bias correction would increase the error."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 12)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(torch.randn_like(parameter).abs() + 0.3)
    archive, package = tmp_path / "model.pt2", tmp_path / "model.mlpackage"
    torch.export.save(torch.export.export(network, (torch.randn(4, 24),)), archive)
    samples = [torch.randn(4, 24) * 2 + 0.5 for _ in range(3)]
    options = []
    for index, sample in enumerate(samples):
        numpy.savez(tmp_path / f"{index}.npz", input=sample.numpy())
        options += ["--samples", tmp_path / f"{index}.npz"]
    with torch.no_grad():
        wanted = torch.cat([network(sample) for sample in samples])
    reported, measured, taken = [], [], []
    for effort in range(3):
        common = ["quantize", archive, "-o", package, "--recipe", recipe, *options, "--effort", effort, "--json"]
        report = json.loads(coremill(*common))
        reported.append(report["model_db"])
        taken.append(report["effort"])
        given = [{"input": sample.numpy()} for sample in samples]
        found = torch.tensor(numpy.concatenate([next(iter(one.values())) for one in conversion.run(package, given, "fp16")]))
        measured.append(10 * math.log10(float((wanted**2).sum() / ((found - wanted) ** 2).sum())))
    assert reported == sorted(reported)
    # Packages compute in fp16.
    assert all(later > before - 0.1 for before, later in itertools.pairwise(measured))
    assert all(abs(one - other) < 1 for one, other in zip(reported, measured, strict=True))
    assert taken == ([0, 0, 2] if recipe == "int8-static" else [0, 1, 2])


def test_quantizes_partitions_around_undelegated_calls(coremill: Command, tmp_path: Path) -> None:
    """Partitions between calls outside delegates are quantized, too: samples run through the complete program."""
    torch.manual_seed(3)

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.behind = nn.Linear(32, 64), nn.Linear(64, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.before(x))
            return self.behind(torch.histc(x, 64) + x)

    archive, program = tmp_path / "model.pt2", tmp_path / "model.pte"
    torch.export.save(torch.export.export(Halves().eval(), (torch.randn(8, 32),)), archive)
    for index in range(3):
        numpy.savez(tmp_path / f"{index}.npz", x=torch.randn(8, 32).numpy())
    samples = [part for index in range(3) for part in ("--samples", tmp_path / f"{index}.npz")]
    output = coremill("quantize", archive, "-o", program, "--recipe", "int8-static", *samples, "--json")
    report = json.loads(output)
    assert {one["module"] for one in report["layers"] if one["op"] == "linear"} == {"before", "behind"}
    assert all(one["layer_db"] > 20 for one in report["layers"])
    assert report["model_db"] > 20
    inspected = json.loads(coremill("inspect", program, "--json"))
    assert '"int8"' in json.dumps(inspected)


RULES = """
[[rule]]
op = "gather"
recipe = "int8-per-channel"

[[rule]]
module = "layers.*"
recipe = "int4-per-group"
group_size = 16

[[rule]]
max_elements = 300
keep = true
"""


def test_rules_select_layers_by_module_op_and_size(
    coremill: Command, coremill_fails: Command, tmp_path: Path
) -> None:
    """The first rule that selects a layer applies; the recipe applies to the others."""
    torch.manual_seed(4)

    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(100, 32)
            self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
            self.small, self.head = nn.Linear(32, 8), nn.Linear(8, 100)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.embed(tokens)
            for layer in self.layers:
                x = torch.relu(layer(x)) + x
            return self.head(self.small(x))

    archive, package = tmp_path / "model.pt2", tmp_path / "model.mlpackage"
    torch.export.save(torch.export.export(Language().eval(), (torch.arange(10)[None],)), archive)
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    common = ["quantize", archive, "-o", package, "--recipe", "int8-weight-only", "--rules", rules]
    report = json.loads(coremill(*common, "--json"))
    found = {one["module"]: (one["recipe"], one["kept"] is None) for one in report["layers"]}
    assert found == {
        "embed": ("int8-per-channel", True),
        "layers.0": ("int4-per-group", True),
        "layers.1": ("int4-per-group", True),
        "small": ("int8-weight-only", False),
        "head": ("int8-weight-only", True),
    }
    assert loads_in_coremltools(package) == []
    rules.write_text(RULES + '[[rule]]\nmodule = "decoder"\nkeep = true\n')
    assert "rule 4 selects no layer" in coremill_fails(*common)
    rules.write_text('[[rule]]\nrecipe = "int3"\n')
    assert "rule 1: unknown recipe" in coremill_fails(*common)
    assert "cannot read" in coremill_fails(*common[:-1], tmp_path / "none.toml")


def test_worst_layer_matches_ablation(trained: tuple, coremill: Command, tmp_path: Path) -> None:
    """Quantizes each layer alone with `--keep`, and compares the outputs of the packages with torch."""
    network, _, _, folder = trained
    package = tmp_path / "model.mlpackage"
    common = ["quantize", folder / "digits.pt2", "-o", package, "--samples", folder / "samples", "--json"]
    report = json.loads(coremill(*common, "--recipe", "int4-per-channel"))
    names = {one["name"]: one["module"] for one in report["layers"]}
    with numpy.load(folder / "samples" / "0.npz") as file:
        x = torch.tensor(file["x"])
    with torch.no_grad():
        wanted = network(x)
    noise = {}
    for name, module in names.items():
        others = ",".join(other for other in names.values() if other != module)
        coremill(*common, "--recipe", "int4-per-channel", "--keep", others)
        difference = outputs(package, x) - wanted
        noise[name] = float((wanted**2).sum() / (difference**2).sum())
    worst = min(noise, key=lambda name: noise[name])
    assert report["layers"][0]["name"] == worst
    for one in report["layers"]:
        assert abs(10 * math.log10(noise[one["name"]]) - one["model_db"]) < 3


def test_image_samples_match_array_samples(coremill: Command, coremill_fails: Command, tmp_path: Path) -> None:
    """Calibration with a folder of images equals calibration with the arrays that torch creates from them."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16 * 16, 10)).eval()
    archive = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(network, (torch.zeros(1, 3, 16, 16),)), archive)
    for folder in ("pictures", "arrays"):
        (tmp_path / folder).mkdir()
    mean, std = numpy.array([0.5, 0.4, 0.3], numpy.float32), numpy.array([0.2, 0.3, 0.4], numpy.float32)
    for index in range(2):
        pixels = numpy.random.default_rng(index).integers(0, 256, (16, 16, 3), numpy.uint8)
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"{index}.png")
        given = ((pixels.astype(numpy.float32) / 255 - mean) / std).transpose(2, 0, 1)[None]
        numpy.savez(tmp_path / "arrays" / f"{index}.npz", input=given)
    common = ["quantize", archive, "--recipe", "int8-static", "--json"]
    reports = []
    for folder in ("pictures", "arrays"):
        scaled = ["--mean", "0.5,0.4,0.3", "--std", "0.2,0.3,0.4"] if folder == "pictures" else []
        package = tmp_path / f"{folder}.mlpackage"
        report = json.loads(coremill(*common, "-o", package, "--samples", tmp_path / folder, *scaled))
        assert report["samples"] == 2
        reports.append([one["model_db"] for one in report["layers"]])
    assert within(numpy.array(reports[0]), numpy.array(reports[1]), relative=1e-7, absolute=0.5)
    error = coremill_fails(*common, "-o", tmp_path / "m.mlpackage", "--samples", tmp_path / "pictures", "--std", "0")
    assert "deviations other than 0" in error


def test_rejects_invalid_inputs_before_quantizing(trained: tuple, coremill_fails: Command, tmp_path: Path) -> None:
    """Errors are reported before any computation."""
    _, _, _, folder = trained
    archive, package = folder / "digits.pt2", tmp_path / "model.mlpackage"

    def error(*options: object) -> str:
        found = coremill_fails("quantize", archive, "-o", package, *options)
        assert not package.exists()
        return found

    static = ["--recipe", "int8-static"]
    assert "samples are needed" in error(*static)
    assert "`--effort 2` uses them to round weights" in error("--recipe", "int4-per-group", "--effort", "2")
    assert "the recipe needs iOS17" in error(*static, "--target", "ios16")
    assert "--target ios18" in error("--recipe", "int4-per-group", "--target", "ios17")
    assert "quantizes nothing in `encoder`" in error(*static, "--keep", "encoder")
    assert "unknown operation `conv2d`" in error(*static, "--keep-ops", "conv2d")
    assert "no layer can be quantized: `hidden`: " in error("--recipe", "int4-per-group", "--group-size", 33)
    wrong = tmp_path / "wrong.npz"
    numpy.savez(wrong, x=numpy.zeros((1, 3, 8, 8), numpy.float32))
    assert "wrong.npz" in error(*static, "--samples", wrong)
    (tmp_path / "empty").mkdir()
    assert "neither images nor" in error(*static, "--samples", tmp_path / "empty")
    network = Digits().eval()
    with torch.no_grad():
        network.hidden.weight[0, 0] = math.nan
    archive = tmp_path / "nan.pt2"
    torch.export.save(torch.export.export(network, (torch.zeros(BATCH, 1, 8, 8),)), archive)
    assert "holds NaN" in error(*static, "--samples", folder / "samples")
    with torch.no_grad():
        network.hidden.weight[0, 0] = 0
        network.first.bias[2] = math.inf
    torch.export.save(torch.export.export(network, (torch.zeros(BATCH, 1, 8, 8),)), archive)
    assert "the bias of" in error("--recipe", "int8-weight-only")
    assert "holds inf" in error("--recipe", "int8-weight-only")
    torch.export.save(torch.export.export(nn.Conv2d(1, 2, 3), (torch.zeros(1, 1, 8, 8),)), archive)
    assert "the recipe `int4-per-group` applies to no layer" in error("--recipe", "int4-per-group")
