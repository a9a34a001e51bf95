"""Unary functions."""

from collections.abc import Iterator

import torch

from .case import FLOATS, Case, case, flags, free, positive, real, unit, whole

EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 0.5, -2.5, 60.0])
ANYWHERE = ("abs", "atan", "ceil", "cos", "erf", "erfc", "exp", "exp2", "expm1", "floor", "frac", "neg", "round", "sigmoid", "sign", "sin", "sinh", "cosh", "square", "tanh", "trunc", "asinh", "relu", "positive", "deg2rad", "rad2deg", "sgn", "special_expit", "sinc", "fix", "negative", "absolute")  # fmt: skip
WITHIN = ("acos", "asin", "atanh", "tan", "erfinv", "arcsin", "arccos", "arctanh")
ABOVE = ("log", "log10", "log2", "log1p", "rsqrt", "sqrt", "reciprocal", "lgamma", "digamma")
BEYOND = ("acosh", "arccosh")
#: Functions from integers to integers.
OF_WHOLE = ("abs", "neg", "sign", "relu", "square", "ceil", "floor", "round", "trunc", "bitwise_not", "positive")
#: Functions from integers to floats.
TO_FLOAT = ("exp", "sigmoid", "sin", "cos", "tanh", "erf", "atan", "asinh", "expm1", "sinh", "rad2deg")
IN_PLACE = (
    "abs_",
    "exp_",
    "neg_",
    "relu_",
    "sigmoid_",
    "tanh_",
    "sin_",
    "cos_",
    "floor_",
    "ceil_",
    "round_",
    "square_",
    "erf_",
    "zero_",
    "detach_",
)
#: Functions whose results for small arguments are about as small as the argument.
SMALL = ("asin", "asinh", "atan", "atanh", "erf", "expm1", "log1p", "sin", "sinh", "tan", "tanh")
#: Functions with poles or discontinuities between numbers that fp16 cannot distinguish.
NOT_HALF = {"frac", "digamma", "erfinv"}
#: Functions for which our polynomials differ from torch's.
LOOSE = {"lgamma": 1e-3, "digamma": 1e-3, "erfinv": 1e-3}


def settings(name: str) -> dict:
    """The precisions and tolerances of an operator's cases."""
    found: dict = {}
    if name in NOT_HALF:
        found["precisions"] = ("fp32",)
    if name in LOOSE:
        found["tolerance"] = {"fp32": LOOSE[name]}
    return found


def cases() -> Iterator[Case]:
    for names, make in (
        (ANYWHERE, real),
        (WITHIN, unit),
        (ABOVE, positive),
        (BEYOND, lambda *shape, **more: positive(*shape, low=1.0, high=8.0, **more)),
    ):
        for name in names:
            target = f"aten.{name}.default"
            for shape in ((7,), (3, 4), (2, 3, 2, 2, 3)):
                yield case(target, make(*shape), settings=settings(name))
            yield case(target, make(), settings=settings(name))
            for kind in FLOATS[1:]:
                yield case(target, make(4, 3, kind=kind), settings=settings(name))
            yield case(target, free(make, (3, 4), (5, 4)), settings=settings(name))
    for name in ("abs", "ceil", "cos", "exp", "floor", "neg", "relu", "round", "sigmoid", "sign", "sin", "sqrt", "rsqrt", "tanh", "log", "erf", "trunc", "reciprocal", "square", "isnan", "isinf", "isfinite", "isposinf", "isneginf"):  # fmt: skip
        # Core ML adds an epsilon before the root, which loses the sign of −0.
        yield case(f"aten.{name}.default", EDGES.abs() if name == "rsqrt" else EDGES)
    for name in SMALL:
        yield case(f"aten.{name}.default", real(4, 5) * 1e-3)
        for scale in (1e-4, 1e-6, 1e-9):
            yield case(f"aten.{name}.default", real(4, 5) * scale, settings={"precisions": ("fp32",)})
    for name in ("asinh", "log1p"):
        yield case(f"aten.{name}.default", EDGES)
    # e⁶⁰ overflows fp16.
    yield case("aten.expm1.default", EDGES, settings={"precisions": ("fp32",)})
    name = "aten.special_spherical_bessel_j0.default"
    yield case(name, EDGES)
    yield case(name, torch.cat([real(5, 4), real(5, 4) * 0.3, real(5, 4) * 1e-3, real(5, 4) * 20]))
    yield case(name, whole(3, 4), settings={"precisions": ("fp32",)})
    for name in ("isnan", "isinf", "isfinite"):
        yield case(f"aten.{name}.default", whole(3, 4))
        yield case(f"aten.{name}.default", free(real, (3, 4), (5, 4)))
    for name in OF_WHOLE:
        for kind in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
            yield case(f"aten.{name}.default", whole(5, 3, kind=kind))
    for name in TO_FLOAT:
        for kind in (torch.int64, torch.int32):
            yield case(f"aten.{name}.default", whole(5, 3, low=-3, high=3, kind=kind))
    for name in ("sqrt", "log", "rsqrt", "reciprocal", "log1p", "log2"):
        yield case(f"aten.{name}.default", whole(5, 3, low=1, high=30))
    for name in ("bitwise_not", "logical_not", "abs_", "sign"):
        yield case(f"aten.{name}.default", flags(5, 3) if name in ("bitwise_not", "logical_not") else real(5, 3))
    for name in IN_PLACE:
        yield case(f"aten.{name}.default", real(4, 5))
    for name in ("log_", "sqrt_", "rsqrt_", "reciprocal_"):
        yield case(f"aten.{name}.default", positive(4, 5))
    for kind in (torch.float32, torch.int64, torch.bool):
        yield case(
            "aten.logical_not.default", flags(4, 5) if kind == torch.bool else (real(4, 5) * (real(4, 5) > 0)).to(kind)
        )
    for decimals in (0, 1, 2, -1):
        yield case("aten.round.decimals", real(4, 5, scale=20), decimals=decimals, settings={"precisions": ("fp32",)})
    yield case("aten.nan_to_num.default", EDGES)
    yield case("aten.nan_to_num.default", EDGES, 0.5, 9.0, -9.0)
    yield case("aten.logit.default", positive(4, 5, low=0.125, high=0.875))
    yield case("aten.logit.default", positive(4, 5, low=0.0, high=1.0), 0.125)
    yield case("aten.polygamma.default", 1, positive(4, 5))
    yield case(
        "aten.special_i0.default" if hasattr(torch.ops.aten, "special_i0") else "aten.i0.default",
        real(4, 5),
        settings={"tolerance": {"fp32": 1e-3}},
    )
    yield case("aten.clone.default", real(3, 4))
    yield case("aten.clone.default", real(2, 3, 4, 4), memory_format=torch.channels_last)
    for name in ("alias", "detach", "contiguous", "lift_fresh_copy"):
        yield case(f"aten.{name}.default", real(3, 4))
    yield case("aten.bernoulli.p", real(3, 4), 0.4, settings={"exact": False})
    yield case("aten.dropout.default", real(3, 4), 0.4, False)
    yield case("aten.dropout_.default", real(3, 4), 0.4, False)
    yield case("aten.feature_dropout.default", real(3, 4), 0.4, False)
    yield case("aten.native_dropout.default", real(3, 4), 0.4, False, taken=slice(0, 1))
    for name in ("abs", "sigmoid", "neg", "floor"):
        yield case(f"aten.{name}.default", real(0, 4), settings={"impossible": {"*": "without elements"}})
