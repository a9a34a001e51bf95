"""Compares speech models with transformers: features, tokens, logits and transcriptions."""

import json
import math
import wave
from pathlib import Path

import numpy
import pytest
import torch
import transformers
from scipy.io import wavfile
from scipy.signal import resample_poly
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import coremill as package
from coremill import llm
from oracle.conftest import Command
from oracle.support.cargo import ROOT, run_example
from oracle.tests.test_llm import TEXTS
from oracle.tests.test_llm_tokenizers import corpus

# Maximum difference of a number in fp32, relative to the largest expected number or 1.
TOLERANCE = 1e-5
# The same for features, which are logarithms of sums of squares in fp32 in transformers.
FEATURE_TOLERANCE = 1e-4

RATE = 16_000
SECONDS = 2
POSITIONS = SECONDS * 50
BANDS = 24
TARGETS = 40


def make_tokenizer() -> transformers.WhisperTokenizer:
    """Byte-level BPE with Whisper's special tokens in their order."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    trained.train_from_iterator(corpus(), trainer)
    model = json.loads(trained.to_str())["model"]
    tokenizer = transformers.WhisperTokenizer(vocab=model["vocab"], merges=[tuple(merge) for merge in model["merges"]])
    words = ["endoftext", "startoftranscript", "en", "de", "fr", "translate", "transcribe", "startoflm", "startofprev"]
    words += ["nospeech", "notimestamps"]
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{word}|>" for word in words]})
    tokenizer.add_tokens([f"<|{step * 0.02:.2f}|>" for step in range(POSITIONS + 1)])
    tokenizer.set_prefix_tokens(task="transcribe")
    return tokenizer


def make_model(tokenizer: transformers.WhisperTokenizer, *, multilingual: bool = True) -> transformers.WhisperForConditionalGeneration:
    ids = {word: tokenizer.convert_tokens_to_ids(f"<|{word}|>") for word in ("endoftext", "startoftranscript", "notimestamps")}
    end, start = ids["endoftext"], ids["startoftranscript"]
    config = transformers.WhisperConfig(
        vocab_size=len(tokenizer),
        num_mel_bins=BANDS,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=3,
        encoder_ffn_dim=64,
        decoder_ffn_dim=80,
        d_model=48,
        max_source_positions=POSITIONS,
        max_target_positions=TARGETS,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=start,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    torch.manual_seed(11)
    model = transformers.WhisperForConditionalGeneration(config).eval().float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Norms and biases change, too. The large scale makes attention depend on audio and text.
            scale = 0.5 if "attn" in name and "proj" in name else 0.15
            parameter.add_(torch.randn_like(parameter) * scale)
    settings = model.generation_config
    # Settings that the model's configuration lacks are kept.
    settings._from_model_config = False
    settings.max_length = TARGETS
    settings.no_timestamps_token_id = ids["notimestamps"]
    settings.suppress_tokens = [3, 7, start, *range(start + 4, start + 9)]
    settings.begin_suppress_tokens = [5, end]
    settings.max_initial_timestamp_index = 20
    settings.is_multilingual = multilingual
    if multilingual:
        languages, tasks = ("en", "de", "fr"), ("translate", "transcribe")
        settings.lang_to_id = {f"<|{name}|>": tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in languages}
        settings.task_to_id = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in tasks}
    return model


def make_audio(seconds: float, seed: int) -> numpy.ndarray:
    """Tones that rise and fall, between noise and silence."""
    times = numpy.arange(int(seconds * RATE)) / RATE
    generator = numpy.random.default_rng(seed)
    tone = numpy.sin(2 * numpy.pi * (300 + 200 * numpy.sin(3 * times)) * times) * (numpy.sin(5 * times + seed) > 0)
    samples = 0.5 * tone + 0.02 * generator.standard_normal(len(times)) * (times % 1.3 > 0.3)
    return (samples * 0.9 * 32767).astype(numpy.int16)


def floats(samples: numpy.ndarray) -> numpy.ndarray:
    return samples.astype(numpy.float32) / 32768


def extractor() -> transformers.WhisperFeatureExtractor:
    return transformers.WhisperFeatureExtractor(feature_size=BANDS, chunk_length=SECONDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model with several languages."""
    path = tmp_path_factory.mktemp("speech") / "model"
    tokenizer = make_tokenizer()
    make_model(tokenizer).save_pretrained(path)
    tokenizer.save_pretrained(path)
    extractor().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> transformers.WhisperForConditionalGeneration:
    loaded = transformers.WhisperForConditionalGeneration.from_pretrained(folder, attn_implementation="eager")
    return loaded.eval().float()


def distance(found: object, wanted: torch.Tensor) -> float:
    array, expected = numpy.array(found, dtype=numpy.float64).ravel(), wanted.detach().double().numpy().ravel()
    assert array.shape == expected.shape
    return float(numpy.abs(array - expected).max() / max(1.0, numpy.abs(expected).max()))


def transcribe(coremill: Command, model: Path, audio: Path, *options: object) -> dict:
    return json.loads(coremill("transcribe", model, audio, "--json", *options))


def write(path: Path, samples: numpy.ndarray, rate: int = RATE) -> Path:
    wavfile.write(path, rate, samples)
    return path


def test_features_and_logits_match_transformers(folder, model, tmp_path):
    samples = make_audio(1.4, 1)
    (tmp_path / "model").symlink_to(folder)
    write(tmp_path / "audio.wav", samples)
    settings = model.generation_config
    tokens = [settings.decoder_start_token_id, *settings.lang_to_id.values(), 40, 80, 17, 60, 9, 131, 2]
    (tmp_path / "tokens.json").write_text(json.dumps(tokens))
    run_example("speech", tmp_path)
    found = json.loads((tmp_path / "result.json").read_text())
    features = extractor()(floats(samples), sampling_rate=RATE, return_tensors="pt").input_features
    assert distance(found["features"], features) < FEATURE_TOLERANCE
    # The reference gets our features, so that only the encoder and the decoder are compared.
    same = torch.tensor(found["features"]).reshape(features.shape)
    with torch.no_grad():
        wanted = model(input_features=same, decoder_input_ids=torch.tensor([tokens]))
    assert distance(found["hidden"], wanted.encoder_last_hidden_state) < TOLERANCE
    logits = wanted.logits[0, 3:]
    assert logits.std(dim=0).max() > 0.1
    assert distance(found["logits"], logits) < TOLERANCE


@pytest.mark.parametrize("seconds", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("task", ["transcribe", "translate"])
def test_short_audio_tokens_match_transformers_generate(folder, model, tmp_path, coremill, seconds, task):
    samples = make_audio(seconds, int(seconds * 10))
    path = write(tmp_path / "audio.wav", samples)
    features = extractor()(floats(samples), sampling_rate=RATE, return_tensors="pt").input_features
    for language in (None, "de"):
        options = ["--language", language] if language else []
        found = transcribe(coremill, folder, path, "--fp32", "--task", task, *options)
        ids = model.generate(features, task=task, language=language)[0].tolist()
        wanted = [token for token in ids if token != model.generation_config.eos_token_id]
        assert [token for segment in found["segments"] for token in segment["tokens"]] == wanted
        assert found["language"] in ("en", "de", "fr")
        assert language in (None, found["language"])


@pytest.mark.parametrize("seconds", [1.3, 2.0, 3.1, 7.7])
def test_timestamped_segments_match_transformers(folder, model, tmp_path, coremill, seconds):
    samples = make_audio(seconds, int(seconds * 10))
    path = write(tmp_path / "audio.wav", samples)
    long = {"truncation": False, "padding": "longest"} if seconds > SECONDS else {}
    features = extractor()(floats(samples), sampling_rate=RATE, return_tensors="pt", **long).input_features
    wanted = model.generate(features, task="transcribe", language="en", return_timestamps=True, return_segments=True)
    found = transcribe(coremill, folder, path, "--fp32", "--language", "en", "--timestamps")
    tokenizer = transformers.WhisperTokenizer.from_pretrained(folder)
    segments = wanted["segments"][0]
    assert [segment["tokens"] for segment in found["segments"]] == [segment["tokens"].tolist() for segment in segments]
    for name in ("start", "end"):
        times = [float(segment[name]) for segment in segments]
        assert numpy.allclose([segment[name] for segment in found["segments"]], times, atol=1e-6)
    texts = [tokenizer.decode(segment["tokens"], skip_special_tokens=True) for segment in segments]
    assert found["text"] == "".join(texts).strip()
    assert found["seconds"] == pytest.approx(len(samples) / RATE)


def test_converted_models_transcribe(folder, model, tmp_path, coremill, coremill_fails):
    samples = make_audio(1.7, 4)
    path = write(tmp_path / "audio.wav", samples)
    expected = transcribe(coremill, folder, path, "--fp32", "--timestamps")
    for name, options in {"cpu": [], "ane": ["--profile", "ane"], "int8": ["--weights", "int8"]}.items():
        converted = json.loads(coremill("llm", folder, "-o", tmp_path / name, "--json", *options))
        assert bool(converted["losses"]) == (name == "int8")
        assert all(loss["decibels"] > 30 for loss in converted["losses"])
        names = ["encoder.mlpackage", "decoder.mlpackage", "tokenizer.json", "tokenizer_config.json"]
        names += ["generation_config.json", "preprocessor_config.json"]
        assert [Path(file).name for file in converted["files"]] == names
        found = transcribe(coremill, tmp_path / name, path, "--timestamps")
        assert found["language"] == expected["language"]
        if name != "int8":
            # In fp16, either of two almost equally likely tokens may be chosen, so only the first tokens are compared.
            [tokens, wanted] = [report["segments"][0]["tokens"] for report in (found, expected)]
            assert tokens[:3] == wanted[:3]
        report = json.loads(coremill("check", tmp_path / name / "encoder.mlpackage", "--json"))
        assert report["diagnostics"] == []
        report = json.loads(coremill("check", tmp_path / name / "decoder.mlpackage", "--json"))
        codes = {"runtime-index", "integer-arithmetic"} | (set() if name == "ane" else {"half-attention"})
        assert {diagnostic["code"] for diagnostic in report["diagnostics"]} == codes
    assert transcribe(coremill, tmp_path / "cpu", path) == transcribe(coremill, folder, path)
    for options, message in {
        ("--layout", "coremill"): "`--layout` is for models that generate text",
        ("--chunks", "2"): "`--chunks` is for models that generate text",
        ("--prefill", "8"): "`--prefill` is for models that generate text",
        ("--long-prefill", "8"): "`--long-prefill` is for models that generate text",
        ("--context", "41"): "`context` must be from 5 to 40 with this model, got 41",
    }.items():
        assert message in coremill_fails("llm", folder, "-o", tmp_path / "other", *options)
    assert "has an encoder and a decoder" in coremill_fails("llm", folder, "-o", tmp_path / "model.pte")
    assert "is a family of speech models, which do not accept text" in coremill_fails("generate", folder, "-p", "a")
    assert "does not support the language `it`" in coremill_fails("transcribe", folder, path, "--language", "it")


def test_single_language_models_match_transformers(tmp_path, coremill, coremill_fails):
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, multilingual=False)
    path = tmp_path / "model"
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    transformers.WhisperProcessor(feature_extractor=extractor(), tokenizer=tokenizer).save_pretrained(path)
    samples = make_audio(1.1, 3)
    audio = write(tmp_path / "audio.wav", samples)
    features = extractor()(floats(samples), sampling_rate=RATE, return_tensors="pt").input_features
    ids = model.generate(features)[0].tolist()
    settings = model.generation_config
    special = (settings.decoder_start_token_id, settings.no_timestamps_token_id, settings.eos_token_id)
    found = transcribe(coremill, path, audio, "--fp32")
    assert "language" not in found
    tokens = [token for segment in found["segments"] for token in segment["tokens"]]
    assert tokens == [token for token in ids if token not in special]
    assert "the model has only one language" in coremill_fails("transcribe", path, audio, "--language", "en")
    assert "cannot translate" in coremill_fails("transcribe", path, audio, "--task", "translate")


def test_accepts_wav_formats_and_rejects_others(folder, tmp_path, coremill, coremill_fails):
    samples = make_audio(1.2, 2)
    expected = transcribe(coremill, folder, write(tmp_path / "a.wav", samples), "--fp32")
    stereo = numpy.stack([samples, samples], axis=1)
    forms = {"float": floats(samples), "int32": samples.astype(numpy.int32) << 16, "stereo": stereo}
    for name, array in forms.items():
        assert transcribe(coremill, folder, write(tmp_path / f"{name}.wav", array), "--fp32") == expected, name
    # The command resamples audio of another rate.
    other = resample_poly(floats(samples), 3, 1).astype(numpy.float32)
    found = transcribe(coremill, folder, write(tmp_path / "other.wav", other, 3 * RATE), "--fp32")
    assert found["seconds"] == pytest.approx(expected["seconds"])
    assert found["segments"][0]["tokens"][:4] == expected["segments"][0]["tokens"][:4]
    with wave.open(str(tmp_path / "empty.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
    assert transcribe(coremill, folder, tmp_path / "empty.wav")["seconds"] == 0
    (tmp_path / "ggml.bin").write_bytes(b"lmgg" + bytes(40))
    for command in (("transcribe",), ("llm",)):
        rest = ("-o", tmp_path / "out") if command == ("llm",) else (tmp_path / "a.wav",)
        error = coremill_fails(*command, tmp_path / "ggml.bin", *rest)
        assert "ggml.bin is a whisper.cpp ggml file, which is not supported" in error
        assert "`config.json` and safetensors" in error
    (tmp_path / "text.wav").write_text("no audio")
    assert "the audio must be a WAV file" in coremill_fails("transcribe", folder, tmp_path / "text.wav")


def test_token_ids_match_whisper_tokenizer(folder, coremill):
    tokenizer = transformers.WhisperTokenizer.from_pretrained(folder)
    for text in [*TEXTS, "<|startoftranscript|><|de|> Guten Tag!<|0.02|>", " Hello,  it's 12:30\n"]:
        for special, options in ((True, []), (False, ["--plain"])):
            found = json.loads(coremill("tokenize", folder, text, "--json", *options))
            ids = tokenizer(text, add_special_tokens=special).input_ids
            assert [token["id"] for token in found["tokens"]] == ids, text


def test_python_transcription_matches_command(folder: Path, tmp_path: Path, coremill: Command) -> None:
    samples = make_audio(3.1, 6)
    path = write(tmp_path / "audio.wav", samples)
    report = transcribe(coremill, folder, path, "--timestamps", "--language", "de", "--task", "translate")
    assert len(report["segments"]) > 1
    written = llm.convert(folder, tmp_path / "converted")
    assert [file.name for file in written[:3]] == ["encoder.mlpackage", "decoder.mlpackage", "tokenizer.json"]
    assert all(file.exists() for file in written)
    for source in (folder, tmp_path / "converted"):
        found = llm.transcribe(source, path, language="de", task="translate", timestamps=True)
        assert (found.text, str(found), found.language, found.seconds) == (report["text"], report["text"], "de", report["seconds"])
        assert [vars(segment) for segment in found.segments] == report["segments"]


def test_python_transcribes_in_memory_samples(folder, model, tmp_path):
    samples = make_audio(1.7, 4)
    loaded = llm.load_speech(folder, precision="fp32")
    assert loaded.rate == RATE
    found = loaded.transcribe(floats(samples), language="en")
    features = extractor()(floats(samples), sampling_rate=RATE, return_tensors="pt").input_features
    ids = model.generate(features, task="transcribe", language="en")[0].tolist()
    wanted = [token for token in ids if token != model.generation_config.eos_token_id]
    assert [token for segment in found.segments for token in segment.tokens] == wanted
    # A list of samples is accepted, and samples of another rate give the same result as a file.
    assert vars(found.segments[0]) == vars(loaded.transcribe(floats(samples).tolist(), language="en").segments[0])
    other = resample_poly(floats(samples), 3, 1).astype(numpy.float32)
    wanted = loaded.transcribe(write(tmp_path / "other.wav", other, 3 * RATE))
    found = loaded.transcribe(other, rate=3 * RATE)
    assert found.seconds == wanted.seconds == pytest.approx(1.7)
    assert found.segments[0].tokens == wanted.segments[0].tokens
    assert loaded.transcribe([]).seconds == 0


def test_python_rejects_wrong_models_and_bad_arguments(folder, tmp_path):
    llm.convert(folder, tmp_path / "converted", weights="int8", context=20)
    for path in (folder, tmp_path / "converted"):
        with pytest.raises(package.ConversionError, match="a family of speech models|is a speech model, not a model that generates text") as raised:
            llm.load(path)
        assert raised.value.hint == "`llm.load_speech` loads speech models"
    for name, message, hint in (
        ("tiny", "is not a speech model", "`llm.load` loads models that generate text"),
        ("tinybert", "is an embedding model, not a speech model", "`llm.load_embedder` loads embedding models"),
    ):
        with pytest.raises(package.ConversionError, match=message) as raised:
            llm.load_speech(ROOT / "crates/cli/tests/files" / name)
        assert raised.value.hint == hint
    with pytest.raises(package.Error, match="no such file"):
        llm.load_speech(tmp_path / "absent")
    with pytest.raises(package.Error, match="`layout` is `executorch`, which speech models do not support"):
        llm.convert(folder, tmp_path / "other", layout="executorch")
    with pytest.raises(package.Error, match="`verify` compares text predictions, which speech models do not make"):
        llm.convert(folder, tmp_path / "other", verify="a text")
    assert not (tmp_path / "other").exists()
    with pytest.raises(package.Error, match="has an encoder and a decoder"):
        llm.convert(folder, tmp_path / "model.mlpackage")
    loaded = llm.load_speech(tmp_path / "converted")
    samples = floats(make_audio(0.5, 1))
    with pytest.raises(package.Error, match="`task` is `sing`; expected `transcribe`, `translate`"):
        loaded.transcribe(samples, task="sing")
    with pytest.raises(package.Error, match="`it`"):
        loaded.transcribe(samples, language="it")
    with pytest.raises(package.Error, match="finite samples"):
        loaded.transcribe([math.inf])
    with pytest.raises(package.OptionError, match="got int16 of shape"):
        loaded.transcribe(make_audio(0.5, 1))
    with pytest.raises(package.OptionError, match=r"got float32 of shape \[2, 8000\]"):
        loaded.transcribe(numpy.stack([samples, samples]))
    with pytest.raises(package.OptionError, match="`rate` is 8000, but audio files specify their own rate"):
        loaded.transcribe(tmp_path / "audio.wav", rate=8000)
