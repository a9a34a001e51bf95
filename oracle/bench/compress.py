"""Compares the time of `coremill compress` with `coremltools.optimize.coreml`, alternately on the same ResNet-50.

    python -m oracle.bench.compress --coremill PATH [--rounds N]

Ours is the complete command, including reading and writing; the peer's time is that of its call alone. Prints the ratio,
and the SNR over all weights on both sides. Exits with 1 if a target is missed.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import coremltools as ct
import coremltools.optimize as cto
import numpy
import torch
import torchvision

#: The options of both, and the minimum speedup.
MODES: dict[str, tuple[list[str], Any, float]] = {
    "4 bits per tensor": (
        ["--palettize", "4"],
        lambda: cto.coreml.OpPalettizerConfig(nbits=4, mode="kmeans"),
        50,
    ),
    "4 bits in groups of 16": (
        ["--palettize", "4", "--group", "16"],
        lambda: cto.coreml.OpPalettizerConfig(
            nbits=4, mode="kmeans", granularity="per_grouped_channel", group_size=16
        ),
        50,
    ),
    "int4 in blocks of 32": (
        ["--linear", "int4", "--block", "32"],
        lambda: cto.coreml.OpLinearQuantizerConfig(
            mode="linear_symmetric", dtype="int4", granularity="per_block", block_size=32
        ),
        20,
    ),
}


def weights(model: ct.models.MLModel) -> dict[str, numpy.ndarray]:
    """The decompressed weights of a model, by the operation that uses them."""
    plain = cto.coreml.decompress_weights(model)
    found = {}
    for op in plain._mil_program.functions["main"].find_ops(op_type="const"):
        value = op.outputs[0].val
        if isinstance(value, numpy.ndarray) and value.size > 2048:
            (user,) = {child.name for child in op.outputs[0].child_ops}
            found[user] = value.astype(numpy.float64)
    return found


def quality(wanted: dict[str, numpy.ndarray], found: dict[str, numpy.ndarray]) -> float:
    """The signal-to-noise ratio over all weights."""
    signal = sum(float((weight**2).sum()) for weight in wanted.values())
    noise = sum(float(((weight - found[name]) ** 2).sum()) for name, weight in wanted.items())
    return math.inf if noise == 0 else 10 * math.log10(signal / noise)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--coremill", required=True)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    module = torchvision.models.resnet50(weights=None).eval()
    example = torch.randn(1, 3, 224, 224)
    kept = True
    with tempfile.TemporaryDirectory() as folder:
        package, ours = Path(folder) / "model.mlpackage", Path(folder) / "ours.mlpackage"
        traced = torch.jit.trace(module, example)
        inputs = [ct.TensorType(shape=example.shape)]
        model = ct.convert(traced, inputs=inputs, minimum_deployment_target=ct.target.iOS18, skip_model_load=True)
        model.save(str(package))
        wanted = weights(model)
        for name, (options, config, promise) in MODES.items():
            times: tuple[list[float], list[float]] = ([], [])
            for _ in range(arguments.rounds):
                start = time.perf_counter()
                command = [arguments.coremill, "compress", str(package), "-o", str(ours), *options, "--json"]
                subprocess.run(command, check=True, capture_output=True)
                times[0].append(time.perf_counter() - start)
                start = time.perf_counter()
                compress = (
                    cto.coreml.linear_quantize_weights if "--linear" in options else cto.coreml.palettize_weights
                )
                made = compress(model, cto.coreml.OptimizationConfig(global_config=config()))
                times[1].append(time.perf_counter() - start)
            ratio = min(times[1]) / min(times[0])
            read = ct.models.MLModel(str(ours), skip_model_load=True)
            mine, theirs = quality(wanted, weights(read)), quality(wanted, weights(made))
            verdict = ratio >= promise and mine >= theirs - 0.01
            kept &= verdict
            print(
                json.dumps(
                    {
                        "mode": name,
                        "seconds": min(times[0]),
                        "peer_seconds": min(times[1]),
                        "ratio": ratio,
                        "promise": promise,
                        "snr": mine,
                        "peer_snr": theirs,
                        "kept": verdict,
                    }
                ),
                flush=True,
            )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
