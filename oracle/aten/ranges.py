"""Functions over the full range of an element type, with the relative error of each result.

A grid holds numbers of every magnitude of the type, with both signs, zero and the neighborhood of 1. Complex
functions run on all pairs of them. The reference is the function in fp64 or complex128. Excluded are arguments whose
result is outside the type's normal range, angles above 1000, and zeros and infinities, where formulas on real numbers
differ from torch: the reciprocal of 0 has two NaN where torch has one, and a root of infinity has one where torch has
none.

Exceptions, in which torch's fp32 has no more digits than ours: `gelu` below -4 (`1 + erf(x)` cancels), `sinc` above 0.95 (its
zeros), `tanhshrink` near 0, `logaddexp2` where its result is nearly 0, and vectors whose squared length is not a normal number.
Another exception: `lgamma` near its zeros, where the absolute error is below 3e-6.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

from .case import Case, program

#: Maximum relative error of a result.
BOUND = {"fp32": 2e-5, "fp16": 1e-2}
KINDS = {"fp32": torch.float32, "fp16": torch.float16}
MOST_ANGLE = 1000.0

#: Complex functions, and the part of the argument that is an angle.
COMPLEX: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "abs.default": (lambda z: z.abs() + 0j, ""), "sgn.default": (torch.sgn, ""), "reciprocal.default": (torch.reciprocal, ""),
    "sqrt.default": (torch.sqrt, ""), "rsqrt.default": (torch.rsqrt, ""), "log.default": (torch.log, ""), "log1p.default": (torch.log1p, ""),
    "exp.default": (torch.exp, "imag"), "sinh.default": (torch.sinh, "imag"), "cosh.default": (torch.cosh, "imag"), "tanh.default": (torch.tanh, "imag"),
    "sigmoid.default": (torch.sigmoid, "imag"), "sin.default": (torch.sin, "real"), "cos.default": (torch.cos, "real"), "tan.default": (torch.tan, "real"),
    "div.Tensor": (lambda z: z / (z.flip(0) + 0), ""),
}  # fmt: skip
#: Unary functions, and the bounds of their arguments. Arguments whose results are not normal numbers are excluded anyway.
REAL: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float, float]] = {
    "erfc.default": (torch.erfc, -12, 9.1), "special_erfcx.default": (torch.special.erfcx, -9.3, 1e30),
    "special_ndtr.default": (torch.special.ndtr, -4, 12), "special_log_ndtr.default": (torch.special.log_ndtr, -1e9, 10),
    "reciprocal.default": (torch.reciprocal, -1e38, 1e38), "rsqrt.default": (torch.rsqrt, 1e-37, 3e38), "sqrt.default": (torch.sqrt, 1e-37, 3e38),
    **{f"{function.__name__}.default": (function, -MOST_ANGLE, MOST_ANGLE) for function in (torch.sin, torch.cos, torch.tan)},
    **{
        f"{function.__name__}.default": (function, -math.inf, math.inf)
        for function in (
            torch.exp, torch.exp2, torch.expm1, torch.log, torch.log2, torch.log10, torch.log1p, torch.square,
            torch.asin, torch.acos, torch.atan, torch.sinh, torch.cosh, torch.tanh, torch.asinh, torch.acosh, torch.atanh,
            torch.sigmoid, torch.erf, torch.erfinv, torch.logit, torch.lgamma, torch.digamma, torch.i0, torch.special.entr,
            functional.silu, functional.mish, functional.elu, functional.selu, functional.celu, functional.softplus,
            functional.softsign,
        )
    },
    "log_sigmoid_forward.default": (functional.logsigmoid, -math.inf, math.inf),
    "special_ndtri.default": (torch.special.ndtri, 0, 1),
    **{
        f"special_{function.__name__.removeprefix('special_')}.default": (function, -math.inf, math.inf)
        for function in (torch.special.i0e, torch.special.i1, torch.special.i1e, torch.special.spherical_bessel_j0)
    },
    "polygamma.default": (lambda x: torch.polygamma(1, x), -10, math.inf),
    "special_polygamma.default": (lambda x: torch.polygamma(2, x), -10, math.inf),
    "special_zeta.default": (lambda x: torch.special.zeta(torch.full_like(x, 2.5), x), 0, math.inf),
    "gelu.default": (functional.gelu, -4, math.inf), "sinc.default": (torch.sinc, -0.95, 0.95),
    "pow.Tensor_Scalar": (lambda x: x**3, -math.inf, math.inf),
    "pow.Scalar": (lambda x: 0.7**x, -math.inf, math.inf),
    "deg2rad.default": (torch.deg2rad, -math.inf, math.inf),
}  # fmt: skip
#: Binary functions, which run on all pairs of numbers.
BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "hypot.default": torch.hypot, "atan2.default": torch.atan2, "pow.Tensor_Tensor": torch.pow, "xlogy.Tensor": torch.xlogy,
    "logaddexp.default": torch.logaddexp, "div.Tensor": torch.div, "mul.Tensor": torch.mul,
}  # fmt: skip
#: Functions of rows; each row has another scale.
ROWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "std.correction": lambda x: x.std(1), "std_mean.correction": lambda x: torch.std_mean(x, 1)[0],
    "var.correction": lambda x: x.var(1), "linalg_vector_norm.default": lambda x: torch.linalg.vector_norm(x, dim=1),
    "logsumexp.default": lambda x: x.logsumexp(1), "_softmax.default": lambda x: x.softmax(1)[:, 1], "_log_softmax.default": lambda x: x.log_softmax(1)[:, 1],
    "cosine_similarity.default": lambda x: torch.cosine_similarity(x, x.roll(1, 1), 1),
}  # fmt: skip


def exact(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that it is exported unchanged and computes the reference in fp64."""

    def run(*given: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return function(*given)
        wide = [one.to(torch.complex128 if one.is_complex() else torch.float64) for one in given]
        return function(*wide)

    return run


def grid(precision: str) -> torch.Tensor:
    """Numbers of every magnitude, and numbers near 1 and other points where functions change."""
    known = torch.finfo(KINDS[precision])
    low, high = torch.tensor([known.tiny * 4, known.max / 4], dtype=torch.float64).log2().tolist()
    sizes = 1.37 * 2 ** torch.linspace(low, high, 17, dtype=torch.float64)
    about = torch.tensor([0.1, 0.5, 0.9, 0.999, 1.0, 1.001, 1.1, 2.0, 5.0, 8.9, 9.1, 20.0, 44.5, 88.0, 100.0], dtype=torch.float64)
    sizes = torch.cat([sizes, about])
    return torch.cat([-sizes, sizes]).to(KINDS[precision]).to(torch.float64)


def inverse_scale(results: torch.Tensor, precision: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the mask of normal results, and the power of two that scales each of them to about 1."""
    known = torch.finfo(KINDS[precision])
    sizes = results.abs()
    normal = torch.isfinite(sizes) & (sizes > known.tiny * 4) & (sizes < known.max / 4)
    exponents = torch.where(normal, sizes, 1.0).log2().floor()
    return normal, 2.0**-exponents


def cases() -> Iterator[Case]:
    for precision in KINDS:
        settings = {"precisions": (precision,), "tolerance": BOUND}
        numbers = grid(precision)
        pairs = torch.complex(*(part.flatten() for part in torch.meshgrid(numbers, numbers, indexing="ij")))
        for name, (function, angle) in COMPLEX.items():
            normal, inverse = inverse_scale(function(pairs), precision)
            if angle:
                normal &= getattr(pairs, angle).abs() < MOST_ANGLE
            if name.startswith("div"):
                # The divisors are the dividends in reverse order.
                normal &= normal.flip(0)
                kept, inverse = pairs[normal], inverse[normal]
                inverse = inverse_scale(function(kept), precision)[1]
            else:
                kept, inverse = pairs[normal], inverse[normal]
            inverse = inverse.float()[:, None]

            def of_parts(x: torch.Tensor, y: torch.Tensor, f: Any = function, s: torch.Tensor = inverse) -> torch.Tensor:
                return torch.view_as_real(exact(f)(torch.complex(x, y)).resolve_conj()) * s

            real, imaginary = kept.real.float(), kept.imag.float()
            yield program(f"aten.complex_{name}", rounded(of_parts), real, imaginary, **settings)
        for name, (function, low, high) in REAL.items():
            kept = numbers[(numbers > low) & (numbers < high)]
            normal, inverse = inverse_scale(function(kept), precision)
            if "polygamma" in name:
                # torch's fp64 result is finite at the poles.
                normal &= (kept > 0) | (kept != kept.round())
            if name.startswith("lgamma"):
                # Near its zeros, the absolute error is that of neighboring results.
                normal &= function(kept).abs() > 0.1
            kept, inverse = kept[normal].float(), inverse[normal].float()
            yield program(f"aten.{name}", rounded(lambda x, f=function, s=inverse: exact(f)(x) * s), kept, **settings)
        x, y = pairs.real, pairs.imag
        for name, both in BINARY.items():
            normal, inverse = inverse_scale(both(x, y), precision)
            inverse = inverse[normal].float()
            given = [part[normal].float() for part in (x, y)]
            yield program(f"aten.{name}", rounded(lambda x, y, f=both, s=inverse: exact(f)(x, y) * s), *given, **settings)
        scales = numbers[numbers > 0]
        row = torch.tensor([0.5, -0.25, 0.125, 1.0, -0.75, 0.375, 0.0], dtype=torch.float64)
        rows = (scales[:, None] * row).to(KINDS[precision]).to(torch.float64)
        for name, of_rows in ROWS.items():
            normal, inverse = inverse_scale(of_rows(rows), precision)
            if name.startswith("cosine"):
                # For shorter vectors an epsilon replaces the length; for longer ones the length overflows in torch's
                # fp32, too.
                normal &= (scales > 1e-3) & (scales < 1e15)
            if name.startswith("linalg_vector_norm"):
                # The sum of the squares leaves the range of torch's fp32, too.
                normal &= (scales > 1e-15) & (scales < 1e15)
            kept, inverse = rows[normal].float(), inverse[normal].float()
            # ExecuTorch's kernel for variances squares the deviations in fp32.
            outside = not name.startswith("std")
            compared = rounded(lambda x, f=of_rows, s=inverse: exact(f)(x) * s)
            yield program(f"aten.{name}", compared, kept, outside=outside, **settings)


def rounded(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Converts the result to the element type of the exported program."""
    return lambda *given: function(*given).float()
