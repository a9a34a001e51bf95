"""Exports a row, computes its expected outputs, and writes both."""

import contextlib
import gc
import inspect
import json
import math
import time
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from oracle.support.arrays import array, tensors_of

from ..weights import BATCH_NORMS, enliven
from .entry import Call, Row, Source

#: Minimum spread of an output relative to its largest magnitude: above the tolerance of fp16 programs, 1e-2.
LEAST_SPREAD = 0.03
#: Maximum error of an exported program relative to its module.
AGREEMENT = 1e-4
#: Number of examples for the statistics of batch norms.
SAMPLES = 8
#: Significant bits of fp16, and the exponent of its smallest number.
SIGNIFICANT, SMALLEST = 11, -24
#: Number of trials with stochastic rounding.
CHANCES = 2


def make(row: Row, directory: Path) -> dict[str, Any]:
    """Writes the files of a row and returns its record."""
    seed = zlib.crc32(row.name.encode())
    torch.manual_seed(seed)
    numpy.random.seed(seed % 2**32)
    started = time.monotonic()
    source = row.build()
    module = source.module.eval().requires_grad_(False)
    keywords = in_order(module, source.keywords)
    if source.redrawn:
        settle(module, source, keywords)
    initial = {name: tensor.clone() for name, tensor in state_of(module).items()}
    calls: list[Call] = [(source.arguments, keywords)]
    for arguments, words in source.further() if source.further else []:
        calls.append((arguments, in_order(module, words)))
    # The export precedes all calls: they change buffers, and the archive must hold the initial ones.
    exported_at = time.monotonic()
    program = torch.export.export(
        module, source.arguments, keywords, dynamic_shapes=source.dynamic_shapes, strict=False
    )
    took = time.monotonic() - exported_at
    restore(module, initial)
    results = [eager(module, call) for call in calls]
    arrays = arrays_of(calls, results) | first_contents(program)
    changed = [name for name, tensor in state_of(module).items() if not same(tensor, initial[name])]
    spread = refuse_dull(results)
    # The program shares the module's buffers.
    restore(module, initial)
    agree(program, calls, results)
    restore(module, initial)
    record = {
        "name": row.name,
        "family": row.family,
        "notes": row.notes,
        "inputs": described(program, calls[0]),
        "outputs": [{"dtype": kind(one), "shape": list(one.shape)} for one in results[0]],
        "calls": len(calls),
        "changed_buffers": changed,
        "dynamic": source.dynamic_shapes is not None,
        "spread": round(spread, 4),
        "half_error": round(half_error(module, calls, results, initial), 6),
        "nodes": sum(node.op == "call_function" for node in program.graph.nodes),
        "weights": sum(tensor.numel() * tensor.element_size() for tensor in {**program.state_dict}.values()),
        "export_seconds": round(took, 2),
    }
    record |= write(row, program, directory)
    numpy.savez(directory / f"{row.name}.npz", **arrays)
    record["seconds"] = round(time.monotonic() - started, 1)
    return record


def in_order(module: nn.Module, keywords: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments in the order of the signature, which is that of the placeholders."""
    order = list(inspect.signature(module.forward).parameters)
    return dict(sorted(keywords.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))


def settle(module: nn.Module, source: Source, keywords: dict[str, Any]) -> None:
    """Draws the weights; batch norms measure several examples if the module accepts batches."""
    given = source.arguments
    if not has_norms(module):
        enliven(module, [], source.damped)
    elif not keywords and all(isinstance(one, torch.Tensor) and one.shape[:1] == (1,) for one in given):
        enliven(module, [tuple(like(one) for one in given) for _ in range(SAMPLES)], source.damped)
    else:
        enliven(Bound(module, *several(given, keywords)), [()], source.damped)


def several(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Concatenates several examples to a batch if the inputs have a batch size of 1; returns other inputs unchanged."""
    leaves = _pytree.tree_leaves((arguments, keywords))
    if not all(isinstance(one, torch.Tensor) and one.shape[:1] == (1,) for one in leaves):
        return arguments, keywords
    return _pytree.tree_map(lambda one: torch.cat([like(one) for _ in range(SAMPLES)]), (arguments, keywords))


class Bound(nn.Module):
    """A module with bound arguments."""

    def __init__(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        super().__init__()
        self.module = module
        self.arguments = arguments
        self.keywords = keywords

    def forward(self) -> Any:
        return self.module(*self.arguments, **self.keywords)


def has_norms(module: nn.Module) -> bool:
    """Whether the module contains a batch norm."""
    return any(isinstance(part, BATCH_NORMS) for part in module.modules())


def like(value: Any) -> Any:
    """A random value of the same type and shape."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_floating_point():
        return torch.randn_like(value) * value.std() + value.mean() if value.numel() > 1 else value.clone()
    return value.clone()


def state_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, including buffers that are not persistent."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


def restore(module: nn.Module, initial: dict[str, torch.Tensor]) -> None:
    """Resets parameters and buffers to their initial values."""
    with torch.no_grad():
        for name, tensor in state_of(module).items():
            if not same(tensor, initial[name]):
                tensor.copy_(initial[name])


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors are equal; NaN equals NaN."""
    return torch.equal(left, right) or torch.allclose(left, right, rtol=0, atol=0, equal_nan=True)


def copied(call: Call) -> Call:
    """Copies the tensors of a call, so that the module may change them."""
    return _pytree.tree_map_only(torch.Tensor, torch.clone, call)


def eager(module: nn.Module, call: Call) -> list[torch.Tensor]:
    """The module's outputs in eager mode."""
    arguments, keywords = copied(call)
    with torch.no_grad():
        return tensors_of(module(*arguments, **keywords))


def arrays_of(calls: list[Call], results: list[list[torch.Tensor]]) -> dict[str, numpy.ndarray]:
    """Inputs and outputs of all calls by their names in the file; inputs first, in order."""
    found: dict[str, numpy.ndarray] = {}
    for index, (call, outputs) in enumerate(zip(calls, results, strict=True)):
        ending = f"@{index}" if index else ""
        given = [one for one in _pytree.tree_leaves(call) if isinstance(one, torch.Tensor)]
        for side, tensors in (("in", given), ("out", outputs)):
            for position, tensor in enumerate(tensors):
                found[f"{side}{position}{ending}"] = array(tensor)
    return found


def first_contents(program: torch.export.ExportedProgram) -> dict[str, numpy.ndarray]:
    """Initial values of the parameters and buffers that the program writes to, unless they are zero."""
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    stored = {**program.constants, **program.state_dict}
    changed = [names[one] for one in written_to(program.graph_module) if one in names]
    return {f"first.{name}": array(stored[name].detach()) for name in changed if stored[name].any()}


def written_to(module: torch.fx.GraphModule) -> list[str]:
    """The graph inputs that calls write to, including calls in nested graphs."""
    found = []
    for call in module.graph.nodes:
        schema = getattr(call.target, "_schema", None)
        operands = list(call.args[:1]) if schema is not None and schema.is_mutable else []
        for at, argument in enumerate(call.args):
            inner = getattr(module, argument.target) if getattr(argument, "op", "") == "get_attr" else None
            if isinstance(inner, torch.fx.GraphModule):
                inputs = [one.name for one in inner.graph.nodes if one.op == "placeholder"]
                given = dict(zip(inputs, call.args[at + 1 :], strict=False))
                operands += [given[one] for one in written_to(inner) if one in given]
        found += [one.name for one in operands if getattr(one, "op", "") == "placeholder"]
    return found


def kind(tensor: torch.Tensor) -> str:
    """The name of a tensor's element type."""
    return str(tensor.dtype).removeprefix("torch.")


def described(program: torch.export.ExportedProgram, call: Call) -> list[dict[str, Any]]:
    """The tensor inputs with the names of their placeholders."""
    given = list(_pytree.tree_leaves(call))
    names = program.graph_signature.user_inputs
    found = []
    for name, value in zip(names, given, strict=True):
        if isinstance(value, torch.Tensor):
            found.append({"name": name, "dtype": kind(value), "shape": list(value.shape)})
    return found


def refuse_dull(results: list[list[torch.Tensor]]) -> float:
    """Returns the smallest spread of the floating-point outputs. Raises an error if outputs cannot tell right from
    wrong."""
    least = 1.0
    for outputs in results:
        if not outputs:
            raise ValueError("the program has no outputs")
        for position, output in enumerate(outputs):
            output = torch.view_as_real(output) if output.is_complex() else output
            if not output.is_floating_point() or output.numel() < 2:
                continue
            output = output.double()
            if not output.isfinite().all():
                raise ValueError(f"output {position} is not finite")
            spread = float(output.std() / output.abs().max().clamp_min(1e-30))
            if not spread > LEAST_SPREAD:
                raise ValueError(f"output {position} hardly varies: {spread:.4f} of its largest magnitude")
            least = min(least, spread)
    return least


def difference(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """The largest error of all outputs, each relative to its largest magnitude."""
    worst = 0.0
    for ours, theirs in zip(found, wanted, strict=True):
        if ours.shape != theirs.shape:
            return float("inf")
        if not theirs.numel():
            continue
        if not (theirs.is_floating_point() or theirs.is_complex()):
            worst = max(worst, float((ours != theirs).any()))
            continue
        kind = torch.complex128 if theirs.is_complex() else torch.float64
        ours, theirs = ours.to(kind), theirs.to(kind)
        worst = max(worst, float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30)))
    return worst


def agree(program: torch.export.ExportedProgram, calls: list[Call], results: list[list[torch.Tensor]]) -> None:
    """Raises an error unless the exported program computes the same as the module."""
    module = program.module()
    for call, wanted in zip(calls, results, strict=True):
        arguments, keywords = copied(call)
        with torch.no_grad():
            found = tensors_of(module(*arguments, **keywords))
        error = difference(found, wanted)
        if error > AGREEMENT:
            raise ValueError(f"the exported program differs from the module: the error of the outputs is {error:.1e}")


class Halves(TorchDispatchMode):
    """Rounds the result of each operator to fp16. With a generator, rounding is stochastic and prefers the nearer
    number.

    Of branches and loops only the final results are rounded.
    """

    supports_higher_order_operators = True

    def __init__(self, generator: torch.Generator | None) -> None:
        super().__init__()
        self.generator = generator

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        found = function(*arguments, **(keywords or {}))
        schema = getattr(function, "_schema", None)
        if schema is not None and schema.is_mutable:
            _pytree.tree_map(lambda value: written(value, self.rounded(value)), found)
            return found
        # Views share memory with a tensor that is rounded already, and in-place operators return their operand.
        is_view = schema is not None and any(one.alias_info is not None for one in schema.returns)
        return found if is_view else _pytree.tree_map(self.rounded, found)

    def rounded(self, value: Any) -> Any:
        """Rounds fp32 tensors; returns other values unchanged."""
        if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
            return value
        if self.generator is not None:
            exponents = (torch.frexp(value).exponent - SIGNIFICANT).clamp(min=SMALLEST)
            chance = torch.rand(value.shape, generator=self.generator) - 0.5
            value = value + torch.ldexp(chance, exponents)
        return value.half().float()


def written(value: Any, other: Any) -> None:
    """Copies one tensor into another."""
    if isinstance(value, torch.Tensor) and value is not other:
        value.copy_(other)


def half_error(
    module: nn.Module,
    calls: list[Call],
    results: list[list[torch.Tensor]],
    initial: dict[str, torch.Tensor],
) -> float:
    """The error of torch's own outputs if weights and the result of each operator are rounded to fp16.

    No conversion to fp16 can be better. The rounding of the last bit is arbitrary, since it depends on the order of
    sums and on fusion, so this is the worst of several trials.
    """
    worst = 0.0
    for generator in [None, *(torch.Generator().manual_seed(seed) for seed in range(CHANCES))]:
        halves = Halves(generator)
        restore(module, {name: halves.rounded(tensor) for name, tensor in initial.items()})
        for call, wanted in zip(calls, results, strict=True):
            given = _pytree.tree_map(halves.rounded, call)
            with halves:
                found = eager(module, given)
            floats = [pair for pair in zip(found, wanted, strict=True) if pair[1].is_floating_point()]
            worst = max(worst, difference([one for one, _ in floats], [one for _, one in floats]))
        restore(module, initial)
    if not math.isfinite(worst):
        raise ValueError("the computed numbers exceed the range of fp16")
    return worst


def write(row: Row, program: torch.export.ExportedProgram, directory: Path) -> dict[str, Any]:
    """Writes the archive and its other dialects. Returns them, with the errors of the dialects that failed."""
    torch.export.save(program, directory / f"{row.name}.pt2")
    if not row.dialects:
        return {"dialects": []}
    torch.export.save(program.run_decompositions({}), directory / f"{row.name}.core.pt2")
    from executorch import exir

    path = directory / f"{row.name}.edge.pt2"
    try:
        with contextlib.redirect_stdout(None):
            edge = exir.to_edge(program, compile_config=exir.EdgeCompileConfig(_check_ir_validity=False))
            exir.save(edge.exported_program(), path)
    except Exception as error:  # ExecuTorch's serializer does not support loops, among others.
        path.unlink(missing_ok=True)
        return {"dialects": ["core"], "no_edge": first_line(error)}
    return {"dialects": ["core", "edge"]}


def first_line(error: Exception) -> str:
    """The first line of an error message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:300]


def attempt(row: Row, directory: Path, stamp: str) -> dict[str, Any]:
    """Calls `make` and records its failure. The record is written last, with the stamp of the sources."""
    remove(row.name, directory)
    (directory / f"{row.name}.json").unlink(missing_ok=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            record = make(row, directory)
    except Exception as error:  # One row's failure must not stop the others; the index names it.
        remove(row.name, directory)
        record = {"name": row.name, "family": row.family, "notes": row.notes, "failed": first_line(error)}
    finally:
        gc.collect()
    record["stamp"] = stamp
    (directory / f"{row.name}.json").write_text(json.dumps(record, indent=1) + "\n")
    return record


def remove(name: str, directory: Path) -> None:
    """Removes the files of a row."""
    for suffix in ("pt2", "core.pt2", "edge.pt2", "npz"):
        (directory / f"{name}.{suffix}").unlink(missing_ok=True)
