"""Quantization of arrays, as coremltools' `optimize.torch` calls it."""

from __future__ import annotations

import logging

import numpy

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def compute_qparams(
    weight: numpy.ndarray, nbits: int, signed: bool, quantization_mode: str, dtype: object, block_sizes: Sequence[int]
) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray | None] | None:
    """The integers of an array, and the scales and zero points of its blocks; None if blocks do not divide an axis.

    A block size of 0 is the whole axis. `dtype` has no effect.
    """
    if len(block_sizes) != weight.ndim:
        raise AssertionError(f"`block_sizes` must have {weight.ndim} sizes, got {len(block_sizes)}")
    sizes = [size or extent for size, extent in zip(block_sizes, weight.shape)]
    if any(extent % size for size, extent in zip(sizes, weight.shape)):
        logging.getLogger("coremltools").warning(f"blocks of sizes {sizes} do not divide an array of shape {list(weight.shape)}")
        return None
    counts = [extent // size for size, extent in zip(sizes, weight.shape)]
    blocks = weight.reshape([extent for pair in zip(counts, sizes) for extent in pair])
    axes = tuple(range(1, blocks.ndim, 2))
    least, most = blocks.min(axes, keepdims=True), blocks.max(axes, keepdims=True)
    is_symmetric = quantization_mode == "LINEAR_SYMMETRIC"
    low, high = (-(2 ** (nbits - 1)), 2 ** (nbits - 1) - 1) if signed else (0, 2**nbits - 1)
    if is_symmetric:
        low, high = (low + 1, high) if signed else (low, high - 1)
        most = numpy.maximum(abs(least), abs(most))
        least = -most
    else:
        least, most = numpy.minimum(least, 0), numpy.maximum(most, 0)
    scale = (most - least) / (high - low)
    divisor = numpy.where(scale == 0, 1, scale)
    zero = None
    if not is_symmetric:
        zero = numpy.clip(numpy.round((low * most - high * least) / ((high - low) * divisor)), low, high)
    elif not signed:
        zero = numpy.full(scale.shape, high // 2)
    codes = numpy.round(blocks / divisor) + (0 if zero is None else zero)
    stored = numpy.dtype(f"{'i' if signed else 'u'}{1 if nbits <= 8 else 2 if nbits <= 16 else 4}")
    codes = numpy.clip(codes, low, high).reshape(weight.shape).astype(stored)
    return codes, scale.astype(weight.dtype).reshape(counts), None if zero is None else zero.reshape(counts).astype(stored)


def dequantize_by_scale_and_zp(
    quantized_data: numpy.ndarray, scale: numpy.ndarray, zero_point: numpy.ndarray | None, axis: int | None = None
) -> numpy.ndarray:
    """The floats of integers. Scales and zero points are those of blocks, or of the indices along `axis`."""

    def spread(blocks: numpy.ndarray) -> numpy.ndarray:
        if blocks.ndim != quantized_data.ndim:
            shape = [1] * quantized_data.ndim
            if blocks.ndim:
                shape[axis or 0] = blocks.size
            blocks = blocks.reshape(shape)
        for at, (count, extent) in enumerate(zip(blocks.shape, quantized_data.shape)):
            blocks = blocks.repeat(extent // count, at)
        return blocks

    floats = quantized_data.astype(numpy.float32)
    if zero_point is not None:
        floats -= spread(zero_point).astype(numpy.float32)
    return (floats * spread(scale)).astype(scale.dtype)
