"""Distances between arrays, which all numeric tests use.

NaN and infinities must be at the same indices with the same sign; integers and booleans must be equal. For floats,
`distance` is the largest difference relative to the largest magnitude, which measures the quality of the complete
tensor. `strain` compares each element relative to its own magnitude, which also detects errors of small elements
among large ones.
"""

import math
from typing import Any

import numpy


class Mismatch(Exception):
    """Arrays of different shapes or types, for which no distance is defined."""


def distance(found: Any, wanted: Any, least: float = 0.0) -> float:
    """The largest difference relative to the largest magnitude, or to `least` if that is larger.

    For integers and booleans, it is the fraction of elements that differ. It is infinite if NaN or infinities are at
    other indices.
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
    """The largest difference of an element relative to its tolerance, which is `absolute` plus `relative` times its
    magnitude. The arrays agree if the result is at most 1."""
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
    """Whether each element is within its tolerance."""
    return strain(found, wanted, relative, absolute) <= 1


def _comparable(found: Any, wanted: Any) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray | None]:
    """Both arrays as fp64 or complex128, and a mask of the finite expected elements. Integers are unchanged, with
    `None`."""
    found, wanted = _array(found), _array(wanted)
    if not wanted.shape and found.shape == (1,):
        found = found.reshape(())
    if found.shape != wanted.shape:
        raise Mismatch(f"expected shape {wanted.shape}, found {found.shape}")
    if wanted.dtype.kind not in "fc":
        return found, wanted, None
    if (found.dtype.kind == "c") != (wanted.dtype.kind == "c") or found.dtype.kind not in "fc":
        raise Mismatch(f"expected type {wanted.dtype}, found {found.dtype}")
    wide = numpy.complex128 if wanted.dtype.kind == "c" else numpy.float64
    found, wanted = found.astype(wide), wanted.astype(wide)
    if wide is numpy.complex128:
        found, wanted = (numpy.stack([one.real, one.imag], -1) for one in (found, wanted))
    return found, wanted, numpy.isfinite(wanted)


def _same_beyond(found: numpy.ndarray, wanted: numpy.ndarray, finite: numpy.ndarray) -> bool:
    """Whether NaN and infinities are equal at the same indices."""
    return numpy.array_equal(found[~finite], wanted[~finite], equal_nan=True) and bool(numpy.isfinite(found[finite]).all())


def _array(value: Any) -> numpy.ndarray:
    """Converts tensors to numpy arrays; numpy lacks torch's small float types."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype).startswith(("torch.bfloat16", "torch.float8")) else value
        value = value.resolve_conj() if value.is_complex() else value
        return value.numpy()
    return numpy.asarray(value)
