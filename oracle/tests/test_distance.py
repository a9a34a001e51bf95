"""The distance functions reject wrong arrays; an earlier comparison accepted each of these cases by mistake."""

import math

import numpy
import pytest
import torch

from oracle.support.distance import Mismatch, distance, strain, within

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ([1.0, INF], [1.0, -INF]),
        ([1.0, 3e38], [1.0, INF]),
        ([1.0, INF], [1.0, 3e38]),
        ([1.0, 0.0], [1.0, NAN]),
        ([1.0, NAN], [1.0, 0.0]),
        ([1.0, NAN], [1.0, INF]),
        ([NAN, 1.0], [1.0, NAN]),
    ],
)
def test_misplaced_inf_and_nan_give_infinite_distance(found: list[float], wanted: list[float]) -> None:
    assert distance(numpy.array(found), numpy.array(wanted)) == math.inf
    assert strain(numpy.array(found), numpy.array(wanted), 1.0, 1.0) == math.inf


def test_equal_arrays_have_no_distance() -> None:
    for array in ([INF, -INF, NAN, 1.0], [INF], [], [0.0, 0.0]):
        one = numpy.array(array, numpy.float32)
        assert distance(one, one.copy()) == strain(one, one.copy(), 1e-6) == 0.0


def test_integers_are_compared_exactly() -> None:
    wanted = numpy.arange(2**53 - 2, 2**53 + 2)
    found = wanted.copy()
    # fp64 cannot distinguish these two numbers.
    found[-1] += 1
    assert distance(found, wanted) == 0.25
    assert not within(found, wanted, 1.0, 10.0)
    assert distance(numpy.array([True, False]), numpy.array([True, True])) == 0.5


def test_within_bounds_small_elements_individually() -> None:
    wanted = numpy.array([1e3, 1e-3])
    found = numpy.array([1e3, 2e-3])
    assert distance(found, wanted) <= 1e-6, "the error is small relative to the largest element"
    assert not within(found, wanted, 1e-3)
    assert within(found, wanted, 1e-3, absolute=1e-2)
    assert not within(numpy.array([1.0, 1e-30]), numpy.array([1.0, 0.0]), 1e-3)


def test_distance_is_relative_to_largest_element() -> None:
    assert distance(numpy.array([1.0, 9.0]), numpy.array([1.0, 10.0])) == pytest.approx(0.1)
    assert distance(numpy.array([1e-9]), numpy.array([0.0])) == 1e-9
    assert distance(numpy.array([2e-9]), numpy.array([1e-9])) == 1.0
    assert distance(numpy.array([2e-9]), numpy.array([1e-9]), least=1.0) == pytest.approx(1e-9)


def test_rejects_mismatched_shapes_and_dtypes() -> None:
    with pytest.raises(Mismatch, match="shape"):
        distance(numpy.zeros((2, 3)), numpy.zeros((3, 2)))
    with pytest.raises(Mismatch, match="shape"):
        distance(numpy.zeros(1), numpy.zeros(3))
    with pytest.raises(Mismatch, match="type"):
        distance(numpy.zeros(3, numpy.int32), numpy.zeros(3, numpy.float32))
    with pytest.raises(Mismatch, match="type"):
        distance(numpy.zeros(3), numpy.zeros(3, numpy.complex64))
    # An array of one element matches a scalar, because Core ML has no scalars.
    assert distance(numpy.ones(1), numpy.array(1.0)) == 0.0


def test_complex_distance_includes_imaginary_part() -> None:
    assert distance(numpy.array([1 + 2j]), numpy.array([1 + 1j])) == 1.0
    assert distance(numpy.array([complex(1, INF)]), numpy.array([complex(1, -INF)])) == INF


def test_accepts_torch_tensors() -> None:
    wanted = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    assert distance(wanted + 0.5, wanted) == 0.25
    assert distance(torch.tensor([1, 2]), torch.tensor([1, 3])) == 0.5
