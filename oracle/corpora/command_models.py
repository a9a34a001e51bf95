"""Writes the archives that the command's tests convert: `python -m oracle.corpora.command_models` at the root.

The committed files were created by torch 2.15.0.
"""

import re
from pathlib import Path

import numpy
import torch
from torch import nn


class Digits(nn.Module):
    """A network of a few layers.

    Its numbers have few bits, so fp32 sums are exact in every order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU6())
        self.head = nn.Linear(72, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(image).flatten(1))


class Total(nn.Module):
    """Accumulates its inputs, and calls operators that are not delegated."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 4))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.total.add_(value)
        return (self.total * 2).relu()


def coarse(*shape: int, steps: int = 4) -> torch.Tensor:
    """Random numbers with few bits."""
    return torch.round(torch.randn(*shape) * steps) / steps


class Spectrum(nn.Module):
    """Calls an operator that Core ML lacks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.linalg.svdvals(x).sum()


class Refused(nn.Module):
    """Calls several operators that cannot be lowered, for several reasons."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Spectrum() for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return torch.linalg.svdvals(x.relu()) + torch.linalg.eigvalsh(x)


class Overflow(nn.Module):
    """Works in fp32; in fp16 the squares overflow."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        large = x * 300.0
        return large * large * 1e-5, x + 1.0


def save(folder: Path, name: str, module: nn.Module, inputs: tuple, samples: bool = True) -> None:
    """Exports a module without this machine's paths."""
    program = torch.export.export(module.eval(), inputs)
    for node in program.graph.nodes:
        trace = node.meta.get("stack_trace")
        if trace:
            node.meta["stack_trace"] = re.sub(r'File "[^"]*/(oracle|torch)/', r'File "\1/', trace)
    if not samples:
        program.example_inputs = None
    torch.export.save(program, folder / f"{name}.pt2")


def lower(path: Path, module: nn.Module, inputs: tuple) -> None:
    """Lowers a module with ExecuTorch's own Core ML backend."""
    # Imported here because these import slowly.
    import coremltools
    from executorch.backends.apple.coreml.compiler import CoreMLBackend
    from executorch.backends.apple.coreml.partition import CoreMLPartitioner
    from executorch.exir import to_edge_transform_and_lower

    specs = CoreMLBackend.generate_compile_specs(minimum_deployment_target=coremltools.target.iOS18)
    partitioner = CoreMLPartitioner(
        skip_ops_for_coreml_delegation=["aten.relu.default"], compile_specs=specs
    )
    program = torch.export.export(module.eval(), inputs)
    lowered = to_edge_transform_and_lower(program, partitioner=[partitioner]).to_executorch()
    path.write_bytes(lowered.buffer)


def main() -> None:
    """Writes all files."""
    folder = Path("crates/cli/tests/files")
    torch.manual_seed(3)
    digits, image = Digits().eval(), coarse(1, 1, 8, 8, steps=16)
    with torch.no_grad():
        for parameter in digits.parameters():
            parameter.copy_(coarse(*parameter.shape))
        norm = digits.features[1]
        norm.running_mean.copy_(coarse(8))
        # Then the deviation is 2.
        norm.running_var.fill_(4.0 - norm.eps)
        save(Path("examples"), "digits", digits, (image,))
        lower(folder / "total.pte", Total(), (torch.randn(1, 4),))
        save(folder, "bare", nn.Linear(4, 3), (torch.randn(2, 4),), samples=False)
        save(folder, "refused", Refused(), (torch.randn(4, 4),))
        save(folder, "overflow", Overflow(), (torch.tensor([0.5, -1.0, 2.0]),))
        numpy.savez(folder / "digits_in.npz", image=image.numpy())
        numpy.savez(folder / "digits_out.npz", logits=digits(image).numpy())


if __name__ == "__main__":
    main()
