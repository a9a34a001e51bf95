"""Judges what becomes of the cases where nothing is delegated: calls of ExecuTorch's kernels, which torch interprets.

    python -m oracle.aten.portable DIR [--family NAME ...] [--only TEXT ...]

takes the archives that `python -m oracle.aten DIR --export-only` left.
"""

import argparse
import collections
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import executorch.exir.passes.dim_order_ops_registry
import executorch.exir.passes.executorch_prim_ops_registry  # noqa: F401
import numpy
import torch

from oracle.interpret import Interpreter

from . import FAMILIES
from .case import Case
from .make import array, family_cases, tensors_of

KERNELS = Path(__file__).resolve().parents[2] / "crates/compiler/src/portable/kernels.txt"
#: The largest error by the least precise element type that is computed in.
TOLERANCE = {"bfloat16": 4e-2, "float16": 1e-2}
BATCH = 100


class Kernels(Interpreter):
    """Runs nothing but what there is a kernel for."""

    known = frozenset(line.split(" ")[0] for line in KERNELS.read_text().splitlines())

    def call(self, node: dict, values: dict[str, Any]) -> list[Any]:
        target = node["target"]
        if not target.startswith("higher_order."):
            name = target.replace(".", "::", 1).removesuffix(".default")
            assert name in self.known, f"there is no kernel for {target}"
        if target.startswith("executorch_prim."):
            arguments = [self.argument(argument, values) for argument in node["arguments"]]
            return [PRIMITIVES[target.split(".")[1]](*arguments)]
        return super().call(node, values)


def made(dump: dict) -> dict[str, torch.Tensor]:
    """The weights that a program got beside those of its archive."""
    found = {}
    for name, told in dump["tensors"].items():
        if "bytes" in told:
            dtype = getattr(torch, told["dtype"])
            flat = torch.frombuffer(bytearray.fromhex(told["bytes"]), dtype=dtype) if told["bytes"] else torch.empty(0, dtype=dtype)
            found[name] = flat.reshape(told["sizes"])
    return found


PRIMITIVES = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "truediv": lambda a, b: a / b,
    "mod": lambda a, b: a % b,
    "neg": lambda a: -a,
    "eq": lambda a, b: a == b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "sym_max": max,
    "sym_min": min,
    "sym_not": lambda a: not a,
    "sym_float": float,
    "sym_int": int,
    "sym_ite": lambda b, t, f: t if b else f,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
}


def dumps(archives: list[Path], xtask: str) -> dict[str, dict]:
    """What became of each archive, by name."""
    found = {}
    for start in range(0, len(archives), BATCH):
        batch = archives[start : start + BATCH]
        line = [xtask, "pt2-dump", "--portable", *map(str, batch)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-500:] + done.stderr[-500:]
        for archive, text in zip(batch, done.stdout.splitlines(), strict=True):
            found[archive.stem] = json.loads(text)
    return found


def wrong(one: Case, dump: dict, archive: Path, arrays: dict[str, numpy.ndarray], kinds: list[str]) -> str | None:
    """What is wrong with a case."""
    if "refused" in dump:
        return "refused: " + dump["refused"].splitlines()[1 if "\n" in dump["refused"] else 0][:300]
    program = torch.export.load(archive)
    tensors = {**program.state_dict, **program.constants, **made(dump)}
    allowed = max(one.tolerance.get("fp32", 0.0), 1e-4, *(TOLERANCE.get(kind, 0.0) for kind in kinds))
    for index, call in enumerate([one.inputs, *one.further]):
        ending = f"@{index}" if index else ""
        try:
            with torch.no_grad():
                outputs = Kernels(dump, tensors).run([value.clone() for value in call])
        except Exception as error:  # Whatever goes wrong is told with its case.
            return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"[:300]
        results = [array(value) for kind, _, value in outputs if kind == "user" for value in tensors_of(value)]
        expected = [arrays[f"out{place}{ending}"] for place in range(sum(key.startswith("out") and ("@" in key) == bool(index) and (not index or key.endswith(ending)) for key in arrays))]
        if len(results) != len(expected):
            return f"{len(results)} outputs, and {len(expected)} in eager torch"
        for place, (got, want) in enumerate(zip(results, expected, strict=True)):
            if got.shape != want.shape or got.dtype != want.dtype:
                return f"output {place} is {got.dtype} {got.shape}, and in eager torch {want.dtype} {want.shape}"
            if not one.exact or not want.size:
                continue
            got, want = got.astype(numpy.float64), want.astype(numpy.float64)
            if not numpy.array_equal(numpy.isnan(got), numpy.isnan(want)):
                return f"output {place} is no number elsewhere"
            if not numpy.array_equal(numpy.where(numpy.isinf(want), want, 0), numpy.where(numpy.isinf(got), got, 0)):
                return f"output {place} is infinite elsewhere"
            finite = numpy.isfinite(want)
            if finite.any():
                error = numpy.abs(got[finite] - want[finite]).max() / max(1.0, numpy.abs(want[finite]).max())
                if error > allowed:
                    return f"output {place} is wrong by {error:.2e}"
    return None


def faults(family: str, directory: Path, xtask: str, only: list[str] | None = None) -> tuple[int, dict[str, str]]:
    """How many cases of a family there are, and what is wrong by name."""
    cases = {one.name: one for one in family_cases(family)}
    archives = sorted((directory / family).glob("*.pt2"))
    archives = [one for one in archives if one.stem in cases and (not only or any(text in one.stem for text in only))]
    with numpy.load(directory / family / "reference.npz") as file:
        references: dict[str, dict[str, numpy.ndarray]] = collections.defaultdict(dict)
        for key in file:
            name, _, place = key.rpartition("/")
            references[name][place] = file[key]
    kinds = json.loads((directory / family / "kinds.json").read_text())
    found = {}
    for archive, dump in zip(archives, dumps(archives, xtask).values(), strict=True):
        name = archive.stem
        reason = wrong(cases[name], dump, archive, references[name], kinds[name])
        if reason is not None:
            found[name] = reason
    return len(archives), found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m oracle.aten.portable")
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--xtask", default="target/debug/xtask", help="the built command (default: target/debug/xtask)")
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--only", nargs="+", metavar="TEXT")
    options = parser.parse_args()
    total = bad = refused = 0
    for family in options.family:
        if not (options.directory / family).exists():
            continue
        count, found = faults(family, options.directory, options.xtask, options.only)
        for name, reason in found.items():
            print(f"  {family}/{name}: {reason}", flush=True)
        turned_away = sum(reason.startswith("refused") for reason in found.values())
        print(f"{family}: {count - len(found)} of {count} right, {turned_away} refused", flush=True)
        total, bad, refused = total + count, bad + len(found), refused + turned_away
    print(f"{total - bad} of {total} right, {refused} refused, {bad - refused} wrong")
    return int(bad > refused)


if __name__ == "__main__":
    sys.exit(main())
