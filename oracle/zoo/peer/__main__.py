"""Command line of the baselines."""

import argparse
import json
import multiprocessing
import sys
import time
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from .worker import convert, lower, serve

#: The function that runs each peer, and the file of its results.
PEERS = {"coremltools": (convert, "peer.json"), "executorch": (lower, "peer_pte.json")}
#: Fields to print.
SHOWN = ("operations", "delegates", "bytes", "seconds")
#: A conversion that takes longer counts as failed.
SECONDS = 1200


class Worker:
    """A process and its current program."""

    def __init__(self, peer: str, keep: Path | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, PEERS[peer][0], keep), daemon=True)
        self.process.start()
        theirs.close()
        # Waits for the imports, so that they do not count as conversion time.
        self.connection.recv()
        self.name, self.started = "", 0.0

    def give(self, archive: Path) -> None:
        self.name, self.started = archive.stem, time.monotonic()
        self.connection.send(archive)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()


def run(peer: str, archives: list[Path], jobs: int, keep: Path | None) -> Any:
    """Yields each program's name and result."""
    waiting = list(reversed(archives))
    idle: list[Worker] = []
    busy: dict[Connection, Worker] = {}
    while waiting or busy:
        while waiting and len(busy) < jobs:
            worker = idle.pop() if idle else Worker(peer, keep)
            worker.give(waiting.pop())
            busy[worker.connection] = worker
        for connection in wait(list(busy), timeout=1):
            worker = busy.pop(connection)
            try:
                yield worker.name, connection.recv()
                idle.append(worker)
            except (EOFError, ConnectionError):
                worker.process.join()
                yield worker.name, {"failed": f"the process died with exit code {worker.process.exitcode}"}
        for connection, worker in list(busy.items()):
            if time.monotonic() - worker.started > SECONDS:
                worker.stop()
                del busy[connection]
                yield worker.name, {"failed": f"no result after {SECONDS} s"}
    for worker in idle:
        worker.stop()


def write(results: Path, lines: dict[str, Any]) -> None:
    """Writes one line per program, for readable diffs."""
    tools = {name: version(name) for name in ("coremltools", "executorch", "torch", "numpy")}
    body = ",\n".join(f"  {json.dumps(name)}: {json.dumps(line)}" for name, line in sorted(lines.items()))
    results.write_text(f'{{\n "tools": {json.dumps(tools)},\n "models": {{\n{body}\n }}\n}}\n')


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m oracle.zoo.peer", description="convert exports with coremltools, or lower them with ExecuTorch")
    parser.add_argument("exports", type=Path, metavar="EXPORTS", help="directory of the exported programs")
    parser.add_argument("--peer", choices=PEERS, default="coremltools", help="converter (default: coremltools)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these programs; the results of other programs are kept")
    parser.add_argument("--missing", action="store_true", help="only programs without results")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of processes (default: 1)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="also write the packages")
    options = parser.parse_args()
    archives = sorted(path for path in options.exports.glob("*.pt2") if path.stem.count(".") == 0)
    results = Path(__file__).parent.parent / PEERS[options.peer][1]
    lines = json.loads(results.read_text())["models"] if results.exists() else {}
    if options.only:
        archives = [path for path in archives if path.stem in options.only]
    elif options.missing:
        archives = [path for path in archives if path.stem not in lines]
    else:
        lines = {}
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    for count, (name, line) in enumerate(run(options.peer, archives, options.jobs, options.keep), 1):
        outcome = line.get("failed") or ", ".join(f"{what} {line[what]}" for what in SHOWN if what in line)
        print(f"[{count}/{len(archives)}] {name}: {outcome}", flush=True)
        lines[name] = line
        # Results are kept if the run is interrupted.
        write(results, lines)
    passed = sum("failed" not in line for line in lines.values())
    print(f"{passed} of {len(lines)} done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
