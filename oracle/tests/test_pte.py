"""Compares our reader of ExecuTorch programs with ExecuTorch's, which also reads and runs the programs that we write."""

import dataclasses
import hashlib
import json
import struct
import subprocess
from pathlib import Path
from typing import final

import coremltools
import pytest
import torch
from executorch import exir
from executorch.backends.apple.coreml import executorchcoreml
from executorch.exir import schema
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from executorch.extension.flat_tensor.serialize.serialize import FlatTensorConfig, FlatTensorSerializer
from executorch.runtime import Runtime, Verification
from torch import nn
from torch.export import Dim

from oracle.conftest import Command
from oracle.support.cargo import ROOT
from oracle.support.distance import within


class Convolutions(nn.Module):
    """Constants of several sizes; integers and booleans as arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3, padding=1)
        self.second = nn.Linear(5, 7)

    def forward(self, x: torch.Tensor) -> tuple:
        pooled = self.first(x).relu().mean((2, 3))
        return self.second(pooled), pooled.argmax(1), torch.split(pooled, [2, 3], 1)[1]


class Counter(nn.Module):
    """A mutable buffer with an initial value."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor([3.0, 4.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(x)
        return self.count * 2


class Choice(nn.Module):
    """A conditional with two branches."""

    def forward(self, which: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(which, lambda x: x.sin(), lambda x: x.cos() + 1, (x,))


class Picks(nn.Module):
    """A list of optional tensors, a dynamic size, and a number as input."""

    def forward(self, x: torch.Tensor, index: torch.Tensor, scale: float) -> torch.Tensor:
        return torch.cat([x[:, index], x[:, index] * 2], 0) * scale


@final
class Echo(BackendDetails):
    """A backend whose payload consists of the names of the nodes."""

    @staticmethod
    def preprocess(program: torch.export.ExportedProgram, specs: list[CompileSpec]) -> PreprocessResult:
        names = ",".join(node.name for node in program.graph.nodes)
        return PreprocessResult(processed_bytes=names.encode() * 50)


class EchoPartitioner(Partitioner):
    """Delegates each sine separately."""

    def partition(self, program: torch.export.ExportedProgram) -> PartitionResult:
        spec = DelegationSpec(Echo.__name__, [CompileSpec("key", b"\x00value"), CompileSpec("empty", b"")])
        tags = {}
        for index, node in enumerate(program.graph.nodes):
            if node.op == "call_function" and "sin" in str(node.target):
                node.meta["delegation_tag"] = f"tag{index}"
                tags[f"tag{index}"] = spec
        return PartitionResult(tagged_exported_program=program, partition_tags=tags)


class Sines(nn.Module):
    """Two sines with a sum between them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.sin() + 1).sin()


def lower(module: nn.Module, inputs: tuple, *, config: dict | None = None, **options: object) -> object:
    """Lowers a program with ExecuTorch."""
    dynamic = options.pop("dynamic", None)
    exported = torch.export.export(module.eval(), inputs, dynamic_shapes=dynamic, strict=False)
    partitioner = options.pop("partitioner", None)
    edge = exir.to_edge(exported)
    if partitioner is not None:
        edge = edge.to_backend(partitioner)
    return edge.to_executorch(exir.ExecutorchBackendConfig(**(config or {})))


X = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
PROGRAMS = {
    "convolutions": lambda: (lower(Convolutions(), (X,)), (X,)),
    "counter": lambda: (
        lower(
            Counter(),
            (torch.ones(2),),
            config={"passes": [InitializedMutableBufferPass(["count"])]},
        ),
        (torch.ones(2),),
    ),
    "choice": lambda: (lower(Choice(), (torch.tensor(True), X)), (torch.tensor(False), X)),
    "picks": lambda: (
        lower(
            Picks(),
            (torch.randn(2, 5), torch.tensor([1, 3]), 0.5),
            dynamic=({0: Dim("rows", max=9)}, None, None),
        ),
        (torch.randn(3, 5), torch.tensor([1, 3]), 0.5),
    ),
    "unplanned": lambda: (
        lower(
            Sines(),
            (X,),
            config={
                "memory_planning_pass": exir.passes.MemoryPlanningPass(
                    alloc_graph_input=False, alloc_graph_output=False
                ),
                "emit_stacktrace": True,
            },
        ),
        (X,),
    ),
    "nothing": lambda: (lower(Sines(), (X,), config={}), (X,)),
    "delegates": lambda: (lower(Sines(), (X,), partitioner=EchoPartitioner()), None),
    "inline": lambda: (
        lower(
            Sines(),
            (X,),
            partitioner=EchoPartitioner(),
            config={"extract_delegate_segments": False},
        ),
        None,
    ),
}


def dump(*files: Path, rewrite: Path | None = None) -> list[dict]:
    """The dump of our reader."""
    command = ["cargo", "run", "--quiet", "--package", "xtask", "--", "pte-dump", *map(str, files)]
    if rewrite is not None:
        command += ["--rewrite", str(rewrite)]
    run = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def digest(data: bytes) -> list:
    return [len(data), hashlib.sha256(data).hexdigest()]


def bits(number: float) -> str:
    return struct.pack(">d", number).hex()


def value_of(value: schema.EValue) -> list:
    """A value in the format of `dump`."""
    content = value.val
    name = type(content).__name__
    match content:
        case schema.Null():
            return [name]
        case schema.Double():
            return [name, bits(content.double_val)]
        case schema.DoubleList():
            return [name, [bits(item) for item in content.items]]
        case schema.Int() | schema.Bool() | schema.String():
            return [name, next(iter(dataclasses.asdict(content).values()))]
        case schema.Tensor():
            place = content.allocation_info
            extra = content.extra_tensor_info
            external = extra is not None and extra.location == schema.TensorDataLocation.EXTERNAL
            return [
                name,
                {
                    "scalar_type": int(content.scalar_type),
                    "sizes": list(content.sizes),
                    "dim_order": list(content.dim_order),
                    "dynamism": int(content.shape_dynamism),
                    "buffer": 0 if external else content.data_buffer_idx,
                    "place": place and [place.memory_id, place.memory_offset_low | place.memory_offset_high << 32],
                    "external": external,
                    "name": extra.fully_qualified_name if extra else None,
                    "requires_grad": content.requires_grad,
                },
            ]
        case _:
            return [name, list(content.items)]


def instruction_of(instruction: schema.Instruction) -> list:
    arguments = instruction.instr_args
    return [type(arguments).__name__, *dataclasses.asdict(arguments).values()]


def described(data: bytes) -> dict:
    """The dump of ExecuTorch's own reader, in the format of `dump`."""
    file = deserialize_pte_binary(data)
    program = file.program
    inline = program.backend_delegate_data
    return {
        "plans": [
            {
                "name": plan.name,
                "container": [plan.container_meta_type.encoded_inp_str, plan.container_meta_type.encoded_out_str],
                "values": [value_of(value) for value in plan.values],
                "inputs": plan.inputs,
                "outputs": plan.outputs,
                "chains": [
                    {
                        "inputs": chain.inputs,
                        "outputs": chain.outputs,
                        "instructions": [instruction_of(found) for found in chain.instructions],
                    }
                    for chain in plan.chains
                ],
                "operators": [[operator.name, operator.overload] for operator in plan.operators],
                "delegates": [
                    {
                        "id": delegate.id,
                        "data": digest(bytes(inline[delegate.processed.index].data)),
                        "compile_specs": [[spec.key, list(spec.value)] for spec in delegate.compile_specs],
                    }
                    for delegate in plan.delegates
                ],
                "arenas": plan.non_const_buffer_sizes[1:],
            }
            for plan in program.execution_plan
        ],
        "constants": len(program.constant_buffer) - 1 if program.constant_buffer else 0,
        "mutable_data": len(file.mutable_data) - 1 if file.mutable_data else 0,
        "named_data": [] if file.named_data is None else sorted(file.named_data.pte_data),
    }


def without_models(found: dict) -> dict:
    """Removes the parts that ExecuTorch's reader ignores."""
    plans = [
        {**plan, "delegates": [{k: v for k, v in one.items() if k != "model"} for one in plan["delegates"]]}
        for plan in found["plans"]
    ]
    return {
        "plans": plans,
        "constants": len(found["constants"]),
        "mutable_data": len(found["mutable_data"]),
        "named_data": sorted(name for name, _ in found["named_data"]),
    }


def execute(path: Path, inputs: tuple, method: str = "forward") -> list:
    program = Runtime.get().load_program(path, verification=Verification.InternalConsistency)
    return program.load_method(method).execute(inputs)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple]:
    """Every program: its file, the rewritten file, our reader's dump of both, and example inputs."""
    directory = tmp_path_factory.mktemp("programs")
    again = tmp_path_factory.mktemp("again")
    made = {name: make() for name, make in PROGRAMS.items()}
    for name, (program, _) in made.items():
        (directory / f"{name}.pte").write_bytes(program.buffer)
    files = [directory / f"{name}.pte" for name in made]
    found = dump(*files, rewrite=again)
    found_again = dump(*(again / file.name for file in files))
    return {
        name: (file, again / file.name, first, second, made[name][1])
        for name, file, first, second in zip(made, files, found, found_again, strict=True)
    }


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_dump_matches_executorch_reader(programs: dict[str, tuple], name: str) -> None:
    file, again, found, found_again, _ = programs[name]
    expected = described(file.read_bytes())
    assert without_models(found) == expected
    # A rewritten program has the same contents for both readers.
    assert found_again == found
    assert described(again.read_bytes()) == expected


@pytest.mark.parametrize("name", PROGRAMS)
def test_rewritten_programs_pass_executorch_verification(programs: dict[str, tuple], name: str) -> None:
    file, again, _, _, _ = programs[name]
    program = Runtime.get().load_program(again, verification=Verification.InternalConsistency)
    assert program.method_names == {"forward"}
    # Only the file with inline delegate data may grow: the data moves to aligned segments.
    assert again.stat().st_size <= file.stat().st_size or name == "inline"
    data = again.read_bytes()
    if data[8:12] == b"eh00":
        length, size, base, segments = struct.unpack_from("<IQQQ", data, 12)
        assert (length, base % 128, base + segments) == (32, 0, len(data))
        assert 0 <= base - size < 128


RUNNABLE = [name for name in PROGRAMS if name not in ("delegates", "inline")]


@pytest.mark.parametrize("name", RUNNABLE)
def test_rewritten_programs_return_equal_results(programs: dict[str, tuple], name: str) -> None:
    file, again, _, _, inputs = programs[name]
    before, after = execute(file, inputs), execute(again, inputs)
    assert len(before) == len(after) > 0
    for left, right in zip(before, after, strict=True):
        assert torch.equal(left, right)


def test_rewrite_keeps_initial_buffer_values(programs: dict[str, tuple]) -> None:
    _, again, found, _, inputs = programs["counter"]
    assert found["mutable_data"] == [digest(struct.pack("<2f", 3, 4))]
    (result,) = execute(again, inputs)
    assert torch.equal(result, torch.tensor([8.0, 10.0]))


def test_constant_sizes_match_module_parameters(programs: dict[str, tuple]) -> None:
    _, _, found, _, _ = programs["convolutions"]
    lengths = sorted(length for length, _ in found["constants"])
    wanted = sorted(parameter.numel() * 4 for parameter in Convolutions().parameters())
    assert [length for length in lengths if length in wanted] == wanted


def test_round_trips_multi_method_programs(tmp_path: Path) -> None:
    module = nn.Linear(64, 64)
    exported = {
        name: torch.export.export(module, (torch.randn(rows, 64),)) for name, rows in (("one", 1), ("two", 2))
    }
    program = exir.to_edge(exported, constant_methods={"version": 7}).to_executorch()
    file = tmp_path / "methods.pte"
    file.write_bytes(program.buffer)
    (tmp_path / "again").mkdir()
    (found,) = dump(file, rewrite=tmp_path / "again")
    assert without_models(found) == described(program.buffer)
    assert {plan["name"] for plan in found["plans"]} == {"one", "two", "version"}
    again = tmp_path / "again/methods.pte"
    x = torch.randn(2, 64)
    assert torch.equal(execute(again, (x,), "two")[0], execute(file, (x,), "two")[0])
    assert execute(again, (), "version") == [7]


def test_round_trips_external_tensor_data(tmp_path: Path) -> None:
    module = nn.Linear(8, 4)
    x = torch.randn(3, 8)
    edge = exir.to_edge(torch.export.export(module, (x,)))
    program = edge.to_executorch(exir.ExecutorchBackendConfig(external_constants=True))
    program.write_tensor_data_to_file(str(tmp_path))
    (file,) = tmp_path.glob("*.ptd")
    data = tmp_path / "model.pte"
    data.write_bytes(program.buffer)
    (tmp_path / "again").mkdir()
    external, found = dump(file, data, rewrite=tmp_path / "again")
    keys = {entry["key"]: entry for entry in external["entries"]}
    weight = keys["weight"]
    assert weight["data"] == digest(module.weight.detach().numpy().tobytes())
    assert weight["layout"] == [6, [4, 8], [0, 1]]
    names = {value[1]["name"] for value in found["plans"][0]["values"] if value[0] == "Tensor" and value[1]["external"]}
    assert names == set(keys) == {"weight", "bias"}

    written = tmp_path / "again" / file.name
    payload = FlatTensorSerializer(FlatTensorConfig()).deserialize(written.read_bytes())
    assert set(payload.named_data) == {"weight", "bias"}
    assert written.stat().st_size <= file.stat().st_size
    loaded = Runtime.get().load_program(tmp_path / "again/model.pte", data_path=written)
    (result,) = loaded.load_method("forward").execute((x,))
    assert within(result, module(x).detach(), relative=1e-5, absolute=1e-6)


def unpacked(data: bytes, directory: Path) -> dict[str, list | None]:
    """Unpacks a flattened directory with ExecuTorch; `None` for an empty directory."""
    assert executorchcoreml.unflatten_directory_contents(data, str(directory))
    (root,) = directory.iterdir()
    found = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_file():
            found[name] = digest(path.read_bytes())
        elif not any(path.iterdir()):
            found[name] = None
    return found


def blob(program: bytes, method: int = 0, delegate: int = 0) -> bytes:
    """The payload of a delegate, including named data."""
    file = deserialize_pte_binary(program)
    lowered = file.program.execution_plan[method].delegates[delegate]
    data = bytes(file.program.backend_delegate_data[lowered.processed.index].data)
    if data.startswith(b"CMJR"):
        entry = file.named_data.pte_data[json.loads(data[4:])["key"]]
        return bytes(file.named_data.buffers[entry.buffer_index])
    return data


def test_reads_coreml_model_packed_by_executorch(tmp_path: Path) -> None:
    file = ROOT / "crates/cli/tests/files/total.pte"
    (found,) = dump(file)
    (delegate,) = found["plans"][0]["delegates"]
    model = delegate["model"]
    assert model["files"] == unpacked(blob(file.read_bytes()), tmp_path)
    metadata = json.loads((tmp_path / "lowered_module/metadata.json").read_text())
    assert metadata == {
        "inputNames": model["inputs"],
        "outputNames": model["outputs"],
        "identifier": model["identifier"],
    }
    debug = json.loads((tmp_path / "lowered_module/debug_info.json").read_text())
    assert model["symbols"] == len(debug["debugSymbolToHandles"])


@pytest.mark.parametrize("sharing", ["positional", "disabled"])
def test_executorch_unpacks_our_coreml_models(coremill: Command, tmp_path: Path, sharing: str) -> None:
    archive = ROOT / "examples/digits.pt2"
    file = tmp_path / "digits.pte"
    methods = [f"{name}={archive}" for name in ("one", "two")]
    coremill("lower", *methods, "-o", file, "--weight-sharing", sharing)
    (found,) = dump(file)
    for method, plan in enumerate(found["plans"]):
        model = plan["delegates"][0]["model"]
        directory = tmp_path / plan["name"]
        directory.mkdir()
        assert model["files"] == unpacked(blob(file.read_bytes(), method), directory)
        root = directory / model["name"]
        metadata = json.loads((root / "metadata.json").read_text())
        metadata = metadata.get("methods", {plan["name"]: metadata})[plan["name"]]
        assert (metadata["inputNames"], metadata["outputNames"]) == (model["inputs"], model["outputs"])
        spec = coremltools.models.MLModel(str(root / "model.mlpackage"), skip_model_load=True).get_spec()
        functions = [spec.description, *spec.description.functions]
        assert any([feature.name for feature in one.input] == model["inputs"] for one in functions)


def test_extracted_package_matches_executorch_unpacking(coremill: Command, tmp_path: Path) -> None:
    file = ROOT / "crates/cli/tests/files/total.pte"
    coremill("extract", file, "-o", tmp_path / "ours")
    (tmp_path / "theirs").mkdir()
    unpacked(blob(file.read_bytes()), tmp_path / "theirs")
    ours, theirs = tmp_path / "ours/forward.mlpackage", tmp_path / "theirs/lowered_module/model.mlpackage"
    names = sorted(path.relative_to(theirs) for path in theirs.rglob("*"))
    assert names == sorted(path.relative_to(ours) for path in ours.rglob("*"))
    for name in names:
        if (theirs / name).is_file():
            assert (ours / name).read_bytes() == (theirs / name).read_bytes()
