"""Measures the length of programs: MIL operations and calls of ExecuTorch's kernels for many archives.

    python -m oracle.support.lengths measure OUT.json ARCHIVE... [--coremill PATH] [--xtask PATH] [--target RELEASE]
    python -m oracle.support.lengths compare BEFORE.json AFTER.json

Measure the same archives (`target/exports`, or the output of `python -m oracle.aten DIR --export-only`) with the commands
before and after a change of a decomposition or pass: `compare` lists the programs that became longer, shorter or
different.
"""

import argparse
import collections
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from coremltools.proto import Model_pb2

from oracle.support.waste import operations

BATCH = 100


def packages(archives: list[Path], coremill: str, target: str) -> dict[str, Any]:
    """The operations of each archive's package in fp32; `None` for refused archives."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        line = [coremill, "convert", *map(str, archives), "--output-dir", directory, "--target", target]
        subprocess.run([*line, "--precision", "fp32"], capture_output=True, check=False)
        for archive in archives:
            path = Path(directory) / f"{archive.stem}.mlpackage/Data/com.apple.CoreML"
            found[str(archive)] = None
            if path.exists():
                bytes_ = (path / "model.mlmodel").read_bytes()
                digest = hashlib.sha256(bytes_)
                for weights in sorted(path.glob("weights/*")):
                    digest.update(weights.read_bytes())
                kinds = collections.Counter(one.type for one in operations(Model_pb2.Model.FromString(bytes_).mlProgram))
                kinds.pop("const", None)
                found[str(archive)] = {"total": kinds.total(), "kinds": dict(kinds), "hash": digest.hexdigest()}
    return found


def kernels(archives: list[Path], xtask: str) -> dict[str, Any]:
    """The kernel calls of each archive; `None` for refused archives."""
    line = [xtask, "pt2-dump", "--portable", "--no-weights", *map(str, archives)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    found: dict[str, Any] = {}
    for archive, text in zip(archives, done.stdout.splitlines(), strict=True):
        dump = json.loads(text)
        if "refused" in dump:
            found[str(archive)] = None
            continue
        kinds = collections.Counter(node["target"] for node in dump["graph"]["nodes"])
        found[str(archive)] = {"total": kinds.total(), "kinds": dict(kinds), "hash": hashlib.sha256(text.encode()).hexdigest()}
    return found


def measure(options: argparse.Namespace) -> int:
    found: dict[str, dict[str, Any]] = {"packages": {}, "kernels": {}}
    for start in range(0, len(options.archives), BATCH):
        batch = options.archives[start : start + BATCH]
        if options.coremill:
            found["packages"] |= packages(batch, options.coremill, options.target)
        if options.xtask:
            found["kernels"] |= kernels(batch, options.xtask)
    options.out.write_text(json.dumps(found))
    return 0


def compare(options: argparse.Namespace) -> int:
    before, after = (json.loads(path.read_text()) for path in (options.before, options.after))
    longer = 0
    for what in ("packages", "kernels"):
        counts: collections.Counter[str] = collections.Counter()
        for name, new in after[what].items():
            old = before[what].get(name)
            if old == new or name not in before[what]:
                counts["same"] += 1
                continue
            state = "different"
            if old is None or new is None:
                state = "accepted" if old is None else "refused"
            elif old["total"] != new["total"]:
                state = "longer" if new["total"] > old["total"] else "shorter"
            counts[state] += 1
            longer += state in ("longer", "refused")
            if state in options.show:
                change = ""
                if old and new:
                    kinds = sorted({*old["kinds"], *new["kinds"]})
                    moved = {kind: new["kinds"].get(kind, 0) - old["kinds"].get(kind, 0) for kind in kinds}
                    change = f"{old['total']} → {new['total']}: " + ", ".join(f"{by:+} {kind}" for kind, by in moved.items() if by)
                print(f"{what} {state} {name} {change}")
        print(f"{what}: " + ", ".join(f"{count} {state}" for state, count in sorted(counts.items())))
    return int(longer > 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m oracle.support.lengths", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("measure", help="measure archives")
    one.add_argument("out", type=Path)
    one.add_argument("archives", type=Path, nargs="+")
    one.add_argument("--coremill", default="target/debug/coremill", help="the built command; empty for none")
    one.add_argument("--xtask", default="target/debug/xtask", help="the built command; empty for none")
    one.add_argument("--target", default="ios18")
    one.set_defaults(run=measure)
    two = commands.add_parser("compare", help="compare two measurements")
    two.add_argument("before", type=Path)
    two.add_argument("after", type=Path)
    two.add_argument("--show", nargs="+", default=["longer", "refused"])
    two.set_defaults(run=compare)
    options = parser.parse_args()
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
