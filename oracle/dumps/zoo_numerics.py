"""Prints how models agree with fp32 in the arithmetic of devices, as the table of `docs/numerics.md`.

    python -m oracle.dumps.zoo_numerics DIR [--bound DB] [MODEL...]

DIR holds exported programs (`.pt2`), those of `cargo xtask zoo` for instance. Each is converted to fp16 and run on its
sample inputs: once in fp32, and in each arithmetic. The figure is the signal to noise at the worst output. `COREMILL`
names the command; the newest one that was built if it is not set.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from oracle.dumps.commands import binary

NUMERICS = ("rounded", "coreml-cpu", "ane")

#: Programs in the forms that partitioners see; the models are the same.
OTHER_FORMS = (".core", ".edge")


def coremill(*words: str) -> str:
    """What the command prints; an error with its message if it fails."""
    done = subprocess.run([binary(), *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[0] if done.stderr.strip() else "failed")
    return done.stdout


def worst(program: Path, package: Path, numerics: str) -> float:
    """Signal to noise at the worst output, in decibels."""
    told = coremill("compare", str(program), str(package), "--numerics", f"fast,{numerics}", "--json")
    lines = [line for step in json.loads(told)["outputs"] for line in step]
    return min((ratio(line) for line in lines), default=float("inf"))


def ratio(line: dict) -> float:
    """Signal to noise of an output: infinite if nothing differs, negatively so if one side alone is not finite."""
    if line.get("unlike") or line.get("mismatch"):
        return float("-inf")
    figure = line.get("snr_db")
    return float("inf") if figure is None else float(figure)


def row(program: Path) -> dict[str, float]:
    """The figures of a model, by arithmetic."""
    with tempfile.TemporaryDirectory() as directory:
        package = Path(directory) / "model.mlpackage"
        coremill("convert", str(program), "-o", str(package))
        return {numerics: worst(program, package, numerics) for numerics in NUMERICS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--bound", type=float, default=40.0, help="decibels below which a model fails")
    arguments = parser.parse_args()
    programs = [path for path in sorted(arguments.directory.glob("*.pt2")) if Path(path.stem).suffix not in OTHER_FORMS]
    if arguments.models:
        programs = [path for path in programs if path.stem in arguments.models]
    print("| model | " + " | ".join(f"`{numerics}`" for numerics in NUMERICS) + " |")
    print("|---|" + "---|" * len(NUMERICS))
    failing = []
    for program in programs:
        try:
            figures = row(program)
        except RuntimeError as error:
            print(f"{program.stem}: {error}", file=sys.stderr)
            continue
        print(f"| `{program.stem}` | " + " | ".join(f"{figures[numerics]:.1f} dB" for numerics in NUMERICS) + " |", flush=True)
        if figures["ane"] < arguments.bound <= figures["rounded"]:
            failing.append(program.stem)
    names = ", ".join(f"`{name}`" for name in failing) if failing else "none"
    print(f"\nBelow {arguments.bound:.0f} dB in `ane` alone: {names}.")


if __name__ == "__main__":
    main()
