"""Programs that change buffers: caches, counters, running means."""

from collections.abc import Callable

import torch
from torch import nn

from .entry import Call, Row, Source


class Accumulator(nn.Module):
    """Accumulates the inputs of all calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2, 32))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.total.add_(value)
        return self.total * 0.5


class Window(nn.Module):
    """Keeps the last rows of a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(6, 32))
        self.mix = nn.Linear(32, 16)

    def forward(self, row: torch.Tensor) -> torch.Tensor:
        self.rows.copy_(torch.cat([self.rows[1:], row]))
        return self.mix(self.rows).mean(0)


class Running(nn.Module):
    """A running mean, and a buffer that is only read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(32))
        self.register_buffer("scale", torch.rand(32) + 0.5)

    def forward(self, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.mean.mul_(0.9).add_(value.mean(0), alpha=0.1)
        return (value - self.mean) * self.scale, self.mean.clone()


class Echo(nn.Module):
    """Writes through a view and reads through another."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("memory", torch.zeros(4, 32))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.memory.view(2, 64)[1, :32] = value
        self.memory[0].lerp_(value, 0.5)
        return self.memory.flip(0) + 1


class Cached(nn.Module):
    """Attention with a cache of fixed size; an input is the index of the row to write."""

    def __init__(self, write: str) -> None:
        super().__init__()
        self.write = write
        self.project = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, 4, 16, 8))

    def store(self, cache: torch.Tensor, row: torch.Tensor, position: torch.Tensor) -> None:
        if self.write == "index_copy":
            cache.index_copy_(2, position, row)
        elif self.write == "index_put":
            cache[:, :, position] = row
        else:
            start = position.item()
            torch._check(start >= 0)
            torch._check(start < 16)
            cache.narrow(2, start, 1).copy_(row)

    def forward(self, hidden: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(hidden).view(1, 1, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        self.store(self.keys, key, position)
        self.store(self.values, value, position)
        mask = torch.arange(16) <= position[:, None]
        mixed = nn.functional.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).reshape(1, 1, 32))


def cached(write: str) -> Callable[[], Source]:
    """Four steps of a decoder's attention."""

    def step(position: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(1, 1, 32), torch.tensor([position])

    def further() -> list[Call]:
        return [(step(position), {}) for position in (1, 2, 3)]

    return lambda: Source(Cached(write), step(0), further=further)


def repeated(module: Callable[[], nn.Module], *shape: int) -> Callable[[], Source]:
    """Three calls."""
    return lambda: Source(
        module(), (torch.randn(*shape),), further=lambda: [((torch.randn(*shape),), {}) for _ in range(2)]
    )


def decoder() -> Source:
    """A Llama-like language model, one token at a time, with its cache in buffers."""
    from ..language import Decoder, row

    class Stepwise(Decoder):
        def __init__(self) -> None:
            super().__init__()
            for index, layer in enumerate(self.layers):
                for name in ("keys", "values"):
                    self.register_buffer(f"{name}_{index}", torch.zeros(1, layer.groups, 32, layer.size))

        def forward(self, ids: torch.Tensor, position: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            hidden = self.embed(ids)
            for index, layer in enumerate(self.layers):
                cosine, sine = layer.cosine.index_select(0, position), layer.sine.index_select(0, position)
                normed = layer.before(hidden)
                query = turn(layer.split(layer.query(normed), layer.heads), cosine, sine)
                key = turn(layer.split(layer.key(normed), layer.groups), cosine, sine)
                keys, values = getattr(self, f"keys_{index}"), getattr(self, f"values_{index}")
                keys.index_copy_(2, position, key)
                values.index_copy_(2, position, layer.split(layer.value(normed), layer.groups))
                query = query.reshape(1, layer.groups, layer.heads // layer.groups, layer.size)
                mixed = nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
                hidden = layer.feed(hidden + layer.out(mixed.reshape(1, 1, -1)))
            return self.head(self.norm(hidden))

    def step(position: int) -> tuple[torch.Tensor, ...]:
        place, mask = row(position)
        return torch.randint(0, 320, (1, 1)), place.long(), mask

    return Source(Stepwise(), step(0), further=lambda: [(step(position), {}) for position in (1, 2, 3)])


def turn(states: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary embedding."""
    left, right = states.chunk(2, -1)
    return states * cosine + torch.cat([-right, left], -1) * sine


def static_cache() -> Source:
    """transformers' own model with a static cache, as it is exported for ExecuTorch."""
    import transformers
    from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

    config = transformers.LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        max_position_embeddings=64,
    )
    model = transformers.LlamaForCausalLM(config)
    model.generation_config.use_cache = True
    model.generation_config.cache_implementation = "static"
    module = TorchExportableModuleWithStaticCache(model, batch_size=1, max_cache_len=16)

    def step(position: int) -> Call:
        tokens = torch.randint(0, 320, (1, 1))
        return (), {"input_ids": tokens, "cache_position": torch.tensor([position])}

    first = step(0)
    return Source(module, *first, further=lambda: [step(position) for position in (1, 2)])


ROWS = [
    Row("accumulator", "states", repeated(Accumulator, 2, 32), dialects=True, everyday=True),
    Row("window", "states", repeated(Window, 1, 32)),
    Row("running_mean", "states", repeated(Running, 3, 32)),
    Row("echo", "states", repeated(Echo, 32)),
    Row("cache_index_copy", "states", cached("index_copy"), everyday=True),
    Row("cache_index_put", "states", cached("index_put"), dialects=True),
    Row("cache_narrow", "states", cached("narrow"), "a position that is read as a number"),
    Row("state_decoder", "states", decoder, "a Llama with its cache", everyday=True),
    Row("static_cache", "states", static_cache, "transformers' static cache"),
]
