"""How far an array is from the one that it should be: what every judge of numbers measures with.

NaN and infinities must stand where they stand in the wanted array, with their signs; whole numbers and truth values
must be equal. Of floats, `distance` is the largest difference in parts of the largest magnitude, which says how good a
tensor is as a whole, and `strain` compares each element with its own magnitude, which tells whether small ones are right
beside large ones.
"""

import math
from typing import Any

import numpy


class Mismatch(Exception):
    """Arrays of different shapes or kinds, which no distance says anything of."""


def distance(found: Any, wanted: Any, least: float = 0.0) -> float:
    """The largest difference in parts of the largest magnitude, or of `least` if that is larger.

    Of whole numbers and truth values, it is the share of the elements that differ; infinite where NaN or infinities
    stand elsewhere.
    """
    found, wanted, finite = _comparable(found, wanted)
    if finite is None:
        return float((found != wanted).mean()) if wanted.size else 0.0
    if not _same_beyond(found, wanted, finite):
        return math.inf
    if not finite.any():
        return 0.0
    scale = max(numpy.abs(wanted[finite]).max(), least)
    return float(numpy.abs(found[finite] - wanted[finite]).max() / (scale or 1.0))


def strain(found: Any, wanted: Any, relative: float, absolute: float = 0.0) -> float:
    """The largest difference of an element in parts of what it may differ by: `absolute`, and `relative` times its
    magnitude. More than 1 is too much.
    """
    found, wanted, finite = _comparable(found, wanted)
    if finite is None:
        return 0.0 if numpy.array_equal(found, wanted) else math.inf
    if not _same_beyond(found, wanted, finite):
        return math.inf
    difference = numpy.abs(found[finite] - wanted[finite])
    allowed = absolute + relative * numpy.abs(wanted[finite])
    with numpy.errstate(divide="ignore", invalid="ignore"):
        ratios = numpy.where(difference == 0, 0.0, difference / allowed)
    return float(ratios.max(initial=0.0))


def within(found: Any, wanted: Any, relative: float, absolute: float = 0.0) -> bool:
    """Whether each element is as near as it must be."""
    return strain(found, wanted, relative, absolute) <= 1


def _comparable(found: Any, wanted: Any) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray | None]:
    """Both in fp64, or complex numbers of two; and where the wanted one is finite. None for what is whole: as it is."""
    found, wanted = _array(found), _array(wanted)
    if not wanted.shape and found.shape == (1,):
        found = found.reshape(())
    if found.shape != wanted.shape:
        raise Mismatch(f"the shape is {found.shape}, not {wanted.shape}")
    if wanted.dtype.kind not in "fc":
        return found, wanted, None
    if (found.dtype.kind == "c") != (wanted.dtype.kind == "c") or found.dtype.kind not in "fc":
        raise Mismatch(f"the type is {found.dtype}, not {wanted.dtype}")
    wide = numpy.complex128 if wanted.dtype.kind == "c" else numpy.float64
    found, wanted = found.astype(wide), wanted.astype(wide)
    if wide is numpy.complex128:
        found, wanted = (numpy.stack([one.real, one.imag], -1) for one in (found, wanted))
    return found, wanted, numpy.isfinite(wanted)


def _same_beyond(found: numpy.ndarray, wanted: numpy.ndarray, finite: numpy.ndarray) -> bool:
    """Whether NaN and infinities stand in the same places."""
    return numpy.array_equal(found[~finite], wanted[~finite], equal_nan=True) and bool(numpy.isfinite(found[finite]).all())


def _array(value: Any) -> numpy.ndarray:
    """Arrays of numpy and tensors of torch, whose small floats numpy does not have."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype).startswith(("torch.bfloat16", "torch.float8")) else value
        value = value.resolve_conj() if value.is_complex() else value
        return value.numpy()
    return numpy.asarray(value)
