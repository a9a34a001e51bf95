"""Makes the packages in several processes: converts, compresses and writes them.

torch and coremltools import slowly, so only the workers import them.
"""

import contextlib
import hashlib
import json
import logging
import multiprocessing
import os
import shutil
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

if TYPE_CHECKING:
    from .entry import Source

HERE = Path(__file__).parent
#: Number of examples for the statistics of batch norms.
SAMPLES = 8
REQUIREMENTS = HERE.parent / "requirements.txt"


def stamp() -> str:
    """The hash of the zoo's sources and of the requirements, on which the packages depend."""
    digest = hashlib.sha256()
    for path in [*sorted(HERE.glob("*.py")), REQUIREMENTS]:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def make(name: str, directory: Path) -> None:
    """Writes `directory/NAME.mlpackage` atomically, and the references of networks; see `reference`."""
    import coremltools as ct
    import numpy
    import torch

    from . import shims  # noqa: F401
    from .entry import Source, Written
    from .reference import Reference, calls_of, like
    from .table import ENTRIES
    from .weights import enliven

    entry = next(entry for entry in ENTRIES if entry.name == name)
    seed = zlib.crc32(name.encode())
    torch.manual_seed(seed)
    numpy.random.seed(seed)
    torch.set_num_threads(1)
    # coremltools does not support the fused layers.
    torch.backends.mha.set_fastpath_enabled(False)

    precision = {"fp16": ct.precision.FLOAT16, "fp32": ct.precision.FLOAT32}[entry.precision]
    settings = {
        "convert_to": "mlprogram",
        "minimum_deployment_target": getattr(ct.target, entry.target),
        "compute_precision": precision,
        "skip_model_load": True,
    }
    built = entry.build()
    references: dict[str, Reference] = {}
    if isinstance(built, Source):
        calls = calls_of(built)
        enliven(built.module.eval(), [tuple(map(like, built.example)) for _ in range(SAMPLES)], built.damped)
        references["main"] = Reference(built, calls)
    final = directory / f"{name}.mlpackage"
    with tempfile.TemporaryDirectory(dir=directory, prefix=".making-") as scratch:
        draft = Path(scratch) / final.name
        match built:
            case Source():
                model = ct.convert(captured(built), **(arguments(built) | settings | built.arguments))
            case Written():
                model = ct.convert(built.program, **(settings | built.arguments))
            case _:
                sources = built(draft)
                references = {function: Reference(one, calls_of(one)) for function, one in sources.items()}
                model = ct.models.MLModel(str(draft), skip_model_load=True)
        for step in entry.steps:
            model = step(model)
        if not draft.exists():
            model.save(str(draft))
        for function, reference in references.items():
            file = f"{name}.reference.npz" if len(references) == 1 else f"{name}.{function}.reference.npz"
            reference.write(model, Path(scratch) / file, function)
            (Path(scratch) / file).replace(directory / file)
        shutil.rmtree(final, ignore_errors=True)
        draft.rename(final)


def captured(source: "Source") -> object:
    """The program of a module in the form that coremltools accepts."""
    import torch

    module = source.module.eval()
    with torch.no_grad():
        if source.frontend == "export":
            return torch.export.export(module, source.example).run_decompositions({})
        return torch.jit.trace(module, source.example, check_trace=False)


def arguments(source: "Source") -> dict[str, object]:
    """The inputs of a trace; an export contains its own."""
    import coremltools as ct
    import numpy

    if source.frontend == "export":
        return {}
    inputs = []
    for position, tensor in enumerate(source.example):
        kind = numpy.float32 if tensor.is_floating_point() else numpy.int32
        inputs.append(ct.TensorType(name=f"input_{position}", shape=tuple(tensor.shape), dtype=kind))
    return {"inputs": inputs}


def serve(connection: Connection, directory: Path) -> None:
    """A worker: makes each package whose name it receives, and sends the error or `None`."""
    # Progress bars and warnings of two concurrent workers are useless; errors are sent to the parent.
    os.environ["TQDM_DISABLE"] = "1"
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with contextlib.suppress(EOFError):
        while True:
            name = connection.recv()
            started = time.monotonic()
            try:
                make(name, directory)
                error = None
            except Exception:  # One entry's failure must not stop the others; the report names it.
                error = traceback.format_exc()
            connection.send((name, error, time.monotonic() - started))


def run(names: list[str], directory: Path, jobs: int) -> Iterator[tuple[str, str | None, float]]:
    """Makes the packages in `jobs` processes. If a process crashes, only its current entry fails."""
    directory.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    waiting = list(reversed(names))
    busy: dict[Connection, tuple[multiprocessing.Process, str]] = {}

    def start() -> tuple[Connection, multiprocessing.Process]:
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, directory), daemon=True)
        process.start()
        theirs.close()
        return ours, process

    idle: list[tuple[Connection, multiprocessing.Process]] = []
    while waiting or busy:
        while waiting and len(busy) < jobs:
            connection, process = idle.pop() if idle else start()
            name = waiting.pop()
            connection.send(name)
            busy[connection] = (process, name)
        for connection in wait(list(busy)):
            process, name = busy.pop(connection)
            try:
                yield connection.recv()
                idle.append((connection, process))
            except (EOFError, ConnectionError):
                process.join()
                yield name, f"the process that converted it died with exit code {process.exitcode}", 0.0
    for connection, process in idle:
        connection.close()
        process.join()


def generate(directory: Path, names: list[str], jobs: int | None = None) -> dict[str, str]:
    """Makes the packages, prints progress, and returns the errors by name."""
    jobs = jobs or min(2, os.cpu_count() or 1)
    errors = {}
    started = time.monotonic()
    for count, (name, error, seconds) in enumerate(run(names, directory, jobs), 1):
        print(f"[{count}/{len(names)}] {name}: {'failed' if error else 'made'} in {seconds:.1f} s", flush=True)
        if error:
            errors[name] = error
            print(error, flush=True)
    took = time.monotonic() - started
    print(f"{len(names) - len(errors)} packages made, {len(errors)} failed, in {took:.0f} s", flush=True)
    return errors


def ensure(directory: Path, names: list[str]) -> dict[str, str]:
    """Makes all packages if the zoo's sources changed, else only the missing ones.

    Returns the errors by name.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    # Concurrent test runs wait here, and then find the packages.
    with FileLock(directory.with_suffix(".lock")):
        record = directory / "zoo.json"
        known: dict[str, object] = {}
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            known = json.loads(record.read_text())
        if known.get("stamp") != stamp():
            shutil.rmtree(directory, ignore_errors=True)
        missing = [name for name in names if not (directory / f"{name}.mlpackage").is_dir()]
        if not missing:
            return {}
        directory.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps({"stamp": stamp()}))
        return generate(directory, missing)
