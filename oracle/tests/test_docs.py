"""Runs every `coremill` command in the console blocks of the README and of docs/, and compares the output."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from oracle.aten import table
from oracle.conftest import run as run_command
from oracle.dumps import benchmarks, commands, python_api, versions
from oracle.support.cargo import ROOT

#: Other commands in blocks, which are not run here.
OTHERS = {
    "cargo": "developer commands, which CI runs or which take minutes",
    "pip": "installs; `cargo xtask test` does the same for the tests of the Python package",
    "python": "scripts of the reader; the tests of the Python package have their own",
    "c++": "oracle/tests/test_delegate.py builds the delegate",
    "cc": "crates/capi/tests/c_program.rs builds the example in C",
    "curl": "requests to a server; crates/cli/tests/serve.rs sends them",
    "./run": "the example in C, which the same test runs",
}
#: Commands that need a Mac, or files that only a Mac creates.
NEEDS_MAC = {
    "coremill cache": "the cache holds what Core ML compiled; crates/cli/tests/cache.rs fills one by hand",
    "coremill record": "Core ML runs the model; standin/inspect records one on stand-ins",
    "coremill plan": "Core ML plans; crates/inspect/tests/placement forecasts, oracle/tests/test_report.py reads a plan",
}
#: Commands on models that are too large to download for each test; oracle/tests/test_llm.py runs them on small ones.
NEEDS_DOWNLOAD = {f"coremill {command}" for command in ("llm", "generate", "serve", "score", "tokenize")}


class Digits(torch.nn.Module):
    """A classifier of small digit images, so that all commands are fast."""

    def __init__(self) -> None:
        super().__init__()
        self.features = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
        self.query, self.classifier = torch.nn.Linear(64, 64), torch.nn.Linear(512, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.features(image).flatten(2)
        return self.classifier((self.query(x).tanh() + x).flatten(1))


#: The lines of `model.py` that a page shows, by line number.
REFUSED = {
    25: "class Block(torch.nn.Module):",
    30: "    def forward(self, x):",
    31: "        return x * torch.linalg.svdvals(x).sum()",
    35: "class Model(torch.nn.Module):",
    36: "    def __init__(self):",
    37: "        super().__init__()",
    38: "        self.layers = torch.nn.ModuleList(Block() for _ in range(5))",
    41: "    def forward(self, x):",
    42: "        for layer in self.layers:",
    43: "            x = layer(x)",
    44: "        return torch.linalg.svdvals(x.relu()) + torch.linalg.eigvalsh(x)",
}


@dataclass
class Scene:
    """A folder with the files that pages refer to."""

    folder: Path

    def save(self, name: str, model: torch.nn.Module, *inputs: torch.Tensor) -> Path:
        path = self.folder / name
        torch.export.save(torch.export.export(model.eval(), inputs), path)
        return path

    def run(self, line: str) -> str:
        """The output of a command."""
        return self.output_with_code(line, 0)

    def output_with_code(self, line: str, code: int) -> str:
        """The output of a command, which must exit with `code`."""
        words = shlex.split(line, comments=True)
        done = run_command(tuple(words[1:]), code, self.folder)
        return done.stdout + done.stderr


def write_refused_model(scene: Scene) -> None:
    """Creates a model whose lines are those of the page."""
    code = [REFUSED.get(number, "") for number in range(1, max(REFUSED) + 1)]
    (scene.folder / "model.py").write_text("import torch\n" + "\n".join(code[1:]) + "\n")
    script = (
        "import sys; sys.path.insert(0, '.'); import torch, model; "
        "torch.export.save(torch.export.export(model.Model(), (torch.eye(4),)), 'model.pt2')"
    )
    subprocess.run([sys.executable, "-c", script], cwd=scene.folder, check=True)


def methods(scene: Scene) -> None:
    """Creates a program of two methods that share their models."""
    lower = "coremill lower forward=model.pt2 prefill=model.pt2 -o llm.pte --target ios18"
    scene.run(f"{lower} --skip-ops aten.tanh.default")


def mobilenet(scene: Scene) -> None:
    from oracle.tests.test_report import zoo_export

    shutil.copy(zoo_export("mobilenet_v2"), scene.folder / "mobilenet_v2.pt2")


def compared_mobilenet(scene: Scene) -> None:
    mobilenet(scene)
    (scene.folder / "mobilenet_v2.pt2").replace(scene.folder / "model.pt2")
    scene.run("coremill convert model.pt2 -o Model.mlpackage")


def network(scene: Scene) -> None:
    """Runs the page's Python code, and converts its result."""
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/pytorch.md").read_text(), re.DOTALL | re.MULTILINE)
    subprocess.run([sys.executable, "-c", code], cwd=scene.folder, check=True)
    scene.run("coremill convert network.pt2 -o Network.mlpackage")


def compressed(scene: Scene) -> None:
    scene.run("coremill compress Model.mlpackage -o Small.mlpackage --palettize 4")


def pruned(scene: Scene) -> None:
    scene.run("coremill compress Model.mlpackage -o Pruned.mlpackage --prune 0.5")


def embedding(scene: Scene) -> None:
    """Converts a small model instead of the model of the page, which is a download."""
    scene.run(f"coremill llm {ROOT / 'crates/cli/tests/files/tinybert'} -o minilm")


def speech(scene: Scene) -> None:
    """Converts a small model instead of the model of the page, and copies audio."""
    folder = ROOT / "crates/cli/tests/files/tinywhisper"
    scene.run(f"coremill llm {folder} -o whisper")
    shutil.copy(folder / "audio.wav", scene.folder / "speech.wav")


class Svd(torch.nn.Module):
    """A model with an operator that has no lowering."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svdvals(x)


class Overflow(torch.nn.Module):
    """A model whose intermediate values leave the range of fp16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 1000).square().mean() / 1e6


class Counter(torch.nn.Module):
    """Writes to a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.k.add_(x)
        return self.k.sum()


def write_faulty_models(scene: Scene) -> None:
    """Creates the files of the troubleshooting page."""
    scene.save("svd.pt2", Svd(), torch.eye(4))
    scene.save("overflow.pt2", Overflow(), torch.linspace(1, 100, 64))
    scene.save("counter.pt2", Counter(), torch.ones(2, 4))
    torch.jit.save(torch.jit.trace(Overflow(), torch.ones(4)), scene.folder / "script.pt")


#: Preparation for some blocks, by page and the beginning of the block.
BEFORE: dict[tuple[str, str], Callable[[Scene], None]] = {
    ("cli", "coremill convert mobilenet"): mobilenet,
    ("cli", "coremill convert model.pt2"): write_refused_model,
    ("cli", "coremill extract"): methods,
    ("troubleshooting", "coremill"): write_faulty_models,
    ("pytorch", "coremill"): network,
    ("cli", "coremill compare"): compared_mobilenet,
    ("compression", "coremill compress Pruned"): pruned,
    ("compression", "coremill compress Small"): compressed,
    ("language-models", "coremill embed"): embedding,
    ("language-models", "coremill transcribe"): speech,
}


@dataclass
class Block:
    """A fenced block: commands with their output."""

    page: str
    line: int
    commands: list[tuple[str, list[str]]]


def blocks() -> Iterator[Block]:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text()
        for found in re.finditer(r"^```(console|sh)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            commands: list[tuple[str, list[str]]] = []
            for line in found[2].replace("\\\n", " ").splitlines():
                if found[1] == "sh" or line.startswith("$ "):
                    if line.strip():
                        commands.append((line.removeprefix("$ "), []))
                else:
                    commands[-1][1].append(line)
            yield Block(page.stem, text.count("\n", 0, found.start()) + 2, commands)


BLOCKS = list(blocks())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that most blocks refer to."""
    torch.manual_seed(0)
    scene = Scene(tmp_path_factory.mktemp("files"))
    shutil.copytree(ROOT / "examples", scene.folder / "examples")
    shutil.copy(ROOT / "examples/digits.pt2", scene.folder / "digits.pt2")
    image = torch.rand(1, 1, 8, 8)
    scene.save("model.pt2", Digits(), image)
    np.savez(scene.folder / "in.npz", image=image.numpy())
    (scene.folder / "calibration").mkdir()
    for index in range(4):
        np.savez(scene.folder / "calibration" / f"{index}.npz", image=torch.rand(1, 1, 8, 8).numpy())
    scene.run("coremill convert model.pt2 -o Model.mlpackage --target ios18")
    scene.run("coremill convert model.pt2 -o Before.mlpackage --precision fp32 --target ios18")
    for copy in ["Old", "New", "After", "ResNet50"]:
        shutil.copytree(scene.folder / "Model.mlpackage", scene.folder / f"{copy}.mlpackage")
    rules = re.search(r"^```toml\n(.*?)^```", (ROOT / "docs/compression.md").read_text(), re.DOTALL | re.MULTILINE)
    (scene.folder / "rules.toml").write_text(rules[1])
    scene.run("coremill text Model.mlpackage -o model.mil")
    return scene.folder


def normalized(line: str) -> str:
    """Removes the parts of a line that vary between runs: numbers, bars, and column spacing."""
    line = re.sub(r"[█▉▊▋▌▍▎▏]+", "", line)
    line = re.sub(r"\S*/(model|test_docs)\.py", "model.py", line)
    line = re.sub(r"(?<![\w.])[-−]?(\d[\d.,]*(e[-+]?\d+)?|inf|nan)(?![\w.])", "N", line)
    line = re.sub(r"torch [\w.+]+", "torch N", line)
    return " ".join(line.split()).replace("N KB", "N B").replace("N MB", "N B")


@pytest.mark.parametrize(("name", "page"), [("commands", commands.page), ("operators", table.table), ("python-api", python_api.page)])
def test_generated_pages_are_fresh(name: str, page: Callable[[], str]) -> None:
    """The generated pages are equal to the output of `cargo xtask commands`, `operators` and `python-api`."""
    assert (ROOT / "docs" / f"{name}.md").read_text() == page()


def test_documented_commands_run_or_are_listed_exceptions() -> None:
    """Every command in a block is run or listed as an exception."""
    known = ("coremill", *OTHERS)
    words = {command.split()[0] for block in BLOCKS for command, _ in block.commands}
    assert words <= set(known)
    ran = [command for block in BLOCKS for command, _ in block.commands if command.startswith("coremill")]
    assert len(ran) > 40


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.page}:{block.line}")
def test_documented_command_output_matches(block: Block, files: Path, tmp_path: Path) -> None:
    """Each command exits as the page shows, and prints the lines in order, except for numbers."""
    excluded = (*NEEDS_MAC, *NEEDS_DOWNLOAD)
    ran = [
        (command.replace("cargo run --release --", "coremill"), expected) for command, expected in block.commands
    ]
    ran = [(c, e) for c, e in ran if c.startswith("coremill") and not c.startswith(excluded)]
    if not ran:
        pytest.skip(f"runs none of coremill's commands: {block.commands[0][0]}")
    scene = Scene(tmp_path / "scene")
    # Each block runs in its own copy of the files.
    shutil.copytree(files, scene.folder)
    if block.page == "trust":
        scene.run("coremill convert examples/digits.pt2 -o Digits.mlpackage")
    first = ran[0][0]
    for (page, start), prepare in BEFORE.items():
        if page == block.page and first.startswith(start):
            prepare(scene)
    for command, expected in ran:
        fails = any(line.startswith("error") for line in expected) or "broken" in command
        printed = [normalized(line) for line in scene.output_with_code(command, int(fails)).splitlines()]
        at = 0
        for line in map(normalized, expected):
            stem = line.removesuffix("...").rstrip()
            if not stem:
                continue
            found = [index for index in range(at, len(printed)) if is_line(line, printed[index])]
            assert found, f"`{command}` does not print `{line}` but:\n" + "\n".join(printed[at:])
            at = found[0] + 1


def is_line(expected: str, printed: str) -> bool:
    """Whether a line matches the page; `...` matches the rest of a line."""
    if expected.endswith("..."):
        return printed.startswith(expected.removesuffix("...").rstrip())
    return printed == expected


def test_versions_table_matches_recorded_results() -> None:
    rows, text = json.loads(versions.RECORDED.read_text()), versions.PAGE.read_text()
    assert versions.page(text, rows) == text
    rows[0]["failed"].append("something")
    assert versions.page(text, rows) != text


def test_readme_figures_match_recorded_benchmarks() -> None:
    readme, figures = (ROOT / "README.md").read_text(), json.loads(benchmarks.RECORDED.read_text())
    assert benchmarks.page(readme, figures) == readme
    measured = figures["convert"]["models"]["mobilenet_v2"]
    assert f"**{measured['times']:.0f} ×**" in readme
    measured["times"] += 1
    assert benchmarks.page(readme, figures) != readme
