"""Measures torch, onnxruntime and OpenVINO, with which the engine is compared, on the models of `oracle.bench.models`.

    python -m oracle.bench.engine DIR --threads N [--peers torch onnxruntime openvino]

Ratios of times are meaningful only if both sides run alternately on the same machine, so the process that measures the
engine controls this one. With one thread, the processor time is measured, with more threads the wall-clock time. It reads
commands from standard input, one per line, and answers each with one line of JSON:

    run MODEL COUNT [PEER]    COUNT timed runs of each peer (or of this one), as
                              {"model": ..., "threads": ..., "milliseconds": {PEER: [...]}}
    drop MODEL                frees a model's memory, as {"dropped": ...}
    end                       stops, as does the end of the input

The first `run` of a model loads it and runs it some times to warm up. With `--all COUNT`, no commands are read: every
model is run COUNT times, and the medians are printed.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import onnxruntime
import openvino
import torch

from oracle.bench.models import MODELS, instance

PEERS = ("torch", "onnxruntime", "openvino")
WARM_UP = 3

Runner = Callable[[], object]


def torch_runner(name: str, directory: Path, threads: int) -> Runner:
    """Eager torch, with the parameters of the package."""
    module, inputs = instance(next(model for model in MODELS if model.name == name))
    given = tuple(inputs.values())
    # The fused layers of `nn.TransformerEncoder` are part of eager torch's performance.
    torch.backends.mha.set_fastpath_enabled(True)

    def run() -> object:
        with torch.inference_mode():
            return module(*given)

    return run


def onnxruntime_runner(name: str, directory: Path, threads: int) -> Runner:
    """onnxruntime on the ONNX twin, with all optimizations."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Its threads may spin during a run, but not afterwards, while another peer runs.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(directory / f"{name}.onnx", options, providers=["CPUExecutionProvider"])
    arrays = numpy.load(directory / f"{name}.inputs.npz")
    feed = {one.name: arrays[one.name] for one in session.get_inputs()}
    return lambda: session.run(None, feed)


def openvino_runner(name: str, directory: Path, threads: int) -> Runner:
    """OpenVINO on the ONNX twin, in fp32."""
    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    model = openvino.Core().compile_model(directory / f"{name}.onnx", "CPU", settings)
    request = model.create_infer_request()
    arrays = numpy.load(directory / f"{name}.inputs.npz")
    feed = {port.any_name: arrays[port.any_name] for port in model.inputs}
    return lambda: request.infer(feed)


RUNNERS = {"torch": torch_runner, "onnxruntime": onnxruntime_runner, "openvino": openvino_runner}


def milliseconds(run: Runner, threads: int) -> float:
    """The time of one run; with one thread that of the process, which the load hardly affects."""
    clock = time.process_time if threads == 1 else time.perf_counter
    started = clock()
    run()
    return (clock() - started) * 1000


class Bench:
    """The loaded peers."""

    def __init__(self, directory: Path, threads: int, peers: list[str]) -> None:
        self.directory, self.threads, self.peers = directory, threads, peers
        self.loaded: dict[tuple[str, str], Runner] = {}
        torch.set_num_threads(threads)
        torch.set_num_interop_threads(1)

    def runner(self, name: str, peer: str) -> Runner:
        """The model in this peer, after warm-up runs."""
        key = (name, peer)
        if key not in self.loaded:
            self.loaded[key] = RUNNERS[peer](name, self.directory, self.threads)
            for _ in range(WARM_UP):
                self.loaded[key]()
        return self.loaded[key]

    def run(self, name: str, count: int, peers: list[str]) -> dict[str, object]:
        """The times of `count` runs per peer, alternately."""
        runners = {peer: self.runner(name, peer) for peer in peers}
        times: dict[str, list[float]] = {peer: [] for peer in peers}
        for _ in range(count):
            for peer, runner in runners.items():
                times[peer].append(round(milliseconds(runner, self.threads), 4))
        return {"model": name, "threads": self.threads, "milliseconds": times}

    def drop(self, name: str) -> dict[str, object]:
        """Frees a model's memory."""
        for key in [key for key in self.loaded if key[0] == name]:
            del self.loaded[key]
        gc.collect()
        return {"dropped": name}

    def answer(self, line: str) -> dict[str, object]:
        """Runs one command of the input."""
        match line.split():
            case ["run", name, count, *peer] if self.known(name) and count.isdigit() and set(peer) <= set(PEERS):
                return self.run(name, int(count), peer or self.peers)
            case ["drop", name] if self.known(name):
                return self.drop(name)
        return {
            "error": f"the command `{line.strip()}` is neither `run MODEL COUNT [PEER]` nor `drop MODEL`, or "
            f"names no model of {', '.join(model.name for model in MODELS if model.twin)}"
        }

    @staticmethod
    def known(name: str) -> bool:
        """Whether the peers can run it: it must have an ONNX twin."""
        return any(model.name == name and model.twin for model in MODELS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m oracle.bench.engine", description="time torch, onnxruntime and OpenVINO")
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory that `oracle.bench.models` wrote")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of each peer (default: 1)")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS), help="peers to time")
    parser.add_argument("--all", type=int, metavar="COUNT", help="run every model, print medians, and stop")
    options = parser.parse_args()
    bench = Bench(options.directory, options.threads, options.peers)
    if options.all:
        for model in MODELS:
            if model.twin:
                result = bench.run(model.name, options.all, options.peers)
                medians = {peer: statistics.median(times) for peer, times in result["milliseconds"].items()}
                print(json.dumps({"model": model.name, "threads": options.threads, "median": medians}), flush=True)
                bench.drop(model.name)
        return 0
    for line in sys.stdin:
        if line.strip() == "end":
            break
        if line.strip():
            print(json.dumps(bench.answer(line)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
