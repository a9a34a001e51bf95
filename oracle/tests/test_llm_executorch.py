"""Language models as programs, in ExecuTorch's own runners: they generate the tokens of `coremill generate`."""

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner
from executorch.runtime import Runtime as Peer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from oracle.conftest import Command
from oracle.support import stock
from oracle.tests.test_llm import TRAINING_TEXT

CONTEXT = 64
PROMPTS = ["The quick brown fox jumps over the lazy dog, and", "x = [i for i in range(10)]\n"]
SPECIAL = ["<s>", "</s>"]
SCRIPTS = "executorch.examples.apple.coreml.llama"


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    stock.register()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with random weights and a tokenizer for ASCII, whose tokens are whole characters."""
    path = tmp_path_factory.mktemp("llama")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = [text for text in TRAINING_TEXT.splitlines() if text.isascii()] + PROMPTS
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL))
    tokenizer.save(str(path / "tokenizer.json"))
    names = {"bos_token": SPECIAL[0], "eos_token": SPECIAL[1], "tokenizer_class": "PreTrainedTokenizerFast"}
    (path / "tokenizer_config.json").write_text(json.dumps(names))
    torch.manual_seed(11)
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    model.save_pretrained(path)
    return path


def convert(coremill: Command, folder: Path, output: Path, *options: object) -> Path:
    coremill("llm", folder, "-o", output, "--context", CONTEXT, *options)
    return output


def generated(coremill: Command, model: Path, prompt: str, count: int) -> list[int]:
    options = ["--json", "--max-tokens", count, "--context", CONTEXT]
    found = json.loads(coremill("generate", model, "--prompt", prompt, *options))["tokens"]
    # A model that repeats one token would not tell right from wrong.
    assert len(set(found)) > count // 3, found
    return found


def run_text(model: Path, prompt: str, count: int) -> list[str]:
    """The pieces that `TextLLMRunner` generates."""
    runner = TextLLMRunner(str(model), str(model.parent / "tokenizer.json"))
    pieces: list[str] = []
    runner.generate(prompt, GenerationConfig(echo=False, max_new_tokens=count, temperature=0.0), pieces.append)
    return pieces


def pieces_of(folder: Path, ids: list[int]) -> list[str]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [tokenizer.decode([token], skip_special_tokens=False) for token in ids]


@pytest.mark.parametrize("prefill", [1, 8, 48])
def test_text_runner_matches_generate(prefill: int, coremill: Command, folder: Path, tmp_path: Path) -> None:
    program = convert(coremill, folder, tmp_path / "model.pte", "--prefill", prefill)
    for prompt in PROMPTS:
        expected = generated(coremill, folder, prompt, 16)
        assert generated(coremill, program, prompt, 16) == expected
        assert run_text(program, prompt, 16) == pieces_of(folder, expected)


def test_text_runner_stops_at_every_eos_token(coremill: Command, folder: Path, tmp_path: Path) -> None:
    expected = generated(coremill, folder, PROMPTS[0], 16)
    last = next(at for at, token in enumerate(expected) if at > 3 and token not in expected[:at])
    other = tmp_path / "llama"
    other.mkdir()
    for file in folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    (other / "generation_config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": [1, expected[last]]}))
    program = convert(coremill, other, tmp_path / "out" / "model.pte")
    assert run_text(program, PROMPTS[0], 16) == pieces_of(folder, expected[: last + 1])
    method = Peer.get().load_program(program).load_method("get_eos_ids")
    assert method is not None and method.execute([]) == [1, expected[last]]


def params(folder: Path) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text())
    return {
        "dim": config["hidden_size"],
        "hidden_dim": config["intermediate_size"],
        "n_layers": config["num_hidden_layers"],
        "n_heads": config["num_attention_heads"],
        "n_kv_heads": config["num_key_value_heads"],
        "vocab_size": config["vocab_size"],
        "norm_eps": config["rms_norm_eps"],
        "rope_theta": 10000.0,
    }


def run_script(name: str, monkeypatch: pytest.MonkeyPatch, *options: object) -> list[int]:
    """Runs a script of ExecuTorch unmodified. Returns the tokens that its cache manager decodes."""
    from executorch.examples.models.llama.static_attention import StaticAttentionIOManager

    decode: Callable[..., list[int]] = StaticAttentionIOManager.decode
    tokens: list[int] = []

    def watched(*arguments: Any, **named: Any) -> list[int]:
        tokens.extend(found := decode(*arguments, **named))
        return found

    monkeypatch.setattr(StaticAttentionIOManager, "decode", watched)
    monkeypatch.setattr(sys, "argv", [name, *map(str, options)])
    runpy.run_module(f"{SCRIPTS}.{name}", run_name="__main__")
    return tokens


BLOCK = 8


@pytest.mark.parametrize(
    ("script", "layout", "sizes"),
    [
        ("run_static_llm", "executorch-static", ["--input_len", BLOCK, "--cache_len", CONTEXT - BLOCK]),
        ("run_static_llm_multifunction", "executorch-multifunction", ["--input_len", BLOCK, "--max_context_len", CONTEXT]),
    ],
)
def test_static_runners_match_generate(
    script: str,
    layout: str,
    sizes: list[object],
    coremill: Command,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = convert(coremill, folder, tmp_path / "model.pte", "--layout", layout, "--prefill", BLOCK)
    (tmp_path / "params.json").write_text(json.dumps(params(folder)))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in PROMPTS:
        prompt = text
        # The script runs a last block of a single token with the other method, which does not take such a block.
        while len(tokenizer.encode(prompt).ids) % BLOCK == 1:
            prompt += "and"
        expected = generated(coremill, folder, prompt, 16)
        assert generated(coremill, program, prompt, 16) == expected
        files = ["--model", program, "--params", tmp_path / "params.json", "--prompt", prompt]
        names = ["--tokenizer", folder / "tokenizer.json", "--tokenizer_config", folder / "tokenizer_config.json"]
        options = ["--temperature", 0, "--max_new_tokens", 16]
        assert run_script(script, monkeypatch, *files, *names, *sizes, *options) == expected


def test_constant_methods_match_executorch_exporter(coremill: Command, folder: Path, tmp_path: Path) -> None:
    """The constants that ExecuTorch's exporter computes for the same model, value by value."""
    from executorch.examples.apple.coreml.llama import export_static_llm_coreml as exporter
    from executorch.examples.models.llama.model_args import ModelArgs

    arguments = ModelArgs(max_context_len=CONTEXT, generate_full_logits=True, attention_type="static_mha", **params(folder))
    inputs, cached = exporter._create_example_inputs(arguments, BLOCK, CONTEXT, torch.float16)
    expected = exporter._get_metadata(arguments, inputs, BLOCK, cached, torch.float16)
    path = convert(coremill, folder, tmp_path / "model.pte", "--layout", "executorch-static", "--prefill", BLOCK)
    program = Peer.get().load_program(path)
    assert program.method_names == {"forward", *expected}
    for name, value in expected.items():
        method = program.load_method(name)
        assert method is not None
        [found] = method.execute([])
        if isinstance(value, torch.Tensor):
            assert found.dtype == value.dtype and found.shape == value.shape, name
            # Cosines and sines of ExecuTorch are computed in fp32 before they are rounded.
            assert torch.allclose(found.double(), value.double(), rtol=0, atol=2e-3), name
        else:
            assert found == value, name
    metadata = program.metadata("forward")
    flat, _ = torch.utils._pytree.tree_flatten(inputs)
    shapes = [tuple(metadata.input_tensor_meta(at).sizes()) for at in range(metadata.num_inputs())]
    assert shapes == [tuple(one.shape) for one in flat]
    types = [metadata.input_tensor_meta(at).dtype() for at in range(metadata.num_inputs())]
    wanted = {torch.int32: 3, torch.float16: 5, torch.int64: 4}
    assert types == [wanted[one.dtype] for one in flat]
