"""Compressed constants, and quantization at run time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .language import (
    IOS15,
    IOS16,
    IOS17,
    IOS18,
    Instance,
    Operand,
    const,
    filled,
    gives,
    instance,
    tensor,
)

OPERATIONS = (
    "constexpr_affine_dequantize", "constexpr_blockwise_shift_scale", "constexpr_cast", "constexpr_lut_to_dense",
    "constexpr_lut_to_sparse", "constexpr_sparse_blockwise_shift_scale", "constexpr_sparse_to_dense", "dequantize",
    "quantize",
)  # fmt: skip

UNCHECKED = "coremltools does not check it"

# Three bits of the eight in this byte are set; four of twelve.
MASK = [1, 0, 0, 1, 0, 0, 1, 0]


def instances() -> Iterator[Instance]:
    yield from _affine()
    for opset in (IOS16, IOS17, IOS18):
        yield from _cast(opset)
    yield from _packed_lut()
    yield from _packed_sparse()
    yield from _blockwise()
    yield from _lut()
    yield from _sparse()
    yield from _lut_to_sparse()
    yield from _sparse_blockwise()
    yield from _quantize()
    yield from _dequantize()


def _affine() -> Iterator[Instance]:
    def affine(label: str, data: Operand, scale: Operand, zero: Operand | None, axis: int, **more: Any) -> Instance:
        stated = {"quantized_data": data, "scale": scale, "zero_point": zero, "axis": const("int32", axis)}
        stated = {name: operand for name, operand in stated.items() if operand is not None}
        opset = more.pop("opset", IOS16)
        return instance("constexpr_affine_dequantize", opset, label, attributes=stated, **more)

    for source in ("int8", "uint8"):
        for dtype in ("fp16", "fp32"):
            data, zero = filled(source, 4, 3, 2), const(source, 0)
            yield affine(f"whole-{source}-{dtype}", data, const(dtype, 0.5), zero, 0)
            yield affine(f"rows-{source}-{dtype}", data, filled(dtype, 3), zero, 1, opset=IOS17)
            yield affine(f"zeros-{source}-{dtype}", data, filled(dtype, 2), filled(source, 2), -1, opset=IOS18)
    data, half, zero = filled("int8", 4, 3), const("fp16", 0.5), const("int8", 0)
    yield affine("float-zero", data, half, const("fp32", 1.5), 0)
    yield affine("vector", filled("uint8", 7), half, const("uint8", 3), 0)
    yield affine("scale-length", data, filled("fp16", 2), zero, 1)
    yield affine("zero-length", data, half, filled("int8", 2), 1)
    yield affine("scale-rank", data, filled("fp16", 4, 1), zero, 0)
    yield affine("axis", data, half, zero, 2)
    yield affine("axis-negative", data, half, zero, -3)
    yield affine("int32-data", filled("int32", 4, 3), half, const("int32", 0), 0)
    yield affine("int-scale", data, const("int32", 2), zero, 0)
    yield affine("before", data, half, zero, 0, opset=IOS15)
    yield affine("missing", data, half, None, 0)
    yield affine("rank0", const("int8", 1), half, zero, 0)


def _cast(opset: str) -> Iterator[Instance]:
    def cast(label: str, source: Operand, dtype: str = "fp32") -> Instance:
        bound = {"source_val": source, "output_dtype": const("string", dtype)}
        bound = {"attributes": bound} if opset != IOS18 else {"inputs": bound}
        return instance("constexpr_cast", opset, label, **bound)

    yield cast("rank0", const("fp16", 1.5))
    yield cast("rank1", filled("fp16", 3))
    yield cast("rank2", filled("fp16", 3, 4))
    yield cast("rank4", filled("fp16", 3, 4, 5, 6))
    yield cast("large", filled("fp16", 128, 128))
    yield cast("to-half", filled("fp16", 3), "fp16")
    yield cast("to-nothing", filled("fp16", 3), "float32")
    yield cast("single", filled("fp32", 3))


def _packed_lut() -> Iterator[Instance]:
    def lut(label: str, size: int, palettes: Operand, shape: Operand, **more: Any) -> Instance:
        stated = {"indices": filled("uint8", size, value=0), "lut": palettes, "shape": shape}
        opset = more.pop("opset", IOS16)
        return instance("constexpr_lut_to_dense", opset, label, attributes=stated, **more)

    shape = const("uint32", [5, 7])
    for bits in (1, 2, 4, 6, 8):
        for dtype in ("fp16", "fp32", "int8", "uint8"):
            opset = IOS17 if dtype == "fp32" else IOS16
            yield lut(f"bits{bits}-{dtype}", -(-35 * bits // 8), filled(dtype, 2**bits), shape, opset=opset)
    four = filled("fp16", 16)
    yield lut("vector", 4, four, const("uint32", [7]))
    yield lut("rank5", 60, four, const("uint32", [1, 2, 3, 4, 5]))
    yield lut("three-bits", 14, filled("fp16", 8), shape)
    yield lut("indices-short", 17, four, shape)
    yield lut("indices-long", 19, four, shape)
    yield lut("palettes-rank2", 18, filled("fp16", 1, 16), shape)
    yield lut("int32", 18, filled("int32", 16), shape)
    yield lut("int32-shape", 18, four, const("int32", [5, 7]))


def _packed_sparse() -> Iterator[Instance]:
    def sparse(label: str, data: Operand, mask: list[int], shape: Operand, **more: Any) -> Instance:
        stated = {"nonzero_data": data, "mask": const("uint8", mask), "shape": shape}
        opset = more.pop("opset", IOS16)
        return instance("constexpr_sparse_to_dense", opset, label, attributes=stated, **more)

    shape = const("uint32", [3, 4])
    for dtype in ("fp16", "fp32", "int8", "uint8"):
        yield sparse(f"plane-{dtype}", filled(dtype, 4), [0b01001001, 0b1000], shape)
        yield sparse(f"byte-{dtype}", filled(dtype, 3), [0b01001001], const("uint32", [8]), opset=IOS17)
    yield sparse("none", filled("fp16", 0), [0, 0], shape)
    yield sparse("rank4", filled("fp16", 16), [255, 255], const("uint32", [1, 2, 2, 4]))
    yield sparse("too-few", filled("fp16", 3), [0b01001001, 0b1000], shape)
    yield sparse("too-many", filled("fp16", 5), [0b01001001, 0b1000], shape)
    yield sparse("mask-short", filled("fp16", 3), [0b01001001], shape)
    yield sparse("mask-long", filled("fp16", 4), [0b01001001, 0b1000, 0], shape)
    yield sparse("padding", filled("fp16", 5), [0b01001001, 0b11000], shape)
    yield sparse("data-rank2", filled("fp16", 1, 4), [0b01001001, 0b1000], shape)
    yield sparse("int4", filled("int32", 4), [0b01001001, 0b1000], shape)


def _blockwise() -> Iterator[Instance]:
    def blocks(
        label: str, data: Operand, scale: Operand | None, offset: Operand | None = None, **more: Any
    ) -> Instance:
        opset = more.pop("opset", IOS18)
        bound = {"data": data, "scale": scale, "offset": offset}
        return instance("constexpr_blockwise_shift_scale", opset, label, inputs=bound, **more)

    for source in ("int4", "uint4", "int8", "uint8", "fp16", "fp32"):
        data = filled(source, 4, 6)
        yield blocks(f"rows-{source}", data, filled("fp16", 4, 1))
        yield blocks(f"blocks-{source}", data, filled("fp32", 2, 3), filled(source, 2, 3, value=0))
        yield blocks(f"float-offset-{source}", data, filled("fp16", 1, 1), filled("fp16", 1, 1, value=0.5))
    data = filled("int8", 4, 6)
    yield blocks("elements", data, filled("fp16", 4, 6))
    yield blocks("rank4", filled("int4", 8, 4, 3, 3), filled("fp16", 8, 2, 1, 1))
    lut = gives("constexpr_lut_to_dense", indices=filled("uint4", 4, 6, value=0), lut=filled("int8", 1, 1, 16, 1))
    yield blocks("of-lut", lut, filled("fp16", 4, 1))
    yield blocks("rank", data, filled("fp16", 4))
    yield blocks("scalar", const("int8", 1), const("fp16", 1.0))
    yield blocks("not-dividing", data, filled("fp16", 3, 1))
    yield blocks("more-than-data", data, filled("fp16", 8, 1))
    yield blocks("offset-shape", data, filled("fp16", 4, 1), filled("int8", 1, 1))
    yield blocks("offset-dtype", data, filled("fp16", 4, 1), filled("uint8", 4, 1))
    yield blocks("int32", filled("int32", 4, 6), filled("fp16", 4, 1))
    yield blocks("computed", tensor("int8", 4, 6), filled("fp16", 4, 1))
    yield blocks("before", data, filled("fp16", 4, 1), opset=IOS17)
    yield blocks("missing", data, None)
    yield blocks("no-scales", data, filled("fp16", 0, 1))


def _lut() -> Iterator[Instance]:
    def lut(label: str, indices: Operand, palettes: Operand, axis: Any = None, **more: Any) -> Instance:
        bound = {"indices": indices, "lut": palettes}
        if axis is not None:
            bound["vector_axis"] = axis if isinstance(axis, dict) else const("int32", axis)
        return instance("constexpr_lut_to_dense", IOS18, label, inputs=bound, **more)

    for bits, dtype in ((1, "fp16"), (2, "fp32"), (3, "int8"), (4, "uint8"), (6, "fp16"), (8, "fp32")):
        indices = filled(f"uint{bits}", 4, 6, value=0)
        yield lut(f"bits{bits}-{dtype}", indices, filled(dtype, 1, 1, 2**bits, 1))
        yield lut(f"groups{bits}-{dtype}", indices, filled(dtype, 2, 1, 2**bits, 1))
        yield lut(f"vectors{bits}-{dtype}", indices, filled(dtype, 1, 1, 2**bits, 3), 0)
    indices = filled("uint4", 4, 6, value=0)
    yield lut("vectors-last", indices, filled("fp16", 4, 2, 16, 2), -1)
    yield lut("scalar-with-axis", indices, filled("fp16", 1, 1, 16, 1), 1)
    yield lut("rank1", filled("uint4", 8, value=0), filled("fp16", 1, 16, 1))
    yield lut("rank4", filled("uint2", 8, 4, 3, 3, value=0), filled("fp16", 2, 1, 1, 1, 4, 1))
    scaled = {"data": filled("int8", 1, 1, 16, 1), "scale": filled("fp16", 1, 1, 1, 1)}
    yield lut("of-scaled", indices, gives("constexpr_blockwise_shift_scale", **scaled))
    yield lut("rank", indices, filled("fp16", 1, 16, 1))
    yield lut("scalar", const("uint4", 1), filled("fp16", 16, 1))
    yield lut("not-dividing", indices, filled("fp16", 3, 1, 16, 1))
    yield lut("palettes", indices, filled("fp16", 1, 1, 8, 1))
    yield lut("palettes-odd", indices, filled("fp16", 1, 1, 12, 1))
    yield lut("no-axis", indices, filled("fp16", 1, 1, 16, 2))
    yield lut("axis", indices, filled("fp16", 1, 1, 16, 2), 2)
    yield lut("axis-vector", indices, filled("fp16", 1, 1, 16, 2), const("int32", [1]))
    yield lut("int32-indices", filled("int32", 4, 6), filled("fp16", 1, 1, 16, 1))
    yield lut("computed", indices, tensor("fp16", 1, 1, 16, 1))


def _sparse() -> Iterator[Instance]:
    def sparse(label: str, data: Operand, mask: Operand | None, **more: Any) -> Instance:
        return instance("constexpr_sparse_to_dense", IOS18, label, nonzero_data=data, mask=mask, **more)

    mask = const("uint1", [MASK, MASK])
    for dtype in ("int4", "uint4", "int8", "uint8", "fp16", "fp32"):
        yield sparse(f"plane-{dtype}", filled(dtype, 6), mask)
    yield sparse("vector", filled("fp16", 2), const("uint1", [1, 0, 1, 0, 0]))
    yield sparse("cube", filled("fp16", 3), const("uint1", [[[1, 0, 1], [0, 1, 0]]]))
    yield sparse("none", filled("fp16", 0), const("uint1", [0, 0]))
    stages = {"data_mask": mask, "nonzero_data": filled("int8", 6), "scale": filled("fp16", 2, 1)}
    stage = [gives("constexpr_sparse_blockwise_shift_scale", output, **stages) for output in (0, 1)]
    yield sparse("of-scaled", stage[1], stage[0])
    stages = {"indices_mask": mask, "indices_nonzero_data": filled("uint2", 6), "lut": filled("fp16", 1, 1, 4, 1)}
    stage = [gives("constexpr_lut_to_sparse", output, **stages) for output in (0, 1)]
    yield sparse("of-lut", stage[1], stage[0])
    yield sparse("too-few", filled("fp16", 5), mask)
    yield sparse("too-many", filled("fp16", 7), mask)
    yield sparse("data-rank2", filled("fp16", 6, 1), mask)
    yield sparse("mask-uint8", filled("fp16", 6), const("uint8", [MASK, MASK]))
    yield sparse("int32", filled("int32", 6), mask)
    yield sparse("missing", filled("fp16", 6), None)
    yield sparse("shape", filled("fp16", 6), mask, shape=const("uint32", [2, 8]))
    yield sparse("computed", tensor("fp16", 6), mask)


def _lut_to_sparse() -> Iterator[Instance]:
    def lut(label: str, data: Operand, palettes: Operand, axis: int | None = None, **more: Any) -> Instance:
        bound = {"indices_mask": const("uint1", [MASK, MASK]), "indices_nonzero_data": data, "lut": palettes}
        if axis is not None:
            bound["vector_axis"] = const("int32", axis)
        return instance("constexpr_lut_to_sparse", IOS18, label, inputs={**bound, **more})

    for bits, dtype in ((1, "fp16"), (2, "fp32"), (3, "int8"), (4, "uint8"), (6, "fp16"), (8, "fp32")):
        data = filled(f"uint{bits}", 6, value=0)
        yield lut(f"bits{bits}-{dtype}", data, filled(dtype, 1, 1, 2**bits, 1))
        yield lut(f"vectors{bits}-{dtype}", data, filled(dtype, 2, 1, 2**bits, 3), 1)
    data, palettes = filled("uint2", 6, value=0), filled("fp16", 1, 1, 4, 1)
    yield lut("vectors-first", data, filled("fp16", 1, 4, 4, 2), -2)
    yield lut("vector", filled("uint2", 3, value=0), filled("fp16", 1, 4, 1), indices_mask=const("uint1", MASK))
    yield lut("too-few", filled("uint2", 5, value=0), palettes)
    yield lut("data-rank2", filled("uint2", 1, 6, value=0), palettes)
    yield lut("rank", data, filled("fp16", 1, 4, 1))
    yield lut("palettes", data, filled("fp16", 1, 1, 8, 1))
    yield lut("not-dividing", data, filled("fp16", 1, 3, 4, 1))
    yield lut("no-axis", data, filled("fp16", 1, 1, 4, 2))
    yield lut("axis", data, filled("fp16", 1, 1, 4, 2), 2)


def _sparse_blockwise() -> Iterator[Instance]:
    def blocks(label: str, data: Operand, scale: Operand, offset: Operand | None = None, **more: Any) -> Instance:
        bound = {"data_mask": const("uint1", [MASK, MASK]), "nonzero_data": data, "scale": scale, "offset": offset}
        return instance("constexpr_sparse_blockwise_shift_scale", IOS18, label, inputs={**bound, **more})

    for source in ("int4", "uint4", "int8", "uint8", "fp16", "fp32"):
        data = filled(source, 6)
        yield blocks(f"rows-{source}", data, filled("fp16", 2, 1))
        yield blocks(f"blocks-{source}", data, filled("fp32", 1, 4), filled(source, 1, 4, value=0))
    data, scale = filled("int8", 6), filled("fp16", 2, 1)
    yield blocks("vector", filled("int8", 3), filled("fp16", 2), data_mask=const("uint1", MASK))
    yield blocks("float-offset", data, scale, filled("fp32", 2, 1))
    yield blocks("too-few", filled("int8", 5), scale)
    yield blocks("data-rank2", filled("int8", 6, 1), scale)
    yield blocks("rank", data, filled("fp16", 2))
    yield blocks("not-dividing", data, filled("fp16", 1, 3))
    yield blocks("offset-shape", data, scale, filled("int8", 1, 1))
    yield blocks("offset-dtype", data, scale, filled("uint8", 2, 1))


def _quantize() -> Iterator[Instance]:
    def quantize(label: str, x: Operand, scale: Operand, dtype: str = "int8", **more: Any) -> Instance:
        opset = more.pop("opset", IOS17)
        bound = {"input": x, "scale": scale, "output_dtype": const("string", dtype)}
        bound = {**bound, **{name: more.pop(name) for name in ("zero_point", "axis") if name in more}}
        return instance("quantize", opset, label, inputs=bound, **more)

    for source in ("fp16", "fp32"):
        for dtype in ("int8", "uint8"):
            yield quantize(f"whole-{source}-{dtype}", tensor(source, 2, 3), const(source, 0.5), dtype)
            vectors = {"axis": const("int32", 1), "zero_point": filled(dtype, 3)}
            yield quantize(f"rows-{source}-{dtype}", tensor(source, 2, 3, 4), filled(source, 3), dtype, **vectors)
    x, half, axis = tensor("fp32", 2, 3), const("fp32", 0.5), const("int32", 1)
    yield quantize("zero-point", x, half, zero_point=const("int8", 3), opset=IOS18)
    yield quantize("open", tensor("fp32", "s0", 3), filled("fp32", 3), axis=const("int32", -1))
    yield quantize("rank0", tensor("fp32"), half)
    yield quantize("zeros-in-part", x, const("fp32", [0.0, 1.0, 2.0]), axis=axis)
    yield quantize("to-int32", x, half, "int32")
    yield quantize("zero-point-dtype", x, half, zero_point=const("uint8", 3))
    yield quantize("zero", x, const("fp32", 0.0))
    yield quantize("zeros", x, filled("fp32", 3, value=0), axis=axis)
    yield quantize("scalar-axis", x, half, axis=axis)
    yield quantize("no-axis", x, filled("fp32", 3))
    yield quantize("zero-point-vector", x, half, zero_point=filled("int8", 3))
    yield quantize("zero-point-scalar", x, filled("fp32", 3), axis=axis, zero_point=const("int8", 3))
    yield quantize("axis", x, filled("fp32", 3), axis=const("int32", 2))
    yield quantize("length", x, filled("fp32", 2), axis=axis)
    yield quantize("zero-point-length", x, filled("fp32", 3), axis=axis, zero_point=filled("int8", 2))
    yield quantize("rank2", x, filled("fp32", 1, 3), axis=axis)
    yield quantize("mixed", x, const("fp16", 0.5))
    yield quantize("before", x, half, opset=IOS16)
    yield quantize("computed-scale", x, tensor("fp32"))


def _dequantize() -> Iterator[Instance]:
    def dequantize(label: str, x: Operand, scale: Operand, **more: Any) -> Instance:
        opset = more.pop("opset", IOS17)
        bound = {"input": x, "scale": scale}
        bound = {**bound, **{name: more.pop(name) for name in ("zero_point", "axis") if name in more}}
        return instance("dequantize", opset, label, inputs=bound, **more)

    for source in ("int8", "uint8"):
        for dtype in ("fp16", "fp32"):
            yield dequantize(f"whole-{source}-{dtype}", tensor(source, 2, 3), const(dtype, 0.5))
            vectors = {"axis": const("int32", 1), "zero_point": filled(source, 3)}
            yield dequantize(f"rows-{source}-{dtype}", tensor(source, 2, 3, 4), filled(dtype, 3), **vectors)
    x, half, axis = tensor("int8", 2, 3), const("fp32", 0.5), const("int32", 1)
    yield dequantize("open", tensor("int8", "s0", 3), filled("fp32", 3), axis=const("int32", -1), opset=IOS18)
    yield dequantize("rank0", tensor("int8"), half)
    yield dequantize("known", const("int8", [[1, 2, 3]]), half)
    yield dequantize("zero-point-dtype", x, half, zero_point=const("uint8", 3))
    yield dequantize("scalar-axis", x, half, axis=axis)
    yield dequantize("no-axis", x, filled("fp32", 3))
    yield dequantize("zero-point-vector", x, half, zero_point=filled("int8", 3))
    yield dequantize("axis", x, filled("fp32", 3), axis=const("int32", 2))
    yield dequantize("length", x, filled("fp32", 2), axis=axis)
    yield dequantize("int32", tensor("int32", 2, 3), half)
    yield dequantize("before", x, half, opset=IOS16)
    yield dequantize(
        "open-axis",
        tensor("int8", 2, "s0"),
        filled("fp32", 3),
        axis=axis,
        because="the open dimension may well be the right one",
        instead={"outputs": [{"dtype": "fp32", "shape": [2, {"expr": "s0", "at": [7, 12, 37]}]}]},
    )
