"""Operations that resize, crop and resample images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .language import IOS15, IOS16, IOS17, IOS18, REFUSED, Instance, Operand, const, filled, gives, instance, tensor

OPERATIONS = (
    "affine", "crop", "crop_resize", "resample", "resize", "resize_bilinear", "resize_nearest_neighbor",
    "upsample_bilinear", "upsample_nearest_neighbor",
)  # fmt: skip

UNCHECKED = "coremltools does not check it"

WRONG_WHEN_FIXED = {"affine/iOS15/open/fixed": (UNCHECKED, REFUSED)}


def instances() -> Iterator[Instance]:
    yield from _affine()
    yield from _crop()
    for opset in (IOS15, IOS16):
        yield from _crop_resize_of_regions(opset)
    yield from _crop_resize_of_boxes()
    for opset in (IOS15, IOS16, IOS17):
        yield from _resample(opset)
    yield from _resize()
    for operation in ("resize_bilinear", "resize_nearest_neighbor"):
        yield from _resize_to_target(operation)
    yield from _upsample("upsample_nearest_neighbor", IOS15)
    for opset in (IOS15, IOS16):
        yield from _upsample("upsample_bilinear", opset)
        centers = {"half_pixel_centers": const("bool", True)}
        yield instance("upsample_bilinear", opset, "centers", x=tensor("fp32", 1, 3, 4, 5), **centers)


def text(name: str) -> Operand:
    return const("string", name)


def ints(*values: int) -> Operand:
    return const("int32", list(values))


def int32(value: int) -> Operand:
    return const("int32", value)


def _affine() -> Iterator[Instance]:
    def affine(label: str, dtype: str = "fp32", opset: str = IOS15, **more: Any) -> Instance:
        base = {
            "x": tensor(dtype, 2, 3, 8, 9),
            "transform_matrix": tensor(dtype, 2, 6),
            "output_height": int32(4),
            "output_width": int32(5),
            "sampling_mode": text("bilinear"),
            "padding_mode": text("constant"),
            "padding_value": const(dtype, 0.0),
            "coordinates_mode": text("normalized_minus_one_to_one"),
            "align_corners": const("bool", True),
        }
        return instance("affine", opset, label, **{**base, **more})

    for dtype in ("fp16", "fp32"):
        yield affine(f"each-{dtype}", dtype)
        yield affine(f"one-{dtype}", dtype, IOS17, transform_matrix=filled(dtype, 1, 6))
    yield affine("case", sampling_mode=text("BILINEAR"), padding_mode=text("Constant"))
    yield affine("open", x=tensor("fp32", "s0", 3, "s1", 9))
    yield affine("open-matrix", transform_matrix=tensor("fp32", "s0", "s1"))
    yield affine("open-channels", x=tensor("fp32", 2, "s0", 8, 9), transform_matrix=filled("fp32", 2, 6))
    yield affine("rank3", x=tensor("fp32", 3, 8, 9))
    yield affine("matrix-rank1", transform_matrix=tensor("fp32", 6))
    yield affine("matrix-width", transform_matrix=tensor("fp32", 2, 9))
    yield affine("sampling", sampling_mode=text("nearest"))
    yield affine("padding", padding_mode=text("border"))
    yield affine("padding-value", padding_value=const("fp32", 1.0))
    yield affine("coordinates", coordinates_mode=text("unnormalized"))
    yield affine("mixed", transform_matrix=tensor("fp16", 2, 6))
    yield affine("matrix-batch", transform_matrix=tensor("fp32", 3, 6), because=UNCHECKED, instead=REFUSED)
    yield affine("negative", output_width=int32(-5), because=UNCHECKED, instead=REFUSED)


def _crop() -> Iterator[Instance]:
    def crop(label: str, x: Operand, height: Operand | None, width: Operand, **more: Any) -> Instance:
        opset = more.pop("opset", IOS15)
        return instance("crop", opset, label, x=x, crop_height=height, crop_width=width, **more)

    for dtype in ("fp16", "fp32"):
        yield crop(f"rank3-{dtype}", tensor(dtype, 3, 8, 9), ints(1, 2), ints(0, 3))
        yield crop(f"rank5-{dtype}", tensor(dtype, 2, 1, 3, 8, 9), ints(0, 0), ints(4, 4), opset=IOS18)
    image = tensor("fp32", 1, 3, 8, 9)
    yield crop("open", tensor("fp32", "s0", 3, "s1", "s2"), ints(1, 2), ints(0, 3))
    yield crop("open-batch", tensor("fp32", "s0", 3, 8, 9), ints(1, 2), ints(0, 3))
    yield crop("nested", image, const("int32", [[1, 2]]), ints(0, 3))
    yield crop("rank2", tensor("fp32", 8, 9), ints(1, 2), ints(0, 3))
    yield crop("height-short", image, ints(1), ints(0, 3))
    yield crop("width-long", image, ints(1, 2), ints(0, 3, 1))
    yield crop("computed", image, tensor("int32", 2), ints(0, 3))
    yield crop("int32", tensor("int32", 1, 3, 8, 9), ints(1, 2), ints(0, 3))
    yield crop("missing", image, None, ints(0, 3))
    yield crop("too-much", image, ints(5, 4), ints(0, 3), because=UNCHECKED, instead=REFUSED)
    yield crop("all", image, ints(5, 3), ints(0, 3), because=UNCHECKED, instead=REFUSED)


def _crop_resize_of_regions(opset: str) -> Iterator[Instance]:
    def crop(label: str, x: Operand, regions: Operand | None, **more: Any) -> Instance:
        return instance("crop_resize", opset, label, x=x, roi=regions, **more)

    target = {"target_height": int32(6), "target_width": int32(7)}
    for dtype in ("fp16", "fp32"):
        yield crop(f"four-{dtype}", tensor(dtype, 2, 3, 8, 9), tensor(dtype, 5, 1, 4, 1, 1), **target)
        yield crop(f"five-{dtype}", tensor(dtype, 1, 3, 8, 9), tensor(dtype, 5, 1, 5, 1, 1))
    image, regions = tensor("fp32", 1, 3, 8, 9), tensor("fp32", 5, 1, 4, 1, 1)
    yield crop("open-regions", image, tensor("fp32", "s0", 1, 4, 1, 1), **target)
    yield crop("open-image", tensor("fp32", "s1", 3, "s2", 9), regions, **target)
    modes = {
        "sampling_mode": text("ALIGN_CORNERS"),
        "box_coordinate_mode": text("CENTER_SIZE_WIDTH_FIRST"),
        "normalized_coordinates": const("bool", True),
        "spatial_scale": const("fp32", 0.5),
    }
    yield crop("modes", image, regions, **target, **modes)
    yield crop("pad-value", image, regions, pad_value=const("fp32", 1.0))
    yield crop("image-rank3", tensor("fp32", 3, 8, 9), regions)
    yield crop("regions-rank2", image, tensor("fp32", 5, 4))
    yield crop("boxes", image, None, boxes=tensor("fp32", 5, 4))
    yield crop("sampling", image, regions, sampling_mode=text("NEAREST"))
    yield crop("box-mode", image, regions, box_coordinate_mode=text("CORNERS"))
    yield crop("mixed", image, tensor("fp16", 5, 1, 4, 1, 1))
    yield crop("regions-of-three", image, tensor("fp32", 5, 1, 3, 1, 1), because=UNCHECKED, instead=REFUSED)
    yield crop("regions-flat", image, tensor("fp32", 5, 4, 1, 1, 1), because=UNCHECKED, instead=REFUSED)
    yield crop("target-zero", image, regions, target_height=int32(0), because=UNCHECKED, instead=REFUSED)


def _crop_resize_of_boxes() -> Iterator[Instance]:
    def crop(label: str, x: Operand, boxes: Operand | None, indices: Operand | None, **more: Any) -> Instance:
        opset = more.pop("opset", IOS17)
        return instance("crop_resize", opset, label, x=x, boxes=boxes, box_indices=indices, **more)

    target = {"target_height": int32(6), "target_width": int32(7)}
    image, boxes, indices = tensor("fp32", 2, 3, 8, 9), tensor("fp32", 5, 4), tensor("int32", 5)
    for dtype in ("fp16", "fp32", "uint16"):
        yield crop(f"boxes-{dtype}", image, tensor(dtype, 5, 4), indices, **target)
    yield crop("half", tensor("fp16", 2, 3, 8, 9), boxes, tensor("uint16", 5), opset=IOS18)
    yield crop("known-indices", image, boxes, ints(0, 1, 1, 0, 1), **target)
    yield crop("default-indices", image, tensor("fp32", 2, 4), None, **target)
    yield crop("open-image", tensor("fp32", "s1", "s2", "s3", 9), boxes, indices)
    normalized = {"normalized_coordinates": const("bool", True)}
    yield crop("normalized", image, boxes, indices, **normalized, sampling_mode=text("OFFSET_CORNERS"))
    yield crop("normalized-uint16", image, tensor("uint16", 5, 4), indices, **normalized)
    yield crop("image-rank3", tensor("fp32", 3, 8, 9), boxes, indices)
    yield crop("boxes-rank1", image, tensor("fp32", 4), indices)
    yield crop("boxes-of-five", image, tensor("fp32", 5, 5), indices)
    yield crop("indices-short", image, boxes, tensor("int32", 4))
    yield crop("indices-rank2", image, boxes, tensor("int32", 5, 1))
    yield crop("indices-outside", image, boxes, ints(0, 1, 2, 0, 1))
    yield crop("too-many-boxes", image, boxes, None)
    yield crop("open-default-indices", tensor("fp32", "s0", 3, 8, 9), boxes, None)
    yield crop("regions", image, None, None, roi=tensor("fp32", 5, 1, 4, 1, 1))
    yield crop("sampling", image, boxes, indices, sampling_mode=text("NEAREST"))
    yield crop("box-mode", image, boxes, indices, box_coordinate_mode=text("CORNERS"))
    yield crop("indices-negative", image, boxes, ints(0, 1, -1, 0, 1), because=UNCHECKED, instead=REFUSED)
    for label, known in (("open-boxes", "s0"), ("open-boxes-differ", "s1")):
        yield crop(
            label,
            image,
            tensor("fp32", "s0", 4),
            tensor("int32", known),
            because="coremltools makes the default of `box_indices` even where they are bound, and stumbles",
            instead={"outputs": [{"dtype": "fp32", "shape": [{"expr": "s0", "at": [7, 12, 37]}, 3, 1, 1]}]},
        )
    yield crop(
        "known-indices-open-image",
        tensor("fp32", "s1", 3, 8, 9),
        boxes,
        ints(0, 1, 1, 0, 1),
        because="coremltools compares the indices with a symbol, and stumbles",
        instead={"outputs": [{"dtype": "fp32", "shape": [5, 3, 1, 1]}]},
    )


def _resample(opset: str) -> Iterator[Instance]:
    def resample(label: str, dtype: str = "fp32", **more: Any) -> Instance:
        base = {
            "x": tensor(dtype, 2, 3, 8, 9),
            "coordinates": tensor("fp32", 2, 4, 5, 2),
            "sampling_mode": text("bilinear"),
            "padding_mode": text("constant"),
            "padding_value": const(dtype, 0.5),
            "coordinates_mode": text("unnormalized"),
            "align_corners": const("bool", True),
        }
        return instance("resample", opset, label, **{**base, **more})

    for dtype in ("fp16", "fp32"):
        yield resample(f"image-{dtype}", dtype)
    for dtype in ("fp16", "int32", "int8", "uint16", "bool"):
        yield resample(f"coordinates-{dtype}", coordinates=tensor(dtype, 2, 4, 5, 2))
    yield resample("open", x=tensor("fp32", "s0", 3, "s1", 9), coordinates=tensor("fp32", "s0", "s2", 5, 2))
    yield resample("open-batch", x=tensor("fp32", "s0", 3, 8, 9))
    yield resample("open-last", coordinates=tensor("fp32", 2, 4, 5, "s0"))
    modes = {"sampling_mode": text("nearest"), "padding_mode": text("reflection")}
    yield resample("modes", **modes, coordinates_mode=text("normalized_zero_to_one"))
    yield resample("rank3", x=tensor("fp32", 3, 8, 9))
    yield resample("coordinates-rank3", coordinates=tensor("fp32", 4, 5, 2))
    yield resample("batch", coordinates=tensor("fp32", 3, 4, 5, 2))
    yield resample("last", coordinates=tensor("fp32", 2, 4, 5, 3))
    yield resample("mixed", padding_value=const("fp16", 0.5))
    yield resample("sampling", sampling_mode=text("cubic"), because=UNCHECKED, instead=REFUSED)
    yield resample("padding", padding_mode=text("wrap"), because=UNCHECKED, instead=REFUSED)
    yield resample("mode", coordinates_mode=text("normalized"), because=UNCHECKED, instead=REFUSED)


def _resize() -> Iterator[Instance]:
    def resize(label: str, x: Operand, shape: Operand | None, dims: int, **more: Any) -> Instance:
        opset = more.pop("opset", IOS17)
        more = {"resized_dims": const("uint32", dims), **more}
        return instance("resize", opset, label, x=x, shape=shape, **more)

    for dtype in ("fp16", "fp32", "int32"):
        yield resize(f"plane-{dtype}", tensor(dtype, 1, 2, 3, 4), ints(1, 6, 8), 2)
    image = tensor("fp32", 1, 2, 3, 4)
    for dtype in ("int16", "uint16", "uint32"):
        yield resize(f"shape-{dtype}", image, const(dtype, [6, 8]), 2)
    yield resize("keep", image, ints(1, 0, 0), 2)
    yield resize("keep-one", image, ints(0, 9), 2)
    yield resize("none", image, ints(5, 6), 0)
    yield resize("all", image, ints(5, 6, 7, 8), 4, interpolation_mode=text("NEAREST_NEIGHBOR"))
    yield resize("open-keep", tensor("fp32", 1, 2, "s0", "s1"), ints(0, 8), 2)
    yield resize("open-outside", tensor("fp32", "s0", 2, 3, 4), ints(6, 8), 2, opset=IOS18)
    yield resize("computed", image, tensor("int32", 2), 2)
    yield resize("computed-more", image, tensor("int32", 3), 1)
    yield resize("of-fixed-shape", image, gives("shape", x=tensor("fp32", 5, 6)), 2)
    yield resize("of-open-shape", image, gives("shape", x=tensor("fp32", "s0", "s1")), 2)
    yield resize("line", tensor("fp32", 5), ints(9), 1, sampling_mode=text("UNALIGN_CORNERS"))
    yield resize("too-many-dims", image, ints(6, 8), 3)
    yield resize("shape-too-long", image, ints(1, 1, 1, 6, 8), 2)
    yield resize("shape-rank2", image, const("int32", [[6, 8]]), 2)
    yield resize("interpolation", image, ints(6, 8), 2, interpolation_mode=text("CUBIC"))
    yield resize("sampling", image, ints(6, 8), 2, sampling_mode=text("HALF"))
    yield resize("int64-dims", image, ints(6, 8), 2, resized_dims=const("int32", 2))
    yield resize("float-shape", image, const("fp32", [6.0, 8.0]), 2)
    yield resize("before", image, ints(6, 8), 2, opset=IOS16)
    yield resize("negative", image, ints(6, -8), 2, because=UNCHECKED, instead=REFUSED)
    yield resize("computed-too-long", image, tensor("int32", 7), 2, because=UNCHECKED, instead=REFUSED)


def _resize_to_target(operation: str) -> Iterator[Instance]:
    def resize(label: str, x: Operand, height: Operand | None, width: Operand | None, **more: Any) -> Instance:
        opset = more.pop("opset", IOS15)
        return instance(operation, opset, label, x=x, target_size_height=height, target_size_width=width, **more)

    for dtype in ("fp16", "fp32"):
        yield resize(f"rank3-{dtype}", tensor(dtype, 3, 8, 9), int32(4), int32(20))
        yield resize(f"rank4-{dtype}", tensor(dtype, 1, 3, 8, 9), int32(16), int32(18), opset=IOS17)
    image = tensor("fp32", 1, 3, 8, 9)
    yield resize("rank5", tensor("fp32", 2, 1, 3, 8, 9), int32(1), int32(1))
    yield resize("open", tensor("fp32", "s0", 3, "s1", "s2"), int32(4), int32(5))
    yield resize("defaults", image, None, None)
    yield resize("rank2", tensor("fp32", 8, 9), int32(4), int32(5))
    yield resize("computed", image, tensor("int32"), int32(5))
    yield resize("float", image, const("fp32", 4.0), int32(5))
    yield resize("int32", tensor("int32", 3, 8, 9), int32(4), int32(5))
    yield resize("negative", image, int32(-4), int32(5), because=UNCHECKED, instead=REFUSED)
    if operation == "resize_bilinear":
        for mode in ("STRICT_ALIGN_CORNERS", "UNALIGN_CORNERS", "NEAREST"):
            yield resize(f"mode-{mode}", image, int32(4), int32(5), sampling_mode=text(mode))


def _upsample(operation: str, opset: str) -> Iterator[Instance]:
    def upsample(label: str, x: Operand | None, height: Operand | None, width: Operand | None, **more: Any) -> Instance:
        return instance(operation, opset, label, x=x, scale_factor_height=height, scale_factor_width=width, **more)

    def scale(value: float) -> Operand:
        return const("fp32", value)

    for dtype in ("fp16", "fp32"):
        yield upsample(f"rank3-{dtype}", tensor(dtype, 3, 8, 9), int32(2), int32(3))
        yield upsample(f"rank4-{dtype}", tensor(dtype, 1, 3, 8, 9), scale(1.5), scale(2.25))
    image = tensor("fp32", 1, 3, 8, 9)
    yield upsample("rank5", tensor("fp32", 2, 1, 3, 8, 9), int32(2), None)
    yield upsample("defaults", image, None, None)
    yield upsample("down", image, scale(0.5), scale(0.3))
    for extent in (3, 7, 10, 30, 33, 49, 100):
        for factor in (0.1, 1 / 3, 0.7, 1.1, 1.4, 2.2, 3.3):
            if extent * factor >= 1.2:
                label = f"rounded-{extent}-{factor:.2f}"
                yield upsample(label, tensor("fp32", 1, extent, 50), scale(factor), scale(1.0))
    yield upsample("open-whole", tensor("fp32", "s0", 3, "s1", 9), int32(2), int32(3))
    yield upsample("open-whole-float", tensor("fp32", 1, 3, "s1", "s2"), scale(2.0), scale(1.0))
    yield upsample("open-half", tensor("fp32", 1, 3, "s1", "s2"), scale(1.5), scale(0.5))
    yield upsample("rank2", tensor("fp32", 8, 9), int32(2), int32(3))
    yield upsample("mixed-scales", image, int32(2), scale(3.0))
    yield upsample("computed", image, tensor("fp32"), scale(3.0))
    yield upsample("half-scale", image, const("fp16", 2.0), const("fp16", 2.0))
    yield upsample("int32", tensor("int32", 1, 8, 9), int32(2), int32(3))
    yield upsample("missing", None, int32(2), int32(3))
    yield upsample("negative", image, int32(-2), int32(3), because=UNCHECKED, instead=REFUSED)
    yield upsample("to-nothing", image, scale(0.01), scale(1.0), because=UNCHECKED, instead=REFUSED)
