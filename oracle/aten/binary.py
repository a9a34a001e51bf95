"""Binary and ternary functions, over all element types and broadcasting shapes."""

import itertools
from collections.abc import Iterator

import torch

from .case import FLOATS, WHOLE, Case, Weight, case, flags, free, of, positive, real, whole

SHAPES = (
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((2, 1, 4), (3, 1)),
    ((), (2, 3)),
    ((5,), ()),
    ((2, 3, 2, 1, 2), (3, 1, 4, 1)),
)
ARITHMETIC = ("add", "sub", "mul", "maximum", "minimum")
JUMPS = {"precisions": ("fp32",)}


def arithmetic() -> Iterator[Case]:
    for name in ARITHMETIC:
        target = f"aten.{name}.{'default' if name in ('maximum', 'minimum') else 'Tensor'}"
        for left, right in SHAPES:
            yield case(target, real(*left), real(*right))
        for kind in (*FLOATS[1:], *WHOLE):
            yield case(target, of(kind, 3, 4), of(kind, 4))
        for left, right in (
            (torch.float32, torch.int64),
            (torch.int32, torch.float32),
            (torch.float16, torch.float32),
            (torch.int64, torch.int32),
            (torch.uint8, torch.int32),
        ):
            yield case(target, of(left, 3, 4), of(right, 3, 4))
        yield case(target, real(3, 4), Weight(real(4)))
        yield case(target, free(real, (3, 4), (5, 4)), real(4))
    for name in ("add", "mul"):
        yield case(f"aten.{name}.Tensor", flags(3, 4), flags(3, 4))
        yield case(f"aten.{name}.Tensor", flags(3, 4), real(3, 4))
    for name, alpha in itertools.product(("add", "sub", "rsub"), (2, -0.5)):
        yield case(f"aten.{name}.Tensor", real(3, 4), real(4), alpha=alpha)
        yield case(f"aten.{name}.Scalar", real(3, 4), 1.5, alpha)
    for name in ("add", "sub", "rsub"):
        yield case(f"aten.{name}.Tensor", whole(3, 4), whole(4), alpha=3)
    for name in ("add", "sub", "mul", "div", "rsub"):
        for value in (2, -1.5, 0.25):
            yield case(f"aten.{name}.Scalar", real(3, 4), value)
        yield case(f"aten.{name}.Scalar", whole(3, 4), 3)
        yield case(f"aten.{name}.Scalar", whole(3, 4), 0.5)
        yield case(f"aten.{name}.Scalar", whole(3, 4, kind=torch.int8), 2)
        if name != "rsub":
            yield case(f"aten.{name}_.Tensor", real(3, 4), positive(4))
            yield case(f"aten.{name}_.Scalar", real(3, 4), 3.0)
    yield case("aten.add.Tensor", real(3, 4), 2.5)
    yield case("aten.multiply.Tensor", real(3, 4), real(4))
    yield case("aten.subtract.Tensor", real(3, 4), real(4))
    yield case("aten.divide.Tensor", real(3, 4), positive(4))
    yield case("aten.mul.Tensor", whole(3, 4), 3)
    yield case("aten.square_.default", real(3, 4))


def division() -> Iterator[Case]:
    for left, right in SHAPES:
        yield case("aten.div.Tensor", real(*left), positive(*right))
    for kind in (*FLOATS[1:], *WHOLE):
        other = positive(4, low=1, high=5).to(kind)
        yield case("aten.div.Tensor", of(kind, 3, 4), other)
    yield case("aten.div.Tensor", flags(3, 4), positive(3, 4))
    yield case("aten.div.Tensor", torch.tensor([1.0, -1.0, 0.0, 5.0]), torch.tensor([0.0, 0.0, 0.0, float("inf")]))
    yield case("aten.true_divide.Tensor", whole(3, 4), whole(4, low=1))
    for mode in ("floor", "trunc", None):
        yield case(
            "aten.div.Tensor_mode", real(3, 4, scale=5), positive(4), rounding_mode=mode, settings=JUMPS if mode else {}
        )
        yield case(
            "aten.div.Scalar_mode", real(3, 4, scale=5), 0.75, rounding_mode=mode, settings=JUMPS if mode else {}
        )
        for kind in (torch.int64, torch.int32, torch.int8):
            divisor = torch.tensor([3, -2, 1, -4]).to(kind)
            yield case("aten.div.Tensor_mode", whole(3, 4, kind=kind), divisor, rounding_mode=mode)
        yield case("aten.div.Scalar_mode", whole(3, 4), -4, rounding_mode=mode)
        yield case(
            "aten.div.Tensor_mode", whole(3, 4, kind=torch.uint8), whole(4, low=1, kind=torch.uint8), rounding_mode=mode
        )
    divisors = torch.tensor([3.0, -2.0, 1.5, -0.75])
    for name in ("floor_divide", "remainder", "fmod"):
        tensor = "default" if name == "floor_divide" else "Tensor"
        yield case(f"aten.{name}.{tensor}", real(3, 4, scale=5), divisors, settings=JUMPS)
        yield case(f"aten.{name}.{tensor}", real(3, 4, scale=5), positive(), settings=JUMPS)
        for kind in (torch.int64, torch.int32, torch.int16, torch.int8):
            yield case(f"aten.{name}.{tensor}", whole(3, 4, kind=kind), torch.tensor([3, -2, 1, -4]).to(kind))
        yield case(f"aten.{name}.{tensor}", whole(3, 4, kind=torch.uint8), whole(4, low=1, kind=torch.uint8))
        yield case(f"aten.{name}.{tensor}", free(real, (3, 4), (5, 4)), divisors, settings=JUMPS)
        for value in (3, -3, 0.75, -0.75):
            yield case(f"aten.{name}.Scalar", real(3, 4, scale=5), value, settings=JUMPS)
        for value in (3, -4):
            yield case(f"aten.{name}.Scalar", whole(3, 4), value)
    yield case("aten.remainder.Scalar_Tensor", 7.5, divisors, settings=JUMPS)
    yield case("aten.remainder.Scalar_Tensor", 7, torch.tensor([3, -2, 4]))


def powers() -> Iterator[Case]:
    for left, right in SHAPES:
        yield case("aten.pow.Tensor_Tensor", positive(*left, high=2.5), real(*right))
    yield case("aten.pow.Tensor_Tensor", real(3, 4), torch.tensor([2.0, 3.0, 0.0, 1.0]))
    yield case("aten.pow.Tensor_Tensor", whole(3, 4, low=-4, high=4), whole(4, low=0, high=3))
    for exponent in (0, 1, 2, 3, -1, -2, 4):
        yield case("aten.pow.Tensor_Scalar", real(3, 4), exponent)
    for exponent in (0.5, -0.5, 1.5, -1.5, 2.0, 0.3):
        yield case("aten.pow.Tensor_Scalar", positive(3, 4), exponent)
    for exponent in (0, 1, 2, 3):
        yield case("aten.pow.Tensor_Scalar", whole(3, 4, low=-5, high=5), exponent)
    yield case("aten.pow.Tensor_Scalar", whole(3, 4, low=1), 0.5)
    for base in (2, 0.5, 10.0, 1):
        yield case("aten.pow.Scalar", base, real(3, 4))
    yield case("aten.pow.Scalar", 2, whole(3, 4, low=0, high=6))
    yield case("aten.pow_.Scalar", real(3, 4), 2)
    for kind in FLOATS[1:]:
        yield case("aten.pow.Tensor_Scalar", positive(3, 4, kind=kind), 2)
    yield case("aten.float_power.Tensor_Scalar", positive(3, 4), 1.5)


def bits() -> Iterator[Case]:
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        yield case(f"aten.{name}.Tensor", flags(3, 4), flags(3, 4))
        yield case(f"aten.{name}.Tensor", flags(3, 4), flags(4))
        yield case(f"aten.{name}.Tensor", free(flags, (3, 4), (6, 4)), flags(4))
        yield case(f"aten.{name}.Scalar", flags(3, 4), True)
        for kind in (torch.int64, torch.int32, torch.uint8, torch.int8):
            yield case(
                f"aten.{name}.Tensor", whole(3, 4, low=0, high=30, kind=kind), whole(4, low=0, high=30, kind=kind)
            )
        yield case(f"aten.{name}.Tensor", whole(3, 4, low=-30, high=30), whole(4, low=-30, high=30))
        yield case(f"aten.{name}.Scalar", whole(3, 4, low=-30, high=30), 6)
    for name in ("__and__", "__or__", "__xor__"):
        yield case(f"aten.{name}.Tensor", flags(3, 4), flags(3, 4))
        yield case(f"aten.{name}.Scalar", whole(3, 4, low=0, high=30), 6)
        yield case(f"aten.{name}.Scalar", flags(3, 4), True)
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        yield case(f"aten.{name}.Tensor", whole(3, 4, low=-40, high=40), whole(4, low=0, high=4))
        yield case(f"aten.{name}.Tensor_Scalar", whole(3, 4, low=-40, high=40), 2)
    for name in ("__lshift__", "__rshift__"):
        yield case(f"aten.{name}.Scalar", whole(3, 4, low=-40, high=40), 2)
    for name in ("logical_and", "logical_or", "logical_xor"):
        for kind in (torch.bool, torch.float32, torch.int64):
            left, right = (
                (flags(3, 4), flags(3, 4))
                if kind == torch.bool
                else (whole(3, 4, low=-1, high=1).to(kind), whole(4, low=-1, high=1).to(kind))
            )
            yield case(f"aten.{name}.default", left, right)
        yield case(f"aten.{name}.default", flags(3, 4), real(3, 4))


def others() -> Iterator[Case]:
    for name in ("atan2", "fmax", "fmin", "hypot", "copysign", "logaddexp", "logaddexp2", "arctan2"):
        target = f"aten.{name}.{'Tensor' if name == 'copysign' else 'default'}"
        for left, right in SHAPES[:4]:
            yield case(target, real(*left), real(*right))
        yield case(target, free(real, (3, 4), (5, 4)), real(4))
    for name in ("gcd", "lcm"):
        yield case(f"aten.{name}.default", whole(3, 4, low=1, high=30), whole(3, 4, low=1, high=30))
    signs = torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0, 0.0, 0.0])
    yield case("aten.atan2.default", signs, torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 0.0]))
    yield case("aten.xlogy.Tensor", torch.tensor([0.0, 1.0, 2.5]), positive(3))
    yield case("aten.heaviside.default", torch.tensor([0.0, 1.0, -2.5]), torch.tensor([0.5]))
    yield case("aten.nextafter.default", real(3), real(3), settings={"impossible": {"*": "nextafter"}})
    for name in ("addcmul", "addcdiv"):
        for value in (1, 0.5, -2):
            yield case(f"aten.{name}.default", real(3, 4), real(4), positive(3, 1), value=value)
        yield case(f"aten.{name}_.default", real(3, 4), real(4), positive(3, 1), value=0.5)
    for weight in (0.3, 0.0, 1.0, 0.8):
        yield case("aten.lerp.Scalar", real(3, 4), real(4), weight)
        yield case("aten.lerp_.Scalar", real(3, 4), real(4), weight)
    yield case("aten.lerp.Tensor", real(3, 4), real(4), positive(3, 4, low=0, high=1))
    for low, high in ((-1, 1), (None, 0.5), (-0.5, None), (1, -1), (0, 6)):
        yield case("aten.clamp.default", real(3, 4), low, high)
        yield case("aten.clamp_.default", real(3, 4), low, high)
        yield case("aten.clip.default", real(3, 4), low, high)
    for low, high in ((-2, 3), (None, 2), (0, None)):
        yield case("aten.clamp.default", whole(3, 4), low, high)
        yield case("aten.clamp.default", whole(3, 4, kind=torch.int32), low, high)
    yield case("aten.clamp.default", whole(3, 4), -1.5, 2.5)
    yield case("aten.clamp.Tensor", real(3, 4), real(4) - 1, real(4) + 1)
    yield case("aten.clamp.Tensor", real(3, 4), real(4), None)
    yield case("aten.clamp.Tensor", real(3, 4), None, real(3, 1))
    for name in ("clamp_min", "clamp_max"):
        yield case(f"aten.{name}.default", real(3, 4), 0.25)
        yield case(f"aten.{name}.Tensor", real(3, 4), real(4))
        yield case(f"aten.{name}_.default", real(3, 4), 0.25)
        yield case(f"aten.{name}.default", whole(3, 4), 2)
    for name in ("max", "min"):
        yield case(f"aten.{name}.other", real(3, 4), real(4))
        yield case(f"aten.{name}.other", whole(3, 4), whole(4))
    yield case("aten.maximum.default", torch.tensor([1.0, float("nan"), float("inf")]), torch.tensor([2.0, 1.0, 3.0]))
    yield case("aten.cross.default", real(4, 3), real(4, 3), 1)
    yield case("aten.linalg_cross.default", real(4, 3), real(4, 3))
    yield case("aten.dist.default", real(3, 4), real(3, 4))
    yield case("aten.cosine_similarity.default", real(3, 4), real(3, 4), 1)
    yield case("aten.pairwise_distance.default", real(3, 4), real(3, 4))


def divisors() -> Iterator[Case]:
    """Greatest common divisors and least common multiples, including zeros and negative numbers."""
    for name in ("gcd", "lcm"):
        target = f"aten.{name}.default"
        for left, right in (((5,), (5,)), ((3, 4), (4,)), ((2, 1, 4), (3, 1)), ((), (3,)), ((), ())):
            yield case(target, whole(*left, low=-60, high=60), whole(*right, low=-60, high=60))
        for kind in (torch.int32, torch.int16, torch.uint8):
            yield case(target, whole(3, 4, low=0, high=12, kind=kind), whole(4, low=0, high=12, kind=kind))
        yield case(target, torch.tensor([0, 0, 5, -5, 2**20, 46368]), torch.tensor([0, 7, 0, 10, 2**9, 28657]))
        yield case(target, free(whole, (3, 4), (5, 4)), whole(4))
        yield case(f"aten.{name}_.default", whole(3, 4), whole(4))


def cases() -> Iterator[Case]:
    yield from arithmetic()
    yield from division()
    yield from powers()
    yield from bits()
    yield from others()
    yield from divisors()
