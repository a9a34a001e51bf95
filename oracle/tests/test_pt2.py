"""Compares our reader of `.pt2` archives with torch's: nodes, values, signature, weights, samples."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torchvision
from executorch import exir
from torch import nn
from torch.export import Dim

from oracle.dumps.exported import describe
from oracle.support.cargo import ROOT
from oracle.zoo.exports.entry import Function

ARCHIVES = ROOT / "crates/pt2/tests/archives"


class Call(Function):
    """A module that calls a function with positional and keyword arguments."""

    def forward(self, *arguments: object, **keywords: object) -> object:
        return self.function(self, *arguments, **keywords)


class Tied(nn.Module):
    """Weights that are shared, transposed, sliced and expanded."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 6)
        self.head = nn.Linear(6, 10, bias=False)
        self.head.weight = self.embedding.weight
        self.turned = nn.Parameter(torch.randn(6, 4).t())
        self.sliced = nn.Parameter(torch.randn(10)[2:6])
        self.register_buffer("wide", torch.randn(1, 6).expand(3, 6))
        self.register_buffer("passing", torch.randn(6), persistent=False)
        self.convolution = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)

    def forward(self, tokens: torch.Tensor, image: torch.Tensor) -> tuple:
        hidden = self.embedding(tokens) + self.wide + self.passing
        return self.head(hidden), hidden @ self.turned.t() * self.sliced, self.convolution(image)


class Attention(nn.Module):
    """A transformer block with a mask and rotary embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 48)
        self.norm = nn.RMSNorm(16)
        self.register_buffer("angles", torch.outer(torch.arange(32.0), torch.randn(4)), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.project(self.norm(x)).view(batch, length, 3, 2, 8).unbind(2)
        cos, sin = self.angles[:length].cos(), self.angles[:length].sin()
        with torch.no_grad():
            table = torch.cat([cos, sin], -1)[None, :, None, :]
        q, k, v = (part.transpose(1, 2) for part in (q * table, k * table, v))
        mask = torch.full((length, length), float("-inf")).triu(1)
        out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)
        return out.transpose(1, 2).flatten(2) + x


def branch(self: nn.Module, x: torch.Tensor) -> tuple:
    def yes(a: torch.Tensor) -> torch.Tensor:
        return torch.cond(a.sum() > 3, lambda b: b * 2, lambda b: b - 1, (a,))

    return (torch.cond(x.mean() > 0, yes, lambda a: a.cos(), (x,)),)


def loop(self: nn.Module, x: torch.Tensor) -> tuple:
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, a * 1.5), (torch.tensor(0), x))


def scanned(self: nn.Module, x: torch.Tensor) -> tuple:
    from torch._higher_order_ops.scan import scan

    return scan(lambda carry, item: (carry + item, carry * item), torch.zeros(3), x)


def mapped(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    from torch._higher_order_ops.map import map as map_over

    return map_over(lambda row, other: row.sin() + other, x, torch.ones(3))


def mutating(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    self.cache[1:3].copy_(x)
    self.count.add_(1, alpha=2)
    x.mul_(3)
    return self.cache.sum() + self.count


def nested(self: nn.Module, pair: tuple, *, options: dict, k: int, mode: str, rate: float, none: None) -> dict:
    return {"a": (pair[0] * k, [pair[1][0] - rate]), "b": options["left"] + options["right"]}


def dtypes(self: nn.Module, x: torch.Tensor) -> tuple:
    wide = x.to(torch.float64) + self.wide
    z = (self.complex * x).abs()
    return wide, z, self.brief.float() + x, self.tiny.to(torch.int64) << 1, self.flags & (x > 0), self.empty.sum()


def sizes(self: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple:
    rows = x.shape[0]
    return x.reshape(rows // 2, -1), torch.arange(rows * 2 + 1), torch.cat([x, y]), torch.zeros(max(rows, 3), rows % 4 + 1)


def data_dependent(self: nn.Module, x: torch.Tensor, n: torch.Tensor) -> tuple:
    count = n.item()
    torch._check(count >= 0)
    torch._check(count <= 5)
    return x.nonzero(), x[:count], torch.ones(count) * 2


def calls(self: nn.Module, x: torch.Tensor) -> tuple:
    functional = nn.functional
    x.exp()
    return (
        torch.add(x, x, alpha=2), functional.gelu(x, approximate="tanh"), functional.max_pool2d(x, 2),
        functional.max_pool2d(x, 3, return_indices=True)[1], functional.avg_pool2d(x, 2, ceil_mode=True), x.split(2, 1),
        x.chunk(2, -1)[1], torch.std_mean(x, 1), x.topk(2)[0], functional.pad(x, (1, 2), value=float("-inf")),
        functional.leaky_relu(x, 1), x.clamp(min=1), torch.full_like(x, 3, dtype=torch.int32), x.sort(descending=True)[1],
        functional.interpolate(x, scale_factor=2.0, mode="bilinear"), torch.einsum("bchw,bdhw->bcd", x, x),
        x[:, torch.tensor([0, 1])], x[..., None, 1], functional.conv2d(x, self.weight, stride=2), x.flip([0, -1]),
        torch.where(x > 0, x, -1.0), functional.layer_norm(x, [4]), x.norm(), x.to(torch.float16, memory_format=torch.channels_last),
    )  # fmt: skip


def lstm() -> nn.Module:
    return nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True)


T = torch.randn
ROWS = Dim("rows", min=2, max=50)
STATE = {
    "wide": T(3, dtype=torch.float64), "complex": T(3, dtype=torch.complex64), "brief": T(3).bfloat16(),
    "tiny": torch.arange(-4, 4, dtype=torch.int8), "flags": torch.tensor([True, False, True]), "empty": torch.zeros(0, 4),
}  # fmt: skip

#: Name, module, positional arguments, keywords, dynamic shapes.
CASES = {
    "mobilenet": lambda: (torchvision.models.mobilenet_v3_small(num_classes=5).eval(), (T(1, 3, 32, 32),), {}, None),
    "squeezenet": lambda: (torchvision.models.squeezenet1_1(num_classes=5), (T(1, 3, 64, 64),), {}, None),
    "resnet_training": lambda: (torchvision.models.resnet18(num_classes=5), (T(2, 3, 32, 32),), {}, None),
    "vit": lambda: (
        torchvision.models.VisionTransformer(32, 16, 1, 2, 16, 32, num_classes=3).eval(), (T(1, 3, 32, 32),), {}, None,
    ),
    "tied": lambda: (Tied(), (torch.arange(3), T(1, 3, 5, 5)), {}, None),
    "attention": lambda: (Attention(), (T(2, 7, 16),), {}, None),
    "attention_dynamic": lambda: (Attention(), (T(2, 7, 16),), {}, {"x": {0: Dim.AUTO, 1: Dim("length", min=2, max=32)}}),
    "transformer": lambda: (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), (T(1, 4, 8),), {}, None),
    "multihead": lambda: (nn.MultiheadAttention(8, 2), (T(4, 1, 8), T(5, 1, 8), T(5, 1, 8)), {}, None),
    "lstm": lambda: (lstm(), (T(2, 3, 4),), {}, None),
    "gru": lambda: (nn.GRU(4, 5), (T(3, 2, 4),), {}, None),
    "cond": lambda: (Call(branch), (T(3),), {}, None),
    "while_loop": lambda: (Call(loop), (T(3),), {}, None),
    "scan": lambda: (Call(scanned), (T(4, 3),), {}, None),
    "map": lambda: (Call(mapped), (T(4, 3),), {}, None),
    "mutating": lambda: (Call(mutating, cache=T(4, 3), count=torch.zeros(())), (T(2, 3),), {}, None),
    "nested": lambda: (
        Call(nested), ((T(2), [T(2)]),),
        {"options": {"left": T(2), "right": T(2)}, "k": 3, "mode": "fast", "rate": 0.5, "none": None}, None,
    ),
    "dtypes": lambda: (Call(dtypes, **STATE), (T(3),), {}, None),
    "sizes": lambda: (Call(sizes), (T(4, 6), T(4, 6)), {}, {"arguments": ({0: 2 * Dim("half", min=2, max=9)}, {0: Dim.AUTO})}),
    "data_dependent": lambda: (Call(data_dependent), (T(8), torch.tensor(3)), {}, None),
    "calls": lambda: (Call(calls, weight=nn.Parameter(T(2, 4, 1, 1))), (T(2, 4, 4, 4),), {}, None),
    "batch_dynamic": lambda: (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval(), (T(4, 4),), {}, {"input": {0: ROWS}}),
    "no_inputs": lambda: (Call(lambda self: self.x + torch.ones(2), x=T(2)), (), {}, None),
}  # fmt: skip


@pytest.fixture(scope="session")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], dict]:
    """Runs our reader on an archive."""
    subprocess.run(["cargo", "build", "--quiet", "--package", "xtask"], cwd=ROOT, check=True)

    def run(path: Path) -> dict:
        line = ["cargo", "xtask", "pt2-dump", str(path)]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    return run


def exported(name: str) -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    module, arguments, keywords, shapes = CASES[name]()
    return torch.export.export(module, arguments, keywords, dynamic_shapes=shapes)


def compare(found: dict, wanted: dict) -> None:
    """Compares node by node first, so that a failure shows the differing node."""
    for ours, theirs in zip(found["graph"]["nodes"], wanted["graph"]["nodes"], strict=False):
        assert ours == theirs
    assert len(found["graph"]["nodes"]) == len(wanted["graph"]["nodes"])
    for key, value in wanted["graph"].items():
        assert found["graph"][key] == value, key
    # A state dictionary may contain tensors that the graph does not use.
    found = {**found, "tensors": {name: found["tensors"].get(name) for name in wanted["tensors"]}}
    for key, value in wanted.items():
        assert found[key] == value, key


def plain(program: torch.export.ExportedProgram) -> dict:
    """The description as plain JSON values."""
    return json.loads(json.dumps(describe(program)))


@pytest.mark.parametrize("name", CASES)
def test_exported_program_dump_matches_torch(name: str, tmp_path: Path, dump: Callable[[Path], dict]) -> None:
    program = exported(name)
    path = tmp_path / f"{name}.pt2"
    torch.export.save(program, path)
    found = dump(path)
    assert found["dialect"] == "TRAINING"
    compare(found, plain(program))


@pytest.mark.parametrize("name", ["attention_dynamic", "mutating", "cond", "calls", "lstm", "batch_dynamic"])
def test_decomposed_program_dump_matches_torch(name: str, tmp_path: Path, dump: Callable[[Path], dict]) -> None:
    program = exported(name).run_decompositions()
    path = tmp_path / f"{name}.pt2"
    torch.export.save(program, path)
    found = dump(path)
    assert found["dialect"] == "ATEN"
    compare(found, plain(program))


@pytest.mark.parametrize("saver", ["exir", "torch"])
@pytest.mark.parametrize("name", ["mobilenet", "mutating", "batch_dynamic", "tied"])
def test_edge_program_dump_matches_torch(name: str, saver: str, tmp_path: Path, dump: Callable[[Path], dict]) -> None:
    program = exir.to_edge(exported(name)).exported_program()
    path = tmp_path / f"{name}.pt2"
    (exir.save if saver == "exir" else torch.export.save)(program, path)
    found = dump(path)
    assert found["dialect"] == "EDGE"
    assert found["schema"][0] == (5 if saver == "exir" else 8)
    compare(found, plain(program))


@pytest.mark.parametrize(("version", "schema"), [("2.5.1", 7), ("2.6.0", 8), ("2.7.1", 8), ("2.8.0", 8)])
def test_reads_archives_of_older_torch_versions(version: str, schema: int, dump: Callable[[Path], dict]) -> None:
    found = dump(ARCHIVES / f"torch-{version}.pt2")
    assert found["schema"][0] == schema
    compare(found, json.loads((ARCHIVES / f"torch-{version}.json").read_text()))
