"""torch's own recurrent and attention layers in each form, and small networks of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .entry import Row, Source

WIDTH, LENGTH, BATCH = 24, 7, 2


def sequence(batch_first: bool, width: int = WIDTH) -> torch.Tensor:
    """A batch of sequences."""
    return torch.randn(BATCH, LENGTH, width) if batch_first else torch.randn(LENGTH, BATCH, width)


def recurrent(kind: type[nn.RNNBase], state: bool = False, **options: Any) -> Callable[[], Source]:
    """A recurrent layer; `state` adds initial states as inputs."""

    def build() -> Source:
        module = kind(WIDTH, 16, **options)
        arguments: tuple[Any, ...] = (sequence(options.get("batch_first", False)),)
        if state:
            layers = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
            hidden = torch.randn(layers, BATCH, options.get("proj_size") or 16)
            given: Any = (hidden, torch.randn(layers, BATCH, 16)) if kind is nn.LSTM else hidden
            arguments = (*arguments, given)
        return Source(module, arguments)

    return build


class Unbatched(nn.Module):
    """A recurrent layer on a sequence without a batch dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(WIDTH, 16)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.recurrent(value)[0]


class Cells(nn.Module):
    """A cell that a Python loop calls for each step."""

    def __init__(self, kind: type[nn.RNNCellBase]) -> None:
        super().__init__()
        self.cell = kind(WIDTH, 16)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        state, found = None, []
        for step in steps.unbind(0):
            state = self.cell(step, state)
            found.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(found)


class Tagger(nn.Module):
    """A tagger: an embedding, a recurrent layer and a head."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, WIDTH, padding_idx=0)
        self.recurrent = kind(WIDTH, 16, batch_first=True, **options)
        self.head = nn.Linear(32 if options.get("bidirectional") else 16, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(self.embed(tokens))[0]).log_softmax(-1)


def tagger(kind: type[nn.RNNBase], **options: Any) -> Callable[[], Source]:
    """A tagger on two sentences."""
    return lambda: Source(Tagger(kind, **options), (torch.randint(0, 100, (BATCH, LENGTH)),))


class Attended(nn.Module):
    """Recurrent encoder, additive attention, recurrent decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.GRU(WIDTH, 16, bidirectional=True, batch_first=True)
        self.query, self.key, self.score = nn.Linear(16, 16), nn.Linear(32, 16), nn.Linear(16, 1)
        self.cell = nn.GRUCell(32, 16)
        self.head = nn.Linear(16, 9)

    def forward(self, source: torch.Tensor) -> torch.Tensor:
        memory, _ = self.encoder(source)
        keys = self.key(memory)
        state = memory.new_zeros(source.shape[0], 16)
        found = []
        for _ in range(4):
            weights = self.score(torch.tanh(keys + self.query(state)[:, None])).softmax(1)
            state = self.cell((weights * memory).sum(1), state)
            found.append(self.head(state))
        return torch.stack(found, 1)


class Multihead(nn.Module):
    """`nn.MultiheadAttention` with its masks."""

    def __init__(self, weights: bool, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, **options)
        self.weights = weights

    def forward(self, query: torch.Tensor, memory: torch.Tensor, *masks: torch.Tensor) -> Any:
        padding = masks[0] if masks else None
        mask = masks[1] if len(masks) > 1 else None
        mixed, weights = self.attention(
            query, memory, memory, key_padding_mask=padding, attn_mask=mask, need_weights=self.weights
        )
        return (mixed, weights) if self.weights else mixed


def multihead(weights: bool = False, masks: int = 0, **options: Any) -> Callable[[], Source]:
    """Cross attention."""

    def build() -> Source:
        first = options.get("batch_first", False)
        query, memory = sequence(first), torch.randn(BATCH, 5, WIDTH) if first else torch.randn(5, BATCH, WIDTH)
        padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
        mask = torch.rand(LENGTH, 5) > 0.8
        mask[:, 0] = False
        return Source(Multihead(weights, **options), (query, memory, padding, mask)[: 2 + masks])

    return build


def layer(kind: type[nn.Module], targets: int = 0, mask: bool = False, **options: Any) -> Callable[[], Source]:
    """A transformer layer, or a complete transformer."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = kind(WIDTH, 4, dim_feedforward=48, batch_first=True, **options)

        def forward(self, *values: torch.Tensor) -> torch.Tensor:
            if not mask:
                return self.layer(*values)
            causal = nn.Transformer.generate_square_subsequent_mask(values[0].shape[1])
            return self.layer(*values, tgt_mask=causal) if targets else self.layer(*values, src_mask=causal)

    return lambda: Source(Masked(), tuple(torch.randn(BATCH, 6 + index, WIDTH) for index in range(1 + targets)))


class FusedAttention(nn.Module):
    """`scaled_dot_product_attention` with its options."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: torch.Tensor) -> torch.Tensor:
        given = {"attn_mask": mask[0]} if mask else {}
        return nn.functional.scaled_dot_product_attention(q, k, v, **given, **self.options)


def fused(mask: str = "", groups: int = 4, rank: int = 4, **options: Any) -> Callable[[], Source]:
    """Multi-head attention with a float mask, or a bool mask in which one row is fully masked."""

    def build() -> Source:
        lead = {4: (2,), 3: (), 5: (2, 3)}[rank]
        q, k, v = torch.randn(*lead, 4, 6, 8), torch.randn(*lead, groups, 6, 8), torch.randn(*lead, groups, 6, 8)
        masks: tuple[torch.Tensor, ...] = ()
        if mask == "bool":
            allowed = torch.rand(6, 6) > 0.3
            allowed[:, 0] = True
            masks = (allowed,)
        if mask == "float":
            masks = (torch.randn(*lead, 1, 6, 6).masked_fill(torch.rand(6, 6) > 0.8, float("-inf")),)
        return Source(FusedAttention(**options), (q, k, v, *masks))

    return build


class Norms(nn.Module):
    """Each normalization once, of rank 4 and 3."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.BatchNorm2d(8),
                nn.GroupNorm(4, 8),
                nn.InstanceNorm2d(8, affine=True),
                nn.LocalResponseNorm(3),
                nn.LayerNorm([8, 5, 6]),
                nn.LayerNorm(6, elementwise_affine=False),
                nn.RMSNorm(6),
            ]
        )
        self.wide = nn.BatchNorm3d(4)
        self.narrow = nn.BatchNorm1d(8)

    def forward(self, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = [layer(value) for layer in self.layers]
        return *found, self.wide(value.unflatten(1, (4, 2))), self.narrow(value.flatten(2))


class Activations(nn.Module):
    """Each activation once."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.ELU(0.7), nn.Hardshrink(), nn.Hardsigmoid(), nn.Hardtanh(-0.5, 0.8), nn.Hardswish(), nn.LeakyReLU(0.2),
                nn.LogSigmoid(), nn.PReLU(6), nn.ReLU(), nn.ReLU6(), nn.RReLU(), nn.SELU(), nn.CELU(0.6), nn.GELU(),
                nn.GELU("tanh"), nn.Sigmoid(), nn.SiLU(), nn.Mish(), nn.Softplus(2, 1.5), nn.Softshrink(), nn.Softsign(),
                nn.Tanh(), nn.Tanhshrink(), nn.Threshold(0.1, -0.4), nn.GLU(1), nn.Softmin(1), nn.Softmax(-1),
                nn.Softmax2d(), nn.LogSoftmax(1),
            ]
        )  # fmt: skip

    def forward(self, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(layer(value) for layer in self.layers)


class Pools(nn.Module):
    """Each pool in two dimensions, and some in one and three."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(2, dilation=2), nn.MaxPool2d(3, 2, ceil_mode=True),
                nn.AvgPool2d(3, 2, 1), nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.AvgPool2d(2, ceil_mode=True),
                nn.AvgPool2d(3, divisor_override=4), nn.LPPool2d(2, 3), nn.AdaptiveAvgPool2d(1),
                nn.AdaptiveAvgPool2d((3, 5)), nn.AdaptiveMaxPool2d(2),
            ]
        )  # fmt: skip

    def forward(self, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows, volume = value.flatten(2), value.unflatten(1, (2, 3))
        others = (
            nn.functional.max_pool1d(rows, 4, 3), nn.functional.avg_pool1d(rows, 4, 3),
            nn.functional.max_pool3d(volume, 2), nn.functional.avg_pool3d(volume, 2),
            nn.functional.adaptive_avg_pool3d(volume, (1, 3, 2)), nn.functional.adaptive_avg_pool1d(rows, 5),
            *nn.functional.max_pool2d(value, 3, 2, return_indices=True),
        )  # fmt: skip
        return *(layer(value) for layer in self.layers), *others


class Convolutions(nn.Module):
    """Convolutions with strides, dilations, groups and all padding modes, and transposed ones with output padding."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.ModuleList(
            [
                nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.Conv2d(6, 6, (3, 5), groups=3, dilation=(1, 2), bias=False),
                nn.Conv2d(6, 4, 3, padding="same"), nn.Conv2d(6, 4, 4, padding="same", dilation=2),
                nn.Conv2d(6, 4, 3, padding=1, padding_mode="circular"), nn.Conv2d(6, 4, 3, padding=2, padding_mode="reflect"),
                nn.Conv2d(6, 4, 3, padding=1, padding_mode="replicate"), nn.ConvTranspose2d(6, 4, 3, 2, 1, output_padding=1),
                nn.ConvTranspose2d(6, 6, 3, 2, groups=2, dilation=2), nn.ConvTranspose2d(6, 4, (2, 4), (2, 3), bias=False),
            ]
        )  # fmt: skip
        self.line = nn.ModuleList([nn.Conv1d(6, 4, 5, 2, 2), nn.ConvTranspose1d(6, 4, 4, 3, 1, output_padding=2)])
        self.deep = nn.ModuleList([nn.Conv3d(2, 4, 3, padding=1), nn.ConvTranspose3d(2, 3, 3, 2, 1, output_padding=1)])

    def forward(self, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows, volume = value.flatten(2), value.unflatten(1, (2, 3))
        found = [layer(value) for layer in self.flat]
        return *found, *(layer(rows) for layer in self.line), *(layer(volume) for layer in self.deep)


class Resizes(nn.Module):
    """Each interpolation mode, for upsampling and downsampling."""

    def forward(self, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        interpolate = nn.functional.interpolate
        return (
            interpolate(value, scale_factor=2, mode="nearest"), interpolate(value, size=(5, 11), mode="nearest"),
            interpolate(value, scale_factor=2, mode="bilinear"), interpolate(value, size=(13, 9), mode="bilinear"),
            interpolate(value, size=(13, 9), mode="bilinear", align_corners=True),
            interpolate(value, scale_factor=1.7, mode="bilinear", recompute_scale_factor=False),
            interpolate(value, size=(13, 9), mode="bicubic"), interpolate(value, scale_factor=2, mode="nearest-exact"),
            interpolate(value, size=(4, 3), mode="bilinear", antialias=True), interpolate(value, size=(4, 3), mode="area"),
            interpolate(value.flatten(2), scale_factor=2, mode="linear"), nn.functional.pixel_shuffle(value, 2),
            interpolate(value[:, :, None], scale_factor=2, mode="trilinear"), nn.functional.pixel_unshuffle(value, 2),
            nn.functional.channel_shuffle(value, 2), nn.functional.upsample(value, scale_factor=3),
        )  # fmt: skip


def plain(module: Callable[[], nn.Module], *shape: int) -> Callable[[], Source]:
    """A module with one random input."""
    return lambda: Source(module(), (torch.randn(*shape),))


def row(name: str, build: Callable[[], Source], family: str, notes: str = "", **more: Any) -> Row:
    """A row of this family."""
    return Row(name, family, build, notes, **more)


RECURRENT = [
    row("lstm", recurrent(nn.LSTM), "recurrent", dialects=True, everyday=True),
    row("lstm_batch_first", recurrent(nn.LSTM, batch_first=True), "recurrent"),
    row("lstm_bidirectional", recurrent(nn.LSTM, bidirectional=True, num_layers=2), "recurrent", everyday=True),
    row("lstm_state", recurrent(nn.LSTM, state=True, num_layers=2), "recurrent"),
    row("lstm_projection", recurrent(nn.LSTM, proj_size=8, batch_first=True), "recurrent"),
    row("lstm_no_bias", recurrent(nn.LSTM, bias=False), "recurrent"),
    row("lstm_unbatched", lambda: Source(Unbatched(), (torch.randn(LENGTH, WIDTH),)), "recurrent"),
    row("gru", recurrent(nn.GRU, batch_first=True), "recurrent", dialects=True, everyday=True),
    row("gru_bidirectional", recurrent(nn.GRU, bidirectional=True, num_layers=2, state=True), "recurrent"),
    row("gru_no_bias", recurrent(nn.GRU, bias=False), "recurrent"),
    row("rnn_tanh", recurrent(nn.RNN, num_layers=2), "recurrent"),
    row("rnn_relu", recurrent(nn.RNN, nonlinearity="relu", bidirectional=True, state=True), "recurrent"),
    *(
        row(f"{kind.__name__.removesuffix('Cell').lower()}_cells", plain(lambda kind=kind: Cells(kind), 4, 2, WIDTH), "recurrent")
        for kind in (nn.LSTMCell, nn.GRUCell, nn.RNNCell)
    ),
    row("lstm_tagger", tagger(nn.LSTM, bidirectional=True), "recurrent", "int64 tokens"),
    row("gru_tagger", tagger(nn.GRU), "recurrent", "int64 tokens"),
    row("attended_gru", plain(Attended, 2, 5, WIDTH), "recurrent"),
]  # fmt: skip

ATTENTION = [
    row("multihead", multihead(), "attention", dialects=True),
    row("multihead_weights", multihead(weights=True, batch_first=True), "attention"),
    row("multihead_padding", multihead(masks=1, batch_first=True), "attention"),
    row("multihead_masks", multihead(True, masks=2), "attention", everyday=True),
    row("multihead_bias_kv", multihead(batch_first=True, add_bias_kv=True, add_zero_attn=True), "attention"),
    row("encoder_layer", layer(nn.TransformerEncoderLayer), "attention", dialects=True, everyday=True),
    row("encoder_layer_norm_first", layer(nn.TransformerEncoderLayer, norm_first=True, activation="gelu"), "attention"),
    row("encoder_layer_causal", layer(nn.TransformerEncoderLayer, mask=True), "attention", "a mask of -inf"),
    row("decoder_layer", layer(nn.TransformerDecoderLayer, targets=1), "attention"),
    row("decoder_layer_causal", layer(nn.TransformerDecoderLayer, targets=1, mask=True), "attention"),
    row("transformer", layer(nn.Transformer, targets=1, num_encoder_layers=2, num_decoder_layers=2), "attention"),
    row("sdpa", fused(), "attention"),
    row("sdpa_causal", fused(is_causal=True), "attention"),
    row("sdpa_bool", fused("bool"), "attention"),
    row("sdpa_float", fused("float"), "attention", "a mask with -inf"),
    row("sdpa_scale", fused(scale=0.5), "attention"),
    row("sdpa_groups", fused(groups=2, enable_gqa=True), "attention"),
    row("sdpa_rank3", fused(rank=3), "attention"),
    row("sdpa_rank5", fused("bool", rank=5), "attention"),
]

MODULES = [
    row("norms", plain(Norms, 2, 8, 5, 6), "modules"),
    row("activations", plain(Activations, 2, 6, 5, 4), "modules", dialects=True, everyday=True),
    row("pools", plain(Pools, 1, 6, 12, 12), "modules"),
    row("convolutions", plain(Convolutions, 1, 6, 10, 12), "modules", everyday=True),
    row("resizes", plain(Resizes, 1, 4, 8, 6), "modules"),
]

ROWS = [*RECURRENT, *ATTENTION, *MODULES]
