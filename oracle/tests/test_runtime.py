"""Compares our runtime with ExecuTorch's own and with eager torch."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from oracle.support.cargo import ROOT
from oracle.support.distance import within
from oracle.support.served import Runtime

#: Maximum error by element type, relative to the larger of the result and 1.
TOLERANCES = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-5, torch.float64: 1e-5}
#: Maximum number of methods per program.
METHODS = 400
#: Kernels without a case in `kernel_cases`: in-place and scalar kernels, which other tests in this file call, and kernels
#: that need another device, mutable batch statistics, or dtypes that occur only in complete programs.
WITHOUT_CASES = [
    "aten::_fft_c2r.out", "aten::_fft_r2c.out", "aten::_local_scalar_dense", "aten::_native_batch_norm_legit.out",
    "aten::copy_", "aten::index_put_", "aten::sym_numel", "aten::sym_size.int", "et_copy::_d2h_copy.out",
    "et_copy::_h2d_copy.out", "executorch_prim::et_copy_index.tensor", "executorch_prim::et_view.default",
]


def close(ours: Any, other: Any) -> bool:
    """Whether results are equal within the precision of their types."""
    if not isinstance(other, torch.Tensor) or not isinstance(ours, torch.Tensor):
        return ours == other
    if ours.dtype != other.dtype or ours.shape != other.shape:
        return False
    tolerance = TOLERANCES.get(other.dtype, 2e-5)
    return within(ours, other, tolerance, tolerance)


def peer(program: Path, inputs: dict[str, list[Any]], folder: Path) -> dict[str, Any]:
    """The results of ExecuTorch's runtime for each method, or its error message."""
    folder.mkdir(exist_ok=True)
    given = folder / "inputs.pt"
    torch.save(inputs, given)
    results: dict[str, Any] = {}
    remaining = list(inputs)
    while remaining:
        command = [sys.executable, "-m", "oracle.support.peer", program, given, folder, ",".join(remaining)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True)
        before = len(remaining)
        for name in list(remaining):
            file = folder / f"{name}.pt"
            if file.exists():
                results[name] = torch.load(file)
                remaining.remove(name)
            elif file.with_suffix(".begun").exists():
                results[name] = "the process crashed"
                remaining.remove(name)
        assert len(remaining) < before, done.stderr
    return results


def signature(schema: "torch._C.FunctionSchema") -> str:
    """A schema in the format of the runtime's tables."""
    letters = {
        "Tensor": "T", "Optional[Tensor]": "t", "List[Tensor]": "L", "List[Optional[Tensor]]": "O", "int": "I",
        "Optional[int]": "i", "bool": "B", "Optional[bool]": "b", "float": "D", "Optional[float]": "d", "number": "S",
        "Optional[number]": "s", "str": "C", "Optional[str]": "c", "List[int]": "N", "Optional[List[int]]": "n",
        "List[bool]": "A", "Optional[List[float]]": "F",
    }
    before, after = "", ""
    for argument in schema.arguments:
        letter = letters[str(argument.type)]
        if argument.alias_info is None:
            before += letter
        elif argument.kwarg_only:
            after += letter
        else:
            before += "M"
    written = after or "M" in before
    return f"{before}>{after}" if written else before


def test_operators_match_executorch_registry(runtime: Runtime) -> None:
    from executorch.runtime import Runtime as Peer

    import oracle.corpora.kernel_programs  # noqa: F401  registers the dim_order operators

    ours = dict(line.split(" ") for line in runtime.ask("operators"))
    theirs = Peer.get().operator_registry.operator_names
    assert sorted(ours) == sorted(theirs)
    mismatches = {}
    for name, found in ours.items():
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if space == "executorch_prim":
            continue
        operator = getattr(getattr(getattr(torch.ops, space), packet), overload or "default")
        expected = signature(operator._schema)
        if found != expected:
            mismatches[name] = (found, expected)
    assert not mismatches


#: The families of `oracle.corpora.kernel_cases`, repeated here because importing the module is slow.
FAMILIES = [
    "unary", "binary", "choices", "created", "shapes", "indices", "padded", "reduced", "pooled", "complex_numbers",
    "normalized", "products", "resampled", "dynamic",
]


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_match_torch_and_executorch(family: str, runtime: Runtime, tmp_path: Path) -> None:
    from oracle.corpora.kernel_cases import cases
    from oracle.corpora.kernel_programs import build, write

    every = cases(family)
    faults = []
    for start in range(0, len(every), METHODS):
        part = every[start : start + METHODS]
        eager = {case.name: case.eager() for case in part}
        builders = [build(case, eager[case.name]) for case in part]
        program = tmp_path / f"{start}.pte"
        write(program, builders)
        given = {builder.plan.name: builder.given for builder in builders}
        theirs = peer(program, given, tmp_path / str(start))
        runtime.ask("load", program)
        for case in part:
            try:
                runtime.ask("method", case.name)
                ours = runtime.run(given[case.name])
                # A method can run repeatedly.
                again = runtime.run(given[case.name])
                if case.compare == "all" and not all(map(close, again, ours)):
                    faults.append(f"{case.name}: the second run differs from the first")
            except RuntimeError as error:
                ours = str(error)
            fault = find_fault(case.compare, ours, theirs[case.name], eager[case.name])
            if fault:
                faults.append(f"{case.name}: {fault}\n    {describe(case)}")
    assert not faults, f"{len(faults)} of {len(every)}:\n" + "\n".join(faults)


def test_every_kernel_has_a_case(runtime: Runtime) -> None:
    from oracle.corpora.kernel_cases import FAMILIES as MAKERS
    from oracle.corpora.kernel_cases import cases
    from oracle.corpora.kernel_programs import kernel_of

    assert list(MAKERS) == FAMILIES
    schemas = [kernel_of(case) for family in FAMILIES for case in cases(family)]
    called = {f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name for schema in schemas}
    called.update(f"executorch_prim::{name}" for name, _, _ in NUMBERS)
    kernels = {line.split(" ")[0] for line in runtime.ask("operators")}
    assert sorted(kernels - called) == sorted(WITHOUT_CASES)


def describe(case: Any) -> str:
    """The call, with the dtypes and shapes of tensors instead of their elements."""

    def short(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return f"{str(value.dtype)[6:]}{list(value.shape)}"
        return [short(one) for one in value] if isinstance(value, (list, tuple)) else value

    return f"{case.operator} {short(case.arguments)} {case.keywords}"


def find_fault(compare: str, ours: Any, theirs: Any, eager: list[torch.Tensor]) -> str | None:
    """The reason why our results are wrong, or `None`. They must equal torch's, or ExecuTorch's if these differ from torch's."""
    if isinstance(ours, str):
        return None if isinstance(theirs, str) else f"our runtime failed: {ours}"
    if [one.shape for one in ours] != [one.shape for one in eager] and isinstance(theirs, str):
        return f"shapes {[list(one.shape) for one in ours]}, torch {[list(one.shape) for one in eager]}"
    if compare == "shape":
        return None
    as_torch = all(map(close, ours, eager))
    if isinstance(theirs, str):
        return None if as_torch else f"ours {ours}\n  torch {eager}\n  (ExecuTorch: {theirs})"
    as_peer = all(map(close, ours, theirs))
    peer_as_torch = all(map(close, theirs, eager))
    if as_torch or (as_peer and not peer_as_torch):
        return None
    return f"ours {ours}\n  theirs {theirs}\n  torch {eager}"


NUMBERS: list[tuple[str, list[Any], Any]] = [
    ("add.Scalar", [3, 4], 7), ("add.Scalar", [3, 0.5], 3.5), ("sub.Scalar", [3, 4], -1), ("mul.Scalar", [3, -4], -12),
    ("mul.Scalar", [0.5, 4], 2.0), ("floordiv.Scalar", [-7, 2], -4), ("floordiv.Scalar", [7, 2], 3),
    ("floordiv.Scalar", [-7.0, 2], -4.0), ("floordiv.int", [7, 2], 3), ("truediv.Scalar", [7, 2], 3.5),
    ("mod.Scalar", [7, 4], 3), ("mod.int", [9, 4], 1), ("sym_float.Scalar", [3], 3.0), ("sym_int.Scalar", [2.75], 2),
    ("sym_int.Scalar", [True], 1), ("eq.Scalar", [3, 3], True), ("eq.Scalar", [True, False], False), ("gt.Scalar", [3, 2.5], True),
    ("lt.Scalar", [3, 2.5], False), ("ge.Scalar", [3, 3], True), ("le.Scalar", [4, 3], False), ("neg.Scalar", [3], -3),
    ("neg.Scalar", [0.5], -0.5), ("sym_not.Scalar", [True], False), ("sym_ite.Scalar", [True, 3, 4], 3),
    ("sym_ite.Scalar", [False, 3, 0.5], 0.5), ("sym_max.Scalar", [3, 4], 4), ("sym_min.Scalar", [3, 4], 3),
    ("ceil.Scalar", [2.25], 3), ("round.Scalar", [2.5], 2), ("round.Scalar", [3.5], 4), ("trunc.Scalar", [-2.75], -2),
]


def test_scalar_kernels_return_expected_values(runtime: Runtime, tmp_path: Path) -> None:
    from executorch.exir import schema

    from oracle.corpora.kernel_programs import Builder, write

    builders, expected = [], {}

    def begin(name: str, wanted: Any) -> Builder:
        builder = Builder(f"{name.replace('.', '_')}_{len(builders)}")
        builders.append(builder)
        expected[builder.plan.name] = wanted
        return builder

    def finish(builder: Builder, name: str, overload: str, places: list[int]) -> None:
        out = builder.add(schema.Int(0))
        builder.call(name, overload, [*places, out])
        builder.plan.outputs = [out]

    for name, values, wanted in NUMBERS:
        builder = begin(name, wanted)
        places = [builder.value(value, "") for value in values]
        finish(builder, f"executorch_prim::{name.partition('.')[0]}", name.partition(".")[2], places)
    tensor = torch.randn(3, 5)
    builder = begin("size", 5)
    finish(builder, "aten::sym_size", "int", [builder.input(tensor), builder.add(schema.Int(1))])
    builder = begin("numel", 15)
    finish(builder, "aten::sym_numel", "", [builder.input(tensor)])
    for value in (torch.tensor(7), torch.tensor([0.5]), torch.tensor(True)):
        builder = begin("item", value.item())
        finish(builder, "aten::_local_scalar_dense", "", [builder.input(value)])

    write(tmp_path / "numbers.pte", builders)
    given = {builder.plan.name: builder.given for builder in builders}
    theirs = peer(tmp_path / "numbers.pte", given, tmp_path / "peer")
    runtime.ask("load", tmp_path / "numbers.pte")
    for name, wanted in expected.items():
        runtime.ask("method", name)
        [ours] = runtime.run(given[name])
        assert ours == wanted and type(ours) is type(wanted), f"{name}: {ours}, not {wanted}"
        assert theirs[name] == [wanted], f"{name}: ExecuTorch returns {theirs[name]}"


def test_in_place_kernels_match_torch(runtime: Runtime, tmp_path: Path) -> None:
    from executorch.exir import schema

    from oracle.corpora.kernel_programs import Builder, write

    x, row = torch.randn(4, 3), torch.randn(3)
    builders, expected = [], {}

    def finish(builder: Builder, name: str, overload: str, places: list[int], out: int, wanted: torch.Tensor) -> None:
        builder.call(name, overload, places)
        builder.plan.outputs = [out]
        builders.append(builder)
        expected[builder.plan.name] = wanted

    builder = Builder("copy")
    to = builder.input(x)
    places = [to, builder.input(row), builder.add(schema.Bool(False)), to]
    finish(builder, "aten::copy_", "", places, to, row.expand(4, 3))

    builder = Builder("put")
    to, index = builder.input(x), torch.tensor([2, 0])
    places = [to, builder.list([index], "List[Optional[Tensor]]"), builder.input(torch.stack([row, -row])), builder.add(schema.Bool(False))]
    wanted = x.clone()
    wanted[index] = torch.stack([row, -row])
    finish(builder, "aten::index_put_", "", [*places, to], to, wanted)

    builder = Builder("view")
    source, out = builder.input(x), builder.tensor(torch.empty(2, 6))
    places = [source, builder.list([2, -1], "List[int]"), out]
    finish(builder, "executorch_prim::et_view", "default", places, out, x.reshape(2, 6))

    builder = Builder("add_in_place")
    to = builder.input(x)
    # The sum overwrites an operand, which a memory plan may do.
    place = builder.plan.values[to].val.allocation_info.memory_offset
    out = builder.tensor(x, place=place)
    places = [to, builder.input(row), builder.add(schema.Int(1)), out, out]
    finish(builder, "aten::add", "out", places, out, x + row)

    builder = Builder("transpose_in_place")
    square = torch.randn(4, 4)
    to = builder.input(square)
    place = builder.plan.values[to].val.allocation_info.memory_offset
    out = builder.tensor(square, place=place)
    finish(builder, "aten::t_copy", "out", [to, out, out], out, square.T)

    for builder in builders:
        write(tmp_path / "written.pte", [builder])
        runtime.ask("load", tmp_path / "written.pte")
        runtime.ask("method", builder.plan.name)
        for _ in range(2):
            [ours] = runtime.run(builder.given)
            assert close(ours, expected[builder.plan.name]), builder.plan.name
        if "in_place" not in builder.plan.name:
            # In-place outputs of ExecuTorch are not compared: its kernels read elements that they have overwritten.
            theirs = peer(tmp_path / "written.pte", {builder.plan.name: builder.given}, tmp_path / builder.plan.name)
            [found] = theirs[builder.plan.name]
            assert close(found, expected[builder.plan.name]), builder.plan.name


PROGRAMS = [
    "convolutions", "attention", "growing", "condition", "mapped", "scanned", "counter", "cache", "unplanned", "mixed",
    "spectrum", "several", "external",
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_match_torch_and_executorch(name: str, runtime: Runtime, tmp_path: Path) -> None:
    from executorch.runtime import Runtime as Peer

    from oracle.corpora.runtime_programs import programs

    made = programs(tmp_path)[name]()
    data = {"data_path": str(made.data[0])} if made.data else {}
    theirs = Peer.get().load_program(str(made.path), **data)
    methods = {method: theirs.load_method(method) for method, _, _ in made.runs}
    assert sorted(runtime.ask("load", made.path, *made.data)) == sorted(theirs.method_names)
    loaded = None
    for method, values, eager in made.runs:
        if method != loaded:
            runtime.ask("method", method)
            loaded = method
        ours = runtime.run(values)
        peer_results = methods[method].execute(values)
        assert len(ours) == len(eager) == len(peer_results)
        for one, other, wanted in zip(ours, peer_results, eager, strict=True):
            assert close(one, wanted), f"ours {one}\ntorch {wanted}\nExecuTorch {other}"
            assert close(one, other), f"ours {one}\ntorch {wanted}\nExecuTorch {other}"


def test_reloaded_method_starts_from_initial_state(runtime: Runtime, tmp_path: Path) -> None:
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

    from oracle.corpora.runtime_programs import Counter, EdgeCompileConfig, ExecutorchBackendConfig, to_edge

    counter = Counter()
    counter.total += torch.tensor([1.0, 2.0, 3.0])
    exported = torch.export.export(counter, (torch.ones(3),))
    edge = to_edge(exported, compile_config=EdgeCompileConfig(_check_ir_validity=False))
    config = ExecutorchBackendConfig(passes=[InitializedMutableBufferPass(["total"])])
    path = tmp_path / "counter.pte"
    path.write_bytes(edge.to_executorch(config).buffer)
    runtime.ask("load", path)
    for _ in range(2):
        runtime.ask("method", "forward")
        for step in (1, 2, 3):
            [found] = runtime.run([torch.ones(3)])
            assert torch.equal(found, (torch.tensor([1.0, 2.0, 3.0]) + step) * 2)
