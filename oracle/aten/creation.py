"""Tensors created from sizes and numbers alone."""

from collections.abc import Iterator

import torch

from .case import Case, case, free, of, program, real

KINDS = (torch.float32, torch.float16, torch.float64, torch.int64, torch.int32, torch.bool)
RANDOM = {"exact": False}


def used(target: str, make: object, **settings: object) -> Case:
    """A created tensor that is added to an input."""
    return program(target, lambda x: x + make(), real(3, 4), **settings)


def cases() -> Iterator[Case]:
    for kind in KINDS:
        yield used("aten.zeros.default", lambda k=kind: torch.ops.aten.zeros.default([3, 4], dtype=k))
        yield used("aten.ones.default", lambda k=kind: torch.ops.aten.ones.default([4], dtype=k))
        yield used("aten.full.default", lambda k=kind: torch.ops.aten.full.default([3, 1], 1, dtype=k))
        for name in ("zeros_like", "ones_like"):
            yield case(f"aten.{name}.default", of(kind, 3, 4))
            yield case(f"aten.{name}.default", real(3, 4), dtype=kind)
        yield case("aten.full_like.default", of(kind, 3, 4), 1)
        yield case("aten.new_zeros.default", of(kind, 3, 4), [2, 2])
        yield case("aten.new_ones.default", of(kind, 3, 4), [2, 2])
        yield case("aten.new_full.default", of(kind, 3, 4), [2, 2], 1)
        yield case("aten.scalar_tensor.default", 1, dtype=kind)
    for value in (2.5, float("inf"), float("-inf"), torch.finfo(torch.float32).min, 1e-12):
        yield used("aten.full.default", lambda v=value: torch.ops.aten.full.default([3, 4], v), precisions=("fp32",))
        yield case("aten.full_like.default", real(3, 4), value, settings={"precisions": ("fp32",)})
    for name in ("zeros_like", "ones_like"):
        yield case(f"aten.{name}.default", free(real, (3, 4), (5, 4)))
    yield case("aten.full_like.default", free(real, (3, 4), (5, 4)), 1.5)
    yield case("aten.new_zeros.default", free(real, (3, 4), (5, 4)), [2, 3])
    yield program(
        "aten.full.default", lambda x: torch.full((x.shape[0], 2), 1.5) + x[:, :2], free(real, (3, 4), (5, 4))
    )
    yield program("aten.ones.default", lambda x: torch.ones(x.shape[0]) * x[:, 0], free(real, (3, 4), (5, 4)))
    yield program(
        "aten.zeros.default", lambda x: torch.zeros(x.shape[1], x.shape[0]) + x.t(), free(real, (3, 4), (5, 4))
    )
    for name in ("empty.memory_format", "empty_permuted.default", "empty_strided.default"):
        extra = {
            "empty.memory_format": ([3, 4],),
            "empty_permuted.default": ([3, 4], [0, 1]),
            "empty_strided.default": ([3, 4], [4, 1]),
        }[name]
        yield program(
            f"aten.{name}",
            lambda x, n=name, e=extra: (
                getattr(getattr(torch.ops.aten, n.split(".")[0]), n.split(".")[1])(*e).fill_(1.5) + x
            ),
            real(3, 4),
        )
    yield case("aten.empty_like.default", real(3, 4), settings=RANDOM)
    yield case("aten.new_empty.default", real(3, 4), [2, 2], settings=RANDOM)
    for arguments in ((5,), (2, 7), (0, 10, 3), (10, 0, -2), (0.0, 1.0, 0.25), (5.0,), (-3, 3)):
        name = {1: "default", 2: "start", 3: "start_step"}[len(arguments)]
        yield case(f"aten.arange.{name}", *arguments)
    for kind in (torch.float32, torch.int32, torch.float16):
        yield case("aten.arange.start_step", 0, 10, 3, dtype=kind)
    yield program("aten.arange.default", lambda x: torch.arange(x.shape[0]) + x[:, 0], free(real, (3, 4), (5, 4)))
    yield program("aten.arange.start", lambda x: torch.arange(1, x.shape[0] + 1) * x[:, 0], free(real, (3, 4), (5, 4)))
    yield program(
        "aten.arange.start_step", lambda x: torch.arange(0, 2 * x.shape[0], 2) * x[:, 0], free(real, (3, 4), (5, 4))
    )
    for steps in (1, 2, 5, 11):
        yield case("aten.linspace.default", -1.0, 2.0, steps)
    yield case("aten.linspace.default", 0, 10, 5, dtype=torch.int64)
    for steps in (1, 2, 7):
        yield case("aten.linspace.Tensor_Tensor", real(), real(), steps)
    yield case("aten.linspace.Tensor_Scalar", real(), 3, 6)
    yield case("aten.linspace.Scalar_Tensor", -2.5, real(), 6)
    yield case("aten.linspace.Tensor_Tensor", torch.tensor(-3), torch.tensor(10), 4)
    yield case("aten.linspace.Tensor_Tensor", torch.tensor(0), torch.tensor(10), 5, dtype=torch.int64)
    yield case("aten.logspace.default", 0.0, 2.0, 5)
    yield case("aten.eye.default", 4)
    yield case("aten.eye.m", 3, 5)
    yield case("aten.eye.default", 3, dtype=torch.int64)
    yield case("aten.tril_indices.default", 4, 4)
    yield program("aten.lift_fresh_copy.default", lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]), real(3, 4))
    yield program("aten.lift_fresh_copy.default", lambda x: x + torch.tensor(2), real(3, 4))
    yield program("aten.meshgrid.indexing", lambda x, y: torch.meshgrid(x, y, indexing="ij"), real(3), real(4))
    yield program("aten.meshgrid.indexing", lambda x, y: torch.meshgrid(x, y, indexing="xy"), real(3), real(4))
    for name in ("hann_window", "hamming_window", "blackman_window", "bartlett_window"):
        yield case(f"aten.{name}.default", 8)
        yield case(f"aten.{name}.periodic", 9, False)
    for name in ("rand", "randn"):
        yield case(f"aten.{name}.default", [3, 4], settings=RANDOM)
        yield case(f"aten.{name}_like.default", real(3, 4), settings=RANDOM)
    yield case("aten.randint.low", 2, 7, [3, 4], settings=RANDOM)
    yield case("aten.randint.default", 7, [3, 4], settings=RANDOM)
    yield case("aten.randperm.default", 6, settings=RANDOM)
    yield case(
        "aten.normal_functional.default" if hasattr(torch.ops.aten, "normal_functional") else "aten.randn_like.default",
        real(3, 4),
        settings=RANDOM,
    )
    yield case("aten.bernoulli.default", torch.full((3, 4), 0.5), settings=RANDOM)
