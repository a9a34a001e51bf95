"""`matmul`, `linear`, `einsum` and `scaled_dot_product_attention`, compared with numpy and torch in fp64.

Fully masked rows differ: torch's attention returns zeros, MIL's softmax over minus infinity alone returns NaN. The
reference for these cases is coremltools' value inference, which returns NaN, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from .judge import value_of
from .language import IOS15, IOS16, IOS17, IOS18, OPSETS, Case, Program, case, const, draw


def cases() -> Iterator[Case]:
    yield from _matmul()
    yield from _linear()
    yield from _einsum()
    yield from _attention()


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _matmul() -> Iterator[Case]:
    def product(x, y, transpose_x=False, transpose_y=False):
        x = np.swapaxes(x, -1, -2) if transpose_x else x
        y = np.swapaxes(y, -1, -2) if transpose_y else y
        with np.errstate(all="ignore"):
            return np.matmul(_wide(x), _wide(y))

    def matmul(label, opset, x, y, **flags):
        inputs = {"x": x, "y": y} | {name: const(flag) for name, flag in flags.items()}
        x, y = (operand if isinstance(operand, np.ndarray) else operand.value.elements for operand in (x, y))
        return case(label, "matmul", opset, inputs, [product(x, y, **flags)], dtypes=[_dtype(x)])

    shapes = {
        "matrices": ((2, 3), (3, 4)),
        "vector": ((3,), (3, 2)),
        "vector-batch": ((3,), (2, 3, 2)),
        "one": ((1, 1), (1, 1)),
        "column-row": ((4, 1), (1, 5)),
        "row-column": ((1, 17), (17, 1)),
        "batch": ((2, 3, 4), (2, 4, 2)),
        "broadcast-left": ((3, 4), (5, 4, 2)),
        "broadcast-right": ((2, 5, 3, 4), (4, 2)),
        "broadcast-one": ((2, 1, 3, 4), (1, 3, 4, 2)),
        "rank5": ((2, 1, 2, 2, 3), (2, 1, 3, 2)),
        "deep": ((5, 300), (300, 9)),
        "wide": ((3, 2), (2, 70)),
        "tall": ((70, 2), (2, 3)),
        "no-depth": ((2, 0), (0, 3)),
        "no-rows": ((0, 2), (2, 3)),
        "no-batch": ((0, 2, 2), (2, 3)),
    }
    for opset in (IOS15, IOS17):
        for label, (x, y) in shapes.items():
            yield matmul(label, opset, draw(f"x-{label}", *x), draw(f"y-{label}", *y))
        for dtype in ("fp16", "int32"):
            low, high = (-2, 2) if dtype == "fp16" else (-9, 9)
            for label in ("matrices", "vector", "broadcast-one", "rank5", "one"):
                x, y = (draw(f"{dtype}-{at}", *shape, dtype=dtype, low=low, high=high) for at, shape in enumerate(shapes[label]))
                yield matmul(f"{dtype}-{label}", IOS16 if opset == IOS15 else IOS18, x, y)
        for transpose_x in (False, True):
            for transpose_y in (False, True):
                flags = {"transpose_x": transpose_x, "transpose_y": transpose_y}
                x = draw("tx", *((2, 4, 3) if transpose_x else (2, 3, 4)))
                y = draw("ty", *((1, 5, 4) if transpose_y else (1, 4, 5)))
                label = f"{'x' if transpose_x else ''}{'y' if transpose_y else ''}-transposed"
                yield matmul(f"batch-{label}", opset, x, y, **flags)
                yield matmul(f"matrix-{label}", opset, x[0], y[0], **flags)
                yield matmul(f"constant-{label}", opset, x[0], const(y[0]), **flags)
                ints = (np.round(x[1] * 5).astype(np.int32), np.round(y[0] * 5).astype(np.int32))
                yield matmul(f"int32-{label}", opset, *ints, **flags)
    yield matmul("vector-y-transposed", IOS15, draw("v", 3), draw("w", 2, 3), transpose_y=True)

    special = np.array([[np.nan, 1, 2], [np.inf, 0, 1], [-np.inf, 1, np.inf], [3e38, 3e38, 1]], np.float32)
    plain = np.array([[1, 0], [0, 2], [1, 1]], np.float32)
    yield matmul("special-values", IOS15, special, plain)
    yield matmul("special-values-right", IOS17, plain.T.copy(), special[:3])
    large = np.array([[2**30, 2**30], [-(2**31), 3]], np.int32)
    yield matmul("int32-wraps", IOS15, large, large)

    # The result has the type of the computed factor, whatever the type of the constant one.
    for dtype, other in (("fp16", "fp32"), ("fp32", "fp16")):
        x, y = draw("mixed-x", 2, 3, dtype=dtype), draw("mixed-y", 3, 4, dtype=other)
        for side in ("right", "left"):
            program = Program(IOS17)
            computed, constant = program.input("x", x if side == "right" else x.T.copy()), y if side == "right" else y.T.copy()
            computed = program.op("identity", {"x": computed}, (dtype, computed.shape))
            factors = (computed, const(constant)) if side == "right" else (const(constant), computed)
            expected = product(x, y) if side == "right" else product(constant, x.T)
            y_name = program.op("matmul", dict(zip("xy", factors, strict=False)), (dtype, expected.shape))
            yield program.case("matmul", f"{dtype}-by-constant-{other}-{side}", [y_name], [expected])


def _dtype(array: np.ndarray) -> str:
    return {"float32": "fp32", "float16": "fp16", "int32": "int32"}[str(array.dtype)]


def _linear() -> Iterator[Case]:
    def linear(label, opset, x, weight, bias=None, abs=1e-6):
        inputs = {"x": x, "weight": const(weight)} | ({} if bias is None else {"bias": const(bias)})
        with np.errstate(all="ignore"):
            expected = np.matmul(_wide(x), _wide(weight).T) + (0 if bias is None else _wide(bias))
        return case(label, "linear", opset, inputs, [expected], dtypes=[_dtype(x)], abs=abs)

    for opset in OPSETS:
        for dtype in ("fp32", "fp16", "int32") if opset != IOS15 else ("fp32", "int32"):
            weight, bias = (draw(f"linear-{dtype}-{at}", *shape, dtype=dtype, low=-4, high=4) for at, shape in enumerate(((5, 3), (5,))))
            for shape in ((3,), (2, 3), (2, 2, 3), (1, 3)):
                x = draw(f"linear-{shape}", *shape, dtype=dtype, low=-4, high=4)
                label = f"{dtype}-rank{len(shape)}-{shape[0]}"
                yield linear(label, opset, x, weight, bias)
                if shape == (2, 3):
                    yield linear(f"{label}-no-bias", opset, x, weight)
    for opset in (IOS15, IOS17):
        yield linear("rank5", opset, draw("r5", 2, 1, 2, 3, 4), draw("w5", 2, 4), draw("b5", 2))
        yield linear("one", opset, draw("o", 1, 1), draw("wo", 1, 1), draw("bo", 1))
        yield linear("deep", opset, draw("d", 6, 520), draw("wd", 7, 520), draw("bd", 7), abs=1e-5)
        yield linear("deep-vector", opset, draw("dv", 521), draw("wdv", 19, 521), draw("bdv", 19), abs=1e-5)
        yield linear("no-rows", opset, draw("n", 0, 3), draw("wn", 2, 3), draw("bn", 2))
        yield linear("no-columns", opset, draw("nc", 2, 3), draw("wnc", 0, 3))
        special = np.array([[np.nan, 1], [np.inf, 1], [-np.inf, np.inf], [1, 2]], np.float32)
        yield linear("special-values", opset, special, np.array([[1, 2], [0.5, -1]], np.float32), np.array([1, np.inf], np.float32))
    wraps = np.array([[2**30, 7]], np.int32)
    yield case(
        "int32-wraps", "linear", IOS15, {"x": wraps, "weight": const(np.array([[2, 0], [4, 1]], np.int32))},
        [np.matmul(wraps, np.array([[2, 4], [0, 1]], np.int32))],
    )
    for dtype, other in (("fp16", "fp32"), ("fp32", "fp16")):
        x, weight, bias = draw("mx", 3, 4, dtype=dtype), draw("mw", 2, 4, dtype=other), draw("mb", 2, dtype=other)
        for opset in (IOS17, IOS18):
            yield linear(f"{dtype}-by-{other}", opset, x, weight, bias)


def _einsum() -> Iterator[Case]:
    def einsum(label, equation, x, y, opset=IOS15):
        with np.errstate(all="ignore"):
            (expected,) = value_of("einsum", opset, values=[_wide32(x), _wide32(y)], equation=equation)
        inputs = {"values": [x, y], "equation": const(equation)}
        return case(label, "einsum", opset, inputs, [expected], dtypes=[_dtype(x)])

    def _wide32(array):
        return array.astype(np.float32)

    for at, equation in enumerate(("chw,whr->chr", "abc,cbd->abd", "xyz,zyw->xyw", "ijk,kjA->ijA")):
        yield einsum(f"rank3-{equation.replace('->', '-')}", equation, draw(f"e{at}", 2, 3, 4), draw(f"f{at}", 4, 3, 5))
    for at, equation in enumerate(("nchw,nwhr->nchr", "nchw,nwhu->nchu", "abcd,adce->abce", "bhij,bjik->bhik")):
        yield einsum(f"rank4-{equation.replace('->', '-')}", equation, draw(f"g{at}", 2, 3, 4, 2), draw(f"h{at}", 2, 2, 4, 3))
    for opset in (IOS15, IOS17):
        yield einsum("broadcast-rank3-left", "chw,whr->chr", draw("l", 2, 1, 3), draw("m", 3, 4, 2), opset)
        yield einsum("broadcast-rank3-right", "chw,whr->chr", draw("l", 2, 4, 3), draw("m", 3, 1, 2), opset)
        yield einsum("broadcast-batch", "nchw,nwhr->nchr", draw("l", 1, 2, 3, 4), draw("m", 3, 4, 3, 2), opset)
        yield einsum("broadcast-both", "nchw,nwhr->nchr", draw("l", 3, 2, 1, 4), draw("m", 1, 4, 2, 2), opset)
        yield einsum("one", "nchw,nwhr->nchr", draw("l", 1, 1, 1, 1), draw("m", 1, 1, 1, 1), opset)
    for shapes in (((2, 3, 4), (4, 3, 2)), ((1, 2, 3, 4), (1, 4, 3, 5))):
        equation = "chw,whr->chr" if len(shapes[0]) == 3 else "nchw,nwhr->nchr"
        x, y = (draw(f"half-{at}", *shape, dtype="fp16") for at, shape in enumerate(shapes))
        yield einsum(f"fp16-rank{len(shapes[0])}", equation, x, y, IOS16)
    x, y = draw("s", 2, 2, 2), draw("t", 2, 2, 3)
    x[0, 0, 1], x[1, 1, 0], y[0, 1, 2] = np.nan, np.inf, -np.inf
    yield einsum("special-values", "chw,whr->chr", x, y)


def _attention() -> Iterator[Case]:
    def attention(label, query, key, value, mask=None, judge="torch"):
        inputs = {"query": query, "key": key, "value": value} | ({} if mask is None else {"attn_mask": mask})
        if judge == "torch":
            tensors = [torch.from_numpy(_wide(array)) for array in (query, key, value)]
            # torch does not accept a mask of rank 1.
            given = None if mask is None else torch.from_numpy(_wide(np.atleast_2d(mask)))
            expected = torch.nn.functional.scaled_dot_product_attention(*tensors, attn_mask=given).numpy()
        else:
            (expected,) = value_of("scaled_dot_product_attention", IOS18, query=query, key=key, value=value, attn_mask=mask)
        return case(label, "scaled_dot_product_attention", IOS18, inputs, [expected], dtypes=[_dtype(query)])

    def triple(label, batch, targets, sources, embedding, width, dtype="fp32"):
        shapes = ((*batch, targets, embedding), (*batch, sources, embedding), (*batch, sources, width))
        return [draw(f"{label}-{at}", *shape, dtype=dtype) for at, shape in enumerate(shapes)]

    for dtype in ("fp32", "fp16"):
        for batch in ((2,), (1,), (2, 3), (1, 2, 2)):
            of = triple(f"b{batch}", batch, 3, 4, 5, 2, dtype)
            name = f"{dtype}-rank{len(batch) + 2}-{batch[0]}"
            yield attention(name, *of)
            causal = np.tri(3, 4, dtype=np.bool_)
            yield attention(f"{name}-bool-mask", *of, causal)
            yield attention(f"{name}-float-mask", *of, draw("mask", 3, 4, dtype=dtype))
    of = triple("masks", (2, 3), 2, 4, 3, 5)
    for shape in ((4,), (1, 4), (2, 4), (1, 2, 4), (3, 1, 4), (3, 2, 4), (1, 1, 2, 4), (2, 1, 1, 4), (2, 3, 2, 4), (1, 3, 1, 4)):
        name = "x".join(map(str, shape))
        yield attention(f"float-mask-{name}", *of, draw(f"mask-{name}", *shape))
        taken = draw(f"mask-{name}", *shape, dtype="bool")
        taken[..., 1] = True
        yield attention(f"bool-mask-{name}", *of, taken)
    yield attention("one", *triple("one", (1,), 1, 1, 1, 1))
    yield attention("one-source", *triple("source", (2,), 3, 1, 4, 2))
    yield attention("one-target", *triple("target", (2, 2), 1, 7, 4, 3))
    yield attention("long", *triple("long", (1, 2), 20, 40, 16, 16))
    yield attention("no-targets", *triple("none", (2,), 0, 3, 4, 2))
    query, key, value = triple("sharp", (1,), 2, 3, 4, 2)
    yield attention("large-scores", query * 100, key * 100, value)
    yield attention("minus-infinity", query, key, value, np.array([[0, -np.inf, -np.inf], [-np.inf, 0, 1]], np.float32))
    yield attention("mask-of-another-type", *triple("half", (1, 2), 2, 3, 4, 2, "fp16"), draw("wide", 2, 3), judge="torch")
    nothing = np.array([[True, False, True], [False, False, False]])
    yield attention("fully-masked", query, key, value, nothing, judge="coremltools")
    poisoned = query.copy()
    poisoned[0, 1, 0] = np.nan
    yield attention("nan", poisoned, key, value)
