"""Image networks of torchvision and timm, with random weights."""

from collections.abc import Callable

import timm
import torch
import torchvision
from torch import nn
from torchvision.models import segmentation, video

from .entry import Source


def image(size: int, channels: int = 3) -> tuple[torch.Tensor, ...]:
    """One image to trace with."""
    return (torch.rand(1, channels, size, size),)


def vision(name: str, size: int = 64, frontend: str = "trace", **options: object) -> Callable[[], Source]:
    """A classifier that torchvision knows by name."""

    def build() -> Source:
        module = torchvision.models.get_model(name, weights=None, num_classes=10, **options)
        return Source(module, image(size), frontend)

    return build


def timm_model(name: str, size: int = 64, frontend: str = "trace", **options: object) -> Callable[[], Source]:
    """A classifier that timm knows by name."""

    def build() -> Source:
        module = timm.create_model(name, pretrained=False, num_classes=10, **options)
        return Source(module, image(size), frontend)

    return build


def densenet() -> Source:
    """DenseNet with few and narrow blocks: its long chains of concatenations remain."""
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
    """Takes the main map of a segmentation network out of its dictionary."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        return self.module(picture)["out"]


def mixer() -> Source:
    """MLP-Mixer: linear layers over tokens and over channels in turn."""
    return Source(timm.models.MlpMixer(10, img_size=64, num_blocks=3, embed_dim=128), image(64))


def lraspp() -> Source:
    """A segmentation head over MobileNetV3, which ends in a bilinear upsampling."""
    module = segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)
    return Source(OnlyOut(module), image(96))


def deeplab() -> Source:
    """A segmentation head with dilated convolutions and image pooling."""
    module = segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)
    return Source(OnlyOut(module), image(96))


def video_resnet() -> Source:
    """Convolutions in three dimensions."""
    module = video.resnet.VideoResNet(
        block=video.resnet.BasicBlock,
        conv_makers=[video.resnet.Conv3DSimple] * 4,
        layers=[1, 1, 1, 1],
        stem=video.resnet.BasicStem,
        num_classes=10,
    )
    # The published widths give 14 million weights; only the first two stages are kept.
    trunk = nn.Sequential(module.stem, module.layer1, module.layer2)
    # coremltools has no adaptive pooling in three dimensions; after the trunk there are 2 frames of 8 x 8.
    head = nn.Sequential(nn.AvgPool3d((2, 8, 8)), nn.Flatten(), nn.Linear(128, 10))
    return Source(nn.Sequential(trunk, head), (torch.rand(1, 3, 4, 32, 32),))


class UNet(nn.Module):
    """Two levels down and up, with transposed convolutions and skips."""

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
