"""SentencePiece, tiktoken, Unigram, WordPiece and BPE tokenizers: token ids and decoded texts match the reference libraries."""

import base64
import json

import pytest
import sentencepiece
import tiktoken
from tiktoken._educational import bpe_train

from oracle.tests.test_llm import TEXTS, TRAINING_TEXT, random_texts, tokenize

# Texts that Unicode normalization changes: ligatures, full-width and combining characters, several kinds of spaces.
FORMS = [
    "ﬁne ﬂow ①②③ ｆｕｌｌ　ｗｉｄｔｈ ㍿ ½ ™",
    "A\u0301e\u0301 \u1e9b\u0323 ｶﾞｷﾞ",
    "\u2003em\u00a0nb\u200b\ttab\u3000end ",
    "   many   spaces   ",
]
TEXTS = [text for text in TEXTS if "<s>" not in text] + FORMS


def corpus():
    lines = [line for text in TEXTS * 3 + list(random_texts(300)) for line in text.splitlines() if line.strip()]
    return lines + TRAINING_TEXT.splitlines()


def mismatches(path, texts, encode, decode):
    """The texts whose token ids or decoded texts differ from the reference library's."""
    found = tokenize(path, texts)
    assert len({tuple(result["ids"]) for result in found}) > len(texts) / 2
    pairs = zip(texts, found, strict=True)
    return [(text, one, encode(text)) for text, one in pairs if one["ids"] != encode(text) or one["text"] != decode(encode(text))]


SETTINGS = {
    "unigram": {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc"},
    "unigram_bytes": {"model_type": "unigram", "normalization_rule_name": "identity", "byte_fallback": True},
    "bpe": {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc_cf"},
    "bpe_bytes": {
        "model_type": "bpe",
        "normalization_rule_name": "identity",
        "byte_fallback": True,
        "remove_extra_whitespaces": False,
        "user_defined_symbols": ["<tool>"],
    },
    "bare": {"model_type": "unigram", "normalization_rule_name": "nfkc", "add_dummy_prefix": False},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_matches_sentencepiece_ids_and_text(name, tmp_path):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()),
        model_prefix=str(tmp_path / "tokenizer"),
        vocab_size=1200,
        character_coverage=0.98,
        hard_vocab_limit=False,
        minloglevel=2,
        **SETTINGS[name],
    )
    path = tmp_path / "tokenizer.model"
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    texts = TEXTS + list(random_texts(1500))
    # SentencePiece decodes unknown tokens as " ⁇ ".
    failures = mismatches(path, texts, model.encode, lambda ids: model.decode(ids).replace(" ⁇ ", "<unk>"))
    assert not failures, f"{len(failures)} of {len(texts)} texts differ: {failures[:2]}"
    config = {"tokenizer_class": "LlamaTokenizer", "add_eos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert tokenize(path, ["a b"])[0]["ids"] == [model.bos_id(), *model.encode("a b"), model.eos_id()]


PATTERNS = {
    "gpt2": r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""",
    "cl100k": r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s""",
}


@pytest.mark.parametrize("name", PATTERNS)
def test_matches_tiktoken_ids_and_text(name, tmp_path):
    ranks = bpe_train("\n".join(corpus()[:400]), 500, PATTERNS[name], visualise=None)
    encoding = tiktoken.Encoding(name, pat_str=PATTERNS[name], mergeable_ranks=ranks, special_tokens={"<|end|>": 600})
    lines = [f"{base64.b64encode(token).decode()} {rank}" for token, rank in ranks.items()]
    path = tmp_path / "tokenizer.model"
    path.write_text("\n".join(lines) + "\n")
    added = {"600": {"content": "<|end|>", "special": False}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pat_str": PATTERNS[name], "added_tokens_decoder": added}))
    texts = [*TEXTS, "a<|end|> b", *random_texts(1500)]
    failures = mismatches(path, texts, lambda text: encoding.encode(text, allowed_special="all"), encoding.decode)
    assert not failures, f"{len(failures)} of {len(texts)} texts differ: {failures[:2]}"


@pytest.mark.parametrize("byte_fallback", [False, True])
def test_unigram_matches_tokenizers_library_ids(byte_fallback, tmp_path):
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.UnigramTrainer(vocab_size=900, unk_token="<unk>", special_tokens=special)
    tokenizer.train_from_iterator([line for line in corpus() if line.isascii()], trainer)
    saved = json.loads(tokenizer.to_str())
    saved["model"]["byte_fallback"] = byte_fallback
    saved["added_tokens"] = saved["added_tokens"][:1]
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer = Tokenizer.from_str(json.dumps(saved))
    tokenizer.decoder = decoders.Sequence(steps)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    texts = TEXTS + list(random_texts(1500))
    failures = mismatches(path, texts, lambda text: tokenizer.encode(text).ids, tokenizer.decode)
    assert not failures, f"{len(failures)} of {len(texts)} texts differ: {failures[:2]}"


def word_pieces(lowercase):
    """A small WordPiece tokenizer as BERT uses, trained on the corpus."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=1500, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


@pytest.mark.parametrize("lowercase", [False, True])
def test_wordpiece_matches_tokenizers_library_ids(lowercase, tmp_path):
    tokenizer = word_pieces(lowercase)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = [*TEXTS, "[CLS] a[MASK]b ΟΔΟΣ İ ", "it 's n't , do not !", "x" * 101, *random_texts(1500)]
    decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=True)  # noqa: E731
    failures = mismatches(tmp_path / "tokenizer.json", texts, lambda text: tokenizer.encode(text).ids, decode)
    assert not failures, f"{len(failures)} of {len(texts)} texts differ: {failures[:2]}"
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "vocab.txt").write_text("".join(f"{word}\n" for word, _ in words))
    (tmp_path / "plain" / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}))
    failures = mismatches(tmp_path / "plain" / "vocab.txt", texts, lambda text: tokenizer.encode(text).ids, decode)
    assert not failures, f"{len(failures)} of {len(texts)} texts differ: {failures[:2]}"


TOKEN = {"__type": "AddedToken", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False, "special": True}
CLASSES = {
    "gpt2": ("GPT2Tokenizer", {}),
    "gpt2_ends": ("GPT2Tokenizer", {"add_bos_token": True, "add_prefix_space": True}),
    "gpt2_named": ("GPT2Tokenizer", {"bos_token": "<s>", "eos_token": TOKEN | {"content": "</s>"}}),
    "qwen2": ("Qwen2Tokenizer", {"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]}),
    "roberta": ("RobertaTokenizer", {"mask_token": TOKEN | {"content": "<mask>"}}),
    "whisper": ("WhisperTokenizer", {}),
}


@pytest.mark.parametrize("name", CLASSES)
def test_vocab_and_merges_files_match_transformers_ids(name, tmp_path):
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<|endoftext|>", "<s>", "</s>", "<unk>", "<pad>", "<|startoftranscript|>", "<|notimestamps|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=900, special_tokens=special, initial_alphabet=alphabet))
    tokenizer.model.save(str(tmp_path))
    kind, settings = CLASSES[name]
    added = {"900": {"content": "<tool>", "special": False, "normalized": True}, "901": {"content": "<|im_start|>", "special": True}}
    settings = settings | {"tokenizer_class": kind, "added_tokens_decoder": added}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    reference = getattr(transformers, kind).from_pretrained(tmp_path)
    texts = [*TEXTS, "a<tool> b <mask>c<|im_start|>user</s> <s>", "I'LL SEE 12345", *random_texts(1500)]
    decode = lambda ids: reference.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)  # noqa: E731
    failures = mismatches(tmp_path, texts, lambda text: reference(text)["input_ids"], decode)
    assert not failures, f"{len(failures)} of {len(texts)} texts differ: {failures[:2]}"
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(AssertionError, match=r"has `vocab\.json`, but no `merges\.txt`"):
        tokenize(tmp_path, ["a"])
