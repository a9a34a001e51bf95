"""Language models of `coremill-llm`, judged by transformers, tokenizers and gguf."""

import json

import coremltools
import gguf
import numpy
import pytest
import torch
import transformers
from coremltools.converters.mil.frontend.milproto import load

import coremill
from coremill import llm
from oracle.support.cargo import ROOT, run_example

# Largest difference of a logit, in units of the largest expected logit or 1.
TOLERANCE = 3e-6
# The same for weights in blocks, whose products have larger sums.
CODES_TOLERANCE = 1e-5
# The same for models whose hidden states and caches are fp16.
HALF_TOLERANCE = 5e-3

TOKENS = [3, 17, 42, 5, 88, 17, 60, 9, 31, 2, 77, 17]
BLOCK = 7

COMMON = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

# The settings of a family beside the common ones.
FAMILIES = {
    "llama": {"tie_word_embeddings": False},
    "llama_scaled": {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral": {"sliding_window": 5, "tie_word_embeddings": False, "head_dim": 12},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 24, "tie_word_embeddings": True},
    "gemma2": {"head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 4},
    "gemma3_text": {"head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 4, "num_hidden_layers": 7},
    "phi3": {"sliding_window": 6, "tie_word_embeddings": False},
    "smollm3": {"num_hidden_layers": 4, "tie_word_embeddings": True},
    "granite": {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2, "logits_scaling": 2.5},
    "olmo2": {"tie_word_embeddings": False},
}

# The architecture in GGUF files, and what llama.cpp's files say beside the common settings.
ARCHITECTURES = {
    "llama": ("llama", {}),
    "llama_scaled": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "gemma2": ("gemma2", {"attention.sliding_window": 4, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}),
    "gemma3_text": ("gemma3", {"attention.sliding_window": 4}),
    "phi3": ("phi3", {"attention.sliding_window": 6}),
    "smollm3": ("smollm3", {}),
    "granite": ("granite", {"embedding_scale": 3.0, "residual_scale": 0.4, "attention.scale": 0.2, "logit_scale": 2.5}),
    "olmo2": ("olmo2", {}),
}


def model_of(name, **other):
    settings = COMMON | FAMILIES[name] | other
    config = transformers.AutoConfig.for_model(name.removesuffix("_scaled"), **settings)
    config._attn_implementation = "eager"
    torch.manual_seed(sum(name.encode()))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            # Norms too, so that no weight is 0 or 1.
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def permuted(weight, heads):
    """The rows of a projection as llama.cpp's converter orders them."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path, name, model, add_vocabulary=None, codes=None):
    """Writes a model; `codes` are the bytes of tensors that are stored in another scheme than F32, and their schemes."""
    architecture, extra = ARCHITECTURES[name]
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    parameters = config.rope_parameters
    parameters = parameters.get("full_attention", parameters)
    writer.add_rope_freq_base(parameters["rope_theta"])
    for key, value in extra.items():
        add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
        add(f"{architecture}.{key}", value)
    if add_vocabulary:
        add_vocabulary(writer)
    kind = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    for tensor, value in model.state_dict().items():
        if tensor == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, _, ending = tensor.rpartition(".")
        array, scheme = (codes or {}).get(tensor, (value.numpy(), None))
        if "q_proj" in tensor and architecture in ("llama", "smollm3", "granite"):
            array = permuted(array, config.num_attention_heads)
        if "k_proj" in tensor and architecture in ("llama", "smollm3", "granite"):
            array = permuted(array, config.num_key_value_heads)
        if "norm" in tensor and architecture.startswith("gemma"):
            array = array + 1
        writer.add_tensor(f"{names.get_name(stem)}.{ending}", array, raw_dtype=scheme)
    if name == "llama_scaled":
        plain = config.rope_parameters["rope_theta"] ** -(torch.arange(0, head, 2).double() / head)
        writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq.double()).float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def differences(tmp_path, cases, expected, tolerance=TOLERANCE):
    """Runs the cases; returns those whose logits differ."""
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    run_example("logits", tmp_path)
    failures = []
    for name, wanted in expected.items():
        result = json.loads((tmp_path / f"{name}.json").read_text())
        if "error" in result:
            failures.append(f"{name}: {result['error']}")
            continue
        found = numpy.array(result["logits"], numpy.float64)
        assert found.shape == wanted.shape, name
        # Logits that do not depend on the tokens could not tell right from wrong.
        assert abs(wanted[0] - wanted[-1]).max() > 0.1, name
        error = abs(found - wanted).max() / max(1.0, abs(wanted).max())
        print(f"{name}: {error:.1e}")
        if not error <= (HALF_TOLERANCE if name.endswith("_chunks") else tolerance):
            failures.append(f"{name}: differs by {error:.2e}, by token {abs(found - wanted).max(1).round(6).tolist()}")
    return failures


def test_family_logits_match_transformers(tmp_path):
    cases, expected = [], {}
    for name in FAMILIES:
        model = model_of(name)
        folder = tmp_path / name
        # Several shards, as large models have.
        model.save_pretrained(folder, max_shard_size="60KB" if name == "qwen3" else "1GB")
        forms = {"folder": folder}
        if name in ARCHITECTURES:
            forms["gguf"] = tmp_path / f"{name}.gguf"
            write_gguf(forms["gguf"], name, model)
        with torch.no_grad():
            logits = model(torch.tensor([TOKENS])).logits[0].double().numpy()
        for form, path in forms.items():
            case = {"name": f"{name}_{form}", "model": str(path), "block": BLOCK, "tokens": TOKENS}
            cases.append(case)
            expected[case["name"]] = logits
        cases.append(case | {"name": f"{name}_last", "last": True})
        expected[f"{name}_last"] = logits[BLOCK - 2 :]
        # The models for the Neural Engine, whose inputs and outputs are fp16.
        cases.append(case | {"name": f"{name}_chunks", "last": True, "chunks": 2})
        expected[f"{name}_chunks"] = logits[BLOCK - 2 :]
    failures = differences(tmp_path, cases, expected)
    assert not failures, "\n".join(failures)


# Positions of half-precision scales in the blocks of schemes that the package `gguf` does not quantize to.
SCALES = {
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
}
# The mean of the codes, in schemes that subtract an offset.
MEANS = {"Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}
SCHEMES = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", *SCALES]


def encoded(values, scheme, generator):
    """Codes of a matrix in a scheme, random ones if there is no quantizer, and the weights that they represent."""
    kind = getattr(gguf.GGMLQuantizationType, scheme)
    if scheme not in SCALES:
        data = gguf.quants.quantize(values, kind)
        return data, kind, gguf.quants.dequantize(data, kind)
    per_block, size = gguf.GGML_QUANT_SIZES[kind]
    rows, columns = values.shape
    blocks = generator.integers(0, 256, (rows, columns // per_block, size), dtype=numpy.uint8)
    factor = 1.0
    for _ in range(2):
        # The second time, the weights are as large as those of the model.
        scales = generator.uniform(0.5, 1.5, blocks.shape[:2]) * factor
        for at, unit in zip(SCALES[scheme], (1.0, MEANS.get(scheme)), strict=False):
            blocks[..., at : at + 2] = (scales * unit).astype(numpy.float16)[..., None].view(numpy.uint8)
        data = blocks.reshape(rows, -1)
        weights = gguf.quants.dequantize(data, kind)
        factor = values.std() / weights.std()
    return data, kind, weights


def test_gguf_quantized_logits_match_dequantized_weights(tmp_path):
    cases, expected = [], {}
    generator = numpy.random.default_rng(5)
    for scheme in SCHEMES:
        model = model_of("llama", hidden_size=256, intermediate_size=512, num_attention_heads=4)
        codes = {}
        with torch.no_grad():
            for tensor, parameter in model.named_parameters():
                if parameter.ndim == 2:
                    data, kind, weights = encoded(parameter.numpy(), scheme, generator)
                    codes[tensor] = data, kind
                    parameter.copy_(torch.from_numpy(weights.copy()))
            expected[scheme] = model(torch.tensor([TOKENS])).logits[0].double().numpy()
        path = tmp_path / f"{scheme}.gguf"
        write_gguf(path, "llama", model, codes=codes)
        # Blocks of more than eight tokens expand panels of the codes; fewer tokens are multiplied by the codes.
        cases.append({"name": scheme, "model": str(path), "block": 9, "tokens": TOKENS})
    failures = differences(tmp_path, cases, expected, CODES_TOLERANCE)
    assert not failures, "\n".join(failures)


def test_rules_requantize_selected_gguf_weights(tmp_path):
    """coremltools computes the weights of the package: those that rules select are close to the codes' weights, others are equal."""
    generator = numpy.random.default_rng(5)
    model = model_of("llama", hidden_size=256, intermediate_size=512, num_attention_heads=4)
    matrices = {name: it.detach().numpy() for name, it in model.named_parameters() if it.ndim == 2}
    made = {name: encoded(values, "Q4_0", generator) for name, values in matrices.items()}
    codes = {name: (data, kind) for name, (data, kind, _) in made.items()}
    path, output = tmp_path / "model.gguf", tmp_path / "model.mlpackage"
    write_gguf(path, "llama", model, codes=codes)
    rules = [
        {"name": "model.layers.*.mlp.down_proj.weight", "linear": "int8"},
        {"name": "*.0.mlp.up_proj.*", "palettize": 6},
        {"name": "*.q_proj.weight", "keep": True},
        {"name": "model.layers.9.*", "linear": "int8"},
    ]
    with pytest.warns(UserWarning, match="rule") as warned:
        llm.convert(path, output, context=64, prefill=1, rules=rules)
    assert [str(it.message) for it in warned if "rule" in str(it.message)] == ["rule 4 selects no weight"]
    package = coremltools.models.MLModel(str(output), skip_model_load=True)
    spec = package.get_spec()
    program = load.load(spec, spec.specificationVersion, package.weights_dir)
    found = {}
    for op in program.functions["decode"].operations:
        if op.op_type.startswith("constexpr"):
            found[op.outputs[0].name] = op.op_type, op.materialized_val_inference().astype(numpy.float32)
    assert len(found) == len(made)
    kinds = set()
    for name, (_, _, weights) in made.items():
        plain = name.replace(".", "_")
        key = next(key for key in found if key.removesuffix("_quantized").removesuffix("_palettized") == plain)
        kind, values = found[key]
        kinds.add((kind, key.removeprefix(plain)))
        rounding = numpy.abs(weights).max() * 2.0**-10
        if "down_proj" in name:
            step = numpy.abs(weights).max(axis=1, keepdims=True) / 127
            assert (numpy.abs(values - weights) <= step * 0.51 + rounding).all(), name
            assert numpy.abs(values - weights).max() > rounding, name
        elif name == "model.layers.0.mlp.up_proj.weight":
            assert len(numpy.unique(values)) == 64
            assert ((values - weights) ** 2).mean() < 2e-3 * (weights**2).mean(), name
        else:
            assert (numpy.abs(values - weights) <= rounding).all(), name
    assert kinds == {
        ("constexpr_blockwise_shift_scale", ""),
        ("constexpr_blockwise_shift_scale", "_quantized"),
        ("constexpr_lut_to_dense", "_palettized"),
    }
    with pytest.raises(coremill.Error, match="block-wise weight scales, which rule 1 uses"):
        llm.convert(path, tmp_path / "ane", layout="chunks", context=64, rules=[{"linear": "int4", "block": 32}])


TEXTS = [
    "Hello, world!",
    "  two  spaces\n\n\tand tabs \r\n end ",
    "I'll say it's 12345 times, DON'T!",
    "Grüße aus München, naïve café — “quotes”…",
    "日本語のテキスト。中文字符 한국어 العربية עברית हिन्दी ไทย",
    "👩‍👩‍👧‍👦 emoji 🇩🇪 zero\u200bwidth e\u0301 \ufb01",
    "x = [i**2 for i in range(10)]  # code\n\n\n    return {'a': 1}\n",
    "<s>special</s> <|im_start|>user\nhi<|im_end|>",
    "",
    " ",
    "\u00a0non\u00a0breaking\u2003em",
]


#: Text to train tokenizers on. Tests depend on the vocabulary, so it is a text that does not change.
TRAINING_TEXT = (ROOT / "LICENSE-APACHE").read_text()


def random_texts(count):
    generator = numpy.random.default_rng(7)
    ranges = [
        (32, 127),
        (9, 14),
        (160, 600),
        (0x400, 0x460),
        (0x3040, 0x3100),
        (0x4E00, 0x4F00),
        (0x1F600, 0x1F640),
        (48, 58),
        (32, 33),
    ]
    for _ in range(count):
        picks = generator.integers(0, len(ranges), generator.integers(1, 40))
        yield "".join(chr(generator.integers(*ranges[pick])) for pick in picks)


def trained(kind):
    """A small tokenizer of a kind, trained on these texts."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    corpus = TEXTS * 3 + list(random_texts(200)) + [TRAINING_TEXT]
    special = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if kind == "marks":
        tokens = special + [f"<0x{byte:02X}>" for byte in range(256)]
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=tokens, limit_alphabet=80)
        tokenizer.train_from_iterator([text.replace(" ", "\n▁") for text in corpus], trainer)
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        tokenizer.decoder = decoders.Sequence(steps)
        # Bytes are no added tokens in real files.
        saved = json.loads(tokenizer.to_str())
        saved["added_tokens"] = saved["added_tokens"][: len(special)]
        tokenizer = Tokenizer.from_str(json.dumps(saved))
    else:
        patterns = {
            "gpt2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
            "digits": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
            "llama3": [
                pre_tokenizers.Split(
                    Regex(
                        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
                    ),
                    "isolated",
                ),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ],
        }
        tokenizer = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
        if kind == "llama3":
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(patterns[kind])
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=special, initial_alphabet=alphabet)
        tokenizer.train_from_iterator(corpus, trainer)
        tokenizer.add_tokens(
            [AddedToken("special", normalized=True), AddedToken("<tool>", lstrip=True, rstrip=True, normalized=False)]
        )
    if kind != "gpt2":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    return tokenizer


def tokenize(path, texts):
    printed = run_example("tokens", path, text=json.dumps(texts))
    return [json.loads(line) for line in printed.splitlines()]


@pytest.mark.parametrize("kind", ["gpt2", "digits", "llama3", "marks"])
def test_token_ids_match_tokenizers(kind, tmp_path):
    tokenizer = trained(kind)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = TEXTS + list(random_texts(1500))
    found = tokenize(tmp_path / "tokenizer.json", texts)
    wrong = []
    for text, result in zip(texts, found, strict=True):
        encoding = tokenizer.encode(text)
        decoded = tokenizer.decode(encoding.ids, skip_special_tokens=True)
        if result["ids"] != encoding.ids or result["text"] != decoded:
            wrong.append((text, result, encoding.ids, decoded))
    assert not wrong, f"{len(wrong)} of {len(texts)} texts: {wrong[:3]}"


def add_sentencepiece(writer, model):
    count = model.vocab_size()
    kinds = [(model.is_unknown, 2), (model.is_control, 3), (model.is_byte, 6)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([model.id_to_piece(token).encode() for token in range(count)])
    writer.add_token_scores([model.get_score(token) for token in range(count)])
    writer.add_token_types([next((kind for is_kind, kind in kinds if is_kind(token)), 1) for token in range(count)])
    writer.add_bos_token_id(model.bos_id())
    writer.add_unk_token_id(model.unk_id())


def test_gguf_token_ids_match_sentencepiece(tmp_path):
    import sentencepiece

    lines = [line for text in TEXTS * 3 + list(random_texts(300)) for line in text.splitlines() if line.strip()]
    lines += TRAINING_TEXT.splitlines()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(tmp_path / "spm"),
        model_type="bpe",
        vocab_size=1500,
        character_coverage=0.98,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    path = tmp_path / "model.gguf"
    write_gguf(path, "llama", model_of("llama"), lambda writer: add_sentencepiece(writer, model))
    texts = [text for text in TEXTS if "<s>" not in text] + list(random_texts(500))
    wrong = []
    for text, result in zip(texts, tokenize(path, texts), strict=True):
        expected = [model.bos_id(), *model.encode(text)]
        if result["ids"] != expected or result["text"] != model.decode(expected):
            wrong.append((text, result, expected, model.decode(expected)))
    assert not wrong, f"{len(wrong)} of {len(texts)} texts: {wrong[:2]}"


@pytest.mark.parametrize(("kind", "pre"), [("gpt2", "gpt-2"), ("digits", "smollm"), ("llama3", "llama-bpe")])
def test_gguf_token_ids_match_tokenizers(kind, pre, tmp_path):
    tokenizer = trained(kind)
    saved = json.loads(tokenizer.to_str())
    # GGUF files do not state the settings of added tokens, nor this normal form.
    saved["normalizer"] = None
    saved["added_tokens"] = [token for token in saved["added_tokens"] if token["special"]]
    tokenizer = type(tokenizer).from_str(json.dumps(saved))
    special = {token["id"] for token in saved["added_tokens"]}

    def add(writer):
        count = tokenizer.get_vocab_size()
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list([tokenizer.id_to_token(token) for token in range(count)])
        writer.add_token_types([3 if token in special else 1 for token in range(count)])
        writer.add_token_merges([" ".join(pair) for pair in saved["model"]["merges"]])
        writer.add_bos_token_id(tokenizer.token_to_id("<s>"))
        writer.add_add_bos_token(kind != "gpt2")

    path = tmp_path / "model.gguf"
    write_gguf(path, "llama", model_of("llama"), add)
    texts = TEXTS + list(random_texts(500))
    wrong = []
    for text, result in zip(texts, tokenize(path, texts), strict=True):
        expected = tokenizer.encode(text).ids
        if result["ids"] != expected:
            wrong.append((text, result["ids"], expected))
    assert not wrong, f"{len(wrong)} of {len(texts)} texts: {wrong[:2]}"


CHATS = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "llama2": "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    "tools": "{%- if tools %}\n    {%- for tool in tools %}\n{{ tool | tojson }}\n{{ tool | tojson(indent=4) }}\n    {%- endfor %}\n{%- endif %}\n{%- set ns = namespace(last=none) %}\n{%- for message in messages[::-1] %}\n    {%- if message.role == 'user' and ns.last is none %}\n        {%- set ns.last = loop.index0 %}\n    {%- endif %}\n{%- endfor %}\n{{- ns.last }} {{ messages | map(attribute='role') | join(',') | upper }} {{ messages[0].content.split(' ')[-1].startswith('y') }}\n{% for key, value in (tools or [{}])[0].items() %}{% if key == 'skip' %}{% continue %}{% endif %}{{ key }};{% endfor %}",
    "macros": "{% macro show(message) %}[{{ message['role'] | title }}] {{ message['content'] | trim }}{% endmacro %}{{ bos_token }}{% for message in messages %}{{ show(message) }}{{ '' if loop.last else ' | ' }}{% endfor %}{% if add_generation_prompt is defined and add_generation_prompt %}>{% endif %}",
}

CONVERSATIONS = [
    [{"role": "user", "content": " Hello you "}],
    [
        {"role": "system", "content": "Be brief, <b>please</b> yes"},
        {"role": "user", "content": "What's 1 + 1?"},
        {"role": "assistant", "content": "\n2 "},
        {"role": "user", "content": "Thänk you 👍"},
    ],
]

TOOLS = [
    {"type": "function", "skip": 1, "function": {"name": "weather", "parameters": {"zeta": [1, 2.5, None], "alpha": "ü<>&'\""}}}
]


def test_chat_templates_match_transformers(tmp_path):
    from transformers.utils.chat_template_utils import render_jinja_template

    wrong = []
    for name, template in CHATS.items():
        folder = tmp_path / name
        folder.mkdir()
        config = {"chat_template": template, "bos_token": "<s>", "eos_token": {"content": "</s>"}}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        cases = [
            {"messages": messages, "add_generation_prompt": prompts, "tools": tools}
            for messages in CONVERSATIONS
            for prompts in (False, True)
            for tools in (None, TOOLS)
        ]
        printed = run_example("tokens", folder, "--chat", text=json.dumps(cases))
        for case, line in zip(cases, printed.splitlines(), strict=True):
            rendered, _ = render_jinja_template(
                conversations=[case["messages"]],
                tools=case["tools"],
                chat_template=template,
                add_generation_prompt=case["add_generation_prompt"],
                bos_token="<s>",
                eos_token="</s>",
            )
            if json.loads(line) != rendered[0]:
                wrong.append(f"{name}: {json.loads(line)!r}, expected {rendered[0]!r}")
    assert not wrong, "\n".join(wrong)
