"""Checks the lowering without delegates: interprets the calls of ExecuTorch's kernels in torch.

    python -m oracle.aten.portable DIR [--family NAME ...] [--only TEXT ...]

reads the archives that `python -m oracle.aten DIR --export-only` wrote.
"""

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import executorch.exir.passes.dim_order_ops_registry
import executorch.exir.passes.executorch_prim_ops_registry  # noqa: F401
import torch

from oracle.checkers.interpret import Interpreter
from oracle.support.arrays import array, tensors_of

from .outside import Exported, exported, judge

KERNELS = Path(__file__).resolve().parents[2] / "crates/compiler/src/kernels.txt"
BATCH = 100


class Kernels(Interpreter):
    """An interpreter that refuses operators without a portable kernel."""

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
    """The weights that the lowering added to those of the archive."""
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
    """Lowers archives with `xtask pt2-dump --portable`. Returns the dumps by case name."""
    found = {}
    for start in range(0, len(archives), BATCH):
        batch = archives[start : start + BATCH]
        line = [xtask, "pt2-dump", "--portable", *map(str, batch)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-500:] + done.stderr[-500:]
        for archive, text in zip(batch, done.stdout.splitlines(), strict=True):
            found[archive.stem] = json.loads(text)
    return found


def wrong(one: Exported, dump: dict) -> str | None:
    """Interprets a lowered program and compares it with torch. Returns the failure, or `None`."""
    if "refused" in dump:
        return "refused: " + dump["refused"].splitlines()[1 if "\n" in dump["refused"] else 0][:300]
    program = torch.export.load(one.archive)
    tensors = {**program.state_dict, **program.constants, **made(dump)}
    calls = []
    for call in [one.case.inputs, *one.case.further]:
        try:
            with torch.no_grad():
                outputs = Kernels(dump, tensors).run([value.clone() for value in call])
        except Exception as error:  # Any error is reported with its case.
            return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"[:300]
        calls.append([array(value) for kind, _, value in outputs if kind == "user" for value in tensors_of(value)])
    return one.fault(calls)


def faults(family: str, directory: Path, xtask: str, only: list[str] | None = None) -> tuple[int, dict[str, str]]:
    """Checks the cases of a family. Returns their number, and the failures by name."""
    cases = exported(family, directory, only)
    dumped = dumps([one.archive for one in cases], xtask)
    reasons = {one.case.name: wrong(one, dumped[one.case.name]) for one in cases}
    return len(cases), {name: reason for name, reason in reasons.items() if reason is not None}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m oracle.aten.portable")
    parser.add_argument("--xtask", default="target/debug/xtask", help="the built command (default: target/debug/xtask)")
    return judge(parser, lambda family, options: faults(family, options.directory, options.xtask, options.only))


if __name__ == "__main__":
    sys.exit(main())
