"""A small member of each family of image networks in timm."""

from collections.abc import Callable
from typing import Any

import timm
import torch
from timm.layers import GatedMlp, GluMlp
from timm.models import convmixer, focalnet, gcvit, mlp_mixer, volo
from torch import nn

from .entry import Row, Source

#: Name, image size, options.
MEMBERS: list[tuple[str, int, dict[str, Any]]] = [
    ("test_byobnet", 64, {}),
    ("test_convnext", 64, {}),
    ("test_convnext3", 64, {}),
    ("test_efficientnet", 64, {}),
    ("test_efficientnet_gn", 64, {}),
    ("test_efficientnet_ln", 64, {}),
    ("test_mambaout", 64, {}),
    ("test_coatnet", 64, {"img_size": 64}),
    ("test_maxvit", 64, {"img_size": 64}),
    ("test_nfnet", 64, {}),
    ("test_resnet", 64, {}),
    ("test_vit", 64, {"img_size": 64}),
    ("test_vit2", 64, {"img_size": 64}),
    ("beit_base_patch16_224", 64, {"img_size": 64, "depth": 2, "embed_dim": 96, "num_heads": 4}),
    ("halonet_h1", 256, {}),
    ("eca_botnext26ts_256", 256, {}),
    ("lambda_resnet26t", 64, {}),
    ("cait_xxs24_224", 64, {"img_size": 64, "depth": 3}),
    ("coat_lite_tiny", 64, {"img_size": 64}),
    ("convit_tiny", 64, {"img_size": 64, "depth": 4, "local_up_to_layer": 2}),
    ("convnext_zepto_rms", 64, {}),
    ("crossvit_tiny_240", 240, {}),
    ("cs3darknet_focus_s", 64, {}),
    ("davit_tiny", 64, {"depths": (1, 1, 1, 1), "embed_dims": (24, 48, 96, 192), "num_heads": (1, 2, 4, 8)}),
    ("deit_tiny_distilled_patch16_224", 64, {"img_size": 64, "depth": 3}),
    ("densenetblur121d", 64, {"block_config": (2, 2, 2, 2)}),
    ("dla46_c", 64, {}),
    ("dpn48b", 64, {}),
    ("edgenext_xx_small", 64, {}),
    ("efficientformer_l1", 224, {}),
    ("efficientformerv2_s0", 224, {}),
    ("efficientvit_b0", 64, {}),
    ("efficientvit_m0", 224, {}),
    ("efficientvim_m1", 224, {}),
    ("eva02_tiny_patch14_224", 56, {"img_size": 56, "depth": 3}),
    ("fasternet_t0", 64, {}),
    ("fastvit_t8", 64, {}),
    ("ghostnet_050", 64, {}),
    ("ghostnetv3_050", 64, {}),
    ("hardcorenas_a", 64, {}),
    ("hgnetv2_b0", 64, {}),
    ("hiera_tiny_224", 224, {"embed_dim": 24, "num_heads": 1, "stages": (1, 1, 2, 1)}),
    ("hrnet_w18_small", 64, {}),
    ("iformer_t", 64, {}),
    ("inception_next_atto", 64, {}),
    ("levit_128s", 224, {}),
    ("mobilenetv4_conv_small_035", 64, {}),
    ("lcnet_050", 64, {}),
    ("tf_mobilenetv3_small_minimal_100", 64, {}),
    ("mobilevit_xxs", 64, {}),
    ("mobilevitv2_050", 128, {}),
    ("poolformer_s12", 64, {}),
    ("mvitv2_tiny", 64, {"img_size": 64}),
    ("nest_tiny", 64, {"img_size": 64}),
    ("nextvit_small", 64, {"depths": (1, 1, 5, 1)}),
    ("pit_ti_224", 64, {"img_size": 64}),
    ("pvt_v2_b0", 64, {}),
    ("regnetx_002", 64, {}),
    ("repghostnet_050", 64, {}),
    ("repvgg_a0", 64, {}),
    ("repvit_m0_9", 64, {}),
    ("res2net50_14w_8s", 64, {"layers": (1, 1, 1, 1)}),
    ("resnest14d", 64, {}),
    ("resnetv2_50", 64, {"layers": (1, 1, 1, 1)}),
    ("rexnet_100", 64, {}),
    ("seresnet18", 64, {}),
    ("sequencer2d_s", 224, {"layers": (1, 1, 1, 1)}),
    ("shvit_s1", 128, {}),
    ("skresnet18", 64, {}),
    ("starnet_s050", 64, {}),
    ("swiftformer_xs", 64, {}),
    ("swin_tiny_patch4_window7_224", 56, {"img_size": 56, "depths": (2, 2), "num_heads": (2, 4), "embed_dim": 32}),
    ("swinv2_cr_tiny_ns_224", 64, {"img_size": 64, "depths": (2, 2), "num_heads": (2, 4), "embed_dim": 32}),
    ("tiny_vit_5m_224", 224, {}),
    ("tnt_s_patch16_224", 64, {"img_size": 64, "depth": 2}),
    ("tresnet_m", 128, {"layers": (1, 1, 1, 1)}),
    ("twins_svt_small", 64, {"img_size": 64, "depths": (1, 1, 1, 1)}),
    ("visformer_tiny", 224, {}),
    ("vit_tiny_r_s16_p8_224", 64, {"img_size": 64, "depth": 2}),
    ("vit_relpos_small_patch16_224", 64, {"img_size": 64, "depth": 2, "embed_dim": 96, "num_heads": 4}),
    ("samvit_base_patch16_224", 64, {"img_size": 64, "depth": 2, "embed_dim": 96, "num_heads": 4}),
    ("vitamin_small_224", 64, {"img_size": 64}),
    ("ese_vovnet19b_slim_dw", 64, {}),
    ("xception41p", 64, {}),
    ("xcit_nano_12_p16_224", 64, {"img_size": 64, "depth": 2}),
]

#: Families without a small named member, built from their classes.
MADE: dict[str, tuple[int, Callable[[], nn.Module]]] = {
    "convmixer": (64, lambda: convmixer.ConvMixer(64, 3, num_classes=10)),
    "focalnet_timm": (64, lambda: focalnet.FocalNet(embed_dim=24, depths=(1, 1, 1, 1), num_classes=10)),
    "gcvit": (64, lambda: gcvit.GlobalContextVit(num_classes=10, img_size=64, embed_dim=16, depths=(1, 1, 1, 1))),
    "mixer": (64, lambda: mlp_mixer.MlpMixer(10, 64, embed_dim=96, num_blocks=3)),
    "gmlp": (
        64,
        lambda: mlp_mixer.MlpMixer(
            10,
            64,
            embed_dim=64,
            num_blocks=3,
            mlp_ratio=6,
            block_layer=mlp_mixer.SpatialGatingBlock,
            mlp_layer=GatedMlp,
        ),
    ),
    "gmixer": (
        64,
        lambda: mlp_mixer.MlpMixer(10, 64, embed_dim=96, num_blocks=3, mlp_ratio=(1.0, 4.0), mlp_layer=GluMlp),
    ),
    "volo": (
        64,
        lambda: volo.VOLO(
            (1, 1, 1, 1),
            64,
            num_classes=10,
            embed_dims=(48, 96, 96, 96),
            num_heads=(2, 4, 4, 4),
            downsamples=(True, False, False, False),
        ),
    ),
    "resmlp": (
        64,
        lambda: mlp_mixer.MlpMixer(
            10, 64, embed_dim=96, num_blocks=3, mlp_ratio=4, block_layer=mlp_mixer.ResBlock, norm_layer=mlp_mixer.Affine
        ),
    ),
}

EVERYDAY = {"test_byobnet", "test_convnext3", "test_vit2"}
DIALECTS = {"test_resnet", "test_vit2", "test_efficientnet_ln"}


def build(make: Callable[[], nn.Module], size: int) -> Callable[[], Source]:
    """A module with a random image as input."""
    return lambda: Source(make(), (torch.randn(1, 3, size, size),))


def named(name: str, options: dict[str, Any]) -> Callable[[], nn.Module]:
    """A named timm model with ten classes."""
    return lambda: timm.create_model(name, pretrained=False, num_classes=10, **options)


ROWS = [
    *(
        Row(
            name.removesuffix("_224").removesuffix("_256"),
            "timm",
            build(named(name, options), size),
            dialects=name in DIALECTS,
            everyday=name in EVERYDAY,
        )
        for name, size, options in MEMBERS
    ),
    *(Row(name, "timm", build(make, size)) for name, (size, make) in MADE.items()),
]
