"""Shared code of the rows with transformers models: small configurations by name, and inputs by name."""

from collections.abc import Callable
from typing import Any

import torch

from .entry import Row, Source

WORDS = 320
LENGTH = 12
#: Options with the same name in most configurations.
BODY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
TEXT = {
    **BODY,
    "vocab_size": WORDS,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PICTURE = {**BODY, "image_size": 32, "patch_size": 8, "num_channels": 3}
GROUPED = {**TEXT, "num_key_value_heads": 2}


def tokens(batch: int = 1, length: int = LENGTH) -> torch.Tensor:
    """Random token ids without special tokens."""
    return torch.randint(5, WORDS, (batch, length))


def mask(length: int = LENGTH, kept: int = 9) -> torch.Tensor:
    """An attention mask in which the last tokens are padding."""
    return (torch.arange(length) < kept).long()[None]


def pixels(size: int = 32, *lead: int) -> torch.Tensor:
    """A random image."""
    return torch.randn(*(lead or (1,)), 3, size, size)


#: Functions that create inputs which many models share.
INPUTS: dict[str, Callable[[], torch.Tensor]] = {
    "input_ids": tokens,
    "decoder_input_ids": lambda: tokens(length=6),
    "attention_mask": mask,
    "token_type_ids": lambda: (torch.arange(LENGTH) > 6).long()[None],
    "pixel_values": pixels,
}


def configuration(name: str, options: dict[str, Any]) -> Any:
    """Builds a configuration; values that are pairs of a name and options become nested configurations."""
    import transformers

    built = {
        key: configuration(value[0], value[1]) if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict) else value
        for key, value in options.items()
    }  # fmt: skip
    return getattr(transformers, name)(**built)


def model(
    kind: str,
    config: str,
    options: dict[str, Any],
    inputs: dict[str, Callable[[], torch.Tensor]] | tuple[str, ...] = ("input_ids",),
    damped: dict[str, float] | None = None,
    fixed: dict[str, Any] | None = None,
    attention: str | None = None,
    outputs: int | None = None,
) -> Callable[[], Source]:
    """A model of class `kind` with its inputs passed by name; `fixed` are further arguments that are not tensors.

    `outputs` is the number of outputs to keep, if the others repeat or are constant.
    """

    def build() -> Source:
        import transformers

        settings = configuration(config, options)
        settings.use_cache = False
        if attention:
            settings._attn_implementation = attention
        made = inputs if isinstance(inputs, dict) else {name: INPUTS[name] for name in inputs}
        module: Any = getattr(transformers, kind)(settings)
        if outputs is not None:
            module = First(module, outputs)
        return Source(module, (), {name: make() for name, make in made.items()} | (fixed or {}), damped=damped or {})

    return build


class First(torch.nn.Module):
    """Keeps a model's first outputs; inputs keep their names."""

    def __init__(self, module: torch.nn.Module, count: int) -> None:
        super().__init__()
        self.module = module
        self.count = count

    def forward(self, **given: Any) -> Any:
        return self.module(**given)[: self.count]


def row(name: str, family: str, build: Callable[[], Source], notes: str = "", **more: Any) -> Row:
    """A row with a transformers model."""
    return Row(name, family, build, notes, **more)
