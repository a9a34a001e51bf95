"""Lowers random modules that read and write buffers, and compares three steps in ExecuTorch's own runtime with torch.

It runs in its own process, as `worker.py` does:

    python -m coremill.executorch oracle/dropin/buffers.py RESULTS COUNT [FIRST]

Writes what was tried and the error, or `null`, for each seed.
"""

import copy
import json
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._export.verifier import SpecViolationError

from oracle.support.distance import distance

ROWS, COLUMNS = 3, 4
STEPS = 3
#: States are fp16, and each step reads the results of the last one.
TOLERANCE = 0.03

Statement = Callable[[nn.Module, list[torch.Tensor]], None]


class Statements(nn.Module):
    """A module that runs statements on a list of values, which starts with its input."""

    def __init__(self, buffers: list[tuple[str, torch.dtype, bool]], seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        # ExecuTorch copies into buffers in place, which autograd forbids.
        self.weight = nn.Parameter(torch.randn(COLUMNS, COLUMNS, generator=generator) * 0.4, requires_grad=False)
        self.bias = nn.Parameter(torch.randn(COLUMNS, generator=generator) * 0.4, requires_grad=False)
        for name, dtype, persistent in buffers:
            self.register_buffer(name, torch.zeros(ROWS, COLUMNS, dtype=dtype), persistent=persistent)
        self.statements: list[Statement] = []
        self.results: list[int | str] = []

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = [x]
        for statement in self.statements:
            statement(self, values)
        return tuple(getattr(self, at) if isinstance(at, str) else values[at % len(values)] for at in self.results)


def _compute(pick: random.Random) -> tuple[str, Statement]:
    """A statement that computes a new value from one or two others."""
    kind = pick.choice(["relu", "tanh", "mm", "add", "sub", "mul", "sigmoid", "bias", "transposed", "halves"])
    one, two = pick.randrange(100), pick.randrange(100)

    def statement(module: nn.Module, values: list[torch.Tensor]) -> None:
        a, b = values[one % len(values)], values[two % len(values)]
        values.append(
            {
                "relu": lambda: torch.relu(a),
                "tanh": lambda: torch.tanh(a),
                "mm": lambda: torch.tanh(torch.mm(a, module.weight)),
                "add": lambda: torch.tanh(a + b),
                "sub": lambda: torch.tanh(a - b),
                "mul": lambda: a * torch.tanh(b),
                "sigmoid": lambda: torch.sigmoid(a) - 0.5,
                "bias": lambda: torch.tanh(a + module.bias),
                "transposed": lambda: torch.tanh(a.t() * 1.5).t() + module.bias * 0.1,
                "halves": lambda: torch.cat([a[:, 2:], b[:, :2]], 1) * 0.9,
            }[kind]()
        )

    return kind, statement


def _read(pick: random.Random, name: str, dtype: torch.dtype) -> tuple[str, Statement]:
    """A statement that computes a new value from a buffer or a view of it."""
    kind = pick.choice(["whole", "rows", "columns", "view", "transposed", "doubled"])
    at = pick.randrange(100)

    def statement(module: nn.Module, values: list[torch.Tensor]) -> None:
        value, buffer = values[at % len(values)], getattr(module, name)
        if not dtype.is_floating_point:
            # Counters are small enough for fp16.
            buffer = buffer.to(torch.float32) * 0.125
        values.append(
            {
                "whole": lambda: torch.tanh(value + buffer),
                "rows": lambda: torch.tanh(value - buffer[:1]),
                "columns": lambda: torch.tanh(value + buffer[:, 1:2]),
                "view": lambda: torch.tanh(buffer.view(COLUMNS, ROWS).reshape(ROWS, COLUMNS) + value),
                "transposed": lambda: torch.tanh(buffer.t().contiguous().t() - value),
                "doubled": lambda: torch.tanh(buffer * 2),
            }[kind]()
        )

    return f"{name}: read {kind}", statement


def _write(pick: random.Random, name: str, dtype: torch.dtype) -> tuple[str, Statement]:
    """A statement that writes to a buffer or to a view of it."""
    at = pick.randrange(100)
    if not dtype.is_floating_point:
        kind = pick.choice(["count", "row", "fill", "columns"])

        def count(module: nn.Module, values: list[torch.Tensor]) -> None:
            buffer = getattr(module, name)
            {
                "count": lambda: buffer.add_(1),
                "row": lambda: buffer[1].add_(2),
                "fill": lambda: buffer[:, :1].fill_(3),
                "columns": lambda: buffer.view(-1)[:5].add_(1),
            }[kind]()

        return f"{name}: {kind}", count
    kind = pick.choice(["add", "scale", "copy", "row", "columns", "view", "transposed", "alias", "fill"])

    def statement(module: nn.Module, values: list[torch.Tensor]) -> None:
        value, buffer = values[at % len(values)], getattr(module, name)
        {
            "add": lambda: buffer.add_(value),
            "scale": lambda: buffer.mul_(0.5),
            "copy": lambda: buffer.copy_(value * 0.5),
            "row": lambda: buffer[1].add_(value[0]),
            "columns": lambda: buffer[:, 1:3].copy_(value[:, :2]),
            "view": lambda: buffer.view(-1).sub_(value.reshape(-1)),
            "transposed": lambda: buffer.t().add_(value.t()),
            "alias": lambda: buffer.copy_(value),
            "fill": lambda: buffer[:, :1].fill_(0.25),
        }[kind]()

    return f"{name}: {kind}", statement


#: Operators to exclude from delegation, by the edge dialect's names, which the partitioner expects.
SKIPPED = [
    "aten.mm.default", "aten.relu.default", "aten.tanh.default", "aten.add.tensor", "aten.sub.tensor", "aten.mul.tensor",
    "aten.sigmoid.default", "aten.slice_copy.tensor", "aten.view_copy.default", "aten.permute_copy.default",
    "aten.select_copy.int", "aten.copy.default", "aten.cat.default", "aten.select_scatter.default",
    "aten.slice_scatter.default", "aten.full_like.default", "aten.add.scalar", "dim_order_ops._to_dim_order_copy.default",
]  # fmt: skip


def _written(words: list[str]) -> set[str]:
    """The buffers that the statements write to."""
    return {word.partition(":")[0] for word in words if ":" in word and " read " not in word}


def module_of(seed: int) -> tuple[Statements, list[str]]:
    """A random module, and its statements as text."""
    pick = random.Random(seed)
    dtypes = [torch.float32, torch.float32, torch.float32, torch.float32, torch.int32, torch.int64]
    buffers = [(f"buffer_{at}", pick.choice(dtypes), pick.random() < 0.7) for at in range(pick.randint(1, 3))]
    module, words = Statements(buffers, seed), []
    shares = pick.choice([(3, 2, 2), (2, 1, 3), (2, 3, 1), (4, 1, 1)])
    for _ in range(pick.randint(3, 10)):
        kind = pick.choices(("compute", "read", "write"), shares)[0]
        name, dtype, _ = pick.choice(buffers)
        word, statement = _compute(pick) if kind == "compute" else (_read if kind == "read" else _write)(pick, name, dtype)
        words.append(word)
        module.statements.append(statement)
    if not _written(words):
        word, statement = _write(pick, *buffers[0][:2])
        place = pick.randint(0, len(words))
        words.insert(place, word)
        module.statements.insert(place, statement)
    module.results = [pick.randrange(100) for _ in range(pick.randint(1, 3))]
    if pick.random() < 0.2:
        module.results.append(pick.choice(buffers)[0])
    return module, words


def trial(seed: int) -> dict[str, Any]:
    """Lowers the module of a seed and compares three steps. Returns what was tried and the result."""
    import coremltools as ct
    from executorch.backends.apple.coreml.compiler import CoreMLBackend
    from executorch.backends.apple.coreml.partition import CoreMLPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.runtime import Runtime

    module, words = module_of(seed)
    pick = random.Random(f"options {seed}")
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(ROWS, COLUMNS, generator=generator) for _ in range(STEPS)]
    skipped = pick.sample(SKIPPED, pick.choice([0, 1, 1, 2, 3]))
    is_new = pick.random() < 0.85
    options = {"take_over_mutable_buffer": pick.random() < 0.75, "take_over_constant_data": pick.random() < 0.6}
    tried = {"statements": words, "results": module.results, "skipped": skipped, "ios18": is_new, **options}

    reference = copy.deepcopy(module)
    with torch.no_grad():
        wanted = [[one.clone() for one in reference(x)] for x in inputs]
    specs = CoreMLBackend.generate_compile_specs(
        minimum_deployment_target=ct.target.iOS18 if is_new else None,
        compute_precision=pick.choice([ct.precision.FLOAT16, ct.precision.FLOAT32]),
    )
    partitioner = CoreMLPartitioner(skip_ops_for_coreml_delegation=skipped, compile_specs=specs, **options)
    tried.update(failure=None, delegates=0, states=0)
    program = torch.export.export(module.eval(), (inputs[0],))
    try:
        edge = to_edge_transform_and_lower(program, partitioner=[partitioner])
        lowered = edge.exported_program()
        kept = set(lowered.graph_signature.inputs_to_buffers.values())
        tried["delegates"] = sum("call_delegate" in str(node.target) for node in lowered.graph.nodes)
        tried["states"] = len(_written(words) - kept)
        # The runtime refers to the buffer without keeping it alive.
        executorch = edge.to_executorch()
        method = Runtime.get().load_program(executorch.buffer).load_method("forward")
        for step, x in enumerate(inputs):
            found = method.execute((x,))
            assert len(found) == len(wanted[step]), f"{len(found)} results in place of {len(wanted[step])}"
            for at, (ours, theirs) in enumerate(zip(found, wanted[step], strict=True)):
                assert ours.dtype == theirs.dtype, f"step {step}, result {at}: {ours.dtype} in place of {theirs.dtype}"
                off = distance(ours, theirs, 1.0)
                assert off <= TOLERANCE, f"step {step}, result {at} differs by {off}"
    except SpecViolationError:
        tried["failure"] = None if _is_refused_by_torch(program) else traceback.format_exc()
    except Exception:
        tried["failure"] = traceback.format_exc()
    return tried


def _is_refused_by_torch(program: torch.export.ExportedProgram) -> bool:
    """Whether torch cannot decompose its own program: its verifier mixes up two results that are the same input."""
    try:
        program.run_decompositions({})
    except SpecViolationError:
        return True
    return False


def main(results: str, count: int, first: int = 0) -> None:
    """Tries `count` seeds."""
    warnings.simplefilter("ignore")
    found = {}
    for seed in range(first, first + count):
        torch._dynamo.reset()
        start = time.time()
        found[seed] = trial(seed)
        failure = found[seed]["failure"]
        print(f"{'ok  ' if failure is None else 'FAIL'} {seed} {time.time() - start:.1f} s", flush=True)
        if failure is not None:
            print(json.dumps(found[seed], indent=1).replace("\\n", "\n"), flush=True)
    Path(results).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
