"""Compares `coremill.coremltools` with coremltools, alternately in one process.

    python -m oracle.bench.ct [--only NAME ...] [--rounds N]

Converts exported programs, compresses the weights of the packages to tables of 4 bits, and imports both packages in new processes. Prints
medians and their ratio, and the time that torch takes to export. The peer gets decomposed programs, which it needs, and that step is not
counted. Exits with 1 if a target is missed.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import coremltools as theirs
import torch
from coremltools.optimize import coreml as their_compression

import coremill.coremltools as ours
from coremill.coremltools.optimize import coreml as our_compression
from oracle.bench.compile import quietly
from oracle.bench.models import MODELS, instance

NAMES = ("mobilenet_v2", "resnet50", "vit_b_16")
#: Models whose weights are compressed. Clusters of the third take minutes in coremltools.
COMPRESSED = NAMES[:2]
#: Minimum speedups, and the maximum time of an import in seconds.
CONVERT, PALETTIZE, IMPORT = 30, 50, 0.05


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """The time of a call without its output, and its result."""
    started = time.monotonic()
    made = quietly(lambda call: call(), work)
    return time.monotonic() - started, made


def compare(name: str, our_work: Callable[[], Any], their_work: Callable[[], Any], rounds: int, least: int) -> tuple[bool, Any, Any]:
    """Runs both alternately. Returns whether the target is reached, and both results."""
    seconds(our_work)
    samples: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for _ in range(3):
            took, our_result = seconds(our_work)
            samples[0].append(took)
        took, their_result = seconds(their_work)
        samples[1].append(took)
    our_time, their_time = map(statistics.median, samples)
    ratio = their_time / our_time
    print(f"{name:28}{their_time:9.3f} s{our_time:9.3f} s{ratio:7.0f} x   at least {least}", flush=True)
    return ratio >= least, our_result, their_result


def palettized(model: Any, library: Any) -> Any:
    """The model with tables of 4 bits."""
    config = library.OptimizationConfig(global_config=library.OpPalettizerConfig(nbits=4, mode="kmeans"))
    return library.palettize_weights(model, config)


def measure(name: str, rounds: int) -> bool:
    """Measures a model."""
    module, inputs = instance(next(model for model in MODELS if model.name == name))
    exporting, program = seconds(lambda: torch.export.export(module, tuple(inputs.values())))
    decomposing, decomposed = seconds(lambda: program.run_decompositions({}))
    print(f"{name}: torch exports in {exporting:.2f} s and decomposes in {decomposing:.2f} s")
    reached, our_model, their_model = compare(
        "  convert", lambda: ours.convert(program), lambda: theirs.convert(decomposed, skip_model_load=True), rounds, CONVERT
    )
    if name in COMPRESSED:
        also, _, _ = compare(
            "  palettize_weights, 4 bits",
            lambda: palettized(our_model, our_compression),
            lambda: palettized(their_model, their_compression),
            1,
            PALETTIZE,
        )
        reached = reached and also
    return reached


def measure_import(rounds: int) -> bool:
    """Measures the import, which must not import torch."""
    code = "import sys, time; t = time.monotonic(); import coremill.coremltools; print(time.monotonic() - t, 'torch' in sys.modules)"
    samples = []
    for _ in range(5 * rounds):
        took, has_torch = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
        samples.append(float(took))
        if has_torch != "False":
            print("the import imports torch")
            return False
    print(f"import: {statistics.median(samples) * 1000:.0f} ms, at most {IMPORT * 1000:.0f} ms; without torch")
    return statistics.median(samples) <= IMPORT


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m oracle.bench.ct", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=NAMES, help="measure only these models")
    parser.add_argument("--rounds", type=int, default=2, help="number of rounds")
    arguments = parser.parse_args()
    print(f"{'':28}{'coremltools':>11}{'coremill':>11}")
    reached = [measure(name, arguments.rounds) for name in arguments.only or NAMES]
    return 0 if all([*reached, measure_import(arguments.rounds)]) else 1


if __name__ == "__main__":
    sys.exit(main())
