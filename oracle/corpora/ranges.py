"""Networks whose weights cause values outside the range of fp16: activations of 1e6 and of 1e-8."""

from collections.abc import Callable

import torch
from timm.models.byobnet import RepVggBlock
from timm.models.fastvit import MobileOneBlock
from torch import nn

#: Names of the batch norms in blocks.
BN = ("bn", "identity")


def drive(model: nn.Module, layers: Callable[[str], bool], factor: float) -> nn.Module:
    """Scales the weights and biases of named layers, so that their results are larger by the factor."""
    with torch.no_grad():
        for name, module in model.named_modules():
            if layers(name) and getattr(module, "weight", None) is not None:
                module.weight.mul_(factor)
                if getattr(module, "bias", None) is not None:
                    module.bias.mul_(factor)
    return model


def settle(model: nn.Module, size: int) -> nn.Module:
    """Sets the statistics of batch norms to those of their inputs, as in a trained network."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
        norm.reset_running_stats()
    model.train()
    with torch.no_grad():
        for _ in range(2):
            model(torch.randn(16, 3, size, size))
    return model.eval()


def undo(block: nn.Module, factor: float) -> None:
    """Compensates for inputs of a block that are larger by a factor."""
    with torch.no_grad():
        for name, module in block.named_modules():
            if isinstance(module, nn.Conv2d) and not name.startswith(("se.", "attn.")):
                module.weight.div_(factor)
        if block.identity is not None:
            block.identity.running_mean.mul_(factor)
            block.identity.weight.div_(factor)


class MobileOne(nn.Module):
    """Blocks with many branches and a gate; one branch leaves the range."""

    def __init__(self) -> None:
        super().__init__()
        self.first = MobileOneBlock(3, 16, 3, stride=2)
        self.second = MobileOneBlock(16, 16, 3, group_size=1, use_se=True)
        self.third = MobileOneBlock(16, 32, 1)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.third(self.second(self.first(x))).mean((2, 3)))


def mobileone(factor: float) -> tuple[nn.Module, torch.Tensor]:
    """Large values pass through a gate; small ones are compensated before it."""
    x = torch.randn(2, 3, 32, 32)
    model = settle(MobileOne(), 32)
    drive(model, lambda name: name.startswith("first") and name.endswith(BN), factor)
    undo(model.third if factor > 1 else model.second, factor)
    return model, x


class RepVgg(nn.Module):
    """RepVGG's blocks of three branches: 3 x 3, 1 x 1, and normalization of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            RepVggBlock(before, after, 3, stride=1 if before == after else 2)
            for before, after in ((3, 16), (16, 16), (16, 32), (32, 32))
        )
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def repvgg(factor: float) -> tuple[nn.Module, torch.Tensor]:
    """The first block scales values up or down, the second passes them on, and the third compensates."""
    x = torch.randn(2, 3, 32, 32)
    model = settle(RepVgg(), 32)
    names = ("conv_kxk.bn", "conv_1x1.bn", "identity")
    drive(model, lambda name: name.startswith("blocks.0") and name.endswith(names), factor)
    with torch.no_grad():
        for norm in (model.blocks[1].conv_kxk.bn, model.blocks[1].conv_1x1.bn, model.blocks[1].identity):
            norm.running_mean.mul_(factor)
            norm.bias.mul_(factor)
    for conv in (model.blocks[2].conv_kxk.conv, model.blocks[2].conv_1x1.conv):
        conv.weight.data.div_(factor)
    return model, x


class Dpt(nn.Module):
    """The head of a depth network: features of several sizes are resized, added and refined."""

    def __init__(self) -> None:
        super().__init__()
        self.projects = nn.ModuleList(nn.Conv2d(24, 16, 1) for _ in range(3))
        self.refine = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(3))
        self.up = nn.ConvTranspose2d(16, 16, 2, stride=2)
        self.out = nn.Sequential(nn.Conv2d(16, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1), nn.ReLU())
        self.norm = nn.LayerNorm(24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fused: torch.Tensor | None = None
        for index, (project, refine) in enumerate(zip(self.projects, self.refine, strict=True)):
            tokens = self.norm(x + index).transpose(1, 2).unflatten(2, (8, 8))
            features = project(tokens)
            fused = features if fused is None else fused + features
            fused = fused + refine(torch.relu(fused))
        resized = nn.functional.interpolate(self.up(fused), scale_factor=2, mode="bilinear", align_corners=True)
        return self.out(resized)


def dpt(factor: float) -> tuple[nn.Module, torch.Tensor]:
    model = Dpt().eval()
    drive(model, lambda name: name.startswith("projects"), factor)
    drive(model, lambda name: name == "out.2", 1 / factor)
    with torch.no_grad():
        for layer in (*model.refine, model.up, model.out[0]):
            layer.bias.mul_(factor)
        model.out[2].bias.copy_(torch.ones(1))
    return model, torch.randn(1, 64, 24)


class Root(nn.Module):
    """Root-mean-square normalization as elementary operations, as in language models."""

    def __init__(self, width: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon))


class Stream(nn.Module):
    """A residual stream with a normalization before each layer; some channels are much larger than others."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 64)
        self.norms = nn.ModuleList(norm(64) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(64, 128) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(128, 64) for _ in range(2))
        self.head = nn.Linear(64, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for norm, up, down in zip(self.norms, self.up, self.down, strict=False):
            x = x + down(nn.functional.silu(up(norm(x))))
        return self.head(self.norms[-1](x))


def stream(norm: Callable[[int], nn.Module], factor: float) -> tuple[nn.Module, torch.Tensor]:
    model = Stream(norm).eval()
    drive(model, lambda name: name == "embed" or name.startswith("down"), factor)
    return model, torch.arange(0, 48).reshape(2, 24)


#: Every network by name, with the scale of its values.
NETWORKS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "repvgg-large": lambda: repvgg(1e6),
    "repvgg-small": lambda: repvgg(1e-8),
    "mobileone-large": lambda: mobileone(1e6),
    "mobileone-small": lambda: mobileone(1e-8),
    "dpt-large": lambda: dpt(1e6),
    "dpt-small": lambda: dpt(1e-8),
    "rms-large": lambda: stream(nn.RMSNorm, 1e6),
    "root-large": lambda: stream(Root, 1e6),
    "root-small": lambda: stream(lambda width: Root(width, 1e-22), 1e-8),
    "layer-norm-large": lambda: stream(nn.LayerNorm, 1e6),
}
