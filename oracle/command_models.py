"""Writes the archives that the command's tests convert: `python -m oracle.command_models` at the root.

What lies there was made so by torch 2.15.0.
"""

import re
from pathlib import Path

import numpy
import torch
from torch import nn


class Digits(nn.Module):
    """A network of a few layers whose activations and outputs vary."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU6())
        self.head = nn.Linear(72, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.head(self.features(image).flatten(1)), -1)


class Spectrum(nn.Module):
    """Calls what Core ML has no operation for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.linalg.svdvals(x).sum()


class Refused(nn.Module):
    """Some of what it calls cannot be lowered, in several places and for several reasons."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Spectrum() for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return torch.linalg.svdvals(x.relu()) + torch.linalg.eigvalsh(x)


class Overflow(nn.Module):
    """Fine in fp32; in fp16 the squares are infinite."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        large = x * 300.0
        return large * large * 1e-5, x + 1.0


def save(folder: Path, name: str, module: nn.Module, inputs: tuple, samples: bool = True) -> None:
    """Exports a module without the paths of this machine."""
    program = torch.export.export(module.eval(), inputs)
    for node in program.graph.nodes:
        trace = node.meta.get("stack_trace")
        if trace:
            node.meta["stack_trace"] = re.sub(r'File "[^"]*/(oracle|torch)/', r'File "\1/', trace)
    if not samples:
        program.example_inputs = None
    torch.export.save(program, folder / f"{name}.pt2")


def main() -> None:
    """Writes all files."""
    folder = Path("crates/cli/tests/files")
    torch.manual_seed(3)
    digits, image = Digits().eval(), torch.randn(1, 1, 8, 8)
    with torch.no_grad():
        digits.features[1].running_mean.normal_()
        digits.features[1].running_var.uniform_(0.5, 2.0)
        digits.head.weight.mul_(4.0)
        save(Path("examples"), "digits", digits, (image,))
        save(folder, "bare", nn.Linear(4, 3), (torch.randn(2, 4),), samples=False)
        save(folder, "refused", Refused(), (torch.randn(4, 4),))
        save(folder, "overflow", Overflow(), (torch.tensor([0.5, -1.0, 2.0]),))
        numpy.savez(folder / "digits_in.npz", image=image.numpy())
        numpy.savez(folder / "digits_out.npz", probabilities=digits(image).numpy())


if __name__ == "__main__":
    main()
