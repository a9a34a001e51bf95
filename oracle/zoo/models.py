"""Image networks of torchvision and timm, with random weights."""

from collections.abc import Callable

import timm
import torch
import torchvision
from torch import nn
from torchvision.models import segmentation, video

from .entry import Source


def image(size: int, channels: int = 3) -> tuple[torch.Tensor, ...]:
    """One example image for tracing."""
    return (torch.rand(1, channels, size, size),)


def vision(name: str, size: int = 64, frontend: str = "trace", **options: object) -> Callable[[], Source]:
    """A named torchvision classifier."""

    def build() -> Source:
        module = torchvision.models.get_model(name, weights=None, num_classes=10, **options)
        return Source(module, image(size), frontend)

    return build


def timm_model(name: str, size: int = 64, frontend: str = "trace", **options: object) -> Callable[[], Source]:
    """A named timm classifier."""

    def build() -> Source:
        module = timm.create_model(name, pretrained=False, num_classes=10, **options)
        return Source(module, image(size), frontend)

    return build


def densenet() -> Source:
    """DenseNet with few and narrow blocks, which still has long chains of concatenations."""
    module = torchvision.models.DenseNet(12, (3, 6, 4, 3), 24, num_classes=10)
    return Source(module, image(64))


def swin() -> Source:
    """Swin with shifted windows, shrunk."""
    module = torchvision.models.SwinTransformer(
        patch_size=[4, 4], embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4], num_classes=10
    )
    return Source(module, image(64))


def vision_transformer() -> Source:
    """torchvision's ViT with its fused attention, shrunk."""
    module = torchvision.models.VisionTransformer(
        image_size=64, patch_size=16, num_layers=3, num_heads=4, hidden_dim=96, mlp_dim=192, num_classes=10
    )
    return Source(module, image(64))


def vgg() -> Source:
    """A small VGG: plain convolutions and large linear layers."""
    stack = torchvision.models.vgg.make_layers([16, "M", 32, "M", 64, 64, "M"], batch_norm=True)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    return Source(nn.Sequential(stack, head), image(64))


class OnlyOut(nn.Module):
    """Selects the main map of a segmentation network's dictionary."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        return self.module(picture)["out"]


def mixer() -> Source:
    """MLP-Mixer: linear layers over tokens and over channels in turn."""
    return Source(timm.models.MlpMixer(10, img_size=64, num_blocks=3, embed_dim=128), image(64))


def lraspp() -> Source:
    """A segmentation head over MobileNetV3 that ends in bilinear upsampling."""
    module = segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)
    return Source(OnlyOut(module), image(96))


def deeplab() -> Source:
    """A segmentation head with dilated convolutions and image pooling."""
    module = segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)
    return Source(OnlyOut(module), image(96))


def video_resnet() -> Source:
    """A ResNet with 3-d convolutions."""
    module = video.resnet.VideoResNet(
        block=video.resnet.BasicBlock,
        conv_makers=[video.resnet.Conv3DSimple] * 4,
        layers=[1, 1, 1, 1],
        stem=video.resnet.BasicStem,
        num_classes=10,
    )
    # The published widths have 14 million weights; only the first two stages are kept.
    trunk = nn.Sequential(module.stem, module.layer1, module.layer2)
    # coremltools lacks adaptive 3-d pooling; the trunk returns 2 frames of 8 x 8.
    head = nn.Sequential(nn.AvgPool3d((2, 8, 8)), nn.Flatten(), nn.Linear(128, 10))
    return Source(nn.Sequential(trunk, head), (torch.rand(1, 3, 4, 32, 32),))


class UNet(nn.Module):
    """A U-Net with two levels, transposed convolutions and skip connections."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([self.block(3, 16), self.block(16, 32), self.block(32, 64)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)])
        self.join = nn.ModuleList([self.block(64, 32), self.block(32, 16)])
        self.head = nn.Conv2d(16, 2, 1)

    @staticmethod
    def block(before: int, after: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.InstanceNorm2d(after, affine=True), nn.SiLU())

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        first = self.down[0](picture)
        second = self.down[1](nn.functional.max_pool2d(first, 2))
        third = self.down[2](nn.functional.max_pool2d(second, 2))
        second = self.join[0](torch.cat([self.up[0](third), second], 1))
        first = self.join[1](torch.cat([self.up[1](second), first], 1))
        return self.head(first)


def unet() -> Source:
    """A segmentation network whose output is a map."""
    return Source(UNet(), image(64))


class SuperResolution(nn.Module):
    """Convolutions and a pixel shuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 32, 5, padding=2), nn.PReLU(32), nn.Conv2d(32, 9, 3, padding=1))
        self.shuffle = nn.PixelShuffle(3)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.shuffle(self.body(picture)))


def super_resolution() -> Source:
    """Image to image, one channel."""
    return Source(SuperResolution(), image(32, channels=1))


class Stage(nn.Module):
    """Halves the map's size and changes its channels."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(after)
        self.mix = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.mixed = nn.BatchNorm2d(after)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        halved = nn.functional.silu(self.norm(self.down(picture)))
        return halved + nn.functional.silu(self.mixed(self.mix(halved)))


class Pyramid(nn.Module):
    """A feature pyramid: maps of three sizes with equal channels, the larger ones with added upsampled smaller ones."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList([Stage(3, 16), Stage(16, 24), Stage(24, 32), Stage(32, 48)])
        self.inner = nn.ModuleList([nn.Conv2d(before, width, 1) for before in (24, 32, 48)])
        self.outer = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for _ in range(3)])

    def forward(self, picture: torch.Tensor) -> list[torch.Tensor]:
        maps = []
        for stage in self.stages:
            picture = stage(picture)
            maps.append(picture)
        inner = [layer(one) for layer, one in zip(self.inner, maps[1:], strict=True)]
        for level in (1, 0):
            inner[level] = inner[level] + nn.functional.interpolate(inner[level + 1], scale_factor=2, mode="nearest")
        return [layer(one) for layer, one in zip(self.outer, inner, strict=True)]


class AnchorDetector(nn.Module):
    """Shared heads for all levels return classes, and boxes relative to anchors, which are converted to corners."""

    def __init__(self, size: int = 96, anchors: int = 3, classes: int = 5, width: int = 32) -> None:
        super().__init__()
        self.classes = classes
        self.pyramid = Pyramid(width)
        self.scores = nn.Sequential(self.block(width), self.block(width), nn.Conv2d(width, anchors * classes, 3, 1, 1))
        self.boxes = nn.Sequential(self.block(width), self.block(width), nn.Conv2d(width, anchors * 4, 3, 1, 1))
        rows = []
        for stride in (4, 8, 16):
            place = (torch.arange(size // stride) + 0.5) * stride
            for y, x, side in [(y, x, side) for y in place for x in place for side in (2.0, 3.0, 4.0)]:
                rows.append([float(x), float(y), stride * side, stride * side / 1.5])
        self.register_buffer("anchors", torch.tensor(rows))

    @staticmethod
    def block(width: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(8, width), nn.ReLU())

    @staticmethod
    def rows(level: torch.Tensor, each: int) -> torch.Tensor:
        return level.unflatten(1, (-1, each)).permute(0, 3, 4, 1, 2).flatten(1, 3)

    def forward(self, picture: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        levels = self.pyramid(picture)
        scores = torch.cat([self.rows(self.scores(level), self.classes) for level in levels], 1).sigmoid()
        shifts = torch.cat([self.rows(self.boxes(level), 4) for level in levels], 1)
        centre = self.anchors[:, :2] + shifts[..., :2] * self.anchors[:, 2:] * 0.1
        extent = self.anchors[:, 2:] * torch.exp((shifts[..., 2:] * 0.2).clamp(max=4.0))
        return scores, torch.cat([centre - extent / 2, centre + extent / 2], -1)


def anchor_detector() -> Source:
    """RetinaNet-like detection without non-maximum suppression."""
    return Source(AnchorDetector(), image(96))


class GridDetector(nn.Module):
    """One row per cell of two grids: a box, an objectness score and class scores."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.outputs = 5 + classes
        self.stages = nn.Sequential(Stage(3, 16), Stage(16, 24), Stage(24, 32))
        self.last = Stage(32, 48)
        self.pool = nn.MaxPool2d(5, stride=1, padding=2)
        self.merge = nn.Conv2d(48 * 3, 48, 1)
        self.fine, self.coarse = nn.Conv2d(80, self.outputs, 1), nn.Conv2d(48, self.outputs, 1)

    def decode(self, level: torch.Tensor, stride: int) -> torch.Tensor:
        height, width = level.shape[-2:]
        rows = level.flatten(2).transpose(1, 2)
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        cells = torch.stack([x, y], -1).reshape(1, -1, 2).float()
        place = (rows[..., :2].sigmoid() * 2 - 0.5 + cells) * stride
        extent = (rows[..., 2:4].sigmoid() * 2) ** 2 * stride
        return torch.cat([place, extent, rows[..., 4:].sigmoid()], -1)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        early = self.stages(picture)
        late = self.last(early)
        once = self.pool(late)
        late = nn.functional.silu(self.merge(torch.cat([late, once, self.pool(once)], 1)))
        wide = torch.cat([early, nn.functional.interpolate(late, scale_factor=2, mode="nearest")], 1)
        return torch.cat([self.decode(self.fine(wide), 8), self.decode(self.coarse(late), 16)], 1)


def grid_detector() -> Source:
    """YOLO-like detection without non-maximum suppression."""
    return Source(GridDetector(), image(96))


class QueryDetector(nn.Module):
    """Convolutions, an encoder over their features and a decoder over learned queries."""

    def __init__(self, width: int = 64, questions: int = 12, classes: int = 5) -> None:
        super().__init__()
        self.trunk = nn.Sequential(Stage(3, 16), Stage(16, 32), Stage(32, width))
        self.places = nn.Parameter(torch.randn(1, 64, width))
        self.questions = nn.Parameter(torch.randn(1, questions, width))
        self.transformer = nn.Transformer(width, 4, 2, 2, 128, batch_first=True)
        self.scores, self.boxes = nn.Linear(width, classes), nn.Linear(width, 4)

    def forward(self, picture: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = self.trunk(picture).flatten(2).transpose(1, 2) + self.places
        found = self.transformer(seen, self.questions.expand(len(seen), -1, -1))
        return self.scores(found).softmax(-1), self.boxes(found).sigmoid()


def query_detector() -> Source:
    """DETR-like detection."""
    return Source(QueryDetector(), image(64))
