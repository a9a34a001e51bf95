"""Make the small packages that the Rust tests read.

They are entries of the zoo, a few for each thing that a package can hold, and are committed so that
the Rust tests need no Python. Run this again when an entry or coremltools' version changes:

    python -m oracle.corpora.make_golden
"""

import argparse
import sys
from pathlib import Path

from oracle.zoo.generate import generate

GOLDEN = [
    "accumulator-ios18",
    "adapters-ios18",
    "classifier_names-ios15",
    "compact-ios16-lut4",
    "compact-ios18-lut3",
    "compact-ios18-sparse-lut4",
    "control-ios18",
    "convolutions-ios15",
    "enumerated-ios16",
    "image_rgb-ios15",
    "image_to_image_gray16-ios17",
    "lists-ios15",
    "metadata-ios17",
    "prompt_and_step-ios18",
    "quantized_activations-ios17",
    "ranged-ios15",
    "small_numbers-ios26",
]


def main() -> int:
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(prog="python -m oracle.corpora.make_golden", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, metavar="DIR", default=root / "crates/mlpackage/tests/packages")
    directory = parser.parse_args().out
    errors = generate(directory, GOLDEN, None)
    for weights in directory.glob("*/Data/com.apple.CoreML/weights"):
        # Git cannot store empty directories, and the manifest refers to this one.
        if not any(weights.iterdir()):
            (weights / ".gitkeep").touch()
    for name, error in errors.items():
        print(f"failed: {name}: {error.strip().splitlines()[-1]}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
