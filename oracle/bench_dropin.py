"""How long partitioning and preprocessing take inside ExecuTorch's flow, beside ExecuTorch's own Core ML backend.

    PYTHONPATH=target/python python -m oracle.bench_dropin [--only NAME ...] [--rounds N]

Both lower the same exported program with `to_edge_transform_and_lower`, each in a process of its own, in turns. What is
compared is what the backends do: `ops_to_not_decompose`, `partition` and `preprocess`, with the copies that ExecuTorch
makes for them; in the processor's seconds, all threads together, as what else the machine does must not count, and by the
clock. The rest is ExecuTorch's own, and its share is told; `coremill.lower` of the same program avoids it. The annotation
of the quantizers is compared for the first model, and `coremill.convert` of programs in memory with the command on the
same archives if the environment variable COREMILL names the command. Ends with 1 if a promise is not kept.
"""

import argparse
import json
import os
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
#: How much of the command's time a conversion in memory may take.
CONVERT = 1.2
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
        self.seconds = self.processor = 0.0
        self.depth = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            self.depth += 1
            start, processor = time.perf_counter(), time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.depth -= 1
                if self.depth == 0:
                    self.seconds += time.perf_counter() - start
                    self.processor += time.process_time() - processor

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
    start = time.process_time()
    to_edge_transform_and_lower(exported, partitioner=[partitioner()]).to_executorch()
    found = {"clock": clock.seconds, "backend": clock.processor, "all": time.process_time() - start}
    if backend == OURS:
        import coremill

        exported = program(name)
        start = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            coremill.lower(exported).save(f"{folder}/model.pte")
        found["lower"] = time.process_time() - start
    return found


def convert(name: str, command: str) -> dict[str, float]:
    """Convert and save in memory and by the command, in turns: the least seconds of each."""
    import coremill

    exported = program(name)
    memory, archive = [], []
    with tempfile.TemporaryDirectory() as folder:
        torch.export.save(exported, f"{folder}/model.pt2")
        for _ in range(5):
            start = time.perf_counter()
            coremill.convert(exported).save(f"{folder}/memory.mlpackage")
            memory.append(time.perf_counter() - start)
            start = time.perf_counter()
            line = [command, "convert", f"{folder}/model.pt2", "-o", f"{folder}/archive.mlpackage"]
            subprocess.run(line, check=True, capture_output=True)
            archive.append(time.perf_counter() - start)
    return {"memory": min(memory), "archive": min(archive)}


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
    start, processor = time.perf_counter(), time.process_time()
    quantizer.annotate(module)
    return {"clock": time.perf_counter() - start, "backend": time.process_time() - processor}


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
        if backend == "convert":
            print(json.dumps(convert(name, os.environ["COREMILL"])))
        else:
            print(json.dumps(annotate(backend) if name == "annotate" else measure(backend, name)))
        return
    kept = True
    for name in arguments.only:
        rounds = [(ask(THEIRS, name), ask(OURS, name)) for _ in range(arguments.rounds)]
        ratio, clock = (statistics.median(theirs[key] / ours[key] for theirs, ours in rounds) for key in ("backend", "clock"))
        promise = ANNOTATE if name == "annotate" else PROMISE
        kept &= ratio >= promise
        line = f"{name:14} {ratio:7.0f} x faster (promised {promise}), by the clock {clock:.0f} x"
        if name != "annotate":
            share = statistics.median(1 - ours["backend"] / ours["all"] for _, ours in rounds)
            whole = statistics.median(theirs["all"] / ours["all"] for theirs, ours in rounds)
            direct = statistics.median(ours["all"] / ours["lower"] for _, ours in rounds)
            line += f"; all of the flow {whole:.1f} x, {share:.0%} of which is ExecuTorch's own; coremill.lower is {direct:.0f} x faster than the flow"
            if "COREMILL" in os.environ:
                found = ask("convert", name)
                share = found["memory"] / found["archive"]
                kept &= share <= CONVERT
                line += f"; coremill.convert takes {share:.2f} of the command's time (promised {CONVERT})"
        print(line, flush=True)
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
