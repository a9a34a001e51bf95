"""Operations that move elements: `transpose`, `reverse`, `reverse_sequence`, `sliding_windows`, and those between
depth, batch and space.

The reference of `pixel_shuffle` and `pixel_unshuffle` is torch, that of `transpose`, `reverse` and `sliding_windows`
numpy. MIL's `depth_to_space` and `space_to_depth` are TensorFlow's with the channels first (coremltools' frontend
only transposes), not torch's pixel shuffle: blocks precede channels. These, `space_to_batch`, `batch_to_space` and
`reverse_sequence` are implemented here element by element, following TensorFlow's documentation.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from .language import IOS15, IOS16, IOS17, IOS18, Case, case, const, draw

_OLD = ("fp32", "fp16", "int32", "bool")
_SHORT = ("int8", "uint8", "int16", "uint16")


def cases() -> Iterator[Case]:
    yield from _transpose()
    yield from _reverse()
    yield from _reverse_sequence()
    yield from _sliding_windows()
    yield from _depth()
    yield from _pixels()
    yield from _batch()


def _numbers(label: str, *shape: int, dtype: str = "fp32") -> np.ndarray:
    """Distinct elements; floats include NaN and infinities."""
    array = draw(label, *shape, dtype=dtype, low=0 if dtype.startswith("u") else -99, high=99)
    if dtype.startswith("fp") and array.size > 3:
        array.reshape(-1)[1:4] = np.nan, np.inf, -np.inf
    return array


def _transpose() -> Iterator[Case]:
    def transpose(label, opset, x, perm):
        expected = np.ascontiguousarray(np.transpose(x, [axis % x.ndim for axis in perm]))
        return case(label, "transpose", opset, {"x": x, "perm": const(perm)}, [expected])

    for dtype in _OLD:
        x = _numbers("transpose", 2, 3, 4, dtype=dtype)
        yield transpose(f"{dtype}", IOS15, x, [2, 0, 1])
        yield transpose(f"{dtype}", IOS17, x, [1, 2, 0])
    for dtype in _SHORT:
        yield transpose(dtype, IOS17, _numbers("transpose", 3, 4, dtype=dtype), [1, 0])
        yield transpose(f"{dtype}-rank3", IOS18, _numbers("transpose", 2, 2, 3, dtype=dtype), [-1, 1, 0])
    x = _numbers("transpose", 2, 3, 4)
    for perm in ([0, 1, 2], [0, 2, 1], [1, 0, 2], [2, 1, 0], [-1, 0, -2], [-3, -1, 1]):
        yield transpose(f"perm{'_'.join(map(str, perm))}", IOS16, x, perm)
    y = _numbers("transpose", 2, 1, 3, 4)
    yield transpose("to-channels-last", IOS15, y, [0, 2, 3, 1])
    yield transpose("to-channels-first", IOS15, y, [0, 3, 1, 2])
    yield transpose("rank1", IOS15, _numbers("transpose", 5), [0])
    yield transpose("rank5", IOS18, _numbers("transpose", 2, 3, 1, 2, 2), [4, 2, 0, 3, 1])
    yield transpose("one", IOS15, _numbers("transpose", 1, 1), [1, 0])
    yield transpose("empty", IOS15, np.zeros((2, 0, 3), np.float32), [2, 1, 0])


def _reverse() -> Iterator[Case]:
    def reverse(label, opset, x, axes=None):
        expected = np.ascontiguousarray(np.flip(x, None if axes is None else tuple(axes)))
        inputs = {"x": x} | ({} if axes is None else {"axes": const(axes)})
        return case(label, "reverse", opset, inputs, [expected])

    for dtype in _OLD:
        x = _numbers("reverse", 2, 3, 4, dtype=dtype)
        yield reverse(f"{dtype}", IOS15, x, [1])
        yield reverse(f"{dtype}-all", IOS17, x)
    for dtype in _SHORT:
        yield reverse(dtype, IOS17, _numbers("reverse", 3, 4, dtype=dtype), [-1])
        yield reverse(f"{dtype}-all", IOS18, _numbers("reverse", 5, 2, dtype=dtype))
    x = _numbers("reverse", 2, 3, 4)
    yield reverse("all", IOS15, x)
    for axes in ([0], [2], [-2], [0, 2], [-1, 1], [2, 1, 0]):
        yield reverse(f"axes{'_'.join(map(str, axes))}", IOS16, x, axes)
    yield reverse("rank1", IOS15, _numbers("reverse", 6), [0])
    yield reverse("rank5", IOS18, _numbers("reverse", 2, 1, 3, 2, 2), [0, 3])
    yield reverse("one", IOS15, _numbers("reverse", 1, 1))
    yield reverse("empty", IOS15, np.zeros((2, 0), np.float32), [0, 1])


def _reverse_sequence() -> Iterator[Case]:
    def turned(label, opset, x, lengths, sequence=None, batch=None, dtype=None):
        along, of = 0 if sequence is None else sequence % x.ndim, 0 if batch is None else batch % x.ndim
        expected = x.copy()
        for at, length in enumerate(lengths):
            index = [slice(None)] * x.ndim
            index[of] = slice(at, at + 1)
            index[along] = slice(0, length)
            expected[tuple(index)] = np.flip(x[tuple(index)], along)
        inputs = {"x": x, "lengths": const(lengths, dtype) if dtype else np.array(lengths, np.int32)}
        inputs |= {} if sequence is None else {"seq_axis": const(sequence)}
        inputs |= {} if batch is None else {"batch_axis": const(batch)}
        return case(label, "reverse_sequence", opset, inputs, [expected])

    for dtype in _OLD:
        x = _numbers("sequence", 3, 5, 2, dtype=dtype)
        yield turned(f"{dtype}", IOS15, x, [3, 0, 5], 1, 0)
        yield turned(f"{dtype}", IOS17, x, [1, 3, 2, 0, 3], 0, 1)
    for dtype in _SHORT:
        yield turned(dtype, IOS17, _numbers("sequence", 2, 4, dtype=dtype), [4, 3], 1, 0)
    for dtype in ("int8", "int16"):
        yield turned(f"lengths-{dtype}", IOS17, _numbers("sequence", 2, 4), [2, 3], 1, 0, dtype)
    x = _numbers("sequence", 3, 5, 2)
    yield turned("last", IOS15, x, [2, 1, 0], 2, 0)
    yield turned("batch-last", IOS15, x, [4, 2], 1, 2)
    yield turned("batch-last-first", IOS15, x, [3, 2], 0, 2)
    yield turned("negative", IOS15, x, [5, 1, 4], -2, -3)
    yield turned("constant-lengths", IOS15, x, [2, 4, 5], 1, 0, "int32")
    yield turned("ones", IOS15, x, [1, 1, 1], 1, 0)
    yield turned("whole", IOS16, x, [5, 5, 5], 1, 0)
    yield turned("default-batch", IOS15, x, [3, 4, 2], 1)
    yield turned("rank4", IOS16, _numbers("sequence", 2, 3, 4, 2), [3, 1, 4], 2, 1)
    yield turned("rank5", IOS18, _numbers("sequence", 2, 2, 3, 1, 2), [3, 2], 2, 4)


def _sliding_windows() -> Iterator[Case]:
    def windows(label, opset, x, axis, size, stride=None):
        at = axis % x.ndim
        seen = np.lib.stride_tricks.sliding_window_view(x, size, at)
        seen = np.moveaxis(seen, -1, at + 1)
        expected = np.ascontiguousarray(seen[(slice(None),) * at + (slice(None, None, stride or 1),)])
        inputs = {"x": x, "axis": const(axis), "size": const(size)} | ({} if stride is None else {"stride": const(stride)})
        return case(label, "sliding_windows", opset, inputs, [expected])

    for dtype in ("fp32", "fp16", "int32"):
        x = _numbers("windows", 2, 7, 3, dtype=dtype)
        yield windows(f"{dtype}", IOS15, x, 1, 3)
        yield windows(f"{dtype}", IOS17, x, 1, 2, 3)
    for dtype in ("bool", *_SHORT):
        yield windows(dtype, IOS17, _numbers("windows", 6, 2, dtype=dtype), 0, 4, 2)
        yield windows(f"{dtype}-last", IOS18, _numbers("windows", 2, 7, dtype=dtype), -1, 3)
    x = _numbers("windows", 4, 6, 5)
    for axis in range(-3, 3):
        yield windows(f"axis{axis}", IOS16, x, axis, 3, 2)
    yield windows("rank1", IOS15, _numbers("windows", 8), 0, 3, 2)
    yield windows("whole", IOS15, x, 1, 6)
    yield windows("ones", IOS15, x, 1, 1)
    yield windows("gaps", IOS15, x, 1, 2, 4)
    yield windows("rest-left", IOS15, x, 1, 3, 2)
    yield windows("rank4", IOS18, _numbers("windows", 2, 5, 2, 2), 1, 2)


def _images(label: str, *shape: int, dtype: str = "fp32") -> np.ndarray:
    return _numbers(label, *shape, dtype=dtype)


def _depth() -> Iterator[Case]:
    def to_space(x, block):
        images, channels, height, width = x.shape
        depth = channels // block**2
        spread = np.zeros((images, depth, height * block, width * block), x.dtype)
        for row in range(block):
            for column in range(block):
                first = (row * block + column) * depth
                spread[:, :, row::block, column::block] = x[:, first : first + depth]
        return spread

    def to_depth(x, block):
        parts = [x[:, :, row::block, column::block] for row in range(block) for column in range(block)]
        return np.concatenate(parts, axis=1)

    def both(label, opset, x, block, spread):
        made = to_space(x, block)
        assert np.array_equal(to_depth(made, block), x, equal_nan=True)
        yield case(label, "depth_to_space", opset, {"x": x, "block_size": const(block)}, [made])
        assert spread.shape[1] > 1 or x.shape[1] > block**2 or label.startswith("one"), "cannot tell the order of channels"
        yield case(label, "space_to_depth", opset, {"x": spread, "block_size": const(block)}, [to_depth(spread, block)])

    for dtype in ("fp32", "fp16"):
        for opset in (IOS15, IOS16, IOS17, IOS18):
            yield from both(f"{dtype}", opset, _images("depth", 1, 8, 2, 3, dtype=dtype), 2, _images("space", 1, 2, 4, 6, dtype=dtype))
    for block, channels in ((2, 12), (3, 18), (4, 32), (1, 3)):
        x, spread = _images("depth", 2, channels, 2, 2), _images("space", 2, 3, 2 * block, 3 * block)
        yield from both(f"block{block}", IOS15, x, block, spread)
    yield from both("one-pixel", IOS15, _images("depth", 1, 16, 1, 1), 2, _images("space", 1, 1, 4, 2))
    yield from both("tall", IOS17, _images("depth", 1, 8, 5, 1), 2, _images("space", 1, 2, 10, 2))
    yield from both("wide", IOS17, _images("depth", 3, 8, 1, 4), 2, _images("space", 3, 2, 2, 8))
    yield from both("one-channel", IOS15, _images("depth", 1, 9, 2, 2), 3, _images("space", 1, 1, 6, 3))
    empty = np.zeros((0, 8, 2, 2), np.float32)
    yield case("empty", "depth_to_space", IOS15, {"x": empty, "block_size": const(2)}, [to_space(empty, 2)])
    yield case("empty", "space_to_depth", IOS15, {"x": empty, "block_size": const(2)}, [to_depth(empty, 2)])


def _pixels() -> Iterator[Case]:
    def shuffle(label, opset, x, factor):
        expected = torch.pixel_shuffle(torch.from_numpy(x), factor).numpy()
        return case(label, "pixel_shuffle", opset, {"x": x, "upscale_factor": const(factor)}, [expected])

    def unshuffle(label, opset, x, factor):
        expected = torch.pixel_unshuffle(torch.from_numpy(x), factor).numpy()
        return case(label, "pixel_unshuffle", opset, {"x": x, "downscale_factor": const(factor, "uint32")}, [expected])

    for dtype in ("fp32", "fp16"):
        for opset in (IOS15, IOS16, IOS17, IOS18):
            yield shuffle(f"{dtype}", opset, _images("shuffle", 1, 8, 2, 3, dtype=dtype), 2)
            if opset != IOS15:
                yield unshuffle(f"{dtype}", opset, _images("unshuffle", 1, 2, 4, 6, dtype=dtype), 2)
    for factor, channels in ((2, 12), (3, 18), (4, 16), (1, 3)):
        yield shuffle(f"factor{factor}", IOS15, _images("shuffle", 2, channels, 2, 2), factor)
        yield unshuffle(f"factor{factor}", IOS16, _images("unshuffle", 2, 3, 2 * factor, 3 * factor), factor)
    yield shuffle("one-pixel", IOS15, _images("shuffle", 1, 8, 1, 1), 2)
    yield unshuffle("one-pixel", IOS16, _images("unshuffle", 1, 3, 2, 2), 2)
    yield shuffle("tall", IOS17, _images("shuffle", 1, 8, 5, 1), 2)
    yield unshuffle("tall", IOS17, _images("unshuffle", 1, 2, 10, 2), 2)
    yield shuffle("wide", IOS17, _images("shuffle", 3, 4, 1, 4), 2)
    yield unshuffle("wide", IOS17, _images("unshuffle", 3, 2, 2, 8), 2)


def _batch() -> Iterator[Case]:
    def to_batch(x, block, pads):
        x = np.pad(x, [(0, 0), (0, 0), *pads])
        parts = [x[:, :, row :: block[0], column :: block[1]] for row in range(block[0]) for column in range(block[1])]
        return np.concatenate(parts, axis=0)

    def to_space(x, block, crops):
        images = len(x) // (block[0] * block[1])
        spread = np.zeros((images, x.shape[1], x.shape[2] * block[0], x.shape[3] * block[1]), x.dtype)
        for row in range(block[0]):
            for column in range(block[1]):
                first = (row * block[1] + column) * images
                spread[:, :, row :: block[0], column :: block[1]] = x[first : first + images]
        (top, bottom), (left, right) = crops
        return np.ascontiguousarray(spread[:, :, top : spread.shape[2] - bottom, left : spread.shape[3] - right])

    none = [[0, 0], [0, 0]]

    def batch(label, opset, x, block, pads):
        inputs = {"x": x, "block_shape": const(block), "paddings": const(pads)}
        return case(label, "space_to_batch", opset, inputs, [to_batch(x, block, pads)])

    def space(label, opset, x, block, crops):
        inputs = {"x": x, "block_shape": const(block), "crops": const(crops)}
        return case(label, "batch_to_space", opset, inputs, [to_space(x, block, crops)])

    for dtype in ("fp32", "fp16"):
        for opset in (IOS15, IOS16, IOS17, IOS18):
            yield batch(f"{dtype}", opset, _images("batch", 2, 3, 4, 6, dtype=dtype), [2, 3], none)
            yield space(f"{dtype}", opset, _images("space", 12, 3, 2, 2, dtype=dtype), [2, 3], none)
    yield batch("paddings", IOS15, _images("batch", 1, 2, 3, 4), [2, 2], [[1, 0], [1, 1]])
    yield space("crops", IOS15, _images("space", 4, 2, 2, 3), [2, 2], [[1, 0], [1, 2]])
    yield batch("paddings-after", IOS15, _images("batch", 2, 1, 2, 3), [3, 2], [[0, 1], [0, 3]])
    yield space("crops-after", IOS15, _images("space", 6, 1, 2, 3), [3, 2], [[0, 4], [0, 1]])
    yield batch("rows", IOS15, _images("batch", 3, 1, 6, 2), [3, 1], none)
    yield space("rows", IOS15, _images("space", 6, 2, 2, 2), [3, 1], none)
    yield batch("columns", IOS17, _images("batch", 1, 2, 2, 8), [1, 4], [[0, 0], [2, 2]])
    yield space("columns", IOS17, _images("space", 8, 2, 1, 2), [1, 4], [[0, 0], [3, 1]])
    yield batch("nothing", IOS15, _images("batch", 2, 2, 3, 3), [1, 1], none)
    yield space("nothing", IOS15, _images("space", 2, 2, 3, 3), [1, 1], none)
    yield batch("one", IOS16, _images("batch", 1, 1, 2, 2), [2, 2], none)
    yield space("one", IOS16, _images("space", 4, 1, 1, 1), [2, 2], none)
    yield space("crops-most", IOS16, _images("space", 4, 1, 2, 2), [2, 2], [[2, 1], [0, 3]])
