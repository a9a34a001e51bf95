"""Text and sound networks with random weights: small transformers models and recurrent ones."""

from collections.abc import Callable

import coremltools as ct
import numpy
import torch
import transformers
from torch import nn

from .entry import Call, Source

VOCABULARY = 320
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
VISION = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 64,
    "patch_size": 16,
}


class FirstOutput(nn.Module):
    """Wraps a transformers model so that it returns one tensor."""

    def __init__(self, module: nn.Module, names: tuple[str, ...], options: dict[str, object]) -> None:
        super().__init__()
        self.module = module
        self.names = names
        self.options = options

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        given = dict(zip(self.names, values, strict=True))
        return self.module(**given, **self.options, return_dict=False)[0]


def tokens(length: int = 16) -> torch.Tensor:
    """Token ids of one sentence."""
    return torch.randint(0, VOCABULARY, (1, length), dtype=torch.int32)


def picture() -> tuple[torch.Tensor]:
    """A random image."""
    return (torch.rand(1, 3, 64, 64),)


def transformer(
    kind: str,
    config: Callable[[], transformers.PretrainedConfig],
    names: tuple[str, ...] = ("input_ids",),
    example: Callable[[], tuple[torch.Tensor, ...]] = lambda: (tokens(),),
    frontend: str = "trace",
    calls: Callable[[], list[Call]] | None = None,
    damped: dict[str, float] | None = None,
    **options: object,
) -> Callable[[], Source]:
    """A transformers model of class `kind`, its inputs passed by name."""

    def build() -> Source:
        settings = config()
        settings._attn_implementation = "eager"
        module = FirstOutput(getattr(transformers, kind)(settings), names, options)
        return Source(module, example(), frontend, calls=calls, damped=damped or {})

    return build


def masked_calls() -> list[Call]:
    """A full sentence, and two padded ones."""
    return [(tokens(), (torch.arange(16) < length).int()[None]) for length in (16, 11, 5)]


def with_mask() -> tuple[torch.Tensor, ...]:
    """Tokens and a mask over them."""
    return (tokens(), torch.ones(1, 16, dtype=torch.int32))


bert = transformer(
    "BertModel",
    lambda: transformers.BertConfig(**SMALL, intermediate_size=128, max_position_embeddings=64),
    ("input_ids", "attention_mask"),
    with_mask,
    calls=masked_calls,
)
distilbert = transformer(
    "DistilBertForSequenceClassification",
    lambda: transformers.DistilBertConfig(
        vocab_size=VOCABULARY, dim=64, hidden_dim=128, n_layers=2, n_heads=4, max_position_embeddings=64
    ),
    ("input_ids", "attention_mask"),
    with_mask,
    calls=masked_calls,
)
albert = transformer(
    "AlbertModel",
    lambda: transformers.AlbertConfig(**SMALL, embedding_size=32, intermediate_size=128, max_position_embeddings=64),
    ("input_ids", "attention_mask"),
    with_mask,
    calls=masked_calls,
)
electra = transformer(
    "ElectraModel",
    lambda: transformers.ElectraConfig(**SMALL, embedding_size=32, intermediate_size=128, max_position_embeddings=64),
    ("input_ids", "attention_mask"),
    with_mask,
    calls=masked_calls,
)
gpt2 = transformer(
    "GPT2LMHeadModel",
    lambda: transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2
    ),
    use_cache=False,
)
#: T5 does not divide scores by the root of the head size, 16; its queries are small instead.
QUIET_QUERIES = {".q.weight": 0.25}
t5_encoder = transformer(
    "T5EncoderModel",
    lambda: transformers.T5Config(vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4),
    damped=QUIET_QUERIES,
)
whisper_encoder = transformer(
    "WhisperModel",
    lambda: transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=16,
        d_model=64,
        encoder_layers=2,
        encoder_attention_heads=4,
        decoder_layers=1,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=50,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    ),
)
wav2vec2 = transformer(
    "Wav2Vec2Model",
    lambda: transformers.Wav2Vec2Config(
        **SMALL,
        intermediate_size=128,
        conv_dim=(32, 32, 32),
        conv_stride=(5, 4, 4),
        conv_kernel=(10, 8, 4),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
    ),
    ("input_values",),
    lambda: (torch.randn(1, 1600),),
)
segformer = transformer(
    "SegformerForSemanticSegmentation",
    lambda: transformers.SegformerConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 48, 64], decoder_hidden_size=32, num_labels=4
    ),
    ("pixel_values",),
    picture,
)
clip_vision = transformer(
    "CLIPVisionModelWithProjection",
    lambda: transformers.CLIPVisionConfig(**VISION, projection_dim=32),
    ("pixel_values",),
    picture,
)
vit = transformer(
    "ViTModel",
    lambda: transformers.ViTConfig(**VISION),
    ("pixel_values",),
    picture,
)
clip_text = transformer(
    "CLIPTextModel",
    lambda: transformers.CLIPTextConfig(
        **SMALL, intermediate_size=128, max_position_embeddings=16, bos_token_id=1, eos_token_id=2
    ),
)
qwen = transformer(
    "Qwen2ForCausalLM",
    lambda: transformers.Qwen2Config(**SMALL, num_key_value_heads=2, intermediate_size=128, max_position_embeddings=64),
    use_cache=False,
)
gemma = transformer(
    "GemmaForCausalLM",
    lambda: transformers.GemmaConfig(
        **SMALL, num_key_value_heads=1, head_dim=16, intermediate_size=128, max_position_embeddings=64
    ),
    use_cache=False,
)
t5 = transformer(
    "T5ForConditionalGeneration",
    lambda: transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
    ),
    ("input_ids", "decoder_input_ids"),
    lambda: (tokens(), tokens(8)),
    damped=QUIET_QUERIES,
    use_cache=False,
)
bart = transformer(
    "BartForConditionalGeneration",
    lambda: transformers.BartConfig(
        vocab_size=VOCABULARY,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_position_embeddings=32,
    ),
    ("input_ids", "decoder_input_ids"),
    lambda: (tokens(), tokens(8)),
    use_cache=False,
)
llama = transformer(
    "LlamaForCausalLM",
    lambda: transformers.LlamaConfig(**SMALL, num_key_value_heads=2, intermediate_size=128, max_position_embeddings=64),
    use_cache=False,
)


def transcriber() -> Source:
    """Complete Whisper: features, and the tokens decoded so far."""
    module = FirstOutput(whisper_encoder().module.module, ("input_features", "decoder_input_ids"), {"use_cache": False})
    return Source(module, (torch.randn(1, 16, 100), tokens(8)))


def whisper() -> Source:
    """The encoder alone: convolutions over the spectrum, then attention."""
    whole = whisper_encoder().module.module
    module = FirstOutput(whole.encoder, ("input_features",), {})
    return Source(module, (torch.randn(1, 16, 100),))


class RootMeanSquareNorm(nn.Module):
    """The normalization of the Llama family."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class DecoderLayer(nn.Module):
    """Grouped-query attention with rotary embedding and a gated feed-forward network."""

    def __init__(self, width: int, heads: int, groups: int, length: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.before, self.after = RootMeanSquareNorm(width), RootMeanSquareNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, groups * self.size, bias=False)
        self.value = nn.Linear(width, groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)
        angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, self.size, 2) / self.size)
        self.register_buffer("cosine", torch.cat([angle.cos(), angle.cos()], -1))
        self.register_buffer("sine", torch.cat([angle.sin(), angle.sin()], -1))

    def rotate(self, states: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        left, right = states.chunk(2, -1)
        turned = torch.cat([-right, left], -1)
        return states * self.cosine[start:stop] + turned * self.sine[start:stop]

    def split(self, states: torch.Tensor, heads: int) -> torch.Tensor:
        return states.view(states.shape[0], states.shape[1], heads, self.size).transpose(1, 2)

    def feed(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = self.after(hidden)
        return hidden + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        normed, length = self.before(hidden), hidden.shape[1]
        query = self.rotate(self.split(self.query(normed), self.heads), 0, length)
        key = self.rotate(self.split(self.key(normed), self.groups), 0, length)
        value = self.split(self.value(normed), self.groups)
        repeat = self.heads // self.groups
        key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(1, length, -1))
        return self.feed(hidden)


class Decoder(nn.Module):
    """A language model like Llama, without a cache."""

    def __init__(self, width: int = 128, layers: int = 2, length: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList([DecoderLayer(width, 4, 2, length) for _ in range(layers)])
        self.norm = RootMeanSquareNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        # Not -inf: an fp16 program represents this value.
        self.register_buffer("mask", torch.full((length, length), -10000.0).triu(1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(ids)
        for layer in self.layers:
            hidden = layer(hidden, self.mask)
        return self.head(self.norm(hidden))


def decoder() -> Source:
    """A Llama-like language model written with the fused attention."""
    return Source(Decoder(), (tokens(32),))


class Recurrent(nn.Module):
    """A tagger: an embedding, a bidirectional recurrent layer and a head."""

    def __init__(self, kind: type[nn.RNNBase], **options: object) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.recurrent = kind(32, 24, batch_first=True, **options)
        self.head = nn.LazyLinear(7)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(self.embed(ids))[0]).log_softmax(-1)


def recurrent(kind: type[nn.RNNBase], **options: object) -> Callable[[], Source]:
    """A tagger over one of torch's recurrent layers, which convert only from a trace."""

    def build() -> Source:
        module = Recurrent(kind, **options)
        example = (tokens(),)
        # The first call initializes the lazy layer's shape.
        module(*example)
        return Source(module, example)

    return build


def encoder_decoder() -> Source:
    """torch's own transformer layers, with self-attention and cross-attention."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, activation="gelu")
            self.decoder = nn.TransformerDecoderLayer(64, 4, 128, batch_first=True)

        def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return self.decoder(target, self.encoder(source))

    return Source(Pair(), (torch.randn(1, 12, 64), torch.randn(1, 8, 64)))


class StateDecoder(Decoder):
    """Decodes one token at a time: writes a row of the cache at the given position, and attends to the unmasked rows.
    """

    def __init__(self, width: int = 128, layers: int = 2, length: int = 32) -> None:
        super().__init__(width, layers, length)
        for index, layer in enumerate(self.layers):
            for name in ("keys", "values"):
                self.register_buffer(f"{name}_{index}", torch.zeros(1, layer.groups, length, layer.size))

    def forward(self, ids: torch.Tensor, position: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden, start = self.embed(ids), position[0]
        for index, layer in enumerate(self.layers):
            normed = layer.before(hidden)
            query = layer.rotate(layer.split(layer.query(normed), layer.heads), start, start + 1)
            key = layer.rotate(layer.split(layer.key(normed), layer.groups), start, start + 1)
            keys, values = getattr(self, f"keys_{index}"), getattr(self, f"values_{index}")
            keys[:, :, start : start + 1] = key
            values[:, :, start : start + 1] = layer.split(layer.value(normed), layer.groups)
            # The queries that share a key are rows of one matrix.
            query = query.reshape(1, layer.groups, layer.heads // layer.groups, layer.size)
            mixed = nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
            hidden = layer.feed(hidden + layer.out(mixed.reshape(1, 1, -1)))
        return self.head(self.norm(hidden))


def state_decoder() -> Source:
    """A Llama-like language model whose cache has a fixed size."""
    module = StateDecoder()
    caches = [name for name, _ in module.named_buffers() if name.startswith(("keys", "values"))]
    arguments = {
        "inputs": [
            ct.TensorType("ids", (1, 1), dtype=numpy.int32),
            ct.TensorType("position", (1,), dtype=numpy.int32),
            ct.TensorType("mask", (1, 1, 1, 32), dtype=numpy.float16),
        ],
        "outputs": [ct.TensorType("logits", dtype=numpy.float16)],
        "states": [
            ct.StateType(ct.TensorType(shape=tuple(getattr(module, name).shape), dtype=numpy.float16), name=name)
            for name in caches
        ],
    }
    calls = lambda: [(tokens(1), *row(step)) for step in range(6)]  # noqa: E731
    return Source(module, (tokens(1), *row(0)), arguments=arguments, calls=calls)


def row(step: int) -> Call:
    """A position, and a mask of the cache up to it."""
    mask = torch.where(torch.arange(32) <= step, 0.0, -10000.0)
    return torch.tensor([step], dtype=torch.int32), mask.reshape(1, 1, 1, 32)


class Listener(nn.Module):
    """2-d convolutions over a spectrum, bidirectional recurrent layers, and a letter classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(
            nn.Conv2d(1, 8, (11, 5), (2, 2), (5, 2)),
            nn.BatchNorm2d(8),
            nn.Hardtanh(0.0, 20.0),
            nn.Conv2d(8, 8, 3, 1, 1),
        )
        self.recurrent = nn.LSTM(8 * 20, 32, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, 29)

    def forward(self, spectrum: torch.Tensor) -> torch.Tensor:
        seen = self.before(spectrum).permute(0, 3, 1, 2).flatten(2)
        return self.head(self.recurrent(seen)[0]).log_softmax(-1)


def listener() -> Source:
    """Speech recognition like Deep Speech."""
    return Source(Listener(), (torch.randn(1, 1, 40, 60),))


class SoundConv(nn.Module):
    """Separable 1-d convolutions, as in speech recognition."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after, width in [(16, 32, 11), (32, 48, 13), (48, 64, 15)]:
            layers += [nn.Conv1d(before, before, width, padding=width // 2, groups=before)]
            layers += [nn.Conv1d(before, after, 1), nn.BatchNorm1d(after), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Conv1d(64, 29, 1)

    def forward(self, spectrum: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(spectrum)).log_softmax(1)


def sound_conv() -> Source:
    """Speech recognition without attention."""
    return Source(SoundConv(), (torch.randn(1, 16, 64),))
