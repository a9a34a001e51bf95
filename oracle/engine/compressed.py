"""Products, convolutions and lookups with compressed weights, which coremltools decompresses and numpy or torch
applies.

Scales are powers of two and inputs have few digits, so that rounding weights to fp16 changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from coremltools.converters.mil.mil.ops.defs.iOS16 import constexpr_ops as ios16
from coremltools.converters.mil.mil.ops.defs.iOS18 import compression as ios18

from .constexpr import _RANGES
from .language import IOS16, IOS18, Case, Name, Program, Typed, const, draw


def cases() -> Iterator[Case]:
    for form in _FORMS:
        for rows in (1, 3, 9, 20):
            yield _linear(form, rows)
        for transposed in (False, True):
            yield _matmul(form, 2, transposed)
            yield _matmul(form, 11, transposed)
        yield _conv(form, (3, 3))
        yield _conv(form, (1, 1))
        yield _gather(form)


@dataclass(frozen=True)
class _Form:
    name: str
    opset: str
    make: Any

    def weight(self, program: Program, *shape: int) -> tuple[Name, np.ndarray]:
        """The weight in the program, and its decompressed values."""
        return self.make(program, shape)


def _scales(label: str, shape, dtype="fp16") -> Typed:
    return Typed(dtype, np.exp2(draw(label, *shape, low=-4, high=-1, dtype="int32")).astype(np.float32))


def _codes(dtype: str, shape) -> Typed:
    low, high = _RANGES[dtype]
    return Typed(dtype, draw(f"codes-{dtype}", *shape, low=low, high=high, dtype="int32"))


def _blocks(shape, down: int, across: int) -> list[int]:
    """Block counts of the rows and of the second axis."""
    return [down, across, *([1] * (len(shape) - 2))]


def _affine(program, shape):
    data, scale = _codes("int8", shape), _scales("affine", shape[:1])
    zero_point = Typed("int8", draw("zero", shape[0], low=-5, high=5, dtype="int32"))
    attributes = {"quantized_data": data, "zero_point": zero_point, "scale": scale, "axis": 0}
    value = ios16.constexpr_affine_dequantize.decompress(data.elements, zero_point.elements, scale.elements, 0)
    return program.op("constexpr_affine_dequantize", {}, ("fp16", shape), attributes=attributes), value


def _blockwise(dtype, down, across, offset=False, scale="fp16"):
    def make(program, shape):
        blocks = _blocks(shape, shape[0] if down == "rows" else down, across)
        data, scales = _codes(dtype, shape), _scales(f"blocks-{blocks}", blocks, scale)
        inputs = {"data": const(data), "scale": const(scales)}
        shifts = None
        if offset:
            low, high = _RANGES[dtype]
            shifts = draw("offset", *blocks, low=low, high=high, dtype="int32")
            inputs["offset"] = const(Typed(dtype, shifts))
        value = ios18.constexpr_blockwise_shift_scale.decompress(data.elements, scales.elements, shifts)
        return program.op("constexpr_blockwise_shift_scale", inputs, (scale, shape)), value

    return make


def _lut(dtype, down, across, vector=1, axis=None, of="fp16"):
    def make(program, shape):
        coded = list(shape)
        if axis is not None:
            coded[axis] //= vector
        bits = int(dtype.removeprefix("uint"))
        table = Typed(of, np.round(draw("table", *_blocks(coded, down, across), 2**bits, vector) * 8) / 8)
        indices = _codes(dtype, coded)
        value = ios18.constexpr_lut_to_dense.decompress(indices.elements, table.elements, axis)
        stated = {} if axis is None else {"vector_axis": const(axis)}
        inputs = {"indices": const(indices), "lut": const(table)} | stated
        return program.op("constexpr_lut_to_dense", inputs, (of, shape)), value

    return make


def _lut_of_ios16(program, shape):
    codes = draw("codes-16", *shape, low=0, high=15, dtype="int32").astype(np.uint8).reshape(-1, 1)
    packed = np.packbits(np.unpackbits(codes, axis=1, count=4, bitorder="little").reshape(-1), bitorder="little")
    table = Typed("fp16", np.round(draw("table-16", 16) * 8) / 8)
    value = ios16.constexpr_lut_to_dense.decompress(table.elements, packed, np.array(shape))
    attributes = {"indices": packed, "lut": table, "shape": Typed("uint32", np.array(shape))}
    return program.op("constexpr_lut_to_dense", {}, ("fp16", shape), attributes=attributes), value


def _sparse(program, shape):
    mask = Typed("uint1", draw("mask", *shape, low=0, high=1, dtype="int32"))
    data = Typed("fp16", np.round(draw("kept", int(mask.elements.sum())) * 8) / 8)
    value = ios18.constexpr_sparse_to_dense.decompress(data.elements, mask.elements)
    inputs = {"nonzero_data": const(data), "mask": const(mask)}
    return program.op("constexpr_sparse_to_dense", inputs, ("fp16", shape)), value


def _sparse_quantized(program, shape):
    mask = Typed("uint1", draw("mask", *shape, low=0, high=1, dtype="int32"))
    data = _codes("int8", (int(mask.elements.sum()),))
    scales = _scales("sparse", _blocks(shape, shape[0], 1))
    _, kept = ios18.constexpr_sparse_blockwise_shift_scale.decompress(mask.elements, data.elements, scales.elements, None)
    value = ios18.constexpr_sparse_to_dense.decompress(kept, mask.elements)
    inputs = {"data_mask": const(mask), "nonzero_data": const(data), "scale": const(scales)}
    given = program.op("constexpr_sparse_blockwise_shift_scale", inputs, ("uint1", shape), ("fp16", kept.shape))
    return program.op("constexpr_sparse_to_dense", {"nonzero_data": given[1], "mask": given[0]}, ("fp16", shape)), value


_FORMS = (
    _Form("affine", IOS16, _affine),
    _Form("lut-of-ios16", IOS16, _lut_of_ios16),
    _Form("int8-rows", IOS18, _blockwise("int8", "rows", 1)),
    _Form("int4-blocks", IOS18, _blockwise("int4", "rows", 2)),
    _Form("uint4-offsets", IOS18, _blockwise("uint4", "rows", 4, offset=True)),
    _Form("int4-fp32", IOS18, _blockwise("int4", 2, 1, scale="fp32")),
    _Form("lut4", IOS18, _lut("uint4", 1, 1)),
    _Form("lut3-groups", IOS18, _lut("uint3", 2, 1, of="fp32")),
    _Form("lut6", IOS18, _lut("uint6", 1, 2)),
    _Form("lut2-vectors", IOS18, _lut("uint2", 1, 1, vector=2, axis=0)),
    _Form("lut2-vectors-across", IOS18, _lut("uint2", 2, 1, vector=4, axis=1)),
    _Form("sparse", IOS18, _sparse),
    _Form("sparse-quantized", IOS18, _sparse_quantized),
)


def _x(program: Program, dtype: str, label: str, *shape: int) -> tuple[Name, np.ndarray]:
    array = (np.round(draw(label, *shape) * 4) / 4).astype(np.float16 if dtype == "fp16" else np.float32)
    return program.input("x", array), array.astype(np.float64)


def _linear(form: _Form, rows: int) -> Case:
    program = Program(form.opset)
    weight, value = form.weight(program, 12, 16)
    bias = np.round(draw("bias", 12) * 4) / 4
    x, array = _x(program, weight.dtype, f"x-{rows}", rows, 16)
    y = program.op("linear", {"x": x, "weight": weight, "bias": const(Typed(weight.dtype, bias))}, (weight.dtype, (rows, 12)))
    expected = array @ value.astype(np.float64).T + bias
    return program.case("linear", f"{form.name}-{rows}", [y], [expected], rel=1e-4, abs=1e-4)


def _matmul(form: _Form, rows: int, transposed: bool) -> Case:
    program = Program(form.opset)
    weight, value = form.weight(program, 12, 16)
    x, array = _x(program, weight.dtype, f"mx-{rows}", 2, rows, 16 if transposed else 12)
    inputs = {"x": x, "y": weight, "transpose_y": const(transposed)}
    expected = array @ (value.T if transposed else value).astype(np.float64)
    y = program.op("matmul", inputs, (weight.dtype, expected.shape))
    name = f"{form.name}-{rows}{'-transposed' if transposed else ''}"
    return program.case("matmul", name, [y], [expected], rel=1e-4, abs=1e-4)


def _conv(form: _Form, window: tuple[int, int]) -> Case:
    program = Program(form.opset)
    weight, value = form.weight(program, 8, 8, *window)
    x, array = _x(program, weight.dtype, f"cx-{window}", 1, 8, 5, 4)
    expected = torch.nn.functional.conv2d(torch.from_numpy(array), torch.from_numpy(value.astype(np.float64)), padding="same").numpy()
    y = program.op("conv", {"x": x, "weight": weight, "pad_type": const("same")}, (weight.dtype, expected.shape))
    return program.case("conv", f"{form.name}-{window[0]}x{window[1]}", [y], [expected], rel=1e-4, abs=1e-4)


def _gather(form: _Form) -> Case:
    program = Program(form.opset)
    table, value = form.weight(program, 12, 8)
    indices = np.array([[3, 0, 11], [7, 3, 3]], np.int32)
    inputs = {"x": table, "indices": program.input("indices", indices), "axis": const(0)}
    y = program.op("gather", inputs, (table.dtype, (2, 3, 8)))
    return program.case("gather", form.name, [y], [value[indices]])
