"""Complex arithmetic between real inputs and real outputs, and Fourier transforms."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .case import Case, positive, program, real

LOOSE = {"fp32": 2e-4, "fp16": 2e-2}
Function = Callable[[torch.Tensor], Any]

#: Functions of complex numbers; the result is split into real and imaginary parts.
UNARY: dict[str, Function] = {
    "neg.default": lambda z: -z, "exp.default": torch.exp, "conj.default": torch.conj, "mul.Tensor": lambda z: z * z, "mul.Scalar": lambda z: z * (1 - 2j),
    "add.Tensor": lambda z: z + 1, "sub.Tensor": lambda z: (2 + 1j) - z, "div.Tensor": lambda z: z / (z + 3), "reciprocal.default": lambda z: 1 / (z + 3),
    "sum.dim_IntList": lambda z: z.sum(0), "mean.dim": lambda z: z.mean(1), "reshape.default": lambda z: z.reshape(-1), "transpose.int": lambda z: z.t(),
    "cat.default": lambda z: torch.cat([z, z * 1j], 1), "slice.Tensor": lambda z: z[1:, ::2], "unsqueeze.default": lambda z: z[:, None] * z[None],
    "matmul.default": lambda z: z @ z.mT, "pow.Tensor_Scalar": lambda z: z**2, "cos.default": torch.cos, "sin.default": torch.sin, "tanh.default": torch.tanh,
    "expand.default": lambda z: z[:1].expand(3, -1) * 2, "flip.default": lambda z: z.flip(0), "stack.default": lambda z: torch.stack([z, z.conj()]),
    "select.int": lambda z: z[1] * z[0], "sqrt.default": torch.sqrt, "log.default": torch.log, "cumsum.default": lambda z: z.cumsum(0),
    "where.self": lambda z: torch.where(z.real > 0, z, z * 2), "addmm.default": lambda z: torch.addmm(z[:3, :3], z, z.mT),
    "einsum.default": lambda z: torch.einsum("ij,kj->ik", z, z.conj()), "linear.default": lambda z: torch.nn.functional.linear(z, z[:2], z[0, :2]),
    "pow.Tensor_Tensor": lambda z: z ** (z * 0.5), "vdot.default": lambda z: torch.vdot(z[0], z[1])[None],
    "baddbmm.default": lambda z: torch.baddbmm(z[None, :, :3], z[None], z.mT[None]), "conv1d.default": lambda z: torch.nn.functional.conv1d(z[None], z[None, :, :2]),
    "linalg_vector_norm.default": lambda z: torch.linalg.vector_norm(z, dim=1) + 0j, "inner.default": lambda z: torch.inner(z, z),
}  # fmt: skip
#: Fourier transforms of a real matrix.
TRANSFORMS: dict[str, Function] = {
    "fft": torch.fft.fft, "fft_ortho": lambda x: torch.fft.fft(x, norm="ortho"), "fft_forward": lambda x: torch.fft.fft(x, norm="forward"),
    "fft_longer": lambda x: torch.fft.fft(x, n=10), "fft_shorter": lambda x: torch.fft.fft(x, n=5), "fft_first": lambda x: torch.fft.fft(x, dim=0),
    "ifft": lambda x: torch.fft.ifft(x * (1 + 1j)), "rfft": torch.fft.rfft, "rfft_ortho": lambda x: torch.fft.rfft(x, norm="ortho"),
    "rfft_odd": lambda x: torch.fft.rfft(x, n=7), "fft2": torch.fft.fft2, "ifft2": lambda x: torch.fft.ifft2(x * (1 - 1j)), "rfft2": torch.fft.rfft2,
    "fftn": lambda x: torch.fft.fftn(x.reshape(2, 2, 8)), "rfftn": lambda x: torch.fft.rfftn(x.reshape(2, 2, 8)), "hfft": lambda x: torch.fft.hfft(x + 0j) + 0j,
    "fftshift": lambda x: torch.fft.fftshift(torch.fft.fft(x)), "ifftshift": lambda x: torch.fft.ifftshift(torch.fft.fft(x)),
}  # fmt: skip
INVERSE: dict[str, Function] = {
    "irfft": lambda x: torch.fft.irfft(torch.fft.rfft(x) * 0.5), "irfft_odd": lambda x: torch.fft.irfft(torch.fft.rfft(x), n=7),
    "irfft2": lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * (0.5 + 0.25j)), "irfftn": lambda x: torch.fft.irfftn(torch.fft.rfftn(x)),
    "there_and_back": lambda x: torch.fft.ifft(torch.fft.fft(x)).real, "fnet": lambda x: torch.fft.fftn(x[None], dim=(1, 2)).real,
    "irfft_ortho": lambda x: torch.fft.irfft(torch.fft.rfft(x, norm="ortho"), norm="ortho"), "fftfreq": lambda x: x * torch.fft.fftfreq(8),
}  # fmt: skip


def split(z: torch.Tensor) -> torch.Tensor:
    """The real and imaginary parts, since outputs must be real."""
    return torch.view_as_real(z.resolve_conj())


def cases() -> Iterator[Case]:
    for name, function in UNARY.items():
        yield program(
            f"aten.complex_{name}",
            lambda x, y, f=function: split(f(torch.complex(x, y))),
            real(3, 4),
            positive(3, 4),
            tolerance=LOOSE,
        )
    for name, function in {
        "real": torch.real,
        "imag": torch.imag,
        "abs": torch.abs,
        "angle": torch.angle,
        "view_as_real": torch.view_as_real,
    }.items():
        yield program(
            f"aten.{name}.default", lambda x, y, f=function: f(torch.complex(x, y)), real(3, 4), positive(3, 4)
        )
        yield program(f"aten.{name}.default", lambda x, y, f=function: f(torch.complex(x, y)), real(5), positive(5))
    yield program("aten.view_as_complex.default", lambda x: (torch.view_as_complex(x) * 2j).real, real(3, 4, 2))
    yield program("aten.polar.default", lambda x, y: split(torch.polar(x, y)), positive(3, 4), real(3, 4))
    yield program("aten.complex.default", lambda x: split(torch.complex(x, torch.zeros_like(x)) * (1 + 1j)), real(3, 4))
    yield program("aten._to_copy.default", lambda x: split(x.to(torch.complex64) * 1j), real(3, 4))
    yield program("aten.eq.Tensor", lambda x, y: torch.complex(x, y) == torch.complex(x, x), real(3, 4), real(3, 4))
    yield program("aten.mul.Tensor", lambda x, y: split(torch.complex(x, y) * x), real(3, 4), real(3, 4))
    constant = torch.complex(real(4), real(4))
    yield program("aten.mul.Tensor", lambda x: split(x * constant), real(3, 4))
    yield program("aten.matmul.default", lambda x: split(x.to(torch.complex64) @ constant), real(3, 4))
    for name, function in TRANSFORMS.items():
        yield program(f"aten.fft_{name}", lambda x, f=function: split(f(x)), real(4, 8), tolerance=LOOSE)
        yield program(f"aten.fft_{name}", lambda x, f=function: f(x).abs(), real(4, 8), tolerance=LOOSE)
    for name in ("fft", "rfft"):
        yield program(
            f"aten.fft_{name}.default", lambda x, n=name: split(getattr(torch.fft, n)(x)), real(4, 8), tolerance=LOOSE
        )
        yield program(
            f"aten.fft_{name}2.default",
            lambda x, n=name: split(getattr(torch.fft, f"{n}2")(x)),
            real(4, 8),
            tolerance=LOOSE,
        )
        yield program(
            f"aten.fft_{name}n.default",
            lambda x, n=name: split(getattr(torch.fft, f"{n}n")(x)),
            real(2, 4, 8),
            tolerance=LOOSE,
        )
    yield program("aten.fft_ifft.default", lambda x: split(torch.fft.ifft(x)), real(4, 8), tolerance=LOOSE)
    yield program(
        "aten.fft_irfft.default", lambda x: torch.fft.irfft(torch.complex(x, x * 0.5)), real(4, 5), tolerance=LOOSE
    )
    yield program("aten.fft_fftshift.default", torch.fft.fftshift, real(4, 5))
    yield program(
        "aten._conj.default",
        lambda x, y: split(torch.ops.aten._conj.default(torch.complex(x, y)) * 2),
        real(3, 4),
        real(3, 4),
    )
    for dims, how in itertools.product(([1], [0], [0, 1]), (0, 1, 2)):
        # Operators that remain after decomposition, with each normalization: none, by the root of the size, by the
        # size.
        yield program(
            "aten._fft_r2c.default",
            lambda x, d=dims, h=how: split(torch.ops.aten._fft_r2c.default(x, d, h, True)),
            real(4, 8),
            tolerance=LOOSE,
        )
        yield program(
            "aten._fft_c2c.default",
            lambda x, d=dims, h=how: split(torch.ops.aten._fft_c2c.default(x + 0j, d, h, True)),
            real(4, 8),
            tolerance=LOOSE,
        )
        yield program(
            "aten._fft_c2c.default",
            lambda x, d=dims, h=how: split(torch.ops.aten._fft_c2c.default(x * (1 + 1j), d, h, False)),
            real(4, 8),
            tolerance=LOOSE,
        )
        yield program(
            "aten._fft_c2r.default",
            lambda x, d=dims, h=how: torch.ops.aten._fft_c2r.default(
                torch.ops.aten._fft_r2c.default(x, d, 0, True), d, h, 8 if d[-1] else 4
            ),
            real(4, 8),
            tolerance=LOOSE,
        )
    for name, function in INVERSE.items():
        yield program(f"aten.fft_{name}", function, real(4, 8), tolerance=LOOSE)
    window = torch.hann_window(16)
    for centred, hop, normal in ((True, 8, False), (False, 4, False), (True, 5, True)):
        yield program(
            "aten.stft.center",
            lambda x, c=centred, h=hop, n=normal: split(
                torch.stft(x, 16, h, window=window, center=c, normalized=n, return_complex=True)
            ),
            real(2, 48),
            tolerance=LOOSE,
        )
    yield program(
        "aten.stft.default",
        lambda x: torch.stft(x, 16, 8, window=window, return_complex=True).abs().square().clamp(min=1e-4).log(),
        real(48),
        tolerance={"fp32": 1e-3, "fp16": 3e-2},
    )
    for shape, centered in (((2, 48), True), ((48,), False)):
        yield program(
            "aten.stft.default",
            lambda x, c=centered: split(
                torch.stft(torch.complex(x, 0.5 - x), 16, 5, window=window, center=c, return_complex=True)
            ),
            real(*shape),
            tolerance=LOOSE,
        )
    yield program(
        "aten.istft.default",
        lambda x: torch.istft(
            torch.stft(x, 16, 4, window=window, return_complex=True), 16, 4, window=window, length=48
        ),
        real(2, 48),
        tolerance=LOOSE,
    )
