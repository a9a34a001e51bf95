"""Converts programs, one after another, in a separate process."""

import collections
import contextlib
import importlib
import json
import logging
import os
import re
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

#: Later lines of an error are not useful and contain paths of this machine.
LONGEST_REASON = 160


def convert(archive: Path, keep: Path | None) -> dict[str, Any]:
    """Converts a program with coremltools. Returns its result."""
    import coremltools as ct
    import numpy as np
    import torch

    from .. import shims  # noqa: F401

    import_structures(archive)
    program = torch.export.load(archive).run_decompositions({})
    # Processor time, which other processes do not affect.
    started = time.process_time()
    # fp32 outputs, as ours and as in ExecuTorch; the default would be fp16.
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    results = [values.get(name) for name in program.graph_signature.user_outputs]
    tensors = [one for one in results if isinstance(one, torch.Tensor)]
    whole = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
    outputs = [ct.TensorType(dtype=np.int32 if one.dtype in whole else np.float32) for one in tensors]
    model = ct.convert(
        program,
        outputs=outputs if len(tensors) == len(results) else None,
        convert_to="mlprogram",
        minimum_deployment_target=ct.target.iOS18,
        skip_model_load=True,
    )
    took = time.process_time() - started
    counts = collections.Counter(kind for kind in operations(model.get_spec()) if kind != "const")
    if keep is not None:
        model.save(str(keep / f"{archive.stem}.mlpackage"))
    return {"operations": counts.total(), "seconds": round(took, 2), "histogram": dict(sorted(counts.items()))}


def lower(archive: Path, keep: Path | None) -> dict[str, Any]:
    """Lowers a program with the defaults of ExecuTorch's Core ML partitioner, for iOS18, which states require.
    Returns its result."""
    import coremltools as ct
    import torch
    from executorch.backends.apple.coreml.compiler import CoreMLBackend
    from executorch.backends.apple.coreml.partition import CoreMLPartitioner
    from executorch.exir import to_edge_transform_and_lower

    from .. import shims  # noqa: F401

    import_structures(archive)
    program = torch.export.load(archive)
    started = time.process_time()
    specs = CoreMLBackend.generate_compile_specs(minimum_deployment_target=ct.target.iOS18)
    lowered = to_edge_transform_and_lower(program, partitioner=[CoreMLPartitioner(compile_specs=specs)])
    made = lowered.to_executorch()
    took = time.process_time() - started
    plan = made.executorch_program.execution_plan[0]
    outside = collections.Counter(f"{one.name}.{one.overload}".rstrip(".") for one in plan.operators)
    data = made.buffer
    if keep is not None:
        (keep / f"{archive.stem}.pte").write_bytes(data)
    line = {"delegates": len(plan.delegates), "outside": dict(sorted(outside.items()))}
    return {**line, "bytes": len(data), "seconds": round(took, 2)}


def import_structures(archive: Path) -> None:
    """Imports the classes of structured inputs and outputs, which torch needs to read an archive."""
    with zipfile.ZipFile(archive) as file:
        (name,) = (one for one in file.namelist() if one.endswith("models/model.json"))
        signature = json.loads(file.read(name))["graph_module"]["module_call_graph"][0]["signature"]
    for path in set(re.findall(r"transformers(?:\.\w+)+(?=\.\w+)", signature["in_spec"] + signature["out_spec"])):
        importlib.import_module(path)


def operations(spec: Any) -> Iterator[str]:
    """The types of all operations, including those in nested blocks."""
    blocks = [block for one in spec.mlProgram.functions.values() for block in one.block_specializations.values()]
    while blocks:
        for operation in blocks.pop().operations:
            yield operation.type
            blocks += operation.blocks


def reason(error: BaseException) -> str:
    """The first line of an error message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:LONGEST_REASON]


def serve(connection: Connection, work: Callable[[Path, Path | None], dict[str, Any]], keep: Path | None) -> None:
    """Sends the result of each path that it receives."""
    os.environ["TQDM_DISABLE"] = "1"
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    import torch

    torch.set_num_threads(1)
    # Imports first, so that they do not count as a part of the first conversion.
    import coremltools  # noqa: F401

    connection.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            archive = connection.recv()
            try:
                with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
                    line = work(archive, keep)
            except Exception as error:  # Failures of the peer are results, too.
                line = {"failed": reason(error)}
            connection.send(line)
