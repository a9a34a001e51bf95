"""Writes the archive of an old torch with its description: `python -m oracle.corpora.archives FOLDER`, run by that torch.

torch 2.5.1, 2.6.0, 2.7.1 and 2.8.0 wrote the files in `crates/pt2/tests/archives`.
"""

import io
import json
import re
import sys
from pathlib import Path

import torch
from torch import nn

from oracle.dumps.exported import describe


class Small(nn.Module):
    """A module with features that older archive layouts store differently."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Linear(4, 3)
        self.second = nn.Linear(4, 3)
        self.second.weight = self.first.weight
        self.turned = nn.Parameter(torch.randn(3, 2).t())
        self.register_buffer("brief", torch.randn(3).bfloat16())
        self.register_buffer("tiny", torch.arange(-3, 3, dtype=torch.int8))
        self.register_buffer("passing", torch.arange(3.0), persistent=False)
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: torch.Tensor, pair: dict, *, scale: float = 2.0) -> tuple:
        y = torch.clamp(self.first(x) + self.second(x) * scale, float("-inf"), 9.5) + self.brief.float()
        self.count.add_(1)
        indices = torch.max(y, 1)[1]
        z = pair["left"] @ self.turned

        def yes(a: torch.Tensor) -> tuple:
            return (a.sin(),)

        def no(a: torch.Tensor) -> tuple:
            return (a.cos() - 1,)

        chosen = torch.cond(pair["flag"], yes, no, (z,))[0]
        return indices, {"z": chosen}, self.count * self.passing + self.tiny[:3] * torch.tensor([1.0, 2.0, 3.0])


def main(folder: Path) -> None:
    """Writes both files."""
    x = torch.randn(2, 4)
    pair = {"left": torch.randn(2, 2), "flag": torch.tensor(True)}
    shapes = {"x": {0: torch.export.Dim("rows", min=2, max=64)}, "pair": {"left": None, "flag": None}, "scale": None}
    program = torch.export.export(Small(), (x, pair), {"scale": 3.0}, dynamic_shapes=shapes)
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else []:
            # Removes the paths of this machine.
            trace = node.meta.get("stack_trace")
            if trace:
                node.meta["stack_trace"] = re.sub(r'File "[^"]*/(oracle|torch)/', r'File "\1/', trace)
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={"note.txt": "kept"})
    name = f"torch-{torch.__version__.split('+')[0]}"
    (folder / f"{name}.pt2").write_bytes(buffer.getvalue())
    (folder / f"{name}.json").write_text(json.dumps(describe(program), indent=None, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
