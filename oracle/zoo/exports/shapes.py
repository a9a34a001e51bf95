"""Programs with dynamic sizes within ranges."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.export import Dim

from .entry import Call, Function, Row, Source

BATCH = Dim("batch", min=1, max=8)
LENGTH = Dim("length", min=2, max=32)
SIDE = Dim("side", min=4, max=16)


def resized(
    shape: tuple[int, ...], others: list[tuple[int, ...]], make: Callable[..., torch.Tensor] = torch.randn
) -> Any:
    """An example and further calls with one input of other sizes."""
    return make(*shape), lambda: [((make(*other),), {}) for other in others]


def free(
    build: Callable[[], nn.Module],
    shape: tuple[int, ...],
    others: list[tuple[int, ...]],
    dims: dict[int, Any],
    make: Callable[..., torch.Tensor] = torch.randn,
) -> Callable[[], Source]:
    """A module with one input of dynamic size."""

    def source() -> Source:
        module = build()
        example, further = resized(shape, others, make)
        # For a forward with `*values`, torch expects the shapes as a tuple within the tuple.
        shapes = ((dims,),) if isinstance(module, Function) else (dims,)
        return Source(module, (example,), dynamic_shapes=shapes, further=further)

    return source


def convolutions() -> nn.Module:
    """A network for images of any size."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


class Attention(nn.Module):
    """Attention over sentences with any length and batch size."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 24)
        self.project, self.out = nn.Linear(24, 72), nn.Linear(24, 24)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, length = tokens.shape
        hidden = self.embed(tokens) + torch.arange(length)[None, :, None] * 0.01
        q, k, v = self.project(hidden).view(batch, length, 3, 4, 6).permute(2, 0, 3, 1, 4).unbind(0)
        mask = torch.full((length, length), float("-inf")).triu(1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, 24))


def tokens(*shape: int) -> torch.Tensor:
    """Random token ids."""
    return torch.randint(0, 50, shape)


def upsampled(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Downsamples, upsamples to the original size, and adds."""
    small = nn.functional.avg_pool2d(x, 2)
    return nn.functional.interpolate(small, size=x.shape[-2:], mode="nearest") + x


def arithmetic(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Arithmetic on sizes."""
    rows = x.shape[0]
    halves = x.reshape(rows // 2, -1)
    return halves, x.new_ones(rows + 1) * torch.arange(1, rows + 2), x[rows // 2 :], x.sum() / rows + x.flip(0)


def windows(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Slices and concatenation with dynamic sizes."""
    length = x.shape[1]
    return torch.cat([x[:, 1:], x[:, :1]], 1), x[:, : length - 1] * 2, x.repeat(1, 2), nn.functional.pad(x, (1, 2))


def two(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Two inputs that share a size."""
    return x @ y.transpose(0, 1)


def pair() -> Source:
    """Two inputs that share a size."""
    dims = ({0: BATCH, 1: LENGTH}, {0: SIDE, 1: LENGTH})

    def further() -> list[Call]:
        return [((torch.randn(5, 9), torch.randn(6, 9)), {})]

    return Source(Function(two), (torch.randn(3, 7), torch.randn(4, 7)), dynamic_shapes=(dims,), further=further)


def even() -> Source:
    """A size that is twice another."""
    half = Dim("half", min=2, max=9)

    def further() -> list[Call]:
        return [((torch.randn(12, 6),), {})]

    return Source(Function(arithmetic), (torch.randn(4, 6),), dynamic_shapes=(({0: 2 * half},),), further=further)


def normed() -> nn.Module:
    """A recurrent layer on any number of sequences; torch specializes on their length."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = nn.GRU(6, 8, batch_first=True)

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return self.recurrent(value)[0]

    return Last()


def nonzero(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The number of results depends on the data."""
    return (x > 0).nonzero()


def picked(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A boolean mask as an index."""
    return x[x > 0] * 2


def hugging_face() -> Source:
    """transformers' BERT with any batch size and length."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32, return_dict=False,
    )  # fmt: skip
    shapes = {"input_ids": {0: BATCH, 1: LENGTH}, "attention_mask": {0: BATCH, 1: LENGTH}}

    def call(batch: int, length: int) -> dict[str, torch.Tensor]:
        return {"input_ids": tokens(batch, length), "attention_mask": torch.ones(batch, length, dtype=torch.long)}

    return Source(
        transformers.BertModel(config),
        (),
        call(2, 7),
        dynamic_shapes=shapes,
        further=lambda: [((), call(3, 12))],
    )


ROWS = [
    Row("free_batch", "shapes", free(lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)), (3, 6), [(5, 6)], {0: BATCH})),
    Row("free_picture", "shapes", free(convolutions, (1, 3, 32, 40), [(1, 3, 48, 24)], {2: Dim("height", min=16, max=64), 3: Dim("width", min=16, max=64)}), dialects=True, everyday=True),
    Row("free_length", "shapes", free(Attention, (2, 7), [(1, 5), (3, 12)], {0: BATCH, 1: LENGTH}, tokens), everyday=True),
    Row("free_upsample", "shapes", free(lambda: Function(upsampled), (1, 2, 8, 12), [(1, 2, 12, 4)], {2: 2 * Dim("half_height", min=2, max=8), 3: 2 * Dim("half_width", min=2, max=8)})),
    Row("free_arithmetic", "shapes", even, "sizes that are computed with"),
    Row("free_windows", "shapes", free(lambda: Function(windows), (2, 7), [(2, 11)], {1: Dim("length", min=3, max=32)})),
    Row("free_shared", "shapes", pair, "two inputs that share a size"),
    Row("free_recurrent", "shapes", free(normed, (2, 7, 6), [(5, 7, 6)], {0: Dim("batch", min=2, max=8)})),
    Row("free_bert", "shapes", hugging_face),
    Row("nonzero", "shapes", lambda: Source(Function(nonzero), (torch.randn(4, 5),)), "results whose number depends on the data"),
    Row("masked", "shapes", lambda: Source(Function(picked), (torch.randn(4, 5),)), "results whose number depends on the data"),
]  # fmt: skip
