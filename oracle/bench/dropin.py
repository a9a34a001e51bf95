"""Compares the time of partitioning and preprocessing in ExecuTorch's flow with ExecuTorch's own Core ML backend.

    PYTHONPATH=target/python python -m oracle.bench.dropin [--whole] [--only NAME ...] [--rounds N]

`cargo xtask bench dropin` builds the module and runs this with `--whole`, which measures the complete call that users wait
for by the wall clock: `to_edge_transform_and_lower`, `to_executorch` and writing the file, with stock ExecuTorch and with
the drop-in, and the imports of a script before its first line.

Without it, both lower the same exported program with `to_edge_transform_and_lower`, alternately and in separate processes.
The comparison covers the backends' parts: `ops_to_not_decompose`, `partition` and `preprocess`, with the copies that
ExecuTorch makes for them. It is measured in processor seconds of all threads, which do not depend on the load, and by the
wall clock. The share of ExecuTorch's own work is printed; `coremill.lower` of the same program avoids it. Annotation by
the quantizers is compared for the first model. If the environment variable COREMILL names the command, it is compared
with `coremill.convert` of programs in memory. ExecuTorch's own path is forced for that. Exits with 1 if a target is missed.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

#: Minimum speedup of the backend's part.
PROMISE = 50
#: Minimum speedup of annotation.
ANNOTATE = 100
#: Maximum time of a conversion in memory, relative to the command's.
CONVERT = 1.2
MODELS = ("mobilenet_v2", "vit_b_16", "llama")
#: The models of `--whole`, and the minimum speedup of the complete call.
WHOLE = ("mobilenet_v2", "resnet50", "vit_b_16", "llama_12", "mobilenet_v2_pt2e")
WHOLE_PROMISE = 20
#: ExecuTorch's script, and the minimum speedup of its whole process.
SCRIPT = "executorch.examples.apple.coreml.llama.export_static_llm_coreml"
SCRIPT_PROMISE = 2
#: Maximum time of our own imports before the first line of a script, in milliseconds.
IMPORT = 20
THEIRS, OURS = "executorch.backends.apple.coreml", "coremill.executorch"


def program(name: str) -> torch.export.ExportedProgram:
    """The exported program."""
    torch.manual_seed(0)
    if name.startswith("llama"):
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=4096, hidden_size=512, intermediate_size=1376, num_hidden_layers=12 if name == "llama_12" else 8,
            num_attention_heads=8, num_key_value_heads=4, use_cache=False,
        )

        class Logits(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = LlamaForCausalLM(config)

            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                return self.model(input_ids=ids).logits

        return torch.export.export(Logits().eval(), (torch.randint(0, 4096, (1, 64)),))
    import torchvision

    model = torchvision.models.get_model(name.removesuffix("_pt2e"), weights=None).eval()
    inputs = (torch.randn(1, 3, 224, 224),)
    if name.endswith("_pt2e"):
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

        from coremill.executorch.quantizer import CoreMLQuantizer
        from oracle.dropin.annotated import config

        quantizer = CoreMLQuantizer(config(f"{OURS}.quantizer.config", "static"))
        prepared = prepare_pt2e(torch.export.export(model, inputs).module(), quantizer)
        prepared(*inputs)
        model = convert_pt2e(prepared)
    return torch.export.export(model, inputs)


class Clock:
    """Adds up the time of calls; nested calls count once."""

    def __init__(self) -> None:
        self.seconds = self.processor = 0.0
        self.depth = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function to measure its time."""

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


def whole_call(backend: str, name: str) -> dict[str, float]:
    """Lowers and writes once, without counting imports and exports."""
    import importlib

    from executorch.exir import to_edge_transform_and_lower

    partitioner = importlib.import_module(f"{backend}.partition").CoreMLPartitioner
    compiler = importlib.import_module(f"{backend}.compiler").CoreMLBackend
    target = importlib.import_module("coremltools" if backend == THEIRS else backend).target
    exported = program(name)
    specs = compiler.generate_compile_specs(minimum_deployment_target=target.iOS17 if name.endswith("_pt2e") else None)
    with tempfile.TemporaryFile() as file:
        start, processor = time.perf_counter(), time.process_time()
        edge = to_edge_transform_and_lower(exported, partitioner=[partitioner(compile_specs=specs)])
        edge.to_executorch().write_to_file(file)
        took = {"clock": time.perf_counter() - start, "processor": time.process_time() - processor}
    if backend == OURS and type(edge).__name__ != "DirectEdgeManager":
        sys.exit(f"{name} was not lowered directly")
    return took


def static_llama(rounds: int) -> bool:
    """Prints the speedup of ExecuTorch's static Llama script. Returns whether the target is met."""
    from executorch.examples.models.llama.llama_transformer import construct_transformer
    from executorch.examples.models.llama.model_args import ModelArgs

    params = {
        "dim": 512, "hidden_dim": 1376, "n_layers": 8, "n_heads": 8, "n_kv_heads": 4, "vocab_size": 4096, "norm_eps": 1e-5, "rope_theta": 1e4,
    }  # fmt: skip
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        torch.save(construct_transformer(ModelArgs(max_context_len=128, **params)).state_dict(), f"{folder}/model.pth")
        with open(f"{folder}/params.json", "w") as file:
            json.dump(params, file)
        # The first runs compile modules.
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": f"{folder}/compiled"}
        options = ["-c", f"{folder}/model.pth", "-p", f"{folder}/params.json", "-o", f"{folder}/model.pte"]
        options += ["--max_context_len", "128", "--input_len", "32", "--multifunction"]

        def run(*words: str) -> tuple[float, float]:
            before, start = os.times(), time.perf_counter()
            subprocess.run([sys.executable, "-m", *words, *options], check=True, capture_output=True, env=environment)
            after = os.times()
            took = after.children_user - before.children_user + after.children_system - before.children_system
            return took, time.perf_counter() - start

        pairs = [(run(SCRIPT), run(OURS, "-m", SCRIPT)) for _ in range(rounds + 1)][1:]
    processor, clock = (statistics.median(theirs[at] / ours[at] for theirs, ours in pairs) for at in (0, 1))
    theirs, ours = (statistics.median(pair[at][0] for pair in pairs) for at in (0, 1))
    print(
        f"{'static_llama':17} {processor:5.1f} x faster (promised {SCRIPT_PROMISE}): {ours:.1f} beside {theirs:.1f} processor seconds;"
        f" by the clock {clock:.1f} x",
        flush=True,
    )
    return processor >= SCRIPT_PROMISE


def imports() -> dict[str, float]:
    """Milliseconds that `python -m coremill.executorch` takes for an empty script, and the share of our own imports."""
    with tempfile.TemporaryDirectory() as folder:
        script = f"{folder}/empty.py"
        open(script, "w").close()
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}

        def run(*words: str) -> tuple[float, str]:
            start = time.perf_counter()
            done = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True, env=environment)
            return (time.perf_counter() - start) * 1000, done.stderr

        ours = ("-m", "coremill.executorch", script)
        run(*ours)
        plain = statistics.median(run(script)[0] for _ in range(9))
        all_of_it = statistics.median(run(*ours)[0] for _ in range(9))

        def own() -> float:
            rows = [line.split("|") for line in run("-X", "importtime", *ours)[1].splitlines() if "|" in line]
            # The totals of the outermost modules include their imports.
            return sum(int(row[1]) for row in rows[1:] if row[2].startswith(" coremill")) / 1000

        return {"plain": plain, "all": all_of_it, "own": statistics.median(own() for _ in range(9))}


def measure(backend: str, name: str) -> dict[str, float]:
    """Lowers once, without counting imports and exports."""
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
    """Converts and saves alternately in memory and by the command. Returns the minimum seconds of each."""
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
    """Replaces a method of a class by a timed one."""
    found = owner.__dict__.get(name) or getattr(owner, name)
    if isinstance(found, classmethod):
        return classmethod(clock.around(found.__func__))
    if hasattr(found, "__self__"):
        return classmethod(clock.around(found.__func__))
    return clock.around(found)


def annotate(backend: str) -> dict[str, float]:
    """Annotates one model."""
    import importlib

    from oracle.dropin.annotated import config, graph

    library = "coremltools.optimize.torch.quantization" if backend == THEIRS else f"{OURS}.quantizer.config"
    quantizer = importlib.import_module(f"{backend}.quantizer").CoreMLQuantizer(config(library, "static"))
    module = graph("mobilenet")
    start, processor = time.perf_counter(), time.process_time()
    quantizer.annotate(module)
    return {"clock": time.perf_counter() - start, "backend": time.process_time() - processor}


def ask(*words: str) -> dict[str, float]:
    """Measures once in a separate process."""
    done = subprocess.run([sys.executable, "-m", "oracle.bench.dropin", "--measure", *words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def compare_whole(names: list[str], rounds: int) -> bool:
    """Prints the speedups of the complete call. Returns whether the targets are met."""
    kept = True
    print(f"{processor()}, {os.cpu_count()} threads")
    for name in names:
        if name == "static_llama":
            kept &= static_llama(rounds)
            continue
        if name == "imports":
            found = imports()
            kept &= found["own"] <= IMPORT
            print(
                f"imports           {found['own']:.1f} ms are our own (promised {IMPORT}); an empty script takes {found['all']:.0f} ms,"
                f" and {found['plain']:.0f} ms without coremill.executorch"
            )
            continue
        pairs = [(ask(f"whole {THEIRS}", name), ask(f"whole {OURS}", name)) for _ in range(rounds)]
        ratio = statistics.median(theirs["clock"] / ours["clock"] for theirs, ours in pairs)
        theirs, ours = (statistics.median(pair[at]["clock"] for pair in pairs) for at in (0, 1))
        kept &= ratio >= WHOLE_PROMISE
        print(f"{name:17} {ratio:5.0f} x faster (promised {WHOLE_PROMISE}): {ours:.3f} s beside {theirs:.2f} s", flush=True)
    return kept


def processor() -> str:
    """The name of the processor."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "an unknown processor"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whole", action="store_true", help="measure all of the call, with the drop-in as it is")
    parser.add_argument("--only", nargs="+", choices=[*MODELS, "annotate", *WHOLE, "static_llama", "imports"], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        backend, name = arguments.measure
        if backend.startswith("whole "):
            print(json.dumps(whole_call(backend.removeprefix("whole "), name)))
        elif backend == "convert":
            print(json.dumps(convert(name, os.environ["COREMILL"])))
        else:
            print(json.dumps(annotate(backend) if name == "annotate" else measure(backend, name)))
        return
    if arguments.whole:
        sys.exit(0 if compare_whole(arguments.only or [*WHOLE, "static_llama", "imports"], arguments.rounds) else 1)
    kept = True
    os.environ["COREMILL_EXECUTORCH"] = "slow"
    for name in arguments.only or [*MODELS, "annotate"]:
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
