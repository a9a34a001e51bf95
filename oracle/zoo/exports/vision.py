"""torchvision: every family of classifiers, some at their real size, video, segmentation, flow and detection."""

from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torch import nn
from torchvision import models
from torchvision.models import detection, segmentation, video

from .entry import Row, Source


def picture(size: int, channels: int = 3) -> torch.Tensor:
    """A random image, centered as the networks expect."""
    return torch.randn(1, channels, size, size)


def known(name: str, size: int = 64, **options: Any) -> Callable[[], Source]:
    """A named torchvision network."""

    def build() -> Source:
        return Source(models.get_model(name, weights=None, **options), (picture(size),))

    return build


def reused(name: str) -> Callable[[], Source]:
    """A network from the zoo of packages."""

    def build() -> Source:
        from .. import models as definitions

        source = getattr(definitions, name)()
        return Source(source.module, source.example, damped=source.damped)

    return build


def alexnet() -> Source:
    """The convolutions of AlexNet with a small head."""
    module = models.alexnet(weights=None)
    head = nn.Sequential(nn.Flatten(), nn.Linear(256 * 36, 10))
    return Source(nn.Sequential(module.features, module.avgpool, head), (picture(128),))


def vit_small() -> Source:
    """torchvision's own ViT, shrunk."""
    module = models.VisionTransformer(64, 16, 2, 4, 64, 128, num_classes=10)
    return Source(module, (picture(64),))


def convnext_small() -> Source:
    """ConvNeXt: layer scales, and layer norms over channels."""
    setting = [
        models.convnext.CNBlockConfig(24, 48, 2),
        models.convnext.CNBlockConfig(48, 96, 2),
        models.convnext.CNBlockConfig(96, None, 2),
    ]
    return Source(models.ConvNeXt(setting, num_classes=10), (picture(64),))


def swin(block: type[nn.Module], norm: type[nn.Module] | None = None) -> Callable[[], Source]:
    """Swin, first or second version, shrunk."""

    def build() -> Source:
        second = block is models.swin_transformer.SwinTransformerBlockV2
        merging = models.swin_transformer.PatchMergingV2 if second else models.swin_transformer.PatchMerging
        module = models.SwinTransformer(
            [4, 4], 32, [2, 2], [2, 4], [4, 4], num_classes=10, block=block, downsample_layer=merging
        )
        return Source(module, (picture(64),))

    return build


def maxvit() -> Source:
    """MaxViT: attention within blocks and over a grid."""
    module = models.MaxVit(
        (64, 64),
        stem_channels=16,
        partition_size=4,
        block_channels=[16, 32],
        block_layers=[1, 1],
        head_dim=8,
        stochastic_depth_prob=0.0,
        num_classes=10,
    )
    return Source(module, (picture(64),))


def mvit() -> Source:
    """MViT: attention with pooled keys, over space and time."""
    setting = [
        video.mvit.MSBlockConfig(
            num_heads=heads,
            input_channels=before,
            output_channels=after,
            kernel_q=kernel,
            kernel_kv=[3, 3, 3],
            stride_q=stride,
            stride_kv=[1, 2, 2],
        )
        for heads, before, after, kernel, stride in [
            (1, 32, 32, [3, 3, 3], [1, 1, 1]),
            (2, 32, 64, [3, 3, 3], [1, 2, 2]),
        ]
    ]
    module = video.MViT(
        spatial_size=(32, 32),
        temporal_size=8,
        block_setting=setting,
        residual_pool=True,
        residual_with_cls_embed=False,
        rel_pos_embed=True,
        proj_after_attn=True,
        num_classes=10,
    )
    return Source(module, (torch.randn(1, 3, 8, 32, 32),))


def swin3d() -> Source:
    """Swin with windows over space and time."""
    module = video.SwinTransformer3d([2, 4, 4], 24, [2, 2], [2, 4], [4, 4, 4], num_classes=10)
    return Source(module, (torch.randn(1, 3, 8, 32, 32),))


def video_resnet(maker: type[nn.Module], stem: type[nn.Module]) -> Callable[[], Source]:
    """Two of four stages of a ResNet with 3-d convolutions."""

    def build() -> Source:
        whole = video.resnet.VideoResNet(video.resnet.BasicBlock, [maker] * 4, [1, 1, 1, 1], stem, num_classes=10)
        head = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(128, 10))
        return Source(nn.Sequential(whole.stem, whole.layer1, whole.layer2, head), (torch.randn(1, 3, 4, 32, 32),))

    return build


def raft() -> Source:
    """RAFT, optical flow: lookups in a correlation volume at a moving grid, and unrolled recurrent updates."""

    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = models.optical_flow.raft_small(weights=None)

        def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            return self.network(first, second, num_flow_updates=3)[-1]

    # Initial weights: flows from random updates would leave the image.
    return Source(Flow(), (picture(128), picture(128)), redrawn=False)


class Maps(nn.Module):
    """Converts a network's dictionary of outputs to a tuple."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self.module(value).values())


def segment(name: str, size: int = 96, **options: Any) -> Callable[[], Source]:
    """A segmentation network with its dictionary of outputs."""

    def build() -> Source:
        module = getattr(segmentation, name)(weights=None, weights_backbone=None, num_classes=5, **options)
        return Source(module, (picture(size),))

    return build


def pyramid() -> Source:
    """The detectors' backbone: a ResNet with a feature pyramid."""
    module = detection.backbone_utils.resnet_fpn_backbone(
        backbone_name="resnet18", weights=None, trainable_layers=5, norm_layer=nn.BatchNorm2d
    )
    return Source(Maps(module), (picture(96),))


class Heads(nn.Module):
    """A single-shot detector before it selects boxes."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = module.backbone, module.head

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        return self.head(list(self.backbone(image).values()))


def heads(name: str, size: int = 96, **options: Any) -> Callable[[], Source]:
    """A detector before it selects boxes."""

    def build() -> Source:
        module = getattr(detection, name)(weights=None, weights_backbone=None, num_classes=5, **options)
        return Source(Heads(module), (picture(size),))

    return build


def anchored(kind: type[nn.Module]) -> Callable[[], Source]:
    """A detector with a small backbone, before it selects boxes."""

    def build() -> Source:
        trunk = detection.backbone_utils.resnet_fpn_backbone(
            backbone_name="resnet18",
            weights=None,
            trainable_layers=5,
            returned_layers=[2, 3, 4],
            norm_layer=nn.BatchNorm2d,
        )
        anchors = detection.anchor_utils.AnchorGenerator(((8,), (16,), (32,), (64,)), ((1.0,),) * 4)
        return Source(Heads(kind(trunk, 5, anchor_generator=anchors)), (picture(96),))

    return build


class Proposals(nn.Module):
    """The region proposal network, with its decoding."""

    def __init__(self) -> None:
        super().__init__()
        module = detection.fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, num_classes=5)
        self.backbone, self.rpn = module.backbone, module.rpn

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = list(self.backbone(image).values())
        objectness, deltas = self.rpn.head(features)
        flat = [one.permute(0, 2, 3, 1).reshape(one.shape[0], -1, 1) for one in objectness]
        shifts = [
            one.view(one.shape[0], -1, 4, *one.shape[-2:]).permute(0, 3, 4, 1, 2).reshape(one.shape[0], -1, 4)
            for one in deltas
        ]
        return torch.cat(flat, 1).sigmoid(), torch.cat(shifts, 1)


def whole(name: str, size: int = 96, **options: Any) -> Callable[[], Source]:
    """A complete detector from image to boxes; the number of boxes depends on the data."""

    def build() -> Source:
        module = getattr(detection, name)(weights=None, weights_backbone=None, num_classes=5, **options)
        return Source(module, ([torch.rand(3, size, size)],))

    return build


def regions() -> Source:
    """Features of given boxes."""

    class Regions(nn.Module):
        def forward(self, features: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
            return torchvision.ops.roi_align(features, [boxes], output_size=4, spatial_scale=0.5, sampling_ratio=2)

    corners = torch.rand(5, 2) * 20
    return Source(Regions(), (torch.randn(1, 6, 32, 32), torch.cat([corners, corners + 8 + torch.rand(5, 2) * 16], 1)))


def deformable() -> Source:
    """Deformable convolution, which samples at computed offsets."""

    class Deformable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.offset = nn.Conv2d(4, 18, 3, padding=1)
            self.convolution = torchvision.ops.DeformConv2d(4, 6, 3, padding=1)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return self.convolution(image, self.offset(image))

    return Source(Deformable(), (torch.randn(1, 4, 16, 16),))


REAL = {"num_classes": 1000}
FEW = {"num_classes": 10}
SIMPLE, MIXED, APART = video.resnet.Conv3DSimple, video.resnet.Conv3DNoTemporal, video.resnet.Conv2Plus1D


def row(name: str, build: Callable[[], Source], notes: str = "", **more: Any) -> Row:
    """A row of this family."""
    return Row(name, "torchvision", build, notes, **more)


ROWS = [
    row("mobilenet_v2", known("mobilenet_v2", 224, **REAL), "real size", dialects=True, everyday=True),
    row("mobilenet_v2_small", known("mobilenet_v2", width_mult=0.5, **FEW)),
    row("mobilenet_v3_small", known("mobilenet_v3_small", **FEW), dialects=True, everyday=True),
    row("mobilenet_v3_large", known("mobilenet_v3_large", 224, **REAL), "real size"),
    row("resnet18", known("resnet18", **FEW), dialects=True, everyday=True),
    row("resnet50", known("resnet50", 224, **REAL), "real size"),
    row("resnext50", known("resnext50_32x4d", **FEW)),
    row("efficientnet_b0", known("efficientnet_b0", 224, **REAL), "real size"),
    row("efficientnet_v2_s", known("efficientnet_v2_s", **FEW)),
    row("squeezenet1_0", known("squeezenet1_0", **FEW)),
    row("squeezenet1_1", known("squeezenet1_1", 224, **REAL), "real size"),
    row("shufflenet_v2_x0_5", known("shufflenet_v2_x0_5", **FEW)),
    row("shufflenet_v2_x1_0", known("shufflenet_v2_x1_0", 224, **REAL), "real size"),
    row("regnet_y_400mf", known("regnet_y_400mf", **FEW)),
    row("regnet_x_400mf", known("regnet_x_400mf", **FEW)),
    row("mnasnet0_5", known("mnasnet0_5", **FEW)),
    row("mnasnet1_0", known("mnasnet1_0", 224, **REAL), "real size"),
    row("googlenet", known("googlenet", 128, aux_logits=False, init_weights=False, transform_input=True, **FEW)),
    row("inception_v3", known("inception_v3", 160, aux_logits=False, init_weights=False, **FEW)),
    row("densenet121", known("densenet121", 224, **REAL), "real size"),
    row("densenet_small", reused("densenet")),
    row("alexnet_small", alexnet),
    row("vgg_small", reused("vgg"), dialects=True),
    row("vit_b_16", known("vit_b_16", 224, **REAL), "real size"),
    row("vit_small", vit_small, dialects=True, everyday=True),
    row("convnext_tiny", known("convnext_tiny", 224, **REAL), "real size"),
    row("convnext_small", convnext_small, everyday=True),
    row("swin_small", swin(models.swin_transformer.SwinTransformerBlock), everyday=True),
    row("swin_v2_small", swin(models.swin_transformer.SwinTransformerBlockV2)),
    row("swin_t", known("swin_t", 224, **REAL), "real size"),
    row("maxvit", maxvit),
    row("r3d", video_resnet(SIMPLE, video.resnet.BasicStem)),
    row("mc3", video_resnet(MIXED, video.resnet.BasicStem)),
    row("r2plus1d", video_resnet(APART, video.resnet.R2Plus1dStem)),
    row("mvit", mvit),
    row("swin3d", swin3d, "rank 8 on the way"),
    row("raft_small", raft, "grid_sample in a loop that is unrolled"),
    row("fcn_resnet50", segment("fcn_resnet50")),
    row("deeplabv3_mobilenet", segment("deeplabv3_mobilenet_v3_large", 64)),
    row("lraspp_mobilenet", segment("lraspp_mobilenet_v3_large")),
    row("unet", reused("unet"), dialects=True, everyday=True),
    row("super_resolution", reused("super_resolution")),
    row("anchor_detector", reused("anchor_detector"), "detection up to the suppression"),
    row("grid_detector", reused("grid_detector"), "detection up to the suppression", everyday=True),
    row("query_detector", reused("query_detector"), "detection with attention"),
    row("feature_pyramid", pyramid),
    row("retinanet_heads", anchored(detection.RetinaNet), "detection up to the choice of boxes"),
    row("fcos_heads", anchored(detection.FCOS), "detection up to the choice of boxes"),
    row("ssdlite_heads", heads("ssdlite320_mobilenet_v3_large", 128), "detection up to the choice of boxes"),
    row("region_proposals", lambda: Source(Proposals(), (picture(96),)), "detection up to the choice of boxes"),
    row("roi_align", regions),
    row("deform_conv", deformable),
    row("fasterrcnn", whole("fasterrcnn_mobilenet_v3_large_320_fpn"), "whole, with suppression"),
    row("retinanet", whole("retinanet_resnet50_fpn", min_size=96, max_size=96), "whole, with suppression"),
    row("ssdlite", whole("ssdlite320_mobilenet_v3_large"), "whole, with suppression"),
    row("fcos", whole("fcos_resnet50_fpn", min_size=96, max_size=96), "whole, with suppression"),
    row("maskrcnn", whole("maskrcnn_resnet50_fpn", min_size=96, max_size=96), "whole, with suppression"),
]
