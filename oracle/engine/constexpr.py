"""Compressed constants, `quantize` and `dequantize`, compared with coremltools' decompression.

The reference gets fp32 scales, so that it does not round where the engine need not. Masks and lookup tables in the
format of iOS16 are packed here with numpy, as the documentation specifies.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from coremltools.converters.mil.mil.ops.defs.iOS16 import constexpr_ops as ios16
from coremltools.converters.mil.mil.ops.defs.iOS18 import compression as ios18
from coremltools.optimize import _utils as optimize

from .language import IOS16, IOS17, IOS18, Case, Program, Typed, case, const, draw

_RANGES = {"int4": (-8, 7), "uint4": (0, 15), "int8": (-128, 127), "uint8": (0, 255), "uint1": (0, 1), "uint2": (0, 3),
           "uint3": (0, 7), "uint6": (0, 63)}


def cases() -> Iterator[Case]:
    yield from _affine_dequantize()
    yield from _blockwise()
    yield from _cast()
    yield from _lut_of_ios16()
    yield from _lut_of_ios18()
    yield from _lut_to_sparse()
    yield from _sparse_blockwise()
    yield from _sparse_of_ios16()
    yield from _sparse_of_ios18()
    yield from _chains()
    yield from _dequantize()
    yield from _quantize()


def _of(dtype: str, label: str, *shape: int) -> Typed:
    """Random elements of a type, including the ends of its range."""
    if dtype in ("fp16", "fp32"):
        return Typed(dtype, draw(label, *shape, dtype=dtype))
    low, high = _RANGES[dtype]
    elements = draw(label, *shape, low=low, high=high, dtype="int32")
    if elements.size > 1:
        elements.flat[0], elements.flat[-1] = low, high
    return Typed(dtype, elements)


def _numbers(value: Typed | None) -> np.ndarray | None:
    if value is None:
        return None
    return value.elements.astype(np.float32 if value.dtype.startswith("fp") else np.int32)


def _scale(label: str, *shape: int, dtype: str = "fp32") -> Typed:
    return Typed(dtype, draw(label, *shape, low=0.05, high=1.5, dtype=dtype))


def _present(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: const(value) for name, value in inputs.items() if value is not None}


def _affine_dequantize() -> Iterator[Case]:
    def affine(label, opset, data, zero_point, scale, axis):
        attributes = {"quantized_data": data, "zero_point": zero_point, "scale": scale, "axis": axis}
        expected = ios16.constexpr_affine_dequantize.decompress(
            data.elements, _numbers(zero_point), scale.elements.astype(np.float32), axis
        )
        return case(label, "constexpr_affine_dequantize", opset, {}, [expected], dtypes=[scale.dtype], attributes=attributes)

    for opset, data_dtype, scale_dtype in itertools.product((IOS16, IOS17), ("int8", "uint8"), ("fp16", "fp32")):
        name = f"{data_dtype}-{scale_dtype}"
        data = _of(data_dtype, name, 3, 4)
        yield affine(f"{name}-scalars", opset, data, _of(data_dtype, "z"), _scale("s", dtype=scale_dtype), 0)
        yield affine(f"{name}-rows", opset, data, _of(data_dtype, "zr", 3), _scale("sr", 3, dtype=scale_dtype), 0)
        yield affine(f"{name}-columns", opset, data, _of(data_dtype, "zc", 4), _scale("sc", 4, dtype=scale_dtype), -1)
        yield affine(f"{name}-mixed", opset, data, _of(data_dtype, "zm"), _scale("sm", 4, dtype=scale_dtype), 1)
    data = _of("int8", "rank4", 2, 3, 2, 2)
    for axis, extent in ((0, 2), (1, 3), (-2, 2), (3, 2)):
        yield affine(f"rank4-axis{axis}", IOS16, data, _of("int8", "z4", extent), _scale("s4", extent), axis)
    yield affine("float-zero-point", IOS16, _of("uint8", "f", 2, 3), Typed("fp32", np.float32([1.25, -3.5])), _scale("sf", 2), 0)
    yield affine("one", IOS16, _of("int8", "o", 1), _of("int8", "zo"), _scale("so"), 0)
    yield affine("unlike-types", IOS16, _of("uint8", "u", 2, 2), _of("int8", "zu"), _scale("su"), 0)
    yield affine("infinite-scale", IOS16, _of("int8", "i", 3), Typed("int8", np.array(0)), Typed("fp32", np.float32(np.inf)), 0)


def _blockwise() -> Iterator[Case]:
    def blockwise(label, data, scale, offset=None):
        expected = ios18.constexpr_blockwise_shift_scale.decompress(_numbers(data), scale.elements.astype(np.float32), _numbers(offset))
        inputs = _present({"data": data, "scale": scale, "offset": offset})
        return case(label, "constexpr_blockwise_shift_scale", IOS18, inputs, [expected], dtypes=[scale.dtype])

    for dtype in ("int4", "uint4", "int8", "uint8", "fp16", "fp32"):
        data = _of(dtype, f"bw-{dtype}", 4, 6)
        for blocks in ((1, 1), (4, 1), (1, 6), (2, 3), (4, 6)):
            name = f"{dtype}-{blocks[0]}x{blocks[1]}"
            yield blockwise(name, data, _scale(name, *blocks))
            yield blockwise(f"{name}-offset", data, _scale(name, *blocks, dtype="fp16"), _of(dtype, f"o-{name}", *blocks))
    for offset in ("fp16", "fp32"):
        yield blockwise(f"{offset}-offset", _of("int4", "fo", 2, 4), _scale("fos", 2, 2), _of(offset, "foo", 2, 2))
    yield blockwise("rank1", _of("int8", "r1", 6), _scale("r1s", 3), _of("int8", "r1o", 3))
    yield blockwise("rank4", _of("int4", "r4", 4, 6, 2, 2), _scale("r4s", 4, 3, 1, 1), _of("int4", "r4o", 4, 3, 1, 1))
    yield blockwise("rank4-inner", _of("uint4", "r4i", 2, 2, 2, 4), _scale("r4is", 1, 2, 1, 2))
    yield blockwise("one", _of("int4", "one", 1), _scale("ones", 1))
    yield blockwise("odd-count", _of("uint4", "odd", 3, 5), _scale("odds", 3, 1))


def _cast() -> Iterator[Case]:
    for opset in (IOS16, IOS17, IOS18):
        for shape in ((), (1,), (3,), (2, 3), (2, 1, 2, 2), (0, 2)):
            source = Typed("fp16", draw(f"cast-{shape}", *shape, low=-70, high=70, dtype="fp16"))
            stated = {"source_val": source, "output_dtype": "fp32"}
            where = {"inputs": _present(stated)} if opset == IOS18 else {"inputs": {}, "attributes": stated}
            name = "x".join(map(str, shape)) or "scalar"
            yield _edge_case(name, "constexpr_cast", opset, np.float32(source.elements), "fp32", **where)
        special = Typed("fp16", np.array([np.nan, np.inf, -np.inf, 65504, 6e-8, -0.0], np.float16))
        stated = {"source_val": special, "output_dtype": "fp32"}
        where = {"inputs": _present(stated)} if opset == IOS18 else {"inputs": {}, "attributes": stated}
        yield _edge_case("special-values", "constexpr_cast", opset, np.float32(special.elements), "fp32", **where)


def _edge_case(label, operation, opset, expected, dtype, *, inputs, attributes=None, index=0, gives=None) -> Case:
    """A case whose result may be a scalar or have a type that is cast at the output."""
    program = Program(opset)
    made = program.op(operation, inputs, *(gives or [(dtype, np.shape(expected))]), attributes=attributes)
    made = made[index] if isinstance(made, tuple) else made
    if not np.shape(expected):
        made = program.op("expand_dims", {"x": made, "axes": const([0])}, (dtype, (1,)))
        expected = np.reshape(expected, (1,))
    return program.case(operation, label, [made], [expected])


def _packed(elements: np.ndarray, bits: int) -> np.ndarray:
    flat = elements.astype(np.uint8).reshape(-1, 1)
    return np.packbits(np.unpackbits(flat, axis=1, count=bits, bitorder="little").reshape(-1), bitorder="little")


def _lut_of_ios16() -> Iterator[Case]:
    def lut(label, opset, entries, dtype, *shape):
        bits = int(np.log2(entries))
        table = _of(dtype, f"table-{entries}", entries)
        indices = draw(f"indices-{label}", *shape, low=0, high=entries - 1, dtype="int32")
        packed = _packed(indices, bits)
        expected = ios16.constexpr_lut_to_dense.decompress(table.elements, packed, np.array(shape))
        attributes = {"indices": packed, "lut": table, "shape": Typed("uint32", np.array(shape))}
        return case(label, "constexpr_lut_to_dense", opset, {}, [expected], dtypes=[dtype], attributes=attributes)

    for entries in (2, 4, 16, 64, 256):
        for dtype in ("fp16", "fp32", "int8", "uint8"):
            # Functions can return bytes only since iOS17; the definition is the same.
            opset = IOS16 if dtype.startswith("fp") else IOS17
            yield lut(f"{entries}-{dtype}", opset, entries, dtype, 3, 5)
        yield lut(f"{entries}-rank1", IOS17, entries, "fp32", 7)
        yield lut(f"{entries}-rank4", IOS16, entries, "fp16", 2, 3, 1, 2)
    yield lut("one", IOS16, 64, "fp16", 1)


def _lut_of_ios18() -> Iterator[Case]:
    def lut(label, dtype, shape, blocks, *, of="fp16", vector=1, axis=None):
        entries = 2 ** int(dtype.removeprefix("uint"))
        indices = _of(dtype, f"i-{label}", *shape)
        table = _of(of, f"t-{label}", *blocks, entries, vector)
        expected = ios18.constexpr_lut_to_dense.decompress(indices.elements, _numbers(table), axis)
        inputs = _present({"indices": indices, "lut": table, "vector_axis": axis})
        return case(label, "constexpr_lut_to_dense", IOS18, inputs, [expected], dtypes=[of])

    for dtype in ("uint1", "uint2", "uint3", "uint4", "uint6", "uint8"):
        yield lut(f"{dtype}-tensor", dtype, (3, 5), (1, 1))
        yield lut(f"{dtype}-rows", dtype, (4, 3), (2, 1), of="fp32")
        yield lut(f"{dtype}-vector", dtype, (2, 3), (1, 1), vector=2, axis=0)
    for of in ("fp16", "fp32", "int8", "uint8"):
        yield lut(f"of-{of}-columns", "uint2", (2, 6), (1, 3), of=of)
        yield lut(f"of-{of}-vector", "uint2", (2, 3), (2, 1), of=of, vector=3, axis=-1)
    for axis in (-3, -2, -1, 0, 1, 2):
        yield lut(f"vector-axis{axis}", "uint2", (2, 2, 3), (1, 1, 1), vector=2, axis=axis)
        yield lut(f"vector-blocks-axis{axis}", "uint1", (2, 4, 2), (2, 2, 1), vector=3, axis=axis)
    yield lut("grid", "uint4", (4, 6), (2, 3))
    yield lut("every", "uint1", (2, 3), (2, 3))
    yield lut("rank1", "uint3", (6,), (2,))
    yield lut("rank4", "uint2", (4, 2, 3, 1), (4, 1, 1, 1))
    yield lut("one-with-axis", "uint2", (2, 3), (1, 1), axis=1)
    yield lut("one", "uint1", (1,), (1,))


def _mask(label: str, *shape: int) -> Typed:
    mask = draw(f"mask-{label}", *shape, low=0, high=1, dtype="int32")
    return Typed("uint1", mask)


def _sparse_case(label, operation, mask: Typed, data: Typed, inputs, expected_mask, expected, dtype) -> Case:
    """A case of an operation that returns a mask and the selected elements.

    Functions cannot return masks, so `constexpr_sparse_to_dense`, which is tested too, expands the elements.
    """
    program = Program(IOS18)
    given = program.op(operation, inputs, ("uint1", expected_mask.shape), (dtype, expected.shape))
    dense = program.op(
        "constexpr_sparse_to_dense", {"nonzero_data": given[1], "mask": given[0]}, (dtype, expected_mask.shape)
    )
    laid_out = ios18.constexpr_sparse_to_dense.decompress(expected, expected_mask)
    outputs = [given[1], dense] if dtype not in ("int4", "uint4") else [dense]
    return program.case(operation, label, outputs, [expected, laid_out], also=["constexpr_sparse_to_dense"])


def _lut_to_sparse() -> Iterator[Case]:
    def sparse(label, dtype, shape, blocks, *, of="fp16", vector=1, axis=None, mask=None):
        mask = mask or _mask(label, *shape)
        entries = 2 ** int(dtype.removeprefix("uint"))
        data = _of(dtype, f"d-{label}", int(mask.elements.sum()))
        table = _of(of, f"st-{label}", *blocks, entries, vector)
        kept, values = ios18.constexpr_lut_to_sparse.decompress(mask.elements, data.elements, _numbers(table), axis)
        inputs = _present({"indices_mask": mask, "indices_nonzero_data": data, "lut": table, "vector_axis": axis})
        return _sparse_case(label, "constexpr_lut_to_sparse", mask, data, inputs, kept, values, of)

    for dtype in ("uint1", "uint2", "uint3", "uint4", "uint6", "uint8"):
        yield sparse(f"{dtype}", dtype, (4, 5), (1, 1))
        yield sparse(f"{dtype}-rows", dtype, (4, 5), (2, 1), of="fp32")
        yield sparse(f"{dtype}-vector", dtype, (3, 4), (1, 1), vector=2, axis=0)
    for of in ("int8", "uint8", "fp32"):
        yield sparse(f"of-{of}", "uint2", (4, 3), (1, 3), of=of)
    for axis in (-2, -1, 0, 1):
        yield sparse(f"vector-axis{axis}", "uint2", (2, 4), (1, 2), vector=3, axis=axis)
    yield sparse("rank4", "uint2", (2, 3, 2, 2), (2, 1, 1, 1), vector=2, axis=1)
    yield sparse("full", "uint1", (2, 3), (1, 1), mask=Typed("uint1", np.ones((2, 3), np.int32)))
    yield sparse("rank1-vector", "uint2", (5,), (1,), vector=4, axis=0)


def _sparse_blockwise() -> Iterator[Case]:
    def sparse(label, dtype, shape, blocks, *, scale="fp16", offset=None):
        mask = _mask(label, *shape)
        data = _of(dtype, f"sb-{label}", int(mask.elements.sum()))
        scales = _scale(f"sbs-{label}", *blocks, dtype=scale)
        offsets = None if offset is None else _of(offset, f"sbo-{label}", *blocks)
        kept, values = ios18.constexpr_sparse_blockwise_shift_scale.decompress(
            mask.elements, _numbers(data), scales.elements.astype(np.float32), _numbers(offsets)
        )
        inputs = _present({"data_mask": mask, "nonzero_data": data, "scale": scales, "offset": offsets})
        return _sparse_case(label, "constexpr_sparse_blockwise_shift_scale", mask, data, inputs, kept, values, scale)

    for dtype in ("int4", "uint4", "int8", "uint8", "fp16", "fp32"):
        yield sparse(f"{dtype}", dtype, (4, 6), (1, 1))
        yield sparse(f"{dtype}-rows", dtype, (4, 6), (4, 1), scale="fp32")
        yield sparse(f"{dtype}-blocks-offset", dtype, (4, 6), (2, 3), offset=dtype)
        yield sparse(f"{dtype}-float-offset", dtype, (4, 6), (4, 2), offset="fp16")
    yield sparse("rank1", "int8", (7,), (7,), offset="int8")
    yield sparse("rank4", "int4", (2, 4, 2, 3), (2, 2, 1, 1), offset="int4")


def _sparse_of_ios16() -> Iterator[Case]:
    def sparse(label, opset, dtype, *shape, mask=None):
        bits = _mask(label, *shape).elements if mask is None else mask
        data = _of(dtype, f"s16-{label}", int(bits.sum()))
        packed = _packed(bits, 1)
        expected = ios16.constexpr_sparse_to_dense.decompress(data.elements, packed, bits.shape)
        attributes = {"nonzero_data": data, "mask": packed, "shape": Typed("uint32", np.array(bits.shape))}
        return case(label, "constexpr_sparse_to_dense", opset, {}, [expected], dtypes=[dtype], attributes=attributes)

    for dtype in ("fp16", "fp32", "int8", "uint8"):
        opset = IOS16 if dtype.startswith("fp") else IOS17
        for shape in ((4, 4), (3, 5), (2, 3, 2), (7,), (2, 2, 3, 2)):
            yield sparse(f"{dtype}-{'x'.join(map(str, shape))}", opset, dtype, *shape)
    yield sparse("full", IOS16, "fp16", mask=np.ones((3, 4), np.int32))
    yield sparse("empty", IOS16, "fp16", mask=np.zeros((3, 4), np.int32))
    yield sparse("one", IOS16, "fp32", mask=np.ones((1,), np.int32))


def _sparse_of_ios18() -> Iterator[Case]:
    def sparse(label, dtype, *shape, mask=None):
        bits = _mask(label, *shape) if mask is None else Typed("uint1", mask)
        data = _of(dtype, f"s18-{label}", int(bits.elements.sum()))
        expected = ios18.constexpr_sparse_to_dense.decompress(_numbers(data), bits.elements)
        inputs = _present({"nonzero_data": data, "mask": bits})
        if dtype not in ("int4", "uint4"):
            return case(label, "constexpr_sparse_to_dense", IOS18, inputs, [expected], dtypes=[dtype])
        # Functions cannot return 4-bit elements, so they are scaled by 0.5.
        program = Program(IOS18)
        dense = program.op("constexpr_sparse_to_dense", inputs, (dtype, expected.shape))
        scale = Typed("fp32", np.full((1,) * expected.ndim, 0.5, np.float32))
        scaled = program.op("constexpr_blockwise_shift_scale", {"data": dense, "scale": const(scale)}, ("fp32", expected.shape))
        halves = ios18.constexpr_blockwise_shift_scale.decompress(expected, scale.elements, None)
        also = ["constexpr_blockwise_shift_scale"]
        return program.case("constexpr_sparse_to_dense", label, [scaled], [halves], also=also)

    for dtype in ("fp16", "fp32", "int8", "uint8", "int4", "uint4"):
        for shape in ((4, 4), (3, 5), (2, 3, 2), (7,)):
            yield sparse(f"{dtype}-{'x'.join(map(str, shape))}", dtype, *shape)
    yield sparse("full", "fp16", mask=np.ones((3, 4), np.int32))
    yield sparse("empty", "fp16", mask=np.zeros((3, 4), np.int32))


def _chains() -> Iterator[Case]:
    """Chains of constants: a quantized lookup table, and a pruned and quantized weight."""
    for dtype, vector, axis in (("uint4", 1, None), ("uint2", 2, 0)):
        indices = _of(dtype, "chain-i", 4, 3)
        entries = 2 ** int(dtype.removeprefix("uint"))
        table, scale = _of("int8", "chain-t", 2, 1, entries, vector), _scale("chain-s", 2, 1, 1, 1, dtype="fp16")
        values = ios18.constexpr_blockwise_shift_scale.decompress(_numbers(table), scale.elements.astype(np.float32), None)
        expected = ios18.constexpr_lut_to_dense.decompress(indices.elements, values, axis)
        program = Program(IOS18)
        quantized = program.op(
            "constexpr_blockwise_shift_scale", {"data": const(table), "scale": const(scale)}, ("fp16", table.shape)
        )
        stated = {} if axis is None else {"vector_axis": const(axis)}
        dense = program.op("constexpr_lut_to_dense", {"indices": const(indices), "lut": quantized} | stated, ("fp16", expected.shape))
        also = ["constexpr_blockwise_shift_scale"]
        yield program.case("constexpr_lut_to_dense", f"quantized-table-{dtype}", [dense], [expected], also=also)


def _dequantize() -> Iterator[Case]:
    def dequantize(label, opset, data, scale, zero_point=None, axis=None):
        expected = optimize.dequantize_by_scale_and_zp(
            data.elements, scale.elements.astype(np.float32), _numbers(zero_point), axis
        )
        inputs = {"input": data} | _present({"scale": scale, "zero_point": zero_point, "axis": axis})
        return case(label, "dequantize", opset, inputs, [expected], dtypes=[scale.dtype])

    for opset, dtype, scale in ((IOS17, "int8", "fp32"), (IOS17, "uint8", "fp16"), (IOS18, "int8", "fp16"), (IOS18, "uint8", "fp32")):
        data = _of(dtype, f"dq-{dtype}", 3, 4)
        name = f"{dtype}-{scale}"
        yield dequantize(f"{name}-scalar", opset, data, _scale("dqs", dtype=scale))
        yield dequantize(f"{name}-zero-point", opset, data, _scale("dqs", dtype=scale), _of(dtype, "dqz"))
        yield dequantize(f"{name}-rows", opset, data, _scale("dqr", 3, dtype=scale), _of(dtype, "dqzr", 3), 0)
        yield dequantize(f"{name}-columns", opset, data, _scale("dqc", 4, dtype=scale), None, -1)
    data = _of("int8", "dq4", 2, 3, 2, 2)
    for axis, extent in ((1, 3), (-3, 3), (0, 2), (3, 2)):
        yield dequantize(f"rank4-axis{axis}", IOS17, data, _scale("dq4s", extent), _of("int8", "dq4z", extent), axis)
    yield dequantize("one", IOS17, _of("int8", "dqo", 1), _scale("dqos", 1), _of("int8", "dqoz", 1), 0)
    yield dequantize("no-rows", IOS17, Typed("int8", np.zeros((0, 2), np.int32)), _scale("dqn"))


def _quantize() -> Iterator[Case]:
    def quantize(label, opset, x, dtype, scale, zero_point=None, axis=None):
        with np.errstate(all="ignore"):
            wide = x.astype(np.float32)
            scales = optimize.promote_rank_to_same_as_data(scale.elements.astype(np.float32), wide, axis)
            points = None if zero_point is None else optimize.promote_rank_to_same_as_data(_numbers(zero_point), wide, axis)
            expected = optimize.quantize_by_scale_and_zp(wide, scales, points, dtype)
        inputs = {"input": x} | _present({"scale": scale, "zero_point": zero_point, "axis": axis, "output_dtype": dtype})
        return case(label, "quantize", opset, inputs, [expected], dtypes=[dtype])

    for opset, dtype, of in ((IOS17, "int8", "fp32"), (IOS17, "uint8", "fp16"), (IOS18, "int8", "fp16"), (IOS18, "uint8", "fp32")):
        # Division by powers of two is exact in every type.
        scale = Typed(of, np.array(0.25, np.float32))
        scales = [Typed(of, np.array(values, np.float32)) for values in ([0.5, 0.25, 2], [1, 0.125, 4, 0.5])]
        x = draw(f"q-{of}", 3, 4, low=-90, high=90, dtype=of)
        name = f"{dtype}-{of}"
        yield quantize(f"{name}-scalar", opset, x, dtype, scale)
        yield quantize(f"{name}-zero-point", opset, x, dtype, scale, _of(dtype, "qz"))
        yield quantize(f"{name}-rows", opset, x, dtype, scales[0], _of(dtype, "qzr", 3), 0)
        yield quantize(f"{name}-columns", opset, x, dtype, scales[1], None, -1)
    ties = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 126.5, 127.5, -128.5], np.float32)
    for dtype in ("int8", "uint8"):
        one = Typed("fp32", np.array(1, np.float32))
        yield quantize(f"{dtype}-ties", IOS17, ties, dtype, one)
        yield quantize(f"{dtype}-ties-zero-point", IOS17, ties, dtype, one, Typed(dtype, np.array(3)))
        beyond = np.array([1e30, -1e30, np.inf, -np.inf, 300, -300], np.float32)
        yield quantize(f"{dtype}-saturates", IOS17, beyond, dtype, one, Typed(dtype, np.array(5)))
        yield quantize(f"{dtype}-negative-scale", IOS17, ties, dtype, Typed("fp32", np.array(-0.5, np.float32)))
    x = draw("q4", 2, 3, 2, 2, low=-40, high=40)
    for axis, extent in ((1, 3), (-3, 3), (0, 2), (3, 2)):
        yield quantize(f"rank4-axis{axis}", IOS17, x, "int8", _scale("q4s", extent), _of("int8", "q4z", extent), axis)
    yield quantize("rank3-scalar", IOS18, x[0], "uint8", _scale("q3s"), Typed("uint8", np.array(100)))
    yield quantize("one", IOS17, x[0, 0, 0, :1], "int8", _scale("q1s", 1), _of("int8", "q1z", 1), 0)
    yield quantize("no-rows", IOS17, np.zeros((0, 2), np.float32), "int8", _scale("q0s"))
    nan = np.array([np.nan, 1], np.float32)
    # numpy's constant folding converts NaN to 0 if there is no zero point.
    yield quantize("nan", IOS17, nan, "int8", Typed("fp32", np.array(0.5, np.float32)))
