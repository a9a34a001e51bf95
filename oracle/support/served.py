"""A client of our runtime for ExecuTorch's programs."""

import subprocess
from pathlib import Path
from typing import Any

import torch

#: The runtime's names of element types.
NAMES = {
    torch.uint8: "Byte", torch.int8: "Char", torch.int16: "Short", torch.int32: "Int", torch.int64: "Long",
    torch.float16: "Half", torch.float32: "Float", torch.float64: "Double", torch.bool: "Bool",
    torch.bfloat16: "BFloat16", torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
}
TYPES = {name: dtype for dtype, name in NAMES.items()}


class Runtime:
    """Our runtime, in a process of the crate's example `serve`; tensors are exchanged as files in `folder`."""

    def __init__(self, folder: Path, program: Path) -> None:
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.folder = folder

    def close(self) -> None:
        """Ends the process."""
        self.process.stdin.close()
        self.process.wait()

    def ask(self, *words: Any) -> list[str]:
        """Sends a command. Returns the parts of the answer; raises an error if the command failed."""
        self.process.stdin.write("\t".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the runtime ended at {words}"
        kind, *parts = line.rstrip("\n").split("\t")
        if kind != "ok":
            raise RuntimeError(parts[0])
        return [part for part in parts if part]

    def run(self, values: list[Any]) -> list[Any]:
        """Runs the loaded method. Returns its outputs."""
        words = []
        for index, value in enumerate(values):
            words.append(self.write(value, self.folder / f"input{index}"))
        return [self.read(word) for word in self.ask("run", self.folder, *words)]

    def write(self, value: Any, file: Path) -> str:
        if value is None:
            return "none"
        if not isinstance(value, torch.Tensor):
            return f"{type(value).__name__.replace('float', 'double').replace('NoneType', 'none')}:{str(value).lower()}"
        order = list(range(value.dim()))
        elements = value.detach()
        if not value.is_contiguous():
            order = [0, 2, 3, 1]
            elements = elements.permute(order)
        file.write_bytes(bytes_of(elements.contiguous()))
        sizes = ",".join(map(str, value.shape))
        return f"{NAMES[value.dtype]}:{sizes}:{','.join(map(str, order))}:{file}"

    def read(self, word: str) -> Any:
        kind, _, rest = word.partition(":")
        if kind in ("int", "double", "bool", "none"):
            return {"int": int, "double": float, "bool": lambda text: text == "true", "none": lambda _: None}[kind](rest)
        sizes, order, file = rest.split(":", 2)
        sizes, order = ([int(one) for one in text.split(",") if one] for text in (sizes, order))
        data = Path(file).read_bytes()
        shape = [sizes[axis] for axis in order]
        flat = torch.frombuffer(bytearray(data), dtype=TYPES[kind]) if data else torch.empty(0, dtype=TYPES[kind])
        inverse = [order.index(axis) for axis in range(len(order))]
        return flat.reshape(shape).permute(inverse)


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The elements' bytes."""
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
