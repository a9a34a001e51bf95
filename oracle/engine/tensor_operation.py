"""Operations that create, search and sort tensors: `argsort`, `band_part`, `cumsum`, `fill`, `fill_like`, `identity`,
`non_maximum_suppression`, `non_zero`, `one_hot`, `pad`, `range_1d`, `shape`, `tile`, `topk`.

The references are numpy and torch. Neither MIL's documentation nor coremltools' value inference, whose sort is not
stable, specifies the order of equal elements in `argsort` and `topk`. Ours keeps their original order, like numpy's
stable sort, which is the reference; for descending order it sorts the negated elements. NaN is last in both
directions, as in coremltools.

Boxes are compared with torchvision's `nms` and `batched_nms`. coremltools' own tests of the operation, which ran on
Core ML, show further rules: the class of a box is that of its highest score, a box must reach the score threshold,
the best box is returned if none reaches it, and unused entries are 0, or -1 for indices.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torchvision

from .language import IOS15, IOS16, IOS17, IOS18, Case, Program, case, const, draw

_FLOATS_INT32 = ("fp32", "fp16", "int32")
_OLD = ("fp32", "fp16", "int32", "bool")
_SHORT = ("int8", "uint8", "int16", "uint16")


def cases() -> Iterator[Case]:
    yield from _argsort()
    yield from _topk()
    yield from _band_part()
    yield from _cumsum()
    yield from _fill()
    yield from _identity()
    yield from _suppression()
    yield from _non_zero()
    yield from _one_hot()
    yield from _pad()
    yield from _range()
    yield from _shape()
    yield from _tile()


def _numbers(label: str, *shape: int, dtype: str = "fp32") -> np.ndarray:
    """Elements with few repetitions; floats include NaN and infinities."""
    array = draw(label, *shape, dtype=dtype, low=0 if dtype.startswith("u") else -99, high=99)
    if dtype.startswith("fp") and array.size > 3:
        array.reshape(-1)[1:4] = np.nan, np.inf, -np.inf
    return array


def _order(x: np.ndarray, axis: int, ascending: bool) -> np.ndarray:
    """Indices of a stable sort."""
    keys = x.astype(np.float64) if x.dtype.kind == "f" else x.astype(np.int64)
    return np.argsort(keys if ascending else -keys, axis=axis, kind="stable").astype(np.int32)


def _argsort() -> Iterator[Case]:
    def argsort(label, opset, x, axis=None, ascending=None):
        inputs = {"x": x} | ({} if axis is None else {"axis": const(axis)})
        inputs |= {} if ascending is None else {"ascending": const(ascending)}
        expected = _order(x, -1 if axis is None else axis, bool(ascending))
        return case(label, "argsort", opset, inputs, [expected])

    for dtype in _FLOATS_INT32:
        x = draw("argsort", 4, 7, low=-5, high=5, dtype=dtype)
        yield argsort(f"{dtype}", IOS15, x)
        yield argsort(f"{dtype}-ascending", IOS15, x, 0, True)
        yield argsort(f"{dtype}-descending", IOS17, x, 1, False)
    for axis in range(-3, 3):
        yield argsort(f"axis{axis}", IOS16, draw("argsort", 3, 4, 2), axis, axis % 2 == 0)
    ties = draw("ties", 3, 40, low=0, high=4, dtype="int32")
    yield argsort("ties", IOS15, ties, 1, True)
    yield argsort("ties-descending", IOS15, ties, 1, False)
    yield argsort("ties-outer", IOS15, ties, 0, False)
    special = np.array([1, np.nan, -np.inf, 0, -0.0, np.inf, np.nan, 2], np.float32)
    yield argsort("special", IOS15, special, 0, True)
    yield argsort("special-descending", IOS15, special, 0, False)
    yield argsort("extremes", IOS15, np.array([2**31 - 1, -(2**31), 0, -(2**31), 2**31 - 1], np.int32), 0, False)
    yield argsort("one", IOS15, draw("one", 1, 3), 0)
    yield argsort("empty", IOS15, np.zeros((2, 0), np.float32), 1)


def _topk() -> Iterator[Case]:
    def topk(label, opset, x, k=None, axis=None, ascending=None, indices="int32", k_type=None, **more):
        at = -1 if axis is None else axis
        count = 1 if k is None else x.shape[at] if k == -1 else k
        places = np.take(_order(x, at, bool(ascending)), range(count), axis=at)
        inputs = {"x": x} | ({} if k is None else {"k": const(k, k_type)})
        inputs |= {} if axis is None else {"axis": const(axis)}
        inputs |= {} if ascending is None else {"ascending": const(ascending)}
        expected = [np.take_along_axis(x, places, axis=at)]
        if indices is not None:
            expected.append(places.astype(indices))
        return case(label, "topk", opset, inputs | {name: const(value) for name, value in more.items()}, expected)

    for opset in (IOS15, IOS16, IOS17):
        for dtype in _FLOATS_INT32:
            x = draw("topk", 3, 6, low=-9, high=9, dtype=dtype)
            yield topk(f"{dtype}", opset, x, 3)
            yield topk(f"{dtype}-ascending", opset, x, 2, 0, True)
        ties = draw("ties", 2, 50, low=0, high=3, dtype="int32")
        yield topk("default", opset, ties)
        yield topk("ties", opset, ties, 9, 1, False)
        yield topk("ties-ascending", opset, ties, 30, 1, True)
        special = np.array([[1, np.nan, -np.inf, 0], [np.inf, np.nan, 2, np.nan]], np.float32)
        yield topk("special", opset, special, 3)
        yield topk("special-ascending", opset, special, 4, 1, True)
        yield topk("all", opset, draw("topk", 2, 5), 5)
        yield topk("none", opset, draw("topk", 2, 5), 0)
        for axis in (-3, 1, 2):
            yield topk(f"axis{axis}", opset, draw("topk", 3, 4, 3), 2, axis)
    for opset in (IOS16, IOS17):
        x = draw("topk", 3, 8)
        yield topk("values-only", opset, x, 3, indices=None, return_indices=False)
        yield topk("values-only-ascending", opset, x, 3, 0, True, indices=None, return_indices=False)
        yield topk("both", opset, x, 3, return_indices=True, sort=True)
        # A single element.
        yield topk("unsorted", opset, x, 1, sort=False)
    for dtype in _SHORT:
        yield topk(dtype, IOS17, _numbers("topk", 2, 9, dtype=dtype), 4)
        yield topk(f"{dtype}-ascending", IOS17, _numbers("topk", 9, dtype=dtype), 4, 0, True)
    for dtype in ("int8", "int16"):
        yield topk(f"k-{dtype}", IOS17, draw("topk", 3, 8), 5, k_type=dtype)
    yield topk("k-all", IOS17, draw("topk", 3, 8), -1)
    yield topk("k-all-ascending", IOS18, draw("topk", 3, 8), -1, 0, True)
    for dtype in ("int32", "uint16"):
        yield topk(f"indices-{dtype}", IOS17, draw("topk", 3, 300), 3, indices=dtype, output_indices_dtype=dtype)


def _band_part() -> Iterator[Case]:
    def band(label, opset, x, lower=None, upper=None):
        below, above = -1 if lower is None else lower, -1 if upper is None else upper
        rows, columns = np.indices(x.shape[-2:])
        kept = ((below < 0) | (rows - columns <= below)) & ((above < 0) | (columns - rows <= above))
        expected = np.where(kept, x, np.zeros((), x.dtype))
        inputs = {"x": x} | ({} if lower is None else {"lower": const(lower)})
        inputs |= {} if upper is None else {"upper": const(upper)}
        return case(label, "band_part", opset, inputs, [expected])

    for dtype in _OLD:
        x = draw("band", 4, 5, low=-9, high=9, dtype=dtype)
        yield band(f"{dtype}", IOS15, x, 1, 2)
        yield band(f"{dtype}-upper", IOS17, x, 0, -1)
    x = draw("band", 2, 3, 4)
    yield band("default", IOS15, x)
    yield band("lower", IOS15, x, -1, 0)
    yield band("diagonal", IOS15, x, 0, 0)
    yield band("tall", IOS15, draw("band", 6, 3), 1, 0)
    yield band("wide", IOS15, draw("band", 2, 7), 0, 3)
    yield band("beyond", IOS15, x, 99, 99)
    # Elements outside the band are set to zero, as documented; multiplying them with a mask would make NaN.
    special = np.full((3, 3), np.inf, np.float32)
    special[0, 2] = np.nan
    yield band("special", IOS15, special, -1, 0)
    yield band("one", IOS15, draw("band", 1, 1), 0, 0)
    yield band("rank5", IOS18, draw("band", 2, 1, 2, 3, 3), 1, -1)
    yield band("empty", IOS15, np.zeros((0, 3), np.float32), 0, 1)


def _cumsum() -> Iterator[Case]:
    def cumsum(label, opset, x, axis=None, exclusive=None, reverse=None):
        at = 0 if axis is None else axis
        wide = torch.from_numpy(x.astype(np.float64 if x.dtype.kind == "f" else np.int64))
        sums = (torch.flip(torch.cumsum(torch.flip(wide, [at]), at), [at]) if reverse else torch.cumsum(wide, at)).numpy()
        if exclusive and x.size:
            # Exclusive: one step later, from zero.
            step = -1 if reverse else 1
            sums = np.roll(sums, step, at)
            edge = [slice(None)] * x.ndim
            edge[at] = -1 if reverse else 0
            sums[tuple(edge)] = 0
        expected = sums.astype(np.float32 if x.dtype.kind == "f" else np.int32)
        dtype = {"float32": "fp32", "float16": "fp16", "int32": "int32"}[x.dtype.name]
        inputs = {"x": x} | ({} if axis is None else {"axis": const(axis)})
        inputs |= {} if exclusive is None else {"exclusive": const(exclusive)}
        inputs |= {} if reverse is None else {"reverse": const(reverse)}
        return case(label, "cumsum", opset, inputs, [expected], dtypes=[dtype])

    for dtype in _FLOATS_INT32:
        x = draw("cumsum", 3, 5, low=-9, high=9, dtype=dtype)
        yield cumsum(f"{dtype}", IOS15, x)
        for exclusive in (False, True):
            for reverse in (False, True):
                name = f"{dtype}{'-exclusive' if exclusive else ''}{'-reverse' if reverse else ''}"
                yield cumsum(f"{name}-last", IOS16, x, -1, exclusive, reverse)
                yield cumsum(f"{name}-first", IOS17, x, 0, exclusive, reverse)
    yield cumsum("middle", IOS15, draw("cumsum", 2, 4, 3), 1, True, True)
    yield cumsum("rank5", IOS18, draw("cumsum", 2, 1, 2, 3, 2), 3)
    yield cumsum("one", IOS15, draw("cumsum", 1), 0, True)
    yield cumsum("special", IOS15, np.array([1, np.inf, 2, -np.inf, 3, np.nan, 4], np.float32))
    yield cumsum("wraps", IOS15, np.array([2**31 - 1, 1, 5], np.int32))
    yield cumsum("empty", IOS15, np.zeros((0, 3), np.float32), 0, True)


def _fill() -> Iterator[Case]:
    def value_of(dtype):
        return {"fp32": -1.5, "fp16": 0.25, "int32": 7, "bool": True}[dtype]

    for dtype in _OLD:
        filled = np.full((2, 3), value_of(dtype), {"fp32": "f4", "fp16": "f2", "int32": "i4", "bool": "?"}[dtype])
        inputs = {"shape": const([2, 3]), "value": const(value_of(dtype), dtype)}
        yield case(f"{dtype}", "fill", IOS15, inputs, [filled])
        inputs["shape"] = np.array([2, 3], np.int32)
        yield case(f"{dtype}-computed", "fill", IOS16, inputs, [filled], declared=[(dtype, ["?", "?"])])
        for reference in _OLD:
            inputs = {"ref_tensor": draw("fill", 2, 3, dtype=reference), "value": const(value_of(dtype), dtype)}
            yield case(f"{dtype}-like-{reference}", "fill_like", IOS16, inputs, [filled])
    yield case("default", "fill", IOS15, {"shape": const([2, 1, 2])}, [np.zeros((2, 1, 2), np.float32)])
    yield case("rank1", "fill", IOS16, {"shape": const([4]), "value": const(2.5)}, [np.full(4, 2.5, np.float32)])
    yield case("rank5", "fill", IOS17, {"shape": const([1, 2, 1, 2, 3]), "value": const(1)}, [np.ones((1, 2, 1, 2, 3), np.int32)])
    yield case("one", "fill", IOS18, {"shape": const([1]), "value": const(3.0)}, [np.full(1, 3, np.float32)])
    for name, value in (("inf", np.inf), ("minus-inf", -np.inf), ("nan", np.nan)):
        yield case(name, "fill", IOS15, {"shape": const([2, 2]), "value": const(value)}, [np.full((2, 2), value, np.float32)])
    program = Program(IOS15)
    filled = program.op("fill", {"shape": np.array([2, 3], np.int32), "value": const(4.5)}, ("fp32", ["?", "?"]))
    yield program.case("fill", "computed", [filled], [np.full((2, 3), 4.5, np.float32)])
    program = Program(IOS17)
    filled = program.op("fill", {"shape": np.array([3, 0], np.int32), "value": const(4)}, ("int32", ["?", "?"]))
    yield program.case("fill", "computed-empty", [filled], [np.zeros((3, 0), np.int32)])
    yield case("default", "fill_like", IOS16, {"ref_tensor": draw("fill", 4, dtype="int32")}, [np.zeros(4, np.float32)])
    yield case("rank5", "fill_like", IOS17, {"ref_tensor": draw("fill", 1, 2, 1, 2, 2), "value": const(9)}, [np.full((1, 2, 1, 2, 2), 9, np.int32)])
    yield case("empty", "fill_like", IOS18, {"ref_tensor": np.zeros((2, 0), np.float32), "value": const(1.0)}, [np.zeros((2, 0), np.float32)])


def _identity() -> Iterator[Case]:
    for dtype in _OLD:
        x = _numbers("identity", 2, 3, dtype=dtype)
        yield case(dtype, "identity", IOS15, {"x": x}, [x])
    for dtype in _SHORT:
        x = _numbers("identity", 2, 3, dtype=dtype)
        yield case(dtype, "identity", IOS17, {"x": x}, [x])
    for rank in (0, 1, 4, 5):
        x = _numbers("identity", *[2, 1, 3, 2, 1][:rank])
        yield case(f"rank{rank}", "identity", IOS16, {"x": x}, [x])
    yield case("empty", "identity", IOS18, {"x": np.zeros((0, 2), np.float32)}, [np.zeros((0, 2), np.float32)])
    large = np.array([2**31 - 1, -(2**31), 2**24 + 1], np.int32)
    yield case("large", "identity", IOS15, {"x": large}, [large])
    program = Program(IOS15)
    same = program.op("identity", {"x": program.op("identity", {"x": large}, ("int32", [3]))}, ("int32", [3]))
    yield program.case("identity", "twice", [same], [large])


def _suppression() -> Iterator[Case]:
    def corners(boxes):
        center, size = boxes[..., :2], boxes[..., 2:]
        return np.concatenate([center - size / 2, center + size / 2], axis=-1)

    def chosen(boxes, scores, iou, threshold, most, per_class):
        best, classes = scores.max(-1), scores.argmax(-1)
        candidates = np.arange(len(boxes)) if threshold is None else np.flatnonzero(best >= threshold)
        tensors = [torch.from_numpy(array[candidates]) for array in (corners(boxes), best, classes)]
        if per_class:
            # Not `batched_nms`, which offsets the boxes of each class in fp32 and so rounds them.
            kept = np.concatenate(
                [
                    np.flatnonzero(classes[candidates] == of)[torchvision.ops.nms(tensors[0][tensors[2] == of], tensors[1][tensors[2] == of], iou)]
                    for of in np.unique(classes[candidates])
                ]
                or [np.zeros(0, int)]
            )
            kept = kept[np.argsort(-best[candidates][kept], kind="stable")]
        else:
            kept = torchvision.ops.nms(*tensors[:2], iou).numpy()
        return candidates[kept][:most] if len(kept) else np.array([best.argmax()])

    def suppress(label, opset, boxes, scores, iou, threshold, most, per_class=None, dtype="fp32"):
        rows = opset in (IOS15, IOS16)
        boxes, scores = boxes.astype(np.float16).astype(np.float32), scores.astype(np.float16).astype(np.float32)
        taken = np.zeros((len(boxes), most, 4), np.float32)
        rated = np.zeros((len(boxes), most, scores.shape[2]), np.float32)
        indices, counts = np.full((len(boxes), most), -1, np.int32), np.zeros(len(boxes), np.int32)
        for image in range(len(boxes)):
            found = chosen(boxes[image], scores[image], iou, threshold if rows else None, most, per_class)
            counts[image] = len(found)
            taken[image, : len(found)], rated[image, : len(found)] = boxes[image][found], scores[image][found]
            indices[image, : len(found)] = found

        def laid(array):
            return array if rows else np.ascontiguousarray(np.swapaxes(array, 1, 2))

        numpy = {"fp32": np.float32, "fp16": np.float16}[dtype]
        inputs = {"boxes": laid(boxes).astype(numpy), "scores": laid(scores).astype(numpy), "iou_threshold": const(iou, dtype)}
        inputs |= {"score_threshold": const(threshold, dtype)} if rows else {}
        inputs |= {"max_boxes": const(most)} | ({} if per_class is None else {"per_class_suppression": const(per_class)})
        expected = [laid(taken), laid(rated), indices, counts][: 4 if rows else 3]
        dtypes = [dtype, dtype, "int32", "int32"][: 4 if rows else 3]
        return case(label, "non_maximum_suppression", opset, inputs, expected, dtypes=dtypes)

    def scene(label, images, count, classes):
        boxes = np.concatenate([draw(f"{label}-at", images, count, 2, low=0, high=60), draw(f"{label}-size", images, count, 2, low=10, high=40)], -1)
        scores = draw(f"{label}-scores", images, count, classes, low=-5, high=5)
        # Distinct scores, so that the order is unambiguous.
        return boxes, scores + np.arange(scores.size, dtype=np.float32).reshape(scores.shape) / 128

    for opset in (IOS15, IOS16, IOS17, IOS18):
        for per_class in (False, True):
            name = "per-class" if per_class else "all-classes"
            boxes, scores = scene("crowd", 1, 30, 4)
            for iou in (0.05, 0.3, 0.6):
                yield suppress(f"{name}-{iou}", opset, boxes, scores, iou, 1.5, 12, per_class)
        boxes, scores = scene("batch", 3, 12, 2)
        yield suppress("batch", opset, boxes, scores, 0.25, 0.0, 8)
        boxes, scores = scene("one-class", 1, 16, 1)
        yield suppress("one-class", opset, boxes, scores, 0.4, -9.0, 16, True)
        yield suppress("few-wanted", opset, boxes, scores, 0.4, -9.0, 2)
        yield suppress("fp16", opset, boxes, scores, 0.5, 0.0, 6, dtype="fp16")
        turned = boxes.copy()
        turned[:, ::3, 2] *= -1
        turned[:, ::4, 3] *= -1
        yield suppress("negative-size", opset, turned, scores, 0.05, -9.0, 16)
        yield suppress("one-box", opset, boxes[:, :1], scores[:, :1], 0.5, -9.0, 3)
        yield suppress("touching", opset, np.array([[[1, 1, 2, 2], [3, 1, 2, 2], [2, 1, 2, 2]]], np.float32), np.array([[[3], [2], [1]]], np.float32), 0.0, 0.0, 3)
        yield suppress("points", opset, np.array([[[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]]], np.float32), np.array([[[-3.5], [9.4], [2.3], [0.7]]], np.float32), 0.2, 0.4, 2, True)
    # The best box is returned even if none reaches the threshold.
    boxes, scores = scene("none", 2, 8, 3)
    for per_class in (False, True):
        yield suppress(f"none-reach-{per_class}", IOS15, boxes, scores, 0.5, 99.0, 4, per_class)


def _non_zero() -> Iterator[Case]:
    def non_zero(label, opset, x):
        expected = np.argwhere(x).astype(np.int32)
        return case(label, "non_zero", opset, {"x": x}, [expected], declared=[("int32", ["?", x.ndim])])

    for dtype in _OLD:
        x = draw("non-zero", 3, 4, low=-1, high=1, dtype=dtype)
        if dtype.startswith("fp"):
            x[np.abs(x) < 0.4] = 0
        yield non_zero(f"{dtype}", IOS15, x)
        yield non_zero(f"{dtype}-rank3", IOS17, draw("non-zero", 2, 2, 3, low=-1, high=1, dtype="int32").astype(x.dtype))
    yield non_zero("rank1", IOS15, draw("non-zero", 9, low=0, high=1, dtype="int32"))
    yield non_zero("rank5", IOS16, draw("non-zero", 2, 1, 2, 3, 2, low=0, high=1, dtype="int32"))
    yield non_zero("special", IOS15, np.array([0.0, -0.0, np.nan, np.inf, 1e-30, -np.inf], np.float32))
    yield non_zero("none", IOS15, np.zeros((2, 3), np.float32))
    yield non_zero("all", IOS18, np.ones((2, 3), np.int32))


def _one_hot() -> Iterator[Case]:
    def one_hot(label, opset, indices, size, axis=None, on=None, off=None, dtype=None):
        indices = np.asarray(indices, np.int32)
        at = -1 if axis is None else axis
        hot = indices[..., None] == np.arange(size)
        numpy = {"fp32": np.float32, "fp16": np.float16, "int32": np.int32, "bool": np.bool_}[dtype or "int32"]
        vectors = np.where(hot, numpy(1 if on is None else on), numpy(0 if off is None else off))
        inputs = {"indices": indices, "one_hot_vector_size": const(size)} | ({} if axis is None else {"axis": const(axis)})
        inputs |= {} if on is None else {"on_value": const(on, dtype)}
        inputs |= {} if off is None else {"off_value": const(off, dtype)}
        return case(label, "one_hot", opset, inputs, [np.ascontiguousarray(np.moveaxis(vectors, -1, at))])

    for dtype, on, off in (("fp32", 0.9, 0.1), ("fp16", 2.5, -1.0), ("int32", 5, -3), ("bool", False, True)):
        yield one_hot(f"{dtype}", IOS15, [2, 0, 1, 2], 3, -1, on, off, dtype)
        yield one_hot(f"{dtype}-first", IOS17, [[2, 0], [1, 2]], 4, 0, on, off, dtype)
    yield one_hot("default", IOS15, [1, 3, 0], 4)
    yield one_hot("judged-by-torch", IOS15, torch.nn.functional.one_hot(torch.tensor([2, 0, 1])).argmax(-1).numpy(), 3)
    # As in TensorFlow, an index outside the range makes an all-off vector.
    yield one_hot("outside", IOS15, [-1, 3, 99, 1], 3)
    for axis in (-3, -2, 0, 1, 2):
        yield one_hot(f"axis{axis}", IOS16, [[0, 2, 1], [1, 1, 0]], 3, axis)
    yield one_hot("scalar", IOS15, 2, 4)
    yield one_hot("rank3", IOS18, draw("hot", 2, 2, 3, low=0, high=4, dtype="int32"), 5, 1)
    yield one_hot("one", IOS15, [0, 1], 1)
    yield one_hot("no-classes", IOS15, [0, 1], 0)
    program = Program(IOS17)
    inputs = {"indices": np.array([1, 0], np.int32), "one_hot_vector_size": np.int32(3)}
    vectors = program.op("one_hot", inputs, ("int32", [2, "?"]))
    yield program.case("one_hot", "computed-size", [vectors], [np.array([[0, 1, 0], [1, 0, 0]], np.int32)])


def _pad() -> Iterator[Case]:
    def pad(label, opset, x, pads, mode=None, value=None):
        pairs = [(0, 0)] * (x.ndim - len(pads) // 2) + list(zip(pads[::2], pads[1::2], strict=True))
        named = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}[mode or "constant"]
        more = {"constant_values": x.dtype.type(value or 0)} if named == "constant" else {}
        expected = np.pad(x, pairs, named, **more)
        inputs = {"x": x, "pad": const(pads)} | ({} if mode is None else {"mode": const(mode)})
        inputs |= {} if value is None else {"constant_val": const(x.dtype.type(value))}
        return case(label, "pad", opset, inputs, [expected])

    for dtype in ("fp32", "fp16"):
        x = draw("pad", 2, 3, 4, dtype=dtype)
        yield pad(f"{dtype}", IOS15, x, [1, 2, 0, 3])
        yield pad(f"{dtype}-value", IOS16, x, [2, 0, 1, 1, 0, 1], "constant", -1.5)
        for mode in ("reflect", "replicate"):
            yield pad(f"{dtype}-{mode}", IOS15, x, [2, 1, 3, 2], mode)
            yield pad(f"{dtype}-{mode}-last", IOS17, x, [0, 3], mode)
            yield pad(f"{dtype}-{mode}-all", IOS17, x, [1, 0, 0, 2, 2, 3], mode)
    x = draw("pad", 1, 1, 4, 4)
    for mode in ("constant", "reflect", "replicate"):
        yield pad(f"{mode}-image", IOS15, x, [2, 1, 1, 3], mode)
        yield pad(f"{mode}-nothing", IOS15, x, [0, 0, 0, 0], mode)
        yield pad(f"{mode}-most", IOS15, draw("pad", 3), [2, 2], mode)
        yield pad(f"{mode}-ignores-value", IOS15, draw("pad", 2, 3), [1, 1], mode, 7.5)
        yield pad(f"{mode}-rank5", IOS18, draw("pad", 2, 2, 2, 2, 3), [1, 0, 0, 1, 1, 2], mode)
    yield pad("no-axes", IOS15, x, np.zeros(0, np.int32))
    yield pad("empty", IOS15, np.zeros((2, 0), np.float32), [1, 2], "constant", 3.0)
    yield pad("inf", IOS15, draw("pad", 2, 2), [1, 0], "constant", -np.inf)
    yield pad("replicate-whole", IOS15, draw("pad", 2, 1), [1, 1], "replicate")
    for opset, mode in ((IOS15, "constant"), (IOS17, "reflect"), (IOS17, "replicate")):
        program = Program(opset)
        y = draw("pad", 3, 4)
        inputs = {"x": y, "pad": np.array([1, 0, 2, 3], np.int32), "mode": const(mode)}
        padded = program.op("pad", inputs, ("fp32", ["?", "?"]))
        named = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}[mode]
        yield program.case("pad", f"computed-{mode}", [padded], [np.pad(y, [(1, 0), (2, 3)], named)])


def _range() -> Iterator[Case]:
    def ranged(label, opset, start, end, step, dtype):
        numpy = {"fp32": np.float32, "fp16": np.float16, "int32": np.int32}[dtype]
        # Bounds in the type itself, because numpy derives its steps from it; for integers the difference may
        # overflow.
        bounds = [start, end, step] if dtype == "int32" else [numpy(start), numpy(end), numpy(step)]
        expected = np.arange(*bounds, dtype=numpy)
        inputs = {"end": numpy(end), "start": numpy(start), "step": numpy(step)}
        return case(label, "range_1d", opset, inputs, [expected], declared=[(dtype, ["?"])])

    for dtype in _FLOATS_INT32:
        yield ranged(f"{dtype}", IOS15, 0, 5, 1, dtype)
        yield ranged(f"{dtype}-step", IOS16, 3, 20, 4, dtype)
        yield ranged(f"{dtype}-backwards", IOS17, 10, -3, -3, dtype)
        yield ranged(f"{dtype}-nothing", IOS15, 5, 5, 2, dtype)
        yield ranged(f"{dtype}-wrong-way", IOS15, 5, 1, 2, dtype)
        yield ranged(f"{dtype}-one", IOS18, 2, 3, 9, dtype)
    yield ranged("fraction", IOS15, -1.5, 1.6, 0.25, "fp32")
    yield ranged("fraction-exclusive", IOS15, 0.0, 1.0, 0.125, "fp16")
    yield ranged("tenths", IOS15, 0.0, 1.0, 0.1, "fp32")
    yield ranged("extremes", IOS15, -(2**31), 2**31 - 1, 2**30, "int32")
    for dtype, numpy in (("int32", np.int32), ("fp32", np.float32)):
        inputs = {"end": const(9, dtype), "start": const(-2, dtype), "step": const(3, dtype)}
        yield case(f"constant-{dtype}", "range_1d", IOS16, inputs, [np.arange(-2, 9, 3).astype(numpy)])


def _shape() -> Iterator[Case]:
    for dtype in _OLD:
        yield case(dtype, "shape", IOS15, {"x": draw("shape", 2, 3, dtype=dtype)}, [np.array([2, 3], np.int32)])
        yield case(f"{dtype}-rank3", "shape", IOS17, {"x": draw("shape", 4, 1, 2, dtype=dtype)}, [np.array([4, 1, 2], np.int32)])
    for shape in ([7], [1, 1], [2, 1, 3, 1], [1, 2, 1, 2, 3], [0, 3]):
        x = np.zeros(shape, np.float32)
        yield case(f"of-{'x'.join(map(str, shape))}", "shape", IOS16, {"x": x}, [np.array(shape, np.int32)])
    program = Program(IOS15)
    same = program.op("identity", {"x": draw("shape", 3, 2)}, ("fp32", [3, 2]))
    yield program.case("shape", "of-computed", [program.op("shape", {"x": same}, ("int32", [2]))], [np.array([3, 2], np.int32)])


def _tile() -> Iterator[Case]:
    def tile(label, opset, x, reps):
        return case(label, "tile", opset, {"x": x, "reps": const(reps)}, [np.tile(x, reps)])

    for dtype in _OLD:
        x = _numbers("tile", 2, 3, dtype=dtype)
        yield tile(f"{dtype}", IOS15, x, [2, 3])
        yield tile(f"{dtype}-last", IOS17, x, [1, 4])
    yield tile("first", IOS15, _numbers("tile", 2, 3), [3, 1])
    yield tile("nothing", IOS15, _numbers("tile", 2, 3), [1, 1])
    yield tile("rank1", IOS15, _numbers("tile", 4), [3])
    yield tile("rank3", IOS16, _numbers("tile", 2, 1, 2), [2, 3, 2])
    yield tile("rank5", IOS18, _numbers("tile", 1, 2, 1, 2, 2), [2, 1, 3, 2, 1])
    yield tile("one", IOS15, _numbers("tile", 1, 1), [3, 4])
    yield tile("empty", IOS15, np.zeros((2, 0), np.float32), [2, 2])
    program = Program(IOS15)
    x = _numbers("tile", 2, 3)
    tiled = program.op("tile", {"x": x, "reps": np.array([2, 1], np.int32)}, ("fp32", ["?", "?"]))
    yield program.case("tile", "computed", [tiled], [np.tile(x, (2, 1))])
