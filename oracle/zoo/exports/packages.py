"""Models of packages that no other test needs; `oracle/requirements-zoo.txt` lists them.

`diffusers`, `torchaudio`, `kornia`, `monai`, `ultralytics`, `neuraloperator`, `torch_geometric`: small members of
their families, with random weights. Rows of missing packages are skipped and reported.
"""

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import nn

from .entry import Function, Row, Source

ROWS: list[Row] = []


def unfussy(build: Callable[[], Source]) -> Callable[[], Source]:
    """torchaudio, which other packages import, compares its CUDA version with torch's; CUDA is not used here."""

    def built() -> Source:
        with mock.patch.object(torch.version, "cuda", None):
            return build()

    return built


def rows(package: str, members: dict[str, Callable[[], Source]]) -> None:
    """Adds rows of one package."""
    ROWS.extend(Row(name, package, unfussy(build), needs=package) for name, build in members.items())


def row(name: str, package: str) -> Callable[[Callable[[], Source]], Callable[[], Source]]:
    """Decorator that adds a row built by the function."""

    def add(build: Callable[[], Source]) -> Callable[[], Source]:
        rows(package, {name: build})
        return build

    return add


def picture(size: int = 32, channels: int = 3, batch: int = 1) -> torch.Tensor:
    return torch.rand(batch, channels, size, size)


class First(nn.Module):
    """Keeps a module's first output tensor."""

    def __init__(self, module: nn.Module, **keywords: Any) -> None:
        super().__init__()
        self.module = module
        self.keywords = keywords

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        found = self.module(*inputs, **self.keywords)
        return found if isinstance(found, torch.Tensor) else found[0]


def diffusion(module: nn.Module, *inputs: torch.Tensor) -> Source:
    return Source(First(module, return_dict=False), inputs)


STEP = torch.tensor([7])


@row("unet2d", "diffusers")
def unet2d() -> Source:
    from diffusers import UNet2DModel

    module = UNet2DModel(
        16, 3, 3, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    return diffusion(module, picture(16), STEP)


@row("unet2d_condition", "diffusers")
def unet2d_condition() -> Source:
    from diffusers import UNet2DConditionModel

    module = UNet2DConditionModel(
        16, 4, 4, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8, cross_attention_dim=24,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        attention_head_dim=8,
    )  # fmt: skip
    return diffusion(module, picture(16, 4), STEP, torch.randn(1, 5, 24))


@row("autoencoder_kl", "diffusers")
def autoencoder_kl() -> Source:
    from diffusers import AutoencoderKL

    module = AutoencoderKL(block_out_channels=(16, 32), norm_num_groups=8, latent_channels=4,
                           down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2)  # fmt: skip
    return Source(Decoded(module), (picture(8, 4),))


class Decoded(nn.Module):
    """The decoder of an autoencoder."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        return self.module.decode(latent, return_dict=False)[0]


@row("autoencoder_tiny", "diffusers")
def autoencoder_tiny() -> Source:
    from diffusers import AutoencoderTiny

    module = AutoencoderTiny(encoder_block_out_channels=(16, 16), decoder_block_out_channels=(16, 16),
                             num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1))  # fmt: skip
    return diffusion(module, picture(16))


@row("dit", "diffusers")
def dit() -> Source:
    from diffusers import DiTTransformer2DModel

    module = DiTTransformer2DModel(num_attention_heads=2, attention_head_dim=8, in_channels=4, num_layers=2, sample_size=8)
    return diffusion(module, picture(8, 4), STEP, torch.tensor([3]))


@row("vq_model", "diffusers")
def vq_model() -> Source:
    from diffusers import VQModel

    module = VQModel(block_out_channels=(16, 32), norm_num_groups=8, latent_channels=3, num_vq_embeddings=32,
                     down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2)  # fmt: skip
    return Source(Decoded(module), (picture(8),))


@row("conv_tasnet", "torchaudio")
def conv_tasnet() -> Source:
    from torchaudio.models import ConvTasNet

    return Source(ConvTasNet(2, 16, 16, 3, 16, 32, 3, 2), (torch.randn(1, 1, 160),))


@row("deep_speech", "torchaudio")
def deep_speech() -> Source:
    from torchaudio.models import DeepSpeech

    return Source(DeepSpeech(20, 32, 12), (torch.randn(1, 1, 15, 20),))


@row("wav2letter", "torchaudio")
def wav2letter() -> Source:
    from torchaudio.models import Wav2Letter

    return Source(Wav2Letter(12, "mfcc", 13), (torch.randn(1, 13, 60),))


@row("audio_wav2vec2", "torchaudio")
def audio_wav2vec2() -> Source:
    from torchaudio.models import wav2vec2_model

    module = wav2vec2_model(
        "group_norm", [(16, 10, 5), (16, 3, 2)], False, 24, 0.0, 16, 4, 2, 4, 0.0, 48, 0.0, 0.0, False, 0.0, 10
    )
    return Source(First(module), (torch.randn(1, 400),))


@row("mel_spectrogram", "torchaudio")
def mel_spectrogram() -> Source:
    from torchaudio.transforms import MelSpectrogram

    return Source(MelSpectrogram(8000, 128, n_mels=20), (torch.randn(1, 1000),), redrawn=False)


@row("mfcc", "torchaudio")
def mfcc() -> Source:
    from torchaudio.transforms import MFCC

    module = MFCC(8000, 13, melkwargs={"n_fft": 128, "n_mels": 20, "hop_length": 64})
    return Source(module, (torch.randn(1, 1000),), redrawn=False)


def filtered(function: Callable[..., Any], *inputs: torch.Tensor) -> Callable[[], Source]:
    """A function of kornia, which is imported when it is called."""

    def build() -> Source:
        import kornia

        return Source(Function(lambda _, *values: function(kornia, *values)), inputs or (picture(24),))

    return build


rows(
    "kornia",
    {
        "kornia_sobel": filtered(lambda k, x: k.filters.sobel(x)),
        "kornia_gaussian": filtered(lambda k, x: k.filters.gaussian_blur2d(x, (5, 5), (1.5, 1.5))),
        "kornia_bilateral": filtered(lambda k, x: k.filters.bilateral_blur(x, (3, 3), 0.1, (1.5, 1.5))),
        "kornia_median": filtered(lambda k, x: k.filters.median_blur(x, (3, 3))),
        "kornia_unsharp": filtered(lambda k, x: k.filters.unsharp_mask(x, (3, 3), (1.5, 1.5))),
        "kornia_canny_magnitude": filtered(lambda k, x: k.filters.spatial_gradient(x).square().sum(2)),
        "kornia_lab": filtered(lambda k, x: k.color.rgb_to_lab(x)),
        "kornia_hsv": filtered(lambda k, x: k.color.rgb_to_hsv(x)),
        "kornia_yuv": filtered(lambda k, x: k.color.yuv_to_rgb(k.color.rgb_to_yuv(x))),
        "kornia_morphology": filtered(lambda k, x: k.morphology.opening(x, torch.ones(3, 3))),
        "kornia_harris": filtered(lambda k, x: k.feature.harris_response(x)),
        "kornia_pyramid": filtered(lambda k, x: k.geometry.transform.pyrdown(x)),
        "kornia_ssim": filtered(lambda k, x: k.metrics.ssim(x, x.flip(3), 5)),
        "kornia_equalize": filtered(lambda k, x: k.enhance.adjust_gamma(k.enhance.adjust_saturation(x, 1.3), 0.7)),
        "kornia_rotate": filtered(lambda k, x, a: k.geometry.transform.rotate(x, a), picture(24), torch.tensor([30.0])),
    },
)


def medical(name: str, spatial: int, *inputs: torch.Tensor, **options: Any) -> Callable[[], Source]:
    """A monai network by its name."""

    def build() -> Source:
        from monai.networks import nets

        found = getattr(nets, name)(spatial_dims=spatial, **options) if spatial else getattr(nets, name)(**options)
        return Source(First(found), inputs or (picture(32, 1),))

    return build


SMALL = {"in_channels": 1, "out_channels": 2}
rows(
    "monai",
    {
        "monai_unet": medical("UNet", 2, **SMALL, channels=(8, 16, 32), strides=(2, 2), num_res_units=1),
        "monai_unet3d": medical("UNet", 3, torch.rand(1, 1, 16, 16, 16), **SMALL, channels=(4, 8), strides=(2,)),
        "monai_attention_unet": medical("AttentionUnet", 2, **SMALL, channels=(8, 16), strides=(2,)),
        "monai_basic_unet": medical("BasicUNet", 2, **SMALL, features=(8, 8, 8, 8, 8, 8)),
        "monai_segresnet": medical("SegResNet", 2, **SMALL, init_filters=8, blocks_down=(1, 1), blocks_up=(1,)),
        "monai_unetr": medical("UNETR", 2, **SMALL, img_size=(32, 32), feature_size=8, hidden_size=24, mlp_dim=48, num_heads=4),
        "monai_swin_unetr": medical("SwinUNETR", 2, picture(64, 1), **SMALL, feature_size=12, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2)),
        "monai_densenet": medical("DenseNet", 2, **SMALL, init_features=8, growth_rate=4, block_config=(2, 2)),
        "monai_vit": medical("ViT", 2, in_channels=1, img_size=(32, 32), patch_size=(8, 8), hidden_size=24, mlp_dim=48, num_layers=2, num_heads=4),
    },
)


def graph(name: str, *arguments: Any, **options: Any) -> Callable[[], Source]:
    """A torch_geometric convolution on a graph of ten nodes, whose edges are an input."""

    def build() -> Source:
        from torch_geometric import nn as layers

        found = getattr(layers, name)(*arguments, **options)
        edges = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 2], [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 7]])
        return Source(found, (torch.randn(10, 6), edges))

    return build


rows(
    "torch_geometric",
    {
        "graph_gcn": graph("GCNConv", 6, 8, add_self_loops=False),
        "graph_sage": graph("SAGEConv", 6, 8),
        "graph_gat": graph("GATConv", 6, 8, add_self_loops=False),
        "graph_gatv2": graph("GATv2Conv", 6, 8, add_self_loops=False),
        "graph_graph": graph("GraphConv", 6, 8),
        "graph_transformer": graph("TransformerConv", 6, 8),
        "graph_cheb": graph("TAGConv", 6, 8, normalize=False),
    },
)


def operator(name: str, *inputs: torch.Tensor, **options: Any) -> Callable[[], Source]:
    """A neural operator by its name."""

    def build() -> Source:
        from neuralop import models

        return Source(getattr(models, name)(**options), inputs)

    return build


rows(
    "neuralop",
    {
        "fno2d": operator("FNO", picture(16, 2), n_modes=(4, 4), in_channels=2, out_channels=1, hidden_channels=8, n_layers=2),
        "fno1d": operator("FNO", torch.randn(1, 2, 32), n_modes=(6,), in_channels=2, out_channels=1, hidden_channels=8, n_layers=2),
        "uno": operator(
            "UNO", picture(16, 2), in_channels=2, out_channels=1, hidden_channels=8, n_layers=3, uno_out_channels=[8, 8, 8],
            uno_n_modes=[[4, 4]] * 3, uno_scalings=[[1, 1], [0.5, 0.5], [2, 2]], channel_mlp_skip="linear",
        ),
    },
)  # fmt: skip


def detector(configuration: str, size: int = 64) -> Callable[[], Source]:
    """An ultralytics detector by its configuration."""

    def build() -> Source:
        from ultralytics.nn import tasks
        from ultralytics.nn.tasks import yaml_model_load

        kind = tasks.SegmentationModel if "seg" in configuration else tasks.DetectionModel
        module = kind(yaml_model_load(configuration), ch=3, nc=4, verbose=False).eval()
        for part in module.modules():
            if hasattr(part, "export"):
                part.export, part.format = True, "coreml"
        return Source(First(module), (picture(size),))

    return build


rows("ultralytics", {f"ultralytics_{name}": detector(f"{name}.yaml") for name in ("yolov8n", "yolo11n", "yolov5n")})
