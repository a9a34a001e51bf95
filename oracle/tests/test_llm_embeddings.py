"""Compares embedding models with transformers, tokenizers and gguf."""

import base64
import copy
import json
import os
import re
import shlex
import subprocess
import urllib.request

import gguf
import numpy
import pytest
import torch
import transformers
from safetensors.numpy import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from coremill import llm
from oracle.support.cargo import ROOT
from oracle.tests.test_llm import TEXTS
from oracle.tests.test_llm_tokenizers import corpus, word_pieces

# Maximum difference of an element relative to the largest expected element, in fp32 and for converted models.
TOLERANCE = 2e-6
HALF_TOLERANCE = 1e-2

CONTEXT = 40
COMMON = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "layer_norm_eps": 1e-6,
}
FAMILIES = {
    "bert": {"max_position_embeddings": CONTEXT},
    "distilbert": {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 80, "max_position_embeddings": CONTEXT},
    "roberta": {"max_position_embeddings": CONTEXT + 2, "pad_token_id": 1, "type_vocab_size": 1},
    "xlm-roberta": {"max_position_embeddings": CONTEXT + 2, "pad_token_id": 1, "type_vocab_size": 1},
    "nomic_bert": {"max_position_embeddings": CONTEXT},
}
ARCHITECTURES = {"bert": "bert", "nomic_bert": "nomic-bert"}
SENTENCES = [text for text in TEXTS if text.strip()] + ["the quick brown fox " * 20]


def tokenizer_of(name):
    if "roberta" not in name:
        return word_pieces(True)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    if name == "roberta":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=900, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=700, unk_token="<unk>", special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([line for line in corpus() if line.isascii()], trainer)
    begin, end = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
    if name == "roberta":
        tokenizer.post_processor = processors.RobertaProcessing(sep=end, cls_token=begin)
    else:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[begin, end])
    return tokenizer


def model_of(name, vocabulary):
    config = transformers.AutoConfig.for_model(name, **(COMMON | FAMILIES[name] | {"vocab_size": vocabulary}))
    torch.manual_seed(sum(name.encode()))
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            # Norms and biases too, so that no weight is 0 or 1.
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def save(folder, name, pooling, normalized):
    """Saves a model as sentence-transformers does; returns the model and its tokenizer."""
    tokenizer = tokenizer_of(name)
    model = model_of(name, tokenizer.get_vocab_size())
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    kinds = ["Transformer", "Pooling"] + ["Normalize"] * normalized
    modules = [
        {"idx": index, "path": f"{index}_{kind}" if index else "", "type": f"sentence_transformers.models.{kind}"}
        for index, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    modes = {"pooling_mode_cls_token": pooling == "cls", "pooling_mode_mean_tokens": pooling == "mean"}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64} | modes))
    return model, tokenizer


def expected(model, tokenizer, pooling, normalized):
    """The embeddings of the sentences, truncated to the context, in fp64."""
    tokenizer.enable_truncation(CONTEXT)
    exact = copy.deepcopy(model).double()
    rows = []
    for text in SENTENCES:
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            hidden = exact(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
        row = hidden[0] if pooling == "cls" else hidden.mean(0)
        rows.append(row / row.norm() if normalized else row)
    return torch.stack(rows).numpy()


def embed(coremill, path, *options):
    prompts = [part for text in SENTENCES for part in ("-p", text)]
    report = json.loads(coremill("embed", path, *prompts, "--json", *options))
    return numpy.array([embedding["values"] for embedding in report["embeddings"]])


def distance(found, wanted):
    assert found.shape == wanted.shape
    return numpy.abs(found - wanted).max() / numpy.abs(wanted).max()


def write_gguf(path, name, folder, tokenizer, pooling):
    """Writes a model as llama.cpp's converter does."""
    architecture = ARCHITECTURES[name]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(2)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(80)
    writer.add_head_count(4)
    writer.add_layer_norm_eps(1e-6)
    writer.add_causal_attention(False)
    writer.add_pooling_type({"mean": gguf.PoolingType.MEAN, "cls": gguf.PoolingType.CLS}[pooling])
    if name == "nomic_bert":
        writer.add_rope_freq_base(1000.0)
    words = [word for word, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    is_special = [word.startswith("[") and word.endswith("]") for word in words]
    marked = [
        word if special else word[2:] if word.startswith("##") else "\u2581" + word
        for word, special in zip(words, is_special, strict=True)
    ]
    writer.add_tokenizer_model("bert")
    writer.add_token_list(marked)
    writer.add_token_types([3 if special else 1 for special in is_special])
    writer.add_unk_token_id(words.index("[UNK]"))
    writer.add_sep_token_id(words.index("[SEP]"))
    writer.add_pad_token_id(words.index("[PAD]"))
    writer.add_bos_token_id(words.index("[CLS]"))
    kind = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(kind, 2)
    for tensor, array in load_file(folder / "model.safetensors").items():
        if tensor.startswith("pooler."):
            continue
        stem, _, ending = tensor.rpartition(".")
        writer.add_tensor(f"{names.get_name(stem)}.{ending}", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("name", "pooling", "normalized"),
    [
        ("bert", "mean", True),
        ("bert", "cls", False),
        ("distilbert", "mean", False),
        ("roberta", "cls", True),
        ("xlm-roberta", "mean", True),
        ("nomic_bert", "mean", True),
    ],
)
def test_embeddings_match_transformers(name, pooling, normalized, tmp_path, coremill):
    folder = tmp_path / "model"
    folder.mkdir()
    model, tokenizer = save(folder, name, pooling, normalized)
    wanted = expected(model, tokenizer, pooling, normalized)
    assert distance(embed(coremill, folder, "--fp32"), wanted) < TOLERANCE
    # One profile takes any number of tokens; the other pads texts to the context.
    for profile in ("cpu", "ane"):
        coremill("llm", folder, "-o", tmp_path / profile, "--profile", profile)
        assert distance(embed(coremill, tmp_path / profile), wanted) < HALF_TOLERANCE
    if name in ARCHITECTURES and normalized:
        path = tmp_path / "model.gguf"
        write_gguf(path, name, folder, tokenizer, pooling)
        assert distance(embed(coremill, path, "--fp32"), wanted) < TOLERANCE


def test_rejects_unsupported_sentence_transformers_modules(tmp_path, coremill_fails):
    folder = tmp_path / "model"
    folder.mkdir()
    save(folder, "distilbert", "mean", False)
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": 2, "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))
    assert "the module `Dense` of `modules.json` is not supported" in coremill_fails("embed", folder, "-p", "a")
    assert "is a family of embedding models, which do not generate text" in coremill_fails("generate", folder, "-p", "a")


def served(model, body):
    """The response of `coremill serve` to a request."""
    command = [os.environ["COREMILL"], "serve", model, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = process.stderr.readline().split()[-1]
            headers = {"content-type": "application/json"}
            request = urllib.request.Request(f"{address}/v1/embeddings", body.encode(), headers)
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)
        finally:
            process.terminate()


def test_server_embeddings_from_gguf_match_transformers(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    model, tokenizer = save(folder, "bert", "mean", True)
    path = tmp_path / "model.gguf"
    write_gguf(path, "bert", folder, tokenizer, "mean")
    texts = SENTENCES[:-1]
    response = served(path, json.dumps({"input": texts, "encoding_format": "base64"}))
    rows = [numpy.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in response["data"]]
    wanted = expected(model, tokenizer, "mean", True)[:-1]
    assert distance(numpy.array(rows), wanted) < HALF_TOLERANCE
    tokens = sum(len(tokenizer.encode(text).ids) for text in texts)
    assert response["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


def test_server_answers_documented_embeddings_request(coremill):
    model = ROOT / "crates/cli/tests/files/tinybert"
    page = (ROOT / "docs/language-models.md").read_text()
    (command,) = re.findall(r"^curl \S+/v1/embeddings .*\n.*$", page, re.MULTILINE)
    words = shlex.split(command.replace("\\\n", " "))
    body = words[words.index("-d") + 1]
    response = served(model, body)
    prompts = [part for text in json.loads(body)["input"] for part in ("-p", text)]
    report = json.loads(coremill("embed", model, *prompts, "--json"))
    wanted = [embedding["values"] for embedding in report["embeddings"]]
    found = [row["embedding"] for row in response["data"]]
    assert numpy.array_equal(numpy.array(found, "f4"), numpy.array(wanted, "f4"))


@pytest.mark.parametrize("name", ["bert", "xlm-roberta", "nomic_bert"])
def test_python_embeddings_match_transformers(name, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    model, tokenizer = save(folder, name, "mean", True)
    wanted = expected(model, tokenizer, "mean", True)
    exact = llm.load_embedder(folder, precision="fp32")
    found = exact.embed(SENTENCES)
    assert found.dtype == numpy.float32
    assert (exact.context, exact.width) == (CONTEXT, wanted.shape[1])
    assert distance(found, wanted) < TOLERANCE
    ids = [tokenizer.encode(text).ids for text in SENTENCES]
    assert [exact.tokenize(text) for text in SENTENCES] == ids
    assert numpy.array_equal(exact.embed(ids), found)
    assert numpy.array_equal(exact.embed(SENTENCES[0]), found[0])
    assert exact.embed([]).shape == (0, wanted.shape[1])
    for padded in (False, True):
        output = tmp_path / f"padded-{padded}"
        written = llm.convert(folder, output, padded=padded)
        assert written[0] == output / "model.mlpackage"
        assert distance(llm.embed(output, SENTENCES), wanted) < HALF_TOLERANCE
