"""How long partitioning and preprocessing take inside ExecuTorch's flow, beside ExecuTorch's own Core ML backend.

    PYTHONPATH=target/python python -m oracle.bench_dropin [--only NAME ...] [--rounds N]

Both lower the same exported program with `to_edge_transform_and_lower`, each in a process of its own, in turns. What is
compared is what the backends do: `ops_to_not_decompose`, `partition` and `preprocess`, with the copies that ExecuTorch
makes for them. The rest is ExecuTorch's own, and its share is told; `coremill.lower` of the same program avoids it. The
annotation of the quantizers is compared for the first model. Ends with 1 if a promise is not kept.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

#: How many times faster the backend's part must be.
PROMISE = 50
#: How many times faster marking must be.
ANNOTATE = 100
MODELS = ("mobilenet_v2", "vit_b_16", "llama")
THEIRS, OURS = "executorch.backends.apple.coreml", "coremill.executorch"


def program(name: str) -> torch.export.ExportedProgram:
    """The exported program."""
    torch.manual_seed(0)
    if name == "llama":
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=4096, hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8,
            num_key_value_heads=4, use_cache=False,
        )

        class Logits(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = LlamaForCausalLM(config)

            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                return self.model(input_ids=ids).logits

        return torch.export.export(Logits().eval(), (torch.randint(0, 4096, (1, 64)),))
    import torchvision

    model = torchvision.models.get_model(name, weights=None).eval()
    return torch.export.export(model, (torch.randn(1, 3, 224, 224),))


class Clock:
    """Adds up the time of calls, those within one another once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.depth = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            self.depth += 1
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.depth -= 1
                if self.depth == 0:
                    self.seconds += time.perf_counter() - start

        return timed


def measure(backend: str, name: str) -> dict[str, float]:
    """Lower once, without imports and exports."""
    import importlib

    from executorch.exir import to_edge_transform_and_lower

    partition = importlib.import_module(f"{backend}.partition.coreml_partitioner")
    compiler = importlib.import_module(f"{backend}.compiler.coreml_preprocess")
    clock = Clock()
    partitioner, coreml = partition.CoreMLPartitioner, compiler.CoreMLBackend
    for one, names in ((partitioner, ("partition", "ops_to_not_decompose")), (coreml, ("copy_exported_program_for_preprocess", "preprocess_multimethod"))):
        for method in names:
            setattr(one, method, in_place(one, method, clock))
    exported = program(name)
    start = time.perf_counter()
    to_edge_transform_and_lower(exported, partitioner=[partitioner()]).to_executorch()
    found = {"backend": clock.seconds, "all": time.perf_counter() - start}
    if backend == OURS:
        import coremill

        exported = program(name)
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            coremill.lower(exported).save(f"{folder}/model.pte")
        found["lower"] = time.perf_counter() - start
    return found


def in_place(owner: type, name: str, clock: Clock) -> Any:
    """A method of a class, timed."""
    found = owner.__dict__.get(name) or getattr(owner, name)
    if isinstance(found, classmethod):
        return classmethod(clock.around(found.__func__))
    if hasattr(found, "__self__"):
        return classmethod(clock.around(found.__func__))
    return clock.around(found)


def annotate(backend: str) -> dict[str, float]:
    """Mark one model."""
    import importlib

    from oracle.dropin.annotated import config, graph

    library = "coremltools.optimize.torch.quantization" if backend == THEIRS else f"{OURS}.quantizer.config"
    quantizer = importlib.import_module(f"{backend}.quantizer").CoreMLQuantizer(config(library, "static"))
    module = graph("mobilenet")
    start = time.perf_counter()
    quantizer.annotate(module)
    return {"all": time.perf_counter() - start}


def ask(*words: str) -> dict[str, float]:
    """One measurement in a process of its own."""
    done = subprocess.run([sys.executable, "-m", "oracle.bench_dropin", "--measure", *words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[*MODELS, "annotate"], choices=[*MODELS, "annotate"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        backend, name = arguments.measure
        print(json.dumps(annotate(backend) if name == "annotate" else measure(backend, name)))
        return
    kept = True
    for name in arguments.only:
        rounds = [(ask(THEIRS, name), ask(OURS, name)) for _ in range(arguments.rounds)]
        key = "all" if name == "annotate" else "backend"
        ratio = statistics.median(theirs[key] / ours[key] for theirs, ours in rounds)
        promise = ANNOTATE if name == "annotate" else PROMISE
        kept &= ratio >= promise
        line = f"{name:14} {ratio:7.0f} x faster (promised {promise})"
        if name != "annotate":
            share = statistics.median(1 - ours["backend"] / ours["all"] for _, ours in rounds)
            whole = statistics.median(theirs["all"] / ours["all"] for theirs, ours in rounds)
            direct = statistics.median(ours["all"] / ours["lower"] for _, ours in rounds)
            line += f"; all of the flow {whole:.1f} x, {share:.0%} of which is ExecuTorch's own; coremill.lower is {direct:.0f} x faster than the flow"
        print(line, flush=True)
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
