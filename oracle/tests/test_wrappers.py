"""The wrappers of docs/wrappers.md: models that need a wrapper for their export, converted step by step."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from oracle.support.cargo import ROOT

transformers = pytest.importorskip("transformers")

Command = Callable[..., str]

#: More tokens than the sliding window contains.
COUNT = 10
SMALL = {"vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 2}
DECODER = {**SMALL, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "max_position_embeddings": 64}
WINDOWS = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}

DECODERS = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER)),
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**DECODER, sliding_window=4)),
    "gemma3": lambda: transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**DECODER, **WINDOWS, head_dim=16)),
}
RECURRENT = {
    "mamba": lambda: transformers.MambaForCausalLM(transformers.MambaConfig(**SMALL, state_size=8)),
    "mamba2": lambda: transformers.Mamba2ForCausalLM(
        transformers.Mamba2Config(**SMALL, state_size=8, num_heads=8, head_dim=16, n_groups=2, chunk_size=4)
    ),
    "falcon_mamba": lambda: transformers.FalconMambaForCausalLM(transformers.FalconMambaConfig(**SMALL, state_size=8)),
}


def page_definitions() -> dict:
    """The definitions of the page's Python blocks."""
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs/wrappers.md").read_text(), re.DOTALL):
        exec(block, names)  # noqa: S102: the blocks are this repository's
    return names


def steps(coremill: Command, program: torch.export.ExportedProgram, calls: list[dict], folder: Path) -> np.ndarray:
    """The outputs of all steps of the converted program."""
    torch.export.save(program, folder / "model.pt2")
    coremill("convert", folder / "model.pt2", "-o", folder / "model.mlpackage", "--precision", "fp32", "--output-name", "logits", "--verify")
    inputs = []
    for index, call in enumerate(calls):
        np.savez(folder / f"{index}.npz", **call)
        inputs += ["-i", folder / f"{index}.npz"]
    coremill("run", folder / "model.mlpackage", *inputs, "-o", folder / "out.npz")
    found = np.load(folder / "out.npz")
    return np.concatenate([found[f"logits@{index}"] for index in range(len(calls))], 1)


def assert_matches_model(model: torch.nn.Module, tokens: torch.Tensor, found: np.ndarray) -> None:
    """Compares the outputs with the original model, which runs on the complete text without a cache."""
    with torch.no_grad():
        expected = model(tokens, use_cache=False).logits.numpy()
    noise = np.abs(found - expected).max() / np.abs(expected).max()
    # States are fp16.
    assert noise < 5e-3, noise


@pytest.mark.parametrize("name", DECODERS)
def test_stepwise_decoder_matches_full_sequence(name: str, coremill: Command, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = DECODERS[name]().eval()
    tokens = torch.randint(0, 320, (1, COUNT))
    program = page_definitions()["export_stepwise"](model, 16)
    calls = [{"token": tokens[:, [at]].int().numpy(), "position": np.array([at], np.int32)} for at in range(COUNT)]
    assert_matches_model(model, tokens, steps(coremill, program, calls, tmp_path))


@pytest.mark.parametrize("name", RECURRENT)
def test_stepwise_recurrent_model_matches_full_sequence(name: str, coremill: Command, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = RECURRENT[name]().eval()
    tokens = torch.randint(0, 320, (1, COUNT))
    program = page_definitions()["export_recurrent"](model)
    calls = [{"token": tokens[:, [at]].int().numpy()} for at in range(COUNT)]
    assert_matches_model(model, tokens, steps(coremill, program, calls, tmp_path))


def test_torch_export_rejects_dynamic_length_mamba() -> None:
    """The page documents this; if the test fails, the wrapper is no longer needed."""
    model = RECURRENT["mamba"]().eval()
    shapes = {"input_ids": {1: torch.export.Dim("n", min=2, max=64)}, "use_cache": None}
    with pytest.raises(torch._dynamo.exc.UserError, match="dynamic"):
        torch.export.export(model, (torch.zeros(1, 8, dtype=torch.long),), {"use_cache": False}, dynamic_shapes=shapes)


def test_export_freezes_sliding_window_cache_counter() -> None:
    """The page documents this; if the test fails, the wrapper is no longer needed."""
    torch.manual_seed(0)
    model = DECODERS["gemma3"]().eval()
    tokens = torch.randint(0, 320, (1, COUNT))
    names = page_definitions()

    class Plain(names["Stepwise"]):
        """The same wrapper with the layers that `StaticCache` creates."""

        def __init__(self) -> None:
            super().__init__(model, 16)
            self.cache = names["StaticCache"](config=model.config, max_cache_len=16)
            self.cache.early_initialization(1, 2, 16, model.dtype, model.device)
            for index, layer in enumerate(self.cache.layers):
                setattr(self, f"keys_{index}", layer.keys)
                setattr(self, f"values_{index}", layer.values)

    program = torch.export.export(Plain(), (tokens[:, :1], torch.tensor([0]))).module()

    def run_all() -> None:
        for at in range(COUNT):
            program(tokens[:, [at]], torch.tensor([at]))

    # The window is full after four tokens, and the program still appends.
    with torch.no_grad(), pytest.raises(IndexError):
        run_all()
