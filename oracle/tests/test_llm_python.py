"""`coremill.llm`: conversion, generation, scores and tokens from Python."""

import json
import math
from pathlib import Path

import pytest

import coremill
from coremill import llm
from oracle.conftest import Command
from oracle.support.cargo import ROOT

TINY = ROOT / "crates/cli/tests/files/tiny"
TEXT = (TINY / "text.txt").read_text()
PROMPT = "ab cab"
CONTEXT = 32


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of the model by layout."""
    folder = tmp_path_factory.mktemp("converted")
    forms = {"files": TINY}
    for name, layout in [
        ("coremill", None),
        ("executorch", "executorch"),
        ("static", "executorch-static"),
        ("swift", "swift-transformers"),
    ]:
        written = llm.convert(TINY, folder / name, layout=layout, prefill=8)
        assert [path.name for path in written[1:]] == ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]
        assert all(path.exists() for path in written)
        forms[name] = folder / name
    return forms


def test_convert_warns_and_omits_unsupported_tokenizer(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for path in TINY.iterdir():
        if not path.name.startswith("tokenizer"):
            (folder / path.name).write_bytes(path.read_bytes())
    (folder / "vocab.json").write_text("{}")
    (folder / "merges.txt").write_text("")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CLIPTokenizer"}))
    with pytest.warns(UserWarning, match="the tokenizer is left out: .*`CLIPTokenizer`") as found:
        written = llm.convert(folder, tmp_path / "out")
    assert [warning.filename for warning in found] == [__file__]
    assert not any(path.name == "tokenizer.json" for path in written)


def test_converted_layouts_generate_like_command(converted: dict[str, Path], coremill: Command) -> None:
    options = ["--json", "--max-tokens", 12, "--temperature", 0.7, "--seed", 5, "--top-k", 9]
    found = json.loads(coremill("generate", TINY, "--prompt", PROMPT, *options))
    for name, path in converted.items():
        parts: list[str] = []
        made = llm.generate(path, PROMPT, max_tokens=12, temperature=0.7, seed=5, top_k=9, on_text=parts.append)
        assert made.tokens == found["tokens"], name
        assert made.text == str(made) == "".join(parts) == found["text"]
        assert (made.prompt_tokens, made.finish_reason) == (found["prompt_tokens"], found["finish_reason"])


def test_accepts_text_token_and_chat_prompts(converted: dict[str, Path]) -> None:
    model = llm.load(converted["coremill"])
    text = model.generate(PROMPT, max_tokens=5)
    ids = model.tokenize(PROMPT)
    assert ids == llm.tokenize(TINY, PROMPT) == llm.tokenize(TINY / "tokenizer.json", PROMPT) == text.prompt_tokens
    assert model.generate(ids, max_tokens=5).tokens == text.tokens
    assert PROMPT in model.detokenize(ids)
    messages = [{"role": "user", "content": "cab"}]
    rendered = model.tokenize("user cab\na ", special=False)
    assert model.generate(messages, max_tokens=1).prompt_tokens == rendered
    stopped = model.generate(PROMPT, max_tokens=5, stop=text.text[1:3])
    assert (stopped.text, stopped.finish_reason) == (text.text[: text.text.index(text.text[1:3])], "stop")


def test_scores_match_command_and_reference(converted: dict[str, Path], coremill: Command) -> None:
    printed = json.loads(coremill("score", TINY, "--text", TINY / "text.txt", "--tokens", 40, "--fp32", "--json"))
    reference = llm.score(TINY, TEXT, tokens=40, precision="fp32")
    assert (reference.tokens, reference.perplexity) == (printed["tokens"], printed["perplexity"])
    assert reference.comparison is None
    assert math.isclose(math.exp(reference.loss), reference.perplexity)
    for name in ("coremill", "executorch", "static", "swift"):
        # Texts are split into windows of the shorter context; here both models have the same context.
        other = llm.load(TINY, context=llm.load(converted[name]).context, precision="fp32")
        score = llm.load(converted[name]).score(TEXT, against=other, tokens=40)
        assert score.comparison is not None
        assert score.comparison.divergence < 1e-4 and score.comparison.agreement > 0.9, name
        assert math.isclose(score.perplexity, score.comparison.perplexity, rel_tol=1e-2)


def test_rejects_invalid_options_and_long_prompts(converted: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(coremill.Error, match="no such file"):
        llm.load(tmp_path / "absent")
    with pytest.raises(coremill.Error, match="`weights` is `int3`; expected `exact`, `fp16`, `int8`, `int4`, `lut4`, `lut6`"):
        llm.convert(TINY, tmp_path / "out", weights="int3")
    with pytest.raises(coremill.Error, match="requires the layout `coremill`"):
        llm.convert(TINY, tmp_path / "m.mlpackage", layout="executorch")
    model = llm.load(converted["executorch"])
    assert model.context == CONTEXT
    with pytest.raises(coremill.Error, match="do not fit"):
        model.generate([3] * (CONTEXT + 1))

    def fail(_: str) -> None:
        raise KeyError("stop here")

    with pytest.raises(KeyError, match="stop here"):
        model.generate(PROMPT, on_text=fail)
    assert model.generate(PROMPT, max_tokens=3).tokens
    with pytest.raises(coremill.Error, match="cannot be compared with itself"):
        model.score(TEXT, against=model)


def test_io_cache_generates_same_tokens(converted: dict[str, Path], tmp_path: Path) -> None:
    expected = llm.load(converted["coremill"]).generate(PROMPT, max_tokens=12).tokens
    for layout in ("coremill", "chunks"):
        llm.convert(TINY, tmp_path / layout, layout=layout, context=CONTEXT, prefill=8, cache="io")
        assert llm.load(tmp_path / layout).generate(PROMPT, max_tokens=12).tokens == expected, layout
    with pytest.raises(coremill.Error, match="the layout `executorch` keeps its cache in states"):
        llm.convert(TINY, tmp_path / "model.pte", cache="io")
    with pytest.raises(coremill.Error, match="`cache` is `disk`; expected `state`, `io`"):
        llm.convert(TINY, tmp_path / "out", cache="disk")


def test_convert_verifies_divergence_from_source(tmp_path: Path) -> None:
    for layout in ("coremill", "swift-transformers", "chunks", "anemll"):
        llm.convert(TINY, tmp_path / layout, layout=layout, context=CONTEXT, prefill=8, verify=TEXT)
        score = llm.verify(TINY, tmp_path / layout, TEXT, tokens=5)
        assert score.comparison is not None
        assert score.tokens == 4 and score.comparison.divergence < 1e-4, layout
    output = tmp_path / "int8.mlpackage"
    with pytest.raises(coremill.VerificationError, match=r"int8.mlpackage is .*, more than 1e-12") as raised:
        llm.convert(TINY, output, weights="int8", context=CONTEXT, verify=TEXT, max_divergence=1e-12)
    assert "`max_divergence`" in (raised.value.hint or "")
    assert output.exists()
    with pytest.raises(coremill.Error, match="is not a converted model"):
        llm.verify(TINY, TINY, TEXT)
    with pytest.raises(coremill.OptionError, match="`numerics` is `exact`"):
        llm.verify(TINY, output, TEXT, numerics="exact")


def test_loaders_reject_wrong_model_kind(tmp_path: Path) -> None:
    bert = ROOT / "crates/cli/tests/files/tinybert"
    llm.convert(bert, tmp_path / "bert")
    for path in (bert, tmp_path / "bert"):
        with pytest.raises(coremill.ConversionError, match="embedding model") as raised:
            llm.load(path)
        assert raised.value.hint == "`llm.load_embedder` loads embedding models"
        assert llm.tokenize(path, "cats") == llm.load_embedder(path).tokenize("cats")
    with pytest.raises(coremill.ConversionError, match="is not an embedding model") as raised:
        llm.load_embedder(TINY)
    assert raised.value.hint == "`llm.load` loads models that generate text"
    with pytest.raises(coremill.Error, match="`layout` is `executorch`"):
        llm.convert(bert, tmp_path / "other", layout="executorch")
    with pytest.raises(coremill.Error, match="`verify` compares text predictions, which embedding models do not make"):
        llm.convert(bert, tmp_path / "other", verify=TEXT)
    with pytest.raises(coremill.Error, match="`verify` needs a text of at least 2 tokens, got"):
        llm.convert(TINY, tmp_path / "other", context=CONTEXT, prefill=8, verify="")
    assert not (tmp_path / "other").exists()
    with pytest.raises(coremill.Error, match="no such file"):
        llm.load_embedder(tmp_path / "absent")
    with pytest.raises(coremill.Error, match="token 99"):
        llm.embed(bert, [[99]])
