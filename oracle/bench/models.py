"""Makes the models that the engine's speed is measured on: packages, their ONNX twins, and sample inputs.

    python -m oracle.bench.models --out DIR [--only NAME ...]

Each model has the files `NAME.mlpackage` and `NAME.inputs.npz`; `NAME.onnx` if another runtime is measured on the same
model; and `NAME.outputs.npz`, the outputs of eager torch in fp32, with the package's weights if these are compressed. All
weights are random and none are shared, so the packages have the sizes of the real ones. In addition to
`oracle/requirements.txt` this needs `oracle/requirements-bench.txt`.
"""

import argparse
import inspect
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn

from oracle.zoo.weights import enliven

Tensors = dict[str, torch.Tensor]

WIDTH, LAYERS, HEADS, GROUPS, SIZE, FEED = 1024, 8, 16, 8, 64, 2816
CACHE, PROMPT = 512, 128


class RootMeanSquareNorm(nn.Module):
    """The normalization of the Llama family."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Layer(nn.Module):
    """Grouped-query attention with rotary embedding, and a gated feed-forward network.

    The queries that share a key are rows of one matrix, so keys and values need not be repeated.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = RootMeanSquareNorm(WIDTH), RootMeanSquareNorm(WIDTH)
        self.query = nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.key = nn.Linear(WIDTH, GROUPS * SIZE, bias=False)
        self.value = nn.Linear(WIDTH, GROUPS * SIZE, bias=False)
        self.out = nn.Linear(HEADS * SIZE, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, FEED, bias=False)
        self.up = nn.Linear(WIDTH, FEED, bias=False)
        self.down = nn.Linear(FEED, WIDTH, bias=False)

    def project(self, hidden: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values by head; rotary embedding is applied to the first two."""
        normed, length = self.before(hidden), hidden.shape[1]
        query = rotate(self.query(normed).view(1, length, HEADS, SIZE).transpose(1, 2), cosine, sine)
        key = rotate(self.key(normed).view(1, length, GROUPS, SIZE).transpose(1, 2), cosine, sine)
        return query, key, self.value(normed).view(1, length, GROUPS, SIZE).transpose(1, 2)

    def attend(
        self,
        hidden: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        repeat: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """The rest of the layer once keys and values are complete; `repeat` copies keys and values for each query."""
        length, share = hidden.shape[1], HEADS // GROUPS
        if repeat is None:
            query = query.reshape(1, GROUPS, share * length, SIZE)
        else:
            key, value = repeat(key), repeat(value)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        mixed = mixed.reshape(1, HEADS, length, SIZE).transpose(1, 2).reshape(1, length, HEADS * SIZE)
        hidden = hidden + self.out(mixed)
        normed = self.after(hidden)
        return hidden + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


def rotate(states: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Applies the rotary embedding."""
    left, right = states.chunk(2, -1)
    return states * cosine + torch.cat([-right, left], -1) * sine


class Llama(nn.Module):
    """Layers without embedding and head: 94.4 million weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm = RootMeanSquareNorm(WIDTH)
        angle = torch.arange(CACHE)[:, None] / 10000 ** (torch.arange(0, SIZE, 2) / SIZE)
        self.register_buffer("cosine", torch.cat([angle.cos(), angle.cos()], -1))
        self.register_buffer("sine", torch.cat([angle.sin(), angle.sin()], -1))


class Prefill(Llama):
    """A complete prompt."""

    def __init__(self) -> None:
        super().__init__()
        # Not -inf: an fp16 program represents this value.
        mask = torch.full((PROMPT, PROMPT), -10000.0).triu(1)
        self.register_buffer("mask", mask.repeat(HEADS // GROUPS, 1))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            query, key, value = layer.project(hidden, self.cosine[:PROMPT], self.sine[:PROMPT])
            hidden = layer.attend(hidden, query, key, value, self.mask)
        return self.norm(hidden)


def interleaved(states: torch.Tensor) -> torch.Tensor:
    """Repeats keys or values for each query that shares them, as older versions of `transformers` do."""
    return states.repeat_interleave(HEADS // GROUPS, dim=1)


def expanded(states: torch.Tensor) -> torch.Tensor:
    """Repeats them as newer versions do."""
    sets, groups, length, size = states.shape
    return states[:, :, None].expand(sets, groups, HEADS // groups, length, size).reshape(sets, HEADS, length, size)


class Decode(Llama):
    """One token; the cache is an input, and an output with one more row."""

    def __init__(self, repeat: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        super().__init__()
        self.repeat = repeat

    def forward(self, hidden: torch.Tensor, position: torch.Tensor, *cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cosine, sine = self.cosine.index_select(0, position), self.sine.index_select(0, position)
        grown = []
        for layer, keys, values in zip(self.layers, cache[::2], cache[1::2], strict=True):
            query, key, value = layer.project(hidden, cosine, sine)
            grown += [torch.cat([keys, key], 2), torch.cat([values, value], 2)]
            hidden = layer.attend(hidden, query, *grown[-2:], None, self.repeat)
        return self.norm(hidden), *grown


class DecodeWithState(Llama):
    """One token; the cache is a state, of which one row is written and the unmasked rows are read."""

    def __init__(self) -> None:
        super().__init__()
        for index in range(LAYERS):
            for name in ("keys", "values"):
                self.register_buffer(f"{name}_{index}", torch.zeros(1, GROUPS, CACHE, SIZE))

    def forward(self, hidden: torch.Tensor, position: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        cosine, sine = self.cosine.index_select(0, position), self.sine.index_select(0, position)
        start = position[0]
        for index, layer in enumerate(self.layers):
            query, key, value = layer.project(hidden, cosine, sine)
            keys, values = getattr(self, f"keys_{index}"), getattr(self, f"values_{index}")
            keys[:, :, start : start + 1] = key
            values[:, :, start : start + 1] = value
            hidden = layer.attend(hidden, query, keys, values, mask)
        return self.norm(hidden)


class Recurrent(nn.Module):
    """Two layers of LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(256, 256, num_layers=2, batch_first=True)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.recurrent(rows)[0]


@dataclass(frozen=True)
class Model:
    """A model and its forms."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Tensors]
    #: Seed of the weights: models with the same seed are forms of one network.
    seed: str
    precision: str = "fp32"
    compress: Callable[[Any], Any] | None = None
    twin: bool = True
    #: Whether `coremill convert` creates the package instead of coremltools.
    ours: bool = False
    #: Whether weights and activations are quantized to 8 bits, by `coremill quantize` and by onnxruntime's tools.
    static: bool = False
    outputs: list[str] = field(default_factory=lambda: ["output"])


def pictures() -> Tensors:
    """A random image, centered as the networks expect."""
    return {"picture": torch.randn(1, 3, 224, 224)}


def cache() -> Tensors:
    """A token's embedding, its position, and a cache of the earlier positions."""
    tensors = {"hidden": torch.randn(1, 1, WIDTH), "position": torch.tensor([CACHE - 1], dtype=torch.int32)}
    for index in range(LAYERS):
        tensors |= {f"{name}_{index}": torch.randn(1, GROUPS, CACHE - 1, SIZE) for name in ("keys", "values")}
    return tensors


def state() -> Tensors:
    """A token's embedding, its position, and a mask that allows the complete cache."""
    position = torch.tensor([CACHE - 1], dtype=torch.int32)
    return {"hidden": torch.randn(1, 1, WIDTH), "position": position, "mask": torch.zeros(1, 1, 1, CACHE)}


def torchvision_model(name: str) -> Callable[[], nn.Module]:
    """A named torchvision network."""

    def build() -> nn.Module:
        import torchvision

        return torchvision.models.get_model(name, weights=None)

    return build


def quantized(model: Any) -> Any:
    """4-bit integers with one scale for 32 neighbors."""
    import coremltools.optimize.coreml as compress

    options = compress.OpLinearQuantizerConfig(dtype="int4", granularity="per_block", block_size=32)
    return compress.linear_quantize_weights(model, compress.OptimizationConfig(op_type_configs={"linear": options}))


def palettized(**how: Any) -> Callable[[Any], Any]:
    """4-bit palettization."""

    def work(model: Any) -> Any:
        import coremltools.optimize.coreml as compress

        options = compress.OpPalettizerConfig(nbits=4, **how)
        return compress.palettize_weights(model, compress.OptimizationConfig(op_type_configs={"linear": options}))

    return work


GROWN = ["output", *(f"grown_{name}_{index}" for index in range(LAYERS) for name in ("keys", "values"))]
DECODE: dict[str, Any] = {"build": Decode, "inputs": cache, "seed": "decode", "outputs": GROWN}
REPEATED: dict[Any, dict[str, Any]] = {
    how: DECODE | {"build": partial(Decode, how)} for how in (interleaved, expanded)
}
GROUPED = {"granularity": "per_grouped_channel", "group_size": 16}

MODELS = [
    Model("mobilenet_v2", torchvision_model("mobilenet_v2"), pictures, "mobilenet_v2"),
    Model("resnet50", torchvision_model("resnet50"), pictures, "resnet50"),
    Model("efficientnet_b0", torchvision_model("efficientnet_b0"), pictures, "efficientnet_b0"),
    Model("convnext_tiny", torchvision_model("convnext_tiny"), pictures, "convnext_tiny"),
    *(
        Model(f"{name}_int8", torchvision_model(name), pictures, name, static=True)
        for name in ("mobilenet_v2", "resnet50")
    ),
    Model("vit_b_16", torchvision_model("vit_b_16"), pictures, "vit_b_16"),
    Model("llama_prefill", Prefill, lambda: {"hidden": torch.randn(1, PROMPT, WIDTH)}, "decode"),
    Model("llama_decode", **DECODE),
    Model("llama_decode_fp16", **DECODE, precision="fp16", twin=False),
    Model("llama_decode_int4", **DECODE, precision="fp16", compress=quantized, twin=False),
    Model("llama_decode_lut4", **DECODE, precision="fp16", compress=palettized(), twin=False),
    # Keys and values that the program repeats: coremltools copies them, `coremill convert` does not.
    *(
        Model(f"llama_decode_{how.__name__}{suffix}", **REPEATED[how], twin=not ours, ours=ours)
        for how in REPEATED
        for suffix, ours in (("", False), ("_ours", True))
    ),
    # Uniform tables: k-means over 5,900 groups takes minutes, and the speed does not depend on the values.
    Model(
        "llama_decode_lut4_grouped",
        **DECODE,
        precision="fp16",
        compress=palettized(mode="uniform", **GROUPED),
        twin=False,
    ),
    Model("llama_decode_state", DecodeWithState, state, "decode", precision="fp16", twin=False),
    Model("lstm", Recurrent, lambda: {"rows": torch.randn(1, 100, 256)}, "lstm"),
]


def instance(model: Model) -> tuple[nn.Module, Tensors]:
    """The torch module with its weights, and its inputs: the same in every process."""
    torch.manual_seed(zlib.crc32(model.seed.encode()))
    module = model.build().eval()
    inputs = model.inputs()
    # Batch norms measure several images; other networks have none.
    calls = (
        [tuple(model.inputs().values()) for _ in range(8)] if isinstance(inputs.get("picture"), torch.Tensor) else []
    )
    enliven(module, calls or [tuple(inputs.values())])
    # Forms of one network have the same inputs, too.
    torch.manual_seed(1)
    return module, model.inputs()


def make(model: Model, directory: Path) -> None:
    """Writes the forms of one model."""
    from oracle.zoo.reference import compressed_weights, load_weights

    module, inputs = instance(model)
    half = model.precision == "fp16"
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    if half:
        arrays = {
            name: one.astype(numpy.float16) if one.dtype == numpy.float32 else one for name, one in arrays.items()
        }
    numpy.savez(directory / f"{model.name}.inputs.npz", **arrays)
    if model.static:
        quantize(model, module, inputs, directory)
        return
    if model.twin:
        export(model, module, inputs, directory / f"{model.name}.onnx")
    if model.ours:
        lower(model, module, inputs, directory)
        return
    converted = convert(model, module, inputs)
    if model.compress is not None:
        converted = model.compress(converted)
        with torch.no_grad():
            load_weights(module, compressed_weights(converted, "main"))
    package = directory / f"{model.name}.mlpackage"
    shutil.rmtree(package, ignore_errors=True)
    converted.save(str(package))
    numpy.savez(directory / f"{model.name}.outputs.npz", **computed(model, module, inputs))


def lower(model: Model, module: nn.Module, inputs: Tensors, directory: Path) -> None:
    """The package that `coremill convert` creates; its inputs and outputs have the export's names."""
    run_command(model, module, inputs, directory, ["convert", "--target", "ios18", "--precision", model.precision])


def quantize(model: Model, module: nn.Module, inputs: Tensors, directory: Path) -> None:
    """The 8-bit package and its twin, calibrated on the same images."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    [name] = [name for name, _ in module_inputs(module, inputs)]
    samples = [{name: one.numpy()} for _ in range(4) for one in model.inputs().values()]

    class Reader(CalibrationDataReader):
        """Yields the samples in order."""

        def __init__(self) -> None:
            self.left = iter(samples)

        def get_next(self) -> dict[str, numpy.ndarray] | None:
            return next(self.left, None)

    with tempfile.TemporaryDirectory() as folder:
        for index, sample in enumerate(samples):
            numpy.savez(Path(folder) / f"sample_{index}.npz", **sample)
        command = ["quantize", "--recipe", "int8-static", "--samples", folder]
        run_command(model, module, inputs, directory, command)
        plain, ready = Path(folder) / "plain.onnx", Path(folder) / "ready.onnx"
        export(model, module, {name: next(iter(inputs.values()))}, plain)
        quant_pre_process(str(plain), str(ready))
        quantize_static(
            str(ready),
            str(directory / f"{model.name}.onnx"),
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )


def module_inputs(module: nn.Module, inputs: Tensors) -> list[tuple[str, torch.Tensor]]:
    """The inputs by the names of the module's parameters, as in its export."""
    names = list(inspect.signature(module.forward).parameters)
    return list(zip(names, inputs.values(), strict=True))


def run_command(model: Model, module: nn.Module, inputs: Tensors, directory: Path, command: list[str]) -> None:
    """Runs a command on the export; inputs and outputs have the export's names."""
    archive = directory / f"{model.name}.pt2"
    with torch.no_grad():
        program = torch.export.export(module, tuple(inputs.values()))
    torch.export.save(program, archive)
    package = directory / f"{model.name}.mlpackage"
    [verb, *options] = command
    coremill = os.environ.get("COREMILL", "target/release/coremill")
    subprocess.run([coremill, verb, archive, "-o", package, *options], check=True, stdout=subprocess.DEVNULL)
    archive.unlink()
    signature = program.graph_signature
    arrays = zip(signature.user_inputs, inputs.values(), strict=True)
    numpy.savez(directory / f"{model.name}.inputs.npz", **{str(name): one.numpy() for name, one in arrays})
    results = zip(signature.user_outputs, computed(model, module, inputs).values(), strict=True)
    numpy.savez(directory / f"{model.name}.outputs.npz", **{str(name): one for name, one in results})


def computed(model: Model, module: nn.Module, inputs: Tensors) -> dict[str, numpy.ndarray]:
    """The outputs by name. States start with zeros, since the trace has changed them."""
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if name.startswith(("keys_", "values_")):
                buffer.zero_()
        results = module(*inputs.values())
    results = results if isinstance(results, tuple) else (results,)
    return {name: result.numpy() for name, result in zip(model.outputs, results, strict=True)}


def export(model: Model, module: nn.Module, inputs: Tensors, path: Path) -> None:
    """The ONNX twin; large tensors and everything above the format's 2 GB are stored in a separate file."""
    torch.onnx.export(
        module,
        tuple(inputs.values()),
        str(path),
        input_names=list(inputs),
        output_names=model.outputs,
        dynamo=True,
        external_data=True,
        verbose=False,
    )


def convert(model: Model, module: nn.Module, inputs: Tensors) -> Any:
    """The package before compression."""
    import coremltools as ct

    from oracle.zoo import shims  # noqa: F401

    half = model.precision == "fp16"
    number = numpy.float16 if half else numpy.float32
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.no_grad():
        traced = torch.jit.trace(module, tuple(inputs.values()), check_trace=False)
    given = [
        ct.TensorType(name, tuple(tensor.shape), number if tensor.is_floating_point() else numpy.int32)
        for name, tensor in inputs.items()
    ]
    states = [
        ct.StateType(ct.TensorType(shape=tuple(tensor.shape), dtype=numpy.float16), name=name)
        for name, tensor in module.named_buffers()
        if name.startswith(("keys_", "values_"))
    ]
    return ct.convert(
        traced,
        convert_to="mlprogram",
        inputs=given,
        outputs=[ct.TensorType(name, dtype=number) for name in model.outputs],
        minimum_deployment_target=ct.target.iOS18,
        compute_precision=ct.precision.FLOAT16 if half else ct.precision.FLOAT32,
        skip_model_load=True,
        **({"states": states} if states else {}),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m oracle.bench.models", description="make the models of the benches")
    parser.add_argument("--out", type=Path, metavar="DIR", required=True, help="output directory for the models")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="make only these models")
    options = parser.parse_args()
    names = [model.name for model in MODELS]
    unknown = sorted(set(options.only or []) - set(names))
    if unknown:
        parser.error(f"unknown models {', '.join(unknown)}; the models are {', '.join(names)}")
    warnings.simplefilter("ignore")
    options.out.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        if options.only is None or model.name in options.only:
            started = time.monotonic()
            make(model, options.out)
            print(f"{model.name}: made in {time.monotonic() - started:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
