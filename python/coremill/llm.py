"""Language models: conversion to Core ML and ExecuTorch, generation, scores, embeddings and speech recognition on this machine.

>>> from coremill import llm
>>> llm.convert("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2")
>>> model = llm.load("smollm2")
>>> model.generate([{"role": "user", "content": "What is the capital of France?"}]).text
'The capital of France is Paris.'
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from coremill import _errors, _native

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Union

    import numpy

    PathLike = Union[str, "os.PathLike[str]"]
    Prompt = Union[str, Sequence[Mapping[str, str]], Sequence[int]]
    Texts = Union[str, Sequence[Union[str, Sequence[int]]]]
    Audio = Union[PathLike, Sequence[float], numpy.ndarray[Any, numpy.dtype[Any]]]

__all__ = [
    "Comparison",
    "Embedder",
    "Generation",
    "LanguageModel",
    "Score",
    "Segment",
    "SpeechModel",
    "Transcription",
    "convert",
    "embed",
    "generate",
    "load",
    "load_embedder",
    "load_speech",
    "score",
    "tokenize",
    "transcribe",
    "verify",
]

#: Largest mean divergence of a verified model by the storage of its weights, in nats.
_MAX_DIVERGENCES = {"int8": 0.05, "int4": 0.5, "lut4": 0.5, "lut6": 0.05}
_MAX_DIVERGENCE = 0.001


class Generation:
    """A generated text."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """Takes the native report."""
        #: The text, without the stop text that ended it.
        self.text: str = fields["text"]
        #: Its tokens, without the token that ended it.
        self.tokens: list[int] = fields["tokens"]
        #: The tokens of the prompt.
        self.prompt_tokens: list[int] = fields["prompt_tokens"]
        #: `stop` at a token or a text that ends it, `length` at the most tokens, `cancelled`.
        self.finish_reason: str = fields["finish_reason"]
        #: Time for the prompt.
        self.prefill_seconds: float = fields["prefill_seconds"]
        #: Time for the tokens after it.
        self.decode_seconds: float = fields["decode_seconds"]

    def __repr__(self) -> str:
        return f"<Generation of {len(self.tokens)} tokens: {self.text!r}>"

    def __str__(self) -> str:
        return self.text


class Comparison:
    """Distance of a model's predictions from a reference's."""

    def __init__(self, fields: Mapping[str, float]) -> None:
        """Takes the native report."""
        #: Perplexity of the reference.
        self.perplexity = fields["perplexity"]
        #: Mean Kullback-Leibler divergence from the reference, in nats.
        self.divergence = fields["divergence"]
        #: Largest divergence of a token.
        self.max_divergence = fields["max_divergence"]
        #: Share of tokens whose most likely successor is the same.
        self.agreement = fields["agreement"]

    def __repr__(self) -> str:
        return f"<Comparison: divergence {self.divergence:.3e}, agreement {self.agreement:.4f}>"


class Score:
    """Quality of a model's predictions of a text."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """Takes the native report."""
        compared = fields["comparison"]
        #: Number of tokens that were predicted.
        self.tokens: int = fields["tokens"]
        #: Mean negative logarithm of the probability of a token.
        self.loss: float = fields["loss"]
        #: `exp(loss)`.
        self.perplexity: float = fields["perplexity"]
        #: Share of tokens that were the most likely.
        self.accuracy: float = fields["accuracy"]
        #: Comparison with the reference; `None` without one.
        self.comparison: Comparison | None = Comparison(compared) if compared else None

    def __repr__(self) -> str:
        return f"<Score of {self.tokens} tokens: perplexity {self.perplexity:.4f}>"


class LanguageModel:
    """A language model that is loaded. Threads may share it, and run one after another."""

    def __init__(self, native: _native.LanguageModel) -> None:
        """Takes the native model; `load` makes one."""
        self._native = native
        self._tokenizer = native.tokenizer

    @property
    def context(self) -> int:
        """The number of positions of the cache."""
        return self._native.context

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """The token ids of a text.

        Args:
            text: the text.
            special: add the tokens that begin a text.
        """
        return self._tokenizer.encode(text, special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return self._tokenizer.decode(list(ids))

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int = 128,
        stop: Sequence[str] | str = (),
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repeat_penalty: float = 1.0,
        seed: int = 0,
        on_text: Callable[[str], object] | None = None,
    ) -> Generation:
        """Continues a text, or answers messages. Each call starts with an empty cache.

        Args:
            prompt: a text, token ids, or messages for the chat template: `[{"role": "user", "content": "Hello!"}]`.
            max_tokens: the most tokens to generate.
            stop: texts that end the generation.
            temperature: divisor of logits before sampling; 0 chooses the most likely token.
            top_k: number of the most likely tokens to sample from; 0 is all.
            top_p: sample from the most likely tokens that have this share of probability.
            min_p: leave out tokens with less than this share of the most likely token's probability.
            repeat_penalty: divisor of the logits of tokens that the text already has.
            seed: start of the random numbers.
            on_text: is called with each part of the text. An exception that it raises ends the generation.

        Raises:
            Error: the prompt does not fit the context.
            RunError: the model has no chat template.
        """
        arguments = {
            "prompt": _prompt(prompt),
            "max_tokens": max_tokens,
            "stop": [stop] if isinstance(stop, str) else list(stop),
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repeat_penalty": repeat_penalty,
            "seed": seed,
        }
        return Generation(json.loads(self._native.generate(json.dumps(arguments), on_text)))

    def score(self, text: str, *, against: LanguageModel | None = None, tokens: int = 2048) -> Score:
        """Measures how well the model predicts a text.

        Args:
            text: the text.
            against: a model with the same tokens to compare with.
            tokens: the most tokens to read.
        """
        ids = self.tokenize(text)[:tokens]
        other = None if against is None else against._native
        return Score(json.loads(self._native.score(ids, other)))


class Embedder:
    """An embedding model that is loaded. Threads may share it, and run one after another."""

    def __init__(self, native: _native.Embedder) -> None:
        """Takes the native model; `load_embedder` makes one."""
        self._native = native

    @property
    def context(self) -> int:
        """The most tokens of a text."""
        return self._native.context

    @property
    def width(self) -> int:
        """The number of elements of an embedding."""
        return self._native.width

    def tokenize(self, text: str) -> list[int]:
        """The token ids of a text with those at its ends. Tokens beyond the context are left out."""
        return self._native.encode(text)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return self._native.tokenizer.decode(list(ids))

    def embed(self, texts: Texts) -> numpy.ndarray[Any, numpy.dtype[numpy.float32]]:
        """The embeddings of texts, in fp32.

        Args:
            texts: a text, or a list of texts or of lists of token ids. Texts that are too long are cut.

        Returns:
            An array with a row for each text; of one dimension for a single text.

        Raises:
            Error: tokens are unknown or too many.
        """
        import numpy

        single = isinstance(texts, str)
        inputs = [texts] if single else [text if isinstance(text, str) else [int(id) for id in text] for text in texts]
        rows = numpy.frombuffer(bytearray(self._native.embed(json.dumps(inputs))), "<f4").reshape(len(inputs), self.width)
        return rows[0] if single else rows


class Segment:
    """A part of a transcription with its time."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """Takes the native report."""
        #: Start in seconds.
        self.start: float = fields["start"]
        #: End in seconds.
        self.end: float = fields["end"]
        #: The text.
        self.text: str = fields["text"]
        #: Its tokens, with timestamps.
        self.tokens: list[int] = fields["tokens"]

    def __repr__(self) -> str:
        return f"<Segment from {self.start:.2f} to {self.end:.2f} s: {self.text!r}>"


class Transcription:
    """The text of audio."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """Takes the native report."""
        #: The whole text.
        self.text: str = fields["text"]
        #: Code of the language; `None` if the model has one language.
        self.language: str | None = fields["language"]
        #: Length of the audio in seconds.
        self.seconds: float = fields["seconds"]
        #: Parts of the text: those between timestamps, or one for each window of audio.
        self.segments: list[Segment] = [Segment(segment) for segment in fields["segments"]]

    def __repr__(self) -> str:
        return f"<Transcription of {self.seconds:.1f} s: {self.text!r}>"

    def __str__(self) -> str:
        return self.text


class SpeechModel:
    """A speech model that is loaded. Threads may share it, and run one after another."""

    def __init__(self, native: _native.SpeechModel) -> None:
        """Takes the native model; `load_speech` makes one."""
        self._native = native

    @property
    def rate(self) -> int:
        """Samples per second of the model's audio. Audio of other rates is resampled."""
        return self._native.rate

    def transcribe(
        self,
        audio: Audio,
        *,
        rate: int | None = None,
        language: str | None = None,
        task: str = "transcribe",
        timestamps: bool = False,
    ) -> Transcription:
        """The text of audio, decoded greedily.

        Args:
            audio: the path of a WAV file, or the samples of one channel as floats from -1 to 1.
            rate: samples per second of samples in memory; the model's if left out.
            language: the code of the language, `en` for instance; the most likely in the first window if left out.
            task: `transcribe`, or `translate` for English text.
            timestamps: cut the text into segments at the model's timestamps.

        Raises:
            Error: the file is not a WAV file, or the model lacks the language or the task.
            OptionError: samples are not floats of one channel.
        """
        arguments = json.dumps({"rate": rate, "language": language, "task": task, "timestamps": timestamps})
        if isinstance(audio, (str, os.PathLike)):
            if rate is not None:
                message = f"`rate` is {rate}, but audio files specify their own rate"
                raise _errors.OptionError(message, hint="leave `rate` out")
            return Transcription(json.loads(self._native.transcribe(arguments, audio)))
        import numpy

        samples = numpy.asarray(audio)
        if samples.ndim != 1 or samples.dtype.kind != "f":
            message = f"`audio` must be floats of one dimension, got {samples.dtype} of shape {list(samples.shape)}"
            raise _errors.OptionError(message, hint="divide 16-bit samples by 32768, and take the mean of all channels")
        return Transcription(json.loads(self._native.transcribe(arguments, None, samples.astype("<f4").tobytes())))


def convert(
    model: PathLike,
    output: PathLike,
    *,
    context: int | None = None,
    prefill: int | None = None,
    long_prefill: int = 256,
    weights: str = "exact",
    rules: Sequence[Mapping[str, Any]] = (),
    layout: str | None = None,
    cache: str = "state",
    padded: bool = False,
    verify: str | None = None,
    max_divergence: float | None = None,
) -> list[Path]:
    """Converts a language model, and writes it with its tokenizer, chat template and settings. Returns the paths.

    A tokenizer that is not supported is left out, with a `UserWarning`.

    Args:
        model: a GGUF file, the first of its parts, or a folder with `config.json` and safetensors. Embedding models, BERT and its
            relatives, become models from tokens to a vector. Speech models, Whisper, become an encoder and a decoder.
        output: a `.mlpackage`, a `.mlmodelc` or a `.pte`, or a directory for `model.mlpackage` or `model.pte`. For a speech model
            a directory for `encoder.mlpackage` and `decoder.mlpackage`.
        context: positions of the cache; the model's longest sequence, at most 2048, if left out. For an embedding model the most
            tokens of a text; the model's longest text if left out. For a speech model the most tokens of a window of audio.
        prefill: tokens that the function `prefill` reads in one call; 1 leaves it out. If left out, 64, or as many as the context allows.
        long_prefill: tokens that the function `long_prefill` of the layout `coremill` reads in one call; 1 leaves it out, and a context of
            less than two calls, too.
        weights: `exact` keeps the weights of the file if Core ML has their form; `fp16`, `int8`, `int4`, or `lut4` and
            `lut6` with tables.
        rules: forms of some weights, as for `coremill.compress`: `[{"name": "*.down_proj.weight", "linear": "int8"}]`. The first one
            that selects a weight applies; other weights are stored by `weights`.
        layout: the functions of the model: `coremill`, or for ExecuTorch's runners `executorch`, `executorch-static` or
            `executorch-multifunction`, for swift-transformers `swift-transformers`, and for the Neural Engine `chunks` or
            `anemll`, directories of models. If left out, a `.pte` has the layout `executorch`.
        cache: the owner of keys and values between calls: with `state` the model, in states; with `io` the caller, who passes
            the output `new_NAME` of a call as the input `NAME` of the next.
        padded: texts of an embedding model always have `context` tokens, with padding, as the Neural Engine requires.
        verify: a text on which the written model is compared with the weights of the file.
        max_divergence: the largest mean divergence of `verify` in nats; 0.001 if left out, with `int8` and `lut6` 0.05, with
            `int4` and `lut4` 0.5.

    Raises:
        ConversionError: the model family or the layout is not supported.
        FormatError: a file is invalid.
        VerificationError: the model was written, and its predictions are too far from the source's.
    """
    options = {
        "context": context,
        "prefill": prefill,
        "long_prefill": long_prefill,
        "weights": weights,
        "rules": [dict(rule) for rule in rules],
        "layout": layout,
        "cache": cache,
        "padded": padded,
        "verify": verify,
    }
    paths = [Path(path) for path in _native.llm_convert(model, output, json.dumps(options))]
    if verify is not None:
        is_one = os.fspath(output).endswith((".mlpackage", ".mlmodelc", ".pte"))
        limit = _MAX_DIVERGENCES.get(weights, _MAX_DIVERGENCE) if max_divergence is None else max_divergence
        _verify(model, output if is_one or layout in ("chunks", "anemll") else paths[0], verify, max_divergence=limit)
    return paths


def verify(
    model: PathLike,
    converted: PathLike,
    text: str,
    *,
    max_divergence: float | None = None,
    tokens: int = 512,
    numerics: str = "fast",
    threads: int = 0,
) -> Score:
    """Compares a converted model's predictions of a text with its source weights' predictions in fp32.

    Args:
        model: the GGUF file or the folder that was converted.
        converted: what `convert` wrote.
        text: the text.
        max_divergence: the largest mean divergence in nats; any if left out.
        tokens: the most tokens to read.
        numerics: the arithmetic of the converted model: `fast`, `rounded`, `ane` or `coreml-cpu`; all but `fast` are slow.
        threads: threads; 0 is one for each processor.

    Raises:
        VerificationError: the divergence exceeds `max_divergence`.
    """
    options = {"tokens": tokens, "numerics": numerics, "threads": threads}
    result = Score(json.loads(_native.llm_verify(model, converted, text, json.dumps(options))))
    compared = result.comparison
    # NaN does not agree.
    if max_divergence is not None and compared is not None and not compared.divergence <= max_divergence:
        message = f"the divergence of {os.fspath(converted)} is {compared.divergence:.3g}, more than {max_divergence:.3g}"
        hint = "keep more of the weights with `weights`, or accept more with `max_divergence`"
        raise _errors.VerificationError(message, hint=hint)
    return result


#: `convert` has an argument of the same name.
_verify = verify


def load(
    model: PathLike,
    *,
    context: int | None = None,
    device: str = "host",
    threads: int = 0,
    precision: str = "fp16",
) -> LanguageModel:
    """Loads a language model.

    Args:
        model: what `convert` wrote, a GGUF file, or a folder with `config.json` and safetensors.
        context: positions of the cache, for files of weights; the model's longest sequence, at most 2048, if left out.
        device: `host`, or on Apple's systems `cpu`, `gpu`, `ane` or `all`.
        threads: threads of the host; 0 is one for each processor.
        precision: `fp16` as converted models, or `fp32`, for files of weights.

    Raises:
        ConversionError: the model family or the tokenizer is not supported.
        FormatError: a file is invalid.
    """
    return _load(model, context, device, threads, precision, False)


def load_embedder(
    model: PathLike,
    *,
    context: int | None = None,
    device: str = "host",
    threads: int = 0,
    precision: str = "fp16",
) -> Embedder:
    """Loads an embedding model.

    Args:
        model: what `convert` wrote, a GGUF file, or a folder with `config.json` and safetensors.
        context: the most tokens of a text, for files of weights; the model's longest text if left out.
        device: `host`, or on Apple's systems `cpu`, `gpu`, `ane` or `all`.
        threads: threads of the host; 0 is one for each processor.
        precision: `fp16` as converted models, or `fp32`, for files of weights.

    Raises:
        ConversionError: the model is no embedding model, or its family or tokenizer is not supported.
        FormatError: a file is invalid.
    """
    options = {"context": context, "device": device, "threads": threads, "precision": precision}
    return Embedder(_native.Embedder(model, json.dumps(options)))


def embed(model: PathLike | Embedder, texts: Texts, **options: Any) -> numpy.ndarray[Any, numpy.dtype[numpy.float32]]:
    """The embeddings of texts, in fp32: a row for each text, or one dimension for a single text.

    Args:
        model: a loaded model, or its path.
        texts: a text, or a list of texts or of lists of token ids.
        options: the options of `load_embedder`, for a path.
    """
    loaded = model if isinstance(model, Embedder) else load_embedder(model, **options)
    return loaded.embed(texts)


def load_speech(model: PathLike, *, device: str = "host", threads: int = 0, precision: str = "fp16") -> SpeechModel:
    """Loads a speech model.

    Args:
        model: what `convert` wrote, or a folder with `config.json` and safetensors.
        device: `host`, or on Apple's systems `cpu`, `gpu`, `ane` or `all`.
        threads: threads of the host; 0 is one for each processor.
        precision: `fp16` as converted models, or `fp32`, for files of weights.

    Raises:
        ConversionError: the model is no speech model, or its tokenizer is not supported.
        FormatError: a file is invalid.
    """
    options = {"device": device, "threads": threads, "precision": precision}
    return SpeechModel(_native.SpeechModel(model, json.dumps(options)))


def transcribe(model: PathLike | SpeechModel, audio: Audio, **options: Any) -> Transcription:
    """The text of audio.

    Args:
        model: a loaded model, or its path.
        audio: the path of a WAV file, or the samples of one channel as floats from -1 to 1.
        options: the options of `SpeechModel.transcribe`.
    """
    loaded = model if isinstance(model, SpeechModel) else load_speech(model)
    return loaded.transcribe(audio, **options)


def generate(model: PathLike | LanguageModel, prompt: Prompt, **options: Any) -> Generation:
    """Continues a text, or answers messages.

    Args:
        model: a loaded model, or its path.
        prompt: a text, token ids, or messages for the chat template.
        options: the options of `LanguageModel.generate`.
    """
    loaded = model if isinstance(model, LanguageModel) else load(model)
    return loaded.generate(prompt, **options)


def score(
    model: PathLike,
    text: str,
    *,
    against: PathLike | None = None,
    tokens: int = 2048,
    precision: str = "fp16",
    threads: int = 0,
) -> Score:
    """Measures how well a model predicts a text.

    Args:
        model: the path of a model.
        text: the text.
        against: the path of a model with the same tokens to compare with.
        tokens: the most tokens to read.
        precision: `fp16` as converted models, or `fp32`, for files of weights.
        threads: threads; 0 is one for each processor.
    """
    loaded = _load(model, None, "host", threads, precision, True)
    other = None if against is None else _load(against, None, "host", threads, precision, True)
    return loaded.score(text, against=other, tokens=tokens)


def tokenize(model: PathLike | LanguageModel, text: str, *, special: bool = True) -> list[int]:
    """The token ids of a text.

    Args:
        model: a loaded model, its path, or a `tokenizer.json`.
        text: the text.
        special: add the tokens that begin a text.
    """
    if isinstance(model, LanguageModel):
        return model.tokenize(text, special=special)
    return _native.llm_tokenizer(model).encode(text, special)


def _load(model: PathLike, context: int | None, device: str, threads: int, precision: str, all_logits: bool) -> LanguageModel:
    options = {
        "context": context,
        "device": device,
        "threads": threads,
        "precision": precision,
        "all_logits": all_logits,
    }
    return LanguageModel(_native.LanguageModel(model, json.dumps(options)))


def _prompt(prompt: Prompt) -> dict[str, Any]:
    """The prompt by its kind."""
    if isinstance(prompt, str):
        return {"text": prompt}
    items: list[Any] = list(prompt)
    if all(isinstance(item, int) for item in items):
        return {"tokens": items}
    return {"messages": [(item["role"], item["content"]) for item in items]}
