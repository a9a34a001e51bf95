"""Resizing, cropping and sampling of images.

torch is the reference for the sampling modes that it implements:

| MIL | torch |
|---|---|
| `upsample_bilinear`, `align_corners` | `interpolate(mode="bilinear", align_corners=...)` |
| `resize_bilinear`, `STRICT_ALIGN_CORNERS` | the same with `align_corners=True` |
| `resize_bilinear`, `UNALIGN_CORNERS` | the same with `align_corners=False` |
| `upsample_nearest_neighbor` | `interpolate(mode="nearest")` |
| `resize_nearest_neighbor` | `interpolate(mode="nearest-exact")`: TensorFlow's with half-pixel centers, which its frontend maps to it |
| `resample`, padding `reflection` and `symmetric` | `grid_sample(padding_mode="reflection")` with and without `align_corners` |
| `affine` | `affine_grid` and `grid_sample` |
| `crop_resize`, `OFFSET_CORNERS` | torchvision's `roi_align(sampling_ratio=1, aligned=False)` |

The other sampling modes are specified only by the documentation of `resize_bilinear`, which states the sampling points of
each. `_points` implements it, and `torch.nn.functional.grid_sample` interpolates at these points. The cases include the
examples of the documentation. `crop_resize` pads outside the image, as TensorFlow's `crop_and_resize` does, to which the
documentation of `pad_value` refers. The result of `resize` with `NEAREST_NEIGHBOR` and `DEFAULT` is taken from
coremltools' tests, which ran on Core ML and agreed with TensorFlow's half-pixel centers. For the modes that align corners,
the documented points determine the nearest element.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torchvision
from torch.nn import functional

from .language import IOS15, IOS16, IOS17, IOS18, Case, Program, case, const, draw

_MODES = ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS", "UNALIGN_CORNERS", "DEFAULT", "OFFSET_CORNERS")
_BOXES = ("CORNERS_HEIGHT_FIRST", "CORNERS_WIDTH_FIRST", "CENTER_SIZE_HEIGHT_FIRST", "CENTER_SIZE_WIDTH_FIRST")

#: The references compute in fp32.
_CLOSE = {"rel": 1e-4, "abs": 1e-5}


def cases() -> Iterator[Case]:
    yield from _crop()
    yield from _resize_bilinear()
    yield from _resize_nearest()
    yield from _resize()
    yield from _upsample_bilinear()
    yield from _upsample_nearest()
    yield from _crop_resize()
    yield from _resample()
    yield from _affine()


def _dtype(x: np.ndarray) -> str:
    return {"float32": "fp32", "float16": "fp16", "int32": "int32"}[x.dtype.name]


def _points(mode: str, extent: int, count: int) -> np.ndarray:
    """The sampling points that the documentation of `resize_bilinear` specifies; the last element is at `extent - 1`.
    """
    at = np.arange(count, dtype=np.float64)
    if mode in ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS"):
        if count == 1:
            return np.array([0.0 if mode[0] == "S" else (extent - 1) / 2])
        points = at * (extent - 1) / (count - 1)
    elif mode == "DEFAULT":
        # Documented as (extent - extent / count) / (count - 1), which equals extent / count.
        points = at * extent / count
    elif mode == "OFFSET_CORNERS":
        points = (at + 0.5) * max(1, extent - 1) / count
    else:
        points = (at + 0.5) * extent / count - 0.5
    return np.clip(points, 0, max(extent - 1, 0))


def _looked_up(images: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Samples [N, C, H, W] images at fractional rows and columns, by torch's bilinear sampling in fp64."""
    height, width = images.shape[2:]
    y, x = (2 * at / max(extent - 1, 1) - 1 for at, extent in ((rows, height), (columns, width)))
    grid = np.stack(np.broadcast_arrays(x[None, :], y[:, None]), axis=-1)
    grid = torch.from_numpy(np.broadcast_to(grid, (len(images), *grid.shape)).copy())
    wide = torch.from_numpy(images.astype(np.float64))
    return functional.grid_sample(wide, grid, "bilinear", "border", align_corners=True).numpy()


def _as_images(x: np.ndarray) -> np.ndarray:
    return x.reshape((1, -1, *x.shape[-2:]))


def _linear(x: np.ndarray, mode: str, height: int, width: int) -> np.ndarray:
    images = _as_images(x)
    size = (height, width)
    if mode in ("STRICT_ALIGN_CORNERS", "UNALIGN_CORNERS") and images.size:
        wide = torch.from_numpy(images.astype(np.float64))
        resized = functional.interpolate(wide, size, mode="bilinear", align_corners=mode[0] == "S").numpy()
    else:
        rows, columns = _points(mode, images.shape[2], height), _points(mode, images.shape[3], width)
        resized = _looked_up(images, rows, columns)
    return resized.reshape((*x.shape[:-2], height, width)).astype(np.float32)


def _crop() -> Iterator[Case]:
    def crop(label, opset, x, rows, columns):
        expected = x[..., rows[0] : x.shape[-2] - rows[1], columns[0] : x.shape[-1] - columns[1]]
        inputs = {"x": x, "crop_height": const(rows), "crop_width": const(columns)}
        return case(label, "crop", opset, inputs, [np.ascontiguousarray(expected)])

    for dtype in ("fp32", "fp16"):
        for opset in (IOS15, IOS17):
            yield crop(dtype, opset, draw("crop", 1, 2, 4, 5, dtype=dtype), [0, 1], [1, 2])
    x = draw("crop", 2, 6, 7)
    yield crop("rank3", IOS15, x, [2, 1], [3, 0])
    yield crop("rank5", IOS16, draw("crop", 2, 1, 2, 4, 4), [1, 1], [2, 1])
    yield crop("nothing", IOS15, x, [0, 0], [0, 0])
    yield crop("rows", IOS15, x, [3, 2], [0, 0])
    yield crop("columns", IOS15, x, [0, 0], [3, 3])
    yield crop("to-one", IOS18, x, [2, 3], [4, 2])
    special = x.copy()
    special[0, 1, 1:4] = np.nan, np.inf, -np.inf
    yield crop("special", IOS15, special, [1, 2], [1, 1])


def _resize_bilinear() -> Iterator[Case]:
    def resize(label, opset, x, height, width, mode=None):
        inputs = {"x": x, "target_size_height": const(height), "target_size_width": const(width)}
        inputs |= {} if mode is None else {"sampling_mode": const(mode)}
        expected = _linear(x, mode or "DEFAULT", height, width)
        return case(label, "resize_bilinear", opset, inputs, [expected], dtypes=[_dtype(x)], **_CLOSE)

    x = draw("resize", 1, 2, 4, 5)
    for mode in _MODES:
        for name, (height, width) in {"larger": (7, 9), "smaller": (3, 2), "same": (4, 5), "one": (1, 1), "mixed": (8, 3)}.items():
            yield resize(f"{mode}-{name}", IOS15, x, height, width, mode)
        yield resize(f"{mode}-fp16", IOS16, draw("resize", 2, 3, 3, dtype="fp16"), 5, 4, mode)
        yield resize(f"{mode}-of-one", IOS15, draw("resize", 1, 1, 1, 1), 3, 2, mode)
        yield resize(f"{mode}-rank5", IOS17, draw("resize", 1, 2, 1, 3, 4), 6, 6, mode)
    yield resize("default-mode", IOS15, x, 6, 7)
    yield case("default-size", "resize_bilinear", IOS15, {"x": x}, [_linear(x, "DEFAULT", 1, 1)], **_CLOSE)
    # The documentation's examples: the values of a line from 0 to 1 at the printed points.
    documented = {
        ("UNALIGN_CORNERS", 5): [0, 0.1, 0.5, 0.9, 1],
        ("STRICT_ALIGN_CORNERS", 5): [0, 0.25, 0.5, 0.75, 1],
        ("ALIGN_CORNERS", 5): [0, 0.25, 0.5, 0.75, 1],
        ("DEFAULT", 5): [0, 0.4, 0.8, 1, 1],
        ("OFFSET_CORNERS", 5): [0.1, 0.3, 0.5, 0.7, 0.9],
        ("UNALIGN_CORNERS", 6): [0, 0, 0.33, 0.67, 1, 1],
        ("ALIGN_CORNERS", 6): [0, 0.2, 0.4, 0.6, 0.8, 1],
        ("DEFAULT", 6): [0, 0.33, 0.67, 1, 1, 1],
        ("OFFSET_CORNERS", 6): [0.08, 0.25, 0.42, 0.58, 0.75, 0.92],
    }
    line = np.array([0, 1], np.float32).reshape(1, 1, 2)
    for (mode, count), points in documented.items():
        inputs = {"x": line, "target_size_height": const(1), "target_size_width": const(count), "sampling_mode": const(mode)}
        expected = np.array(points, np.float32).reshape(1, 1, count)
        yield case(f"documented-{mode}-{count}", "resize_bilinear", IOS15, inputs, [expected], abs=0.005)


def _nearest_exact(x: np.ndarray, height: int, width: int) -> np.ndarray:
    wide = torch.from_numpy(_as_images(x).astype(np.float64))
    return functional.interpolate(wide, (height, width), mode="nearest-exact").numpy().reshape((*x.shape[:-2], height, width)).astype(x.dtype)


def _resize_nearest() -> Iterator[Case]:
    def resize(label, opset, x, height, width):
        inputs = {"x": x, "target_size_height": const(height), "target_size_width": const(width)}
        return case(label, "resize_nearest_neighbor", opset, inputs, [_nearest_exact(x, height, width)])

    for dtype in ("fp32", "fp16"):
        for opset in (IOS15, IOS17):
            yield resize(dtype, opset, draw("nearest", 1, 2, 4, 5, dtype=dtype), 7, 9)
    x = draw("nearest", 2, 4, 6)
    for height, width in ((8, 12), (12, 6), (3, 4), (4, 6), (1, 1), (2, 9), (25, 30)):
        yield resize(f"to-{height}x{width}", IOS15, x, height, width)
    yield resize("of-one", IOS15, draw("nearest", 1, 1, 1), 3, 2)
    yield resize("rank5", IOS16, draw("nearest", 2, 1, 2, 2, 3), 3, 5)
    special = x.copy()
    special[0, 1, 1:4] = np.nan, np.inf, -np.inf
    yield resize("special", IOS18, special, 6, 8)


def _resize() -> Iterator[Case]:
    def by_axis(x, mode, shape, resized, nearest):
        """Resizes any number of trailing axes, one at a time, in fp64."""
        values = x.astype(np.float64)
        for axis in range(x.ndim - resized, x.ndim):
            extent, count = x.shape[axis], shape[axis]
            if nearest and mode in ("DEFAULT", "UNALIGN_CORNERS"):
                places = (2 * np.arange(count) + 1) * extent // (2 * count)
                values = np.take(values, places, axis)
                continue
            points = _points(mode, extent, count)
            if nearest:
                values = np.take(values, np.floor(points + 0.5).astype(int), axis)
                continue
            low = np.floor(points).astype(int)
            share = (points - low).reshape([-1 if at == axis else 1 for at in range(x.ndim)])
            high = np.minimum(low + 1, extent - 1)
            values = np.take(values, low, axis) * (1 - share) + np.take(values, high, axis) * share
        return values

    def resize(label, opset, x, shape, resized, mode=None, interpolation=None, dtype=None):
        target = list(x.shape)
        for at in range(1, resized + 1):
            target[-at] = shape[-at] or target[-at]
        values = by_axis(x, mode or "DEFAULT", target, resized, interpolation == "NEAREST_NEIGHBOR")
        expected = values.astype(np.int32 if x.dtype.kind == "i" else np.float32)
        inputs = {"x": x, "shape": const(shape, dtype), "resized_dims": const(resized, "uint32")}
        inputs |= {} if mode is None else {"sampling_mode": const(mode)}
        inputs |= {} if interpolation is None else {"interpolation_mode": const(interpolation)}
        return case(label, "resize", opset, inputs, [expected], dtypes=[_dtype(x)], **_CLOSE)

    x = draw("resize", 1, 2, 4, 5)
    for mode in _MODES:
        for interpolation in ("LINEAR", "NEAREST_NEIGHBOR"):
            name = f"{mode}-{interpolation}"
            yield resize(f"{name}-larger", IOS17, x, [7, 9], 2, mode, interpolation)
            yield resize(f"{name}-smaller", IOS17, x, [1, 2, 3, 2], 2, mode, interpolation)
            yield resize(f"{name}-three", IOS18, draw("three", 2, 3, 2, 4), [4, 3, 3], 3, mode, interpolation)
        yield resize(f"{mode}-fp16", IOS17, draw("resize", 2, 3, 3, dtype="fp16"), [5, 4], 2, mode)
        yield resize(f"{mode}-int32-nearest", IOS17, draw("resize", 2, 3, 3, low=-99, high=99, dtype="int32"), [5, 4], 2, mode, "NEAREST_NEIGHBOR")
    # Multiples of 16, so that interpolated values are integers.
    yield resize("int32-linear", IOS17, 16 * draw("resize", 1, 3, 3, low=-9, high=9, dtype="int32"), [6, 6], 2, "DEFAULT", "LINEAR")
    yield resize("default", IOS17, x, [6, 7], 2)
    for dtype in ("int16", "uint16", "uint32"):
        yield resize(f"shape-{dtype}", IOS17, x, [6, 7], 2, dtype=dtype)
    yield resize("keeps", IOS17, x, [0, 7], 2)
    yield resize("keeps-all", IOS17, x, [0, 0], 2)
    yield resize("longer-shape", IOS17, x, [9, 9, 3, 6], 2)
    yield resize("one-axis", IOS17, x, [8], 1)
    yield resize("no-axis", IOS17, x, [8], 0)
    yield resize("rank1", IOS17, draw("resize", 5), [9], 1, "STRICT_ALIGN_CORNERS")
    yield resize("rank5", IOS17, draw("resize", 2, 1, 3, 2, 2), [2, 2, 4, 3, 4], 5, "UNALIGN_CORNERS")
    for interpolation in ("LINEAR", "NEAREST_NEIGHBOR"):
        program = Program(IOS17)
        inputs = {"x": x, "shape": np.array([3, 0], np.int32), "resized_dims": const(2, "uint32"), "interpolation_mode": const(interpolation)}
        resized = program.op("resize", inputs, ("fp32", [1, 2, "?", "?"]))
        expected = by_axis(x, "DEFAULT", (1, 2, 3, 5), 2, interpolation[0] == "N").astype(np.float32)
        yield program.case("resize", f"computed-{interpolation}", [resized], [expected], **_CLOSE)


def _scale(factor: Any) -> Any:
    return const(factor) if isinstance(factor, int) else const(float(factor))


def _scaled(x: np.ndarray, rows: Any, columns: Any) -> tuple[int, int]:
    return tuple(int(np.floor(np.float32(extent) * np.float32(factor))) for extent, factor in zip(x.shape[-2:], (rows, columns), strict=True))


def _upsample_bilinear() -> Iterator[Case]:
    def upsample(label, opset, x, rows, columns, align=None, half=None):
        aligned = True if align is None else align
        middles = (not aligned) if half is None else half
        mode = "STRICT_ALIGN_CORNERS" if aligned else "UNALIGN_CORNERS" if middles else "DEFAULT"
        inputs = {"x": x, "scale_factor_height": _scale(rows), "scale_factor_width": _scale(columns)}
        inputs |= {} if align is None else {"align_corners": const(align)}
        inputs |= {} if half is None else {"half_pixel_centers": const(half)}
        expected = _linear(x, mode, *_scaled(x, rows, columns))
        return case(label, "upsample_bilinear", opset, inputs, [expected], dtypes=[_dtype(x)], **_CLOSE)

    x = draw("upsample", 1, 2, 4, 5)
    for opset in (IOS15, IOS16, IOS17, IOS18):
        for align in (True, False):
            name = "aligned" if align else "not-aligned"
            yield upsample(f"{name}", opset, x, 2, 3, align)
            yield upsample(f"{name}-fraction", opset, x, 2.5, 1.4, align)
            yield upsample(f"{name}-smaller", opset, x, 0.5, 0.75, align)
        if opset != IOS15:
            yield upsample("centers", opset, x, 2, 3, False, True)
            yield upsample("no-centers", opset, x, 2, 3, False, False)
            yield upsample("no-centers-fraction", opset, x, 2.3, 0.7, False, False)
            yield upsample("aligned-no-centers", opset, x, 3, 2, True, False)
    yield upsample("default", IOS15, x, 2, 2)
    yield case("default-factors", "upsample_bilinear", IOS15, {"x": x}, [x])
    yield upsample("fp16", IOS15, draw("upsample", 1, 1, 3, 3, dtype="fp16"), 2, 3, False)
    yield upsample("of-one", IOS15, draw("upsample", 1, 1, 1), 3, 2, True)
    yield upsample("of-one-not-aligned", IOS15, draw("upsample", 1, 1, 1), 3, 2, False)
    yield upsample("rank5", IOS17, draw("upsample", 2, 1, 2, 3, 2), 2, 2, False)
    yield upsample("one-axis", IOS15, x, 1, 4, True)


def _upsample_nearest() -> Iterator[Case]:
    def upsample(label, opset, x, rows, columns):
        size = _scaled(x, rows, columns)
        wide = torch.from_numpy(_as_images(x).astype(np.float64))
        expected = functional.interpolate(wide, size, mode="nearest").numpy().reshape((*x.shape[:-2], *size)).astype(x.dtype)
        inputs = {"x": x, "scale_factor_height": _scale(rows), "scale_factor_width": _scale(columns)}
        return case(label, "upsample_nearest_neighbor", opset, inputs, [expected])

    x = draw("nearest", 1, 2, 3, 4)
    for dtype in ("fp32", "fp16"):
        for opset in (IOS15, IOS16, IOS17, IOS18):
            yield upsample(dtype, opset, draw("nearest", 1, 2, 3, 4, dtype=dtype), 2, 3)
    for rows, columns in ((1, 1), (3, 1), (1.0, 2.0), (1.5, 2.5), (3.17, 0.67), (2.0, 1.12), (0.5, 0.8), (0.34, 0.25), (2.0, 1.75)):
        yield upsample(f"by-{rows}-{columns}", IOS15, x, rows, columns)
    # The scale that TensorFlow's frontend writes for 25 rows from 10: slightly more than 2.5.
    yield upsample("just-more", IOS15, draw("nearest", 1, 1, 10, 20), 25.0001 / 10, 30.0001 / 20)
    yield case("default", "upsample_nearest_neighbor", IOS15, {"x": x}, [x])
    yield upsample("of-one", IOS15, draw("nearest", 1, 1, 1), 4, 3)
    yield upsample("rank5", IOS17, draw("nearest", 2, 1, 2, 2, 3), 2, 2)
    special = x.copy()
    special[0, 0, 1, 1:4] = np.nan, np.inf, -np.inf
    yield upsample("special", IOS18, special, 2, 2)


def _crop_resize() -> Iterator[Case]:
    def corners(box, box_mode, extents, normalized, spatial_scale):
        first, second, third, fourth = (float(number) for number in box)
        if box_mode.endswith("WIDTH_FIRST"):
            first, second, third, fourth = second, first, fourth, third
        if box_mode.startswith("CENTER"):
            first, second, third, fourth = first - third / 2, second - fourth / 2, first + third / 2, second + fourth / 2
        scale = [(extent - 1 if normalized else 1) * spatial_scale for extent in extents]
        return first * scale[0], second * scale[1], third * scale[0], fourth * scale[1]

    def line(mode, start, end, count):
        """The sampling points of a box: those of an axis with the box's length, from its start towards its end."""
        length = abs(end - start)
        way = np.sign(end - start) or 1.0
        if mode in ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS", "DEFAULT", "UNALIGN_CORNERS", "OFFSET_CORNERS"):
            return start + way * _points(mode, length + 1, count)
        raise ValueError(mode)

    def cut(image, sides, mode, target, pad):
        rows, columns = line(mode, sides[0], sides[2], target[0]), line(mode, sides[1], sides[3], target[1])
        height, width = image.shape[1:]
        inside = ((rows >= 0) & (rows <= height - 1))[:, None] & ((columns >= 0) & (columns <= width - 1))[None, :]
        looked = _looked_up(image[None], np.clip(rows, 0, height - 1), np.clip(columns, 0, width - 1))[0]
        return np.where(inside, looked, pad).astype(np.float32)

    def crop(label, opset, x, boxes, target, mode=None, images=None, normalized=None, spatial_scale=None, box_mode=None, pad=None, judged=None, box_type=None, index_type=np.int32):
        numbers = np.asarray(boxes, np.float32)
        own = np.asarray(x, np.float32)
        parts = []
        for at, box in enumerate(numbers):
            sides = corners(box, box_mode or _BOXES[0], x.shape[2:], normalized, spatial_scale or 1.0)
            if opset in (IOS15, IOS16):
                # Without indices, every image is cropped; with them, one crop is repeated for each image.
                of = range(len(x)) if images is None else [images[at]] * len(x)
                parts.append(np.stack([cut(own[image], sides, mode or "DEFAULT", target, pad or 0.0) for image in of]))
            else:
                parts.append(cut(own[images[at] if images is not None else at], sides, mode or "DEFAULT", target, pad or 0.0))
        expected = np.stack(parts) if judged is None else judged
        floats = x.dtype
        if opset in (IOS15, IOS16):
            rows = numbers if images is None else np.concatenate([np.asarray(images, np.float32)[:, None], numbers], 1)
            inputs = {"x": x, "roi": rows.reshape(len(rows), 1, -1, 1, 1).astype(floats)}
        else:
            inputs = {"x": x, "boxes": numbers.astype(box_type or floats)}
            inputs |= {} if images is None else {"box_indices": np.asarray(images, index_type)}
        inputs |= {"target_height": const(target[0]), "target_width": const(target[1])}
        named = {"sampling_mode": mode, "normalized_coordinates": normalized, "box_coordinate_mode": box_mode}
        inputs |= {name: const(value) for name, value in named.items() if value is not None}
        inputs |= {} if spatial_scale is None else {"spatial_scale": const(spatial_scale)}
        inputs |= {} if pad is None else {"pad_value": const(floats.type(pad))}
        return case(label, "crop_resize", opset, inputs, [expected], dtypes=[_dtype(x)], **_CLOSE)

    x = draw("crop", 2, 3, 6, 7)
    box, second = [1.25, 0.5, 4.5, 5.25], [0, 2, 3, 6]
    for opset in (IOS15, IOS16, IOS17, IOS18):
        for mode in _MODES:
            yield crop(f"{mode}", opset, x, [box, second], (3, 4), mode, [1, 0])
            yield crop(f"{mode}-one", opset, x, [box], (1, 1), mode, [1])
        for box_mode in _BOXES:
            yield crop(f"{box_mode}", opset, x, [[2.5, 2.0, 1.5, 2.5]], (2, 3), "ALIGN_CORNERS", [0], box_mode=box_mode)
        yield crop("normalized", opset, x, [[0.1, 0.2, 0.9, 0.75]], (3, 3), "ALIGN_CORNERS", [1], normalized=True)
        yield crop("scaled", opset, x, [[4, 2, 9, 11]], (3, 3), "OFFSET_CORNERS", [1], spatial_scale=0.5)
        yield crop("mirrored", opset, x, [[4, 5, 1, 0.5]], (3, 4), "ALIGN_CORNERS", [0])
        yield crop("outside", opset, x, [[-1, 3, 4, 9], [20, 20, 30, 30]], (4, 4), "ALIGN_CORNERS", [0, 1])
        yield crop("fp16", opset, draw("crop", 1, 2, 4, 4, dtype="fp16"), [[0.5, 1, 2.5, 3]], (3, 2), "STRICT_ALIGN_CORNERS", [0])
        yield crop("default-mode", opset, x, [box], (3, 2), images=[1])
    for opset in (IOS15, IOS16):
        yield crop("every-image", opset, x, [box, second], (3, 4), "ALIGN_CORNERS")
    for opset in (IOS16, IOS17):
        for pad in (1.0, -2.5):
            yield crop(f"pad-{pad}", opset, x, [[0.1, 0.3, 1.3, 1.0], [0.5, 1.8, 1.0, 0.3]], (2, 2), "ALIGN_CORNERS", [0, 1], normalized=True, pad=pad)
    yield crop("default-indices", IOS17, x, [box, second], (3, 4), "ALIGN_CORNERS")
    yield crop("boxes-uint16", IOS17, x, [[1, 0, 4, 5]], (3, 4), "ALIGN_CORNERS", [1], box_type=np.uint16)
    yield crop("boxes-fp16", IOS17, x, [[1.5, 0, 4, 5.25]], (3, 4), "ALIGN_CORNERS", [1], box_type=np.float16)
    yield crop("indices-uint16", IOS17, x, [box, second], (3, 4), "ALIGN_CORNERS", [1, 1], index_type=np.uint16)
    # Values that coremltools' tests expect from Core ML.
    ramp = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
    seen = np.array([3.1, 5.2, 10, 10, 10, 7.9, 10, 13.9, 2.2, 3.1, 9.4, 10.3], np.float32).reshape(3, 1, 2, 2)
    normalized = [[0.1, 0.3, 1.3, 1.0], [0.5, 1.8, 1.0, 0.3], [0.0, 0.4, 0.6, 0.7]]
    yield crop("seen", IOS17, ramp, normalized, (2, 2), "ALIGN_CORNERS", [0, 0, 0], normalized=True, pad=10.0, judged=seen)
    yield crop("seen", IOS16, ramp, normalized, (2, 2), "ALIGN_CORNERS", [0, 0, 0], normalized=True, pad=10.0, judged=seen[:, None])
    yield crop("seen-mirrored", IOS15, ramp, [[2, 2, 1, 1]], (2, 2), "ALIGN_CORNERS", judged=np.array([11, 10, 7, 6], np.float32).reshape(1, 1, 1, 2, 2))
    yield crop("seen-one", IOS15, ramp, [[1, 1, 2, 2]], (1, 1), "ALIGN_CORNERS", judged=np.array([8.5], np.float32).reshape(1, 1, 1, 1, 1))
    # Regions of interest; torchvision's order starts with left and top.
    regions = np.array([[1, 2.5, 5, 4.5], [0, 0, 3.5, 2.25], [2, 1, 5.5, 4.75]], np.float32)
    aligned = torchvision.ops.roi_align(torch.from_numpy(x), [torch.from_numpy(regions), torch.zeros(0, 4)], (3, 2), 1.0, 1, False).numpy()
    for opset in (IOS17, IOS18):
        yield crop("regions", opset, x, regions, (3, 2), "OFFSET_CORNERS", [0, 0, 0], box_mode="CORNERS_WIDTH_FIRST", judged=aligned)
    one = x[:1]
    yield crop("regions", IOS15, one, regions, (3, 2), "OFFSET_CORNERS", [0, 0, 0], box_mode="CORNERS_WIDTH_FIRST", judged=aligned[:, None])


def _resample() -> Iterator[Case]:
    def judged(x, coordinates, sampling, padding, value, mode, align):
        """torch's sampling at the same pixels; its normalized coordinates are computed from ours."""
        height, width = x.shape[2:]
        extents = np.array([width, height], np.float64)
        places = coordinates.astype(np.float64)
        if mode == "normalized_minus_one_to_one":
            places = (places + 1) / 2
        if mode != "unnormalized":
            places = places * (extents - 1) if align else places * extents - 0.5
        # torch mirrors at pixel centers with `align_corners`, and at edges without.
        aligns = padding == "reflection"
        grid = 2 * places / np.maximum(extents - 1, 1) - 1 if aligns else (2 * places + 1) / extents - 1
        named = {"constant": "zeros", "border": "border", "reflection": "reflection", "symmetric": "reflection"}[padding]
        # torch pads with zeros, so the padding value is subtracted before and added after.
        shift = value if padding == "constant" else 0.0
        wide = torch.from_numpy(x.astype(np.float64) - shift)
        looked = functional.grid_sample(wide, torch.from_numpy(grid), sampling, named, align_corners=aligns)
        return (looked.numpy() + shift).astype(np.float32)

    def resample(label, opset, x, coordinates, sampling="bilinear", padding="constant", value=0.0, mode="unnormalized", align=True, dtype=None):
        expected = judged(x, coordinates, sampling, padding, value, mode, align)
        inputs = {
            "x": x,
            "coordinates": coordinates,
            "sampling_mode": const(sampling),
            "padding_mode": const(padding),
            "padding_value": const(x.dtype.type(value)),
            "coordinates_mode": const(mode),
            "align_corners": const(align),
        }
        return case(label, "resample", opset, inputs, [expected], dtypes=[_dtype(x)], **_CLOSE)

    x = draw("resample", 2, 3, 4, 5)
    # The shift avoids ties that rounding could decide; many coordinates are outside the image.
    shift = np.float32(0.03125)
    pixels = draw("pixels", 2, 3, 4, 2, low=-7, high=11) + shift
    minus_one = draw("minus-one", 2, 3, 4, 2, low=-2.5, high=2.5) + shift
    zero_one = draw("zero-one", 2, 3, 4, 2, low=-1.5, high=2.5) + shift
    ranges = {"unnormalized": pixels, "normalized_minus_one_to_one": minus_one, "normalized_zero_to_one": zero_one}
    for sampling in ("bilinear", "nearest"):
        for padding in ("constant", "border", "reflection", "symmetric"):
            for mode, coordinates in ranges.items():
                for align in (True, False):
                    opset = (IOS15, IOS16, IOS17)[(len(mode) + align) % 3]
                    name = f"{sampling}-{padding}-{mode}-{'' if align else 'not-'}aligned"
                    yield resample(name, opset, x, coordinates, sampling, padding, -0.75, mode, align)
    for opset in (IOS15, IOS16, IOS17, IOS18):
        yield resample("plain", opset, x, pixels)
        whole = draw("whole", 2, 2, 3, 2, low=-2, high=6, dtype="int32")
        for sampling in ("bilinear", "nearest"):
            yield resample(f"int32-{sampling}", opset, x, whole, sampling, "border")
        if opset != IOS15:
            half = draw("half", 2, 2, 3, 2, low=-2, high=6, dtype="fp16")
            yield resample("coordinates-fp16", opset, x, half + np.float16(0.125), "bilinear", "reflection")
    for dtype in ("int8", "uint8", "int16", "uint16"):
        yield resample(f"coordinates-{dtype}", IOS17, x, draw("short", 2, 2, 3, 2, low=0, high=6, dtype=dtype), "bilinear", "constant", 1.5)
    yield resample("fp16", IOS16, draw("resample", 2, 1, 3, 3, dtype="fp16"), pixels / 2, "bilinear", "border")
    yield resample("one-pixel", IOS15, draw("resample", 2, 2, 1, 1), pixels, "nearest", "symmetric")
    yield resample("one-pixel-constant", IOS15, draw("resample", 2, 2, 1, 1), pixels / 8, "bilinear", "constant", 2.0)
    far = np.array([[1e9, 0], [-1e9, 1], [0, 3e38], [1, -3e38]], np.float32).reshape(1, 1, 4, 2)
    for sampling in ("bilinear", "nearest"):
        yield resample(f"far-{sampling}", IOS15, x[:1], far, sampling, "constant", 0.5)
        yield resample(f"far-border-{sampling}", IOS15, x[:1], far, sampling, "border")
    # Coordinates halfway between two pixels round to the even pixel.
    halves = np.array([[0.5, 0], [1.5, 0], [2.5, 0], [0, 0.5], [0, 1.5], [0, 2.5]], np.float32).reshape(1, 1, 6, 2)
    columns = [x[0][:, 0, at] for at in (0, 2, 2)] + [x[0][:, at, 0] for at in (0, 2, 2)]
    expected = np.stack(columns, axis=-1).reshape(1, 3, 1, 6)
    modes = {"sampling_mode": "nearest", "padding_mode": "border", "padding_value": 0.0, "coordinates_mode": "unnormalized", "align_corners": True}
    inputs = {"x": x[:1], "coordinates": halves} | {name: const(value) for name, value in modes.items()}
    yield case("ties", "resample", IOS15, inputs, [expected])
    # Values that coremltools' tests expect from Core ML.
    square = np.array([11, 22, 33, 44], np.float32).reshape(1, 1, 2, 2)
    places = np.array([-1, -2, -3.7, -1, 0, 0, 3.5, 1.2], np.float32).reshape(1, 2, 2, 2)
    seen = {
        "seen-1": (("bilinear", "constant", 6.17, "normalized_minus_one_to_one", True), [8.585, 6.17, 27.5, 6.17]),
        "seen-2": (("nearest", "border", -1.0, "unnormalized", False), [11, 11, 11, 44]),
        "seen-3": (("bilinear", "reflection", -1.0, "normalized_zero_to_one", True), [22, 36.3, 11, 34.1]),
        "seen-4": (("nearest", "symmetric", -1.0, "normalized_zero_to_one", False), [22, 33, 11, 33]),
    }
    names = ("sampling_mode", "padding_mode", "padding_value", "coordinates_mode", "align_corners")
    for label, (values, given) in seen.items():
        inputs = {"x": square, "coordinates": places} | {name: const(value) for name, value in zip(names, values, strict=True)}
        yield case(label, "resample", IOS15, inputs, [np.array(given, np.float32).reshape(1, 1, 2, 2)], **_CLOSE)
    upper = {"sampling_mode": "BILINEAR", "padding_mode": "Border", "padding_value": 0.0, "coordinates_mode": "UNNORMALIZED", "align_corners": True}
    inputs = {"x": x, "coordinates": pixels} | {name: const(value) for name, value in upper.items()}
    yield case("upper-case", "resample", IOS15, inputs, [judged(x, pixels, "bilinear", "border", 0.0, "unnormalized", True)], **_CLOSE)


def _affine() -> Iterator[Case]:
    def affine(label, opset, x, matrices, size, align=True):
        matrices = np.asarray(matrices, x.dtype).reshape(-1, 6)
        wide = torch.from_numpy(np.broadcast_to(matrices, (len(x), 6)).astype(np.float64).reshape(-1, 2, 3).copy())
        grid = functional.affine_grid(wide, [len(x), x.shape[1], *size], align_corners=align)
        expected = functional.grid_sample(torch.from_numpy(x.astype(np.float64)), grid, "bilinear", "zeros", align_corners=align)
        inputs = {
            "x": x,
            "transform_matrix": matrices,
            "output_height": const(size[0]),
            "output_width": const(size[1]),
            "sampling_mode": const("bilinear"),
            "padding_mode": const("constant"),
            "padding_value": const(x.dtype.type(0)),
            "coordinates_mode": const("normalized_minus_one_to_one"),
            "align_corners": const(align),
        }
        return case(label, "affine", opset, inputs, [expected.numpy().astype(np.float32)], dtypes=[_dtype(x)], **_CLOSE)

    x = draw("affine", 2, 3, 4, 5)
    turn = [0.8, -0.6, 0.1, 0.6, 0.8, -0.2]
    for opset in (IOS15, IOS16, IOS17, IOS18):
        yield affine("turn", opset, x, turn, (4, 5))
        yield affine("turn-not-aligned", opset, x, turn, (3, 6), False)
    yield affine("same", IOS15, x, [1, 0, 0, 0, 1, 0], (4, 5))
    yield affine("mirror", IOS15, x, [-1, 0, 0, 0, 1, 0], (4, 5))
    yield affine("transpose", IOS15, x, [0, 1, 0, 1, 0, 0], (5, 4))
    yield affine("each-image", IOS15, x, [turn, [0.5, 0.25, -0.5, 0, 1.5, 0.3]], (6, 3))
    yield affine("zoom", IOS15, x, [0.3, 0, 0.4, 0, 0.3, -0.4], (5, 5))
    yield affine("away", IOS15, x, [1, 0, 9, 0, 1, 9], (3, 3))
    yield affine("fp16", IOS16, draw("affine", 1, 2, 3, 3, dtype="fp16"), [0.5, 0, 0.25, 0, 0.75, 0], (4, 4))
    yield affine("one-pixel", IOS15, x, turn, (1, 1))
    yield affine("of-one-pixel", IOS15, draw("affine", 1, 2, 1, 1), [0.5, 0.1, 0, 0.1, 0.5, 0], (2, 2), False)
    # Values that coremltools' tests expect from Core ML.
    square = np.array([11, 22, 33, 44], np.float32).reshape(1, 1, 2, 2)
    yield affine("seen", IOS15, square, [-1, -2, -3.7, -1, 3.5, 1.2], (3, 3))
