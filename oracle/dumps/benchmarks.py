"""Prints the README with the table of `docs/benchmarks.json`, which `cargo xtask bench convert --record` writes."""

import json
import os
import platform
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from oracle.support.pages import with_part

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "docs/benchmarks.json"
BEGIN, END = "<!-- benchmarks -->\n", "<!-- end of benchmarks -->\n"
NAMES = {
    "mobilenet_v2": "MobileNetV2",
    "resnet50": "ResNet-50",
    "vit_b_16": "ViT-B/16",
    "llama_prefill": "Llama, prefill",
}
PEERS = {"convert": "coremltools", "lower": "executorch"}
#: The recorded fields of a result.
KEPT = ["ours", "theirs", "times", "memory"]


def processor() -> str:
    """The name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def record(what: str, lines: list[dict[str, Any]], file: Path = RECORDED) -> None:
    """Replaces the figures of one command, with the machine, the date and the peer's version."""
    figures = json.loads(file.read_text()) if file.exists() else {}
    figures[what] = {
        "date": date.today().isoformat(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "peer": {"name": PEERS[what], "version": version(PEERS[what])},
        "torch": version("torch"),
        "models": {line["model"]: {key: line[key] for key in KEPT} for line in lines},
    }
    file.write_text(json.dumps(figures, indent=2) + "\n")


def seconds(duration: float) -> str:
    return f"{duration * 1000:.0f} ms" if duration < 1 else f"{duration:.1f} s"


def table(figures: dict[str, Any]) -> str:
    """The figures as Markdown."""
    rows = ["| | peer | coremill | faster | peak memory |", "|---|---|---|---|---|"]
    for what, measured in figures.items():
        for name, line in measured["models"].items():
            rows.append(
                f"| `{what}` {NAMES[name]} | {seconds(line['theirs'])} | {seconds(line['ours'])} | "
                f"**{line['times']:.0f} ×** | {line['memory'] / 1e6:.0f} MB |"
            )
    notes = [
        f"`{what}` is compared with {measured['peer']['name']} {measured['peer']['version']} (torch {measured['torch']}, "
        f"{measured['processor']}, {measured['cores']} cores, {measured['date']})."
        for what, measured in figures.items()
    ]
    rule = (
        "coremill's time is the whole command, from file to file. The peer's time is only its conversion, without imports, "
        "decompositions and writing. Reproduce the table with `cargo xtask bench convert --record` and "
        "`cargo xtask bench lower --record`."
    )
    return "\n".join([*rows, "", *notes, rule]) + "\n"


def page(readme: str, figures: dict[str, Any]) -> str:
    """The README with the table between its markers."""
    return with_part(readme, BEGIN, END, table(figures))


if __name__ == "__main__":
    print(page((ROOT / "README.md").read_text(), json.loads(RECORDED.read_text())), end="")
