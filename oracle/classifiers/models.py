"""The models, and pictures that they tell apart.

The weights are random but fixed, since no wheel ships trained ones. A wrapper shifts and scales the scores, so that pictures
differ in their labels as they do with trained weights.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from PIL import Image, ImageDraw

LABELS = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen", "ibex", "jay"]
#: Spread of the scores over the pictures.
SPREAD = 3.0
#: The normalization of ImageNet, as coremltools' guides write it for `ImageType`: one scale, and a bias for each channel.
SCALE = 1 / (0.226 * 255)
BIAS = [-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225]


@dataclass(frozen=True)
class Row:
    """A model: its name in its library, and the size of its pictures."""

    library: str
    name: str
    size: int = 160


ROWS = [
    Row("torchvision", "resnet18"),
    Row("torchvision", "mobilenet_v2"),
    Row("torchvision", "mobilenet_v3_small"),
    Row("torchvision", "efficientnet_b0"),
    Row("torchvision", "squeezenet1_1"),
    Row("torchvision", "shufflenet_v2_x0_5"),
    Row("torchvision", "densenet121"),
    Row("torchvision", "googlenet"),
    Row("torchvision", "mnasnet0_5"),
    Row("torchvision", "regnet_y_400mf"),
    Row("torchvision", "convnext_tiny", 96),
    Row("torchvision", "swin_t", 224),
    Row("timm", "mobilenetv4_conv_small"),
    Row("timm", "deit_tiny_patch16_224", 224),
    Row("timm", "mobilevit_xs", 256),
    Row("timm", "ghostnet_100"),
    Row("timm", "edgenext_xx_small"),
    Row("timm", "resmlp_12_224", 224),
    Row("timm", "fastvit_t8", 256),
    Row("timm", "levit_128s", 224),
]


class Calibrated(torch.nn.Module):
    """Probabilities of a network whose scores are shifted and scaled."""

    def __init__(self, network: torch.nn.Module, pixels: torch.Tensor) -> None:
        super().__init__()
        self.network = network
        with torch.no_grad():
            scores = network(pixels)
        self.register_buffer("mean", scores.mean(0, keepdim=True))
        self.register_buffer("gain", SPREAD / scores.std(0).mean())

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.softmax((self.network(image) - self.mean) * self.gain, dim=1)


def module(row: Row) -> torch.nn.Module:
    """The model with weights of its own seed."""
    torch.manual_seed(sum(row.name.encode()))
    network = _network(row)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            # Layer scales start near 0, where a network computes nothing but its shortcuts.
            if name.rpartition(".")[2] in ("gamma", "layer_scale", "ls1", "ls2", "gamma_xca"):
                parameter.fill_(0.5)
            elif parameter.ndim == 2 and not parameter.any():
                torch.nn.init.normal_(parameter, std=0.02)
        pixels = torch.cat([normalized(picture) for picture in pictures(row.size)])
        _settle(network, pixels)
    return Calibrated(network.eval(), pixels).eval()


def _network(row: Row) -> torch.nn.Module:
    if row.library == "timm":
        import timm

        return timm.create_model(row.name, pretrained=False, num_classes=len(LABELS))
    import torchvision

    options = {"aux_logits": False, "init_weights": True} if row.name == "googlenet" else {}
    return torchvision.models.get_model(row.name, weights=None, num_classes=len(LABELS), **options)


def _settle(network: torch.nn.Module, pixels: torch.Tensor) -> None:
    """Sets the statistics of batch normalizations to those of the pictures."""
    norms = [one for one in network.modules() if isinstance(one, torch.nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    network.eval()
    for one in norms:
        one.train()
        one.momentum = None
        one.reset_running_stats()
    network(pixels)


@functools.lru_cache(maxsize=4)
def pictures(size: int) -> tuple[Image.Image, ...]:
    """Shapes, gradients and textures."""
    return tuple(_picture(size, seed) for seed in range(8))


def _picture(size: int, seed: int) -> Image.Image:
    random = numpy.random.default_rng(seed)
    down, right = numpy.mgrid[0:size, 0:size] / size
    planes = []
    for _ in range(3):
        along, across, phase = random.uniform(-1, 1, 3)
        waves = numpy.sin(2 * numpy.pi * (seed + 1) * (along * down + across * right + phase))
        planes.append(127 + 60 * waves + random.normal(0, 4 * seed, (size, size)))
    picture = Image.fromarray(numpy.clip(numpy.stack(planes, -1), 0, 255).astype(numpy.uint8))
    draw = ImageDraw.Draw(picture)
    for _ in range(2 + seed):
        left, top, width, height = random.integers(0, size // 2, 4).tolist()
        color = tuple(random.integers(0, 256, 3).tolist())
        shape = (draw.ellipse, draw.rectangle)[int(random.integers(2))]
        shape((left, top, left + width + 8, top + height + 8), fill=color)
    return picture


def files(size: int, folder: Path) -> list[Path]:
    """The pictures as PNG and JPEG files."""
    paths = []
    for at, picture in enumerate(pictures(size)):
        paths.append(folder / f"{at}-{size}.{'png' if at % 2 == 0 else 'jpg'}")
        picture.save(paths[-1])
    return paths


def normalized(picture: Image.Image) -> torch.Tensor:
    """The pixels as the network takes them."""
    pixels = torch.from_numpy(numpy.array(picture)).permute(2, 0, 1)[None].float()
    return pixels * SCALE + torch.tensor(BIAS)[:, None, None]


#: Makes a program of a module: `torch.jit.trace` or `torch.export.export`.
FRONTENDS: dict[str, Callable[[torch.nn.Module, torch.Tensor], object]] = {
    "traced": lambda made, example: torch.jit.trace(made, example),
    "exported": lambda made, example: torch.export.export(made, (example,)),
}
