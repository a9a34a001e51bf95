"""Lowers programs that call operators of their own without ExecuTorch's decompositions, and by its own path, and compares
the results in ExecuTorch's runtime.

It runs in its own process, as `paths.py` does:

    python -m coremill.executorch oracle/dropin/breaks.py RESULTS [CASE...]
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import coremltools as ct
import torch
from executorch.backends.apple.coreml.compiler.coreml_preprocess import MULTIMETHOD_WEIGHT_SHARING_STRATEGY as STRATEGY
from executorch.backends.apple.coreml.compiler.coreml_preprocess import CoreMLBackend
from executorch.examples.apple.coreml.llama import export_static_llm_coreml as script
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig
from executorch.exir.backend.utils import format_delegated_graph
from executorch.exir.passes import MemoryPlanningPass
from executorch.runtime import Runtime
from torch import nn
from torchao.quantization.granularity import PerAxis
from torchao.quantization.quant_api import IntxWeightOnlyConfig, quantize_

from oracle.dropin.paths import CASES, TOLERANCE, VARIABLE, Call, Flow, Method, both, case, compare, main, reasons, with_specs
from oracle.support.distance import distance

LIBRARY = torch.library.Library("coremill_oracle", "DEF")
LIBRARY.define("twice(Tensor x) -> Tensor")
LIBRARY.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
graph_break = torch.ops.executorch_utils.graph_break.Tensor
#: What the script passes to `to_executorch`.
CONFIG = {
    "extract_delegate_segments": True,
    "do_quant_fusion_and_const_prop": True,
    "memory_planning_pass": MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False),
}


class Broken(nn.Module):
    """Quantized layers with graph breaks between them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 32)
        self.first, self.second = nn.Linear(32, 64, bias=False), nn.Linear(64, 32, bias=False)
        self.norm = nn.LayerNorm(32)
        quantize_(self, IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0)), lambda one, _: isinstance(one, nn.Embedding))
        quantize_(self, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerAxis(0)))

    def forward(self, tokens: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        x = graph_break(self.embedding(tokens))
        inner = torch.nn.functional.silu(self.first(x * scale))
        y = graph_break(self.norm(self.second(inner) + x))
        return {"sum": y.sum(-1), "inner": inner}


class Breaks(Flow):
    """The script's flow."""

    def edge(self, programs: Any) -> Any:
        made = super().edge(programs)
        # Both paths give ExecuTorch's manager.
        assert type(made).__name__ == "EdgeProgramManager", type(made)
        for name in made.methods:
            text = format_delegated_graph(made.exported_program(name).graph_module)
            assert text.count("backend_id: CoreMLBackend") == 3 and "graph_break" in text, text
        script.remove_graph_break_(made)
        return made


def broken(lengths: dict[str, int]) -> dict[str, Method]:
    module = Broken()
    calls = {
        name: [(torch.randint(0, 40, (1, length), dtype=torch.int32), torch.rand(1, length, 32) + 0.5) for _ in range(2)]
        for name, length in lengths.items()
    }
    return {name: Method(module, calls[name]) for name in lengths}


@case
def graph_breaks() -> None:
    """Delegates between graph breaks, which a script removes from the graph."""
    positional = CoreMLBackend.generate_multimethod_weight_sharing_strategy_compile_spec(STRATEGY.POSITIONAL)
    own = {"take_over_mutable_buffer": False}
    for lengths in ({"forward": 3}, {"forward": 1, "prefill": 4}):
        flow = Breaks(
            with_specs(positional, minimum_deployment_target=ct.target.iOS18, own=own),
            {"compile_config": EdgeCompileConfig(_check_ir_validity=False), "constant_methods": {"rows": torch.ones(3), "size": 4}},
            lambda: ExecutorchBackendConfig(**CONFIG),
        )
        fast, slow = both(broken(lengths), flow)
        plans = [one.executorch_program.execution_plan for one in (fast, slow)]
        assert [len(plan.delegates) for plan in plans[0]] == [len(plan.delegates) for plan in plans[1]]
        assert len(fast.buffer) <= len(slow.buffer) * 1.02, (len(fast.buffer), len(slow.buffer))


@case
def static_llama() -> None:
    """ExecuTorch's static Llama script, unmodified, with two methods."""
    from executorch.examples.models.llama.llama_transformer import construct_transformer
    from executorch.examples.models.llama.model_args import ModelArgs

    params = {"dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 96, "norm_eps": 1e-5, "rope_theta": 1e4}
    torch.save(construct_transformer(ModelArgs(max_context_len=32, **params)).state_dict(), "model.pth")
    Path("params.json").write_text(json.dumps(params))
    made = {}
    for path in ("fast", "slow"):
        os.environ[VARIABLE] = path
        reasons.clear()
        output = f"{path}.pte"
        arguments = ["-c", "model.pth", "-p", "params.json", "-o", output, "--max_context_len", "32", "--input_len", "4"]
        with mock.patch.object(sys, "argv", ["script", *arguments, "--multifunction"]):
            script.main()
        assert path == "slow" or not reasons, reasons
        made[path] = Runtime.get().load_program(Path(output).read_bytes())
    fast, slow = made["fast"], made["slow"]
    assert fast.method_names == slow.method_names
    for name in ("forward", "prefill"):
        agree(fast, slow, name)
    for name in fast.method_names - {"forward", "prefill"}:
        [one], [two] = (program.load_method(name).execute(()) for program in (fast, slow))
        assert torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two, name


def agree(fast: Any, slow: Any, name: str) -> None:
    """Compares a method of two programs on random inputs of the shapes that it describes."""
    metadata = [program.metadata(name) for program in (fast, slow)]
    kinds = {3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32}
    inputs: list[torch.Tensor] = []
    for at in range(metadata[0].num_inputs()):
        ours, theirs = (one.input_tensor_meta(at) for one in metadata)
        assert (ours.sizes(), ours.dtype()) == (theirs.sizes(), theirs.dtype()), at
        kind, sizes = kinds[ours.dtype()], tuple(ours.sizes())
        # Integers are tokens, or the index of the last one; caches, masks and rotations are small numbers.
        inputs.append(torch.zeros(sizes, dtype=kind) if kind is torch.int64 else (torch.rand(sizes) * (96 if kind is torch.int32 else 1)).to(kind))
    results = [[one.clone() for one in program.load_method(name).execute(inputs)] for program in (fast, slow)]
    assert len(results[0]) == len(results[1]) > 1
    for at, (ours, theirs) in enumerate(zip(*results, strict=True)):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), at
        assert theirs.std() > 0 or theirs.numel() == 1, at
        assert (off := distance(ours, theirs, 1e-6)) <= 2 * TOLERANCE, f"{name}, result {at} differs by {off}"


@case
def copies_and_further_passes() -> None:
    """The manager is ExecuTorch's: copies and further passes give the same program."""
    import copy

    from torch.fx.passes.infra.pass_base import PassResult

    methods = broken({"forward": 3})
    os.environ[VARIABLE] = "fast"
    flow = Breaks(with_specs(minimum_deployment_target=ct.target.iOS18))
    edge = flow.edge(methods["forward"].program)
    assert not reasons, reasons
    program = edge.to_executorch()
    for one in (copy.deepcopy(edge), edge.transform([lambda module: PassResult(module, False)])):
        compare(one.to_executorch(), program, methods, 0.0)
    # Programs of delegates compute what they did.
    [first, *_] = [one for one in edge.exported_program().graph_module.children() if hasattr(one, "original_module")]
    tokens = methods["forward"].calls[0][0]
    [found] = first.original_module.module()(tokens)
    assert torch.equal(found, methods["forward"].module.embedding(tokens))


@case
def operators_changed_by_executorch_passes() -> None:
    """Programs that ExecuTorch's passes would change take its path, and the log contains the reason."""

    def refused(expected: str, function: Callable[..., Any], dynamic: Any = None, **options: Any) -> None:
        made = []
        for path in ("fast", "slow"):
            os.environ[VARIABLE] = path
            reasons.clear()
            method = Method(Call(function), [(torch.randn(4, 3),)], dynamic)
            edge = Flow(options=options).edge(method.program)
            assert len(reasons) == 1 and (path == "slow" or expected in reasons[0]), (expected, reasons)
            made.append(str(edge.exported_program().graph))
        assert made[0] == made[1], made

    twice = torch.ops.coremill_oracle.twice
    config = EdgeCompileConfig(_check_ir_validity=False)
    refused("twice", lambda self, x: twice(torch.relu(x)).add_(1), compile_config=config)
    refused("twice", lambda self, x: twice(torch.relu(x)) + 1, {"args": ({0: torch.export.Dim("n", max=8)},)}, compile_config=config)
    refused("twice", lambda self, x: twice(torch.relu(x)).reshape(1, 1, 1, 1, 4, 3), compile_config=config)
    refused("argmax", lambda self, x: twice(torch.relu(x)).argmax() + 1, compile_config=config)


if __name__ == "__main__":
    own = [name for name, function in CASES.items() if function.__module__ == "__main__"]
    main(sys.argv[1], sys.argv[2:] or own)
