"""Tests the output of commands at terminals of 60, 80 and 120 columns, in pipes, and without color."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

import pytest
import torch

from oracle.dumps.commands import binary
from oracle.support.cargo import ROOT

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
#: The commands; `{net}` is the name of a network.
COMMANDS = [
    "convert {net}.pt2 -o {net}.out.mlpackage --verify",
    "inspect {net}.mlpackage",
    "inspect {net}.pt2",
    "check {net}.mlpackage",
    "run {net}.mlpackage --random 1 --profile",
    "compare {net}.pt2 {net}.mlpackage --per-op",
    "compress {net}.mlpackage -o {net}.small.mlpackage --palettize 4 --min-elements 64",
    "diff {net}.mlpackage {net}.fp32.mlpackage",
    "lower {net}.pt2 -o {net}.pte --partition-report",
    "run {net}.pte --random 1 --profile",
]


class Convolutions(torch.nn.Module):
    """Modules with nested paths, and outputs with long names."""

    def __init__(self) -> None:
        super().__init__()
        self.feature_extractor = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU6(), torch.nn.Conv2d(8, 16, 3, stride=2)
        )
        self.classification_head = torch.nn.Linear(16, 10)

    def forward(self, input_image: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.feature_extractor(input_image)
        scores = self.classification_head(features.mean((2, 3)))
        return {"last_hidden_features_before_the_head": features, "classification_scores": scores.softmax(-1)}


class Transformer(torch.nn.Module):
    """Many operations of the same kinds, whose names differ at the end."""

    def __init__(self) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.encoder_of_the_sentence = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, token_embeddings: torch.Tensor) -> torch.Tensor:
        return self.encoder_of_the_sentence(token_embeddings)


NETWORKS = {
    "convolutions": (Convolutions, (1, 3, 16, 16)),
    "transformer": (Transformer, (1, 12, 32)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("terminal")
    for name, (network, shape) in NETWORKS.items():
        program = torch.export.export(network().eval(), (torch.rand(shape),))
        torch.export.save(program, path / f"{name}.pt2")
        for precision, suffix in [("fp16", ""), ("fp32", ".fp32")]:
            line = [binary(), "convert", f"{name}.pt2", "-o", f"{name}{suffix}.mlpackage", "--precision", precision]
            subprocess.run(line, cwd=path, check=True, capture_output=True)
    return path


def at_terminal(line: str, folder: Path, columns: int) -> str:
    """The output of a command at a terminal with this number of columns."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "CI")}
    process = subprocess.Popen(
        [binary(), *line.split()], cwd=folder, stdin=subprocess.DEVNULL, stdout=follower, stderr=follower,
        env=environment | {"TERM": "xterm-256color"},
    )
    os.close(follower)
    printed = b""
    while True:
        try:
            part = os.read(leader, 1 << 16)
        except OSError:
            break
        if not part:
            break
        printed += part
    os.close(leader)
    assert process.wait(timeout=60) in (0, 1)
    return printed.decode()


def piped(line: str, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [binary(), *line.split()], cwd=folder, capture_output=True, text=True, check=False, env=os.environ | environment
    )
    assert done.returncode in (0, 1)
    return done.stdout + done.stderr


def lines(printed: str) -> list[str]:
    """The final lines: a carriage return or an erasure overwrites a line of progress."""
    text = re.sub(r"\x1b\[\d*[A-HJK]", "\r", printed.replace("\r\n", "\n"))
    return [ESCAPE.sub("", line.split("\r")[-1]) for line in text.split("\n")]


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("network", NETWORKS)
def test_lines_fit_the_terminal(network: str, columns: int, folder: Path) -> None:
    wide = []
    for command in COMMANDS:
        line = command.format(net=network)
        printed = lines(at_terminal(line, folder, columns))
        assert any(one.strip() for one in printed), line
        wide += [f"{line}: {one}" for one in printed if len(one) > columns]
    assert wide == []


@pytest.mark.parametrize("network", NETWORKS)
def test_names_are_not_truncated_at_80_columns(network: str, folder: Path) -> None:
    """Other columns shrink so that names fit."""
    printed = lines(at_terminal(f"inspect {network}.mlpackage", folder, 80))
    assert not any("…_" in line or "_…" in line for line in printed), "\n".join(printed)


@pytest.mark.parametrize("network", NETWORKS)
def test_piped_output_has_no_color_or_truncated_names(network: str, folder: Path) -> None:
    for command in COMMANDS:
        printed = piped(command.format(net=network), folder)
        assert "\x1b" not in printed, command
        assert not re.search(r"\w…\w", printed), command


def test_color_depends_on_terminal_and_option(folder: Path) -> None:
    line = "inspect transformer.mlpackage"
    assert "\x1b[" in at_terminal(line, folder, 80)
    assert "\x1b" not in at_terminal(f"{line} --color never", folder, 80)
    assert "\x1b[" in piped(f"{line} --color always", folder)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_inspect_of_bundled_decoder_fits_terminal(columns: int) -> None:
    printed = lines(at_terminal("inspect examples/decoder.mlpackage", ROOT, columns))
    assert max(map(len, printed)) <= columns
