"""Runs methods in ExecuTorch's own runtime in a separate process, since its kernels may abort it."""

import sys
from pathlib import Path

import torch


def main(program: str, inputs: str, results: str, names: list[str]) -> None:
    """Executes methods, and writes the results after each."""
    from executorch.runtime import Runtime, Verification

    loaded = Runtime.get().load_program(Path(program).read_bytes(), verification=Verification.InternalConsistency)
    given = torch.load(inputs)
    for name in names:
        file = Path(results) / f"{name}.pt"
        file.with_suffix(".begun").touch()
        try:
            outputs = loaded.load_method(name).execute(given[name])
            outputs = [one.clone() if isinstance(one, torch.Tensor) else one for one in outputs]
        except RuntimeError as error:
            outputs = str(error)
        torch.save(outputs, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4].split(","))
