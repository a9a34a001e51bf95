"""`avg_pool`, `max_pool` and `l2_pool`, compared with torch on padded inputs; with `ceil_mode`, torch does the
padding.

`same` pads as in convolutions.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from .conv import padded, pads_of
from .language import IOS15, IOS16, IOS17, Case, case, const, draw

_MAX = {1: torch.nn.functional.max_pool1d, 2: torch.nn.functional.max_pool2d, 3: torch.nn.functional.max_pool3d}
_AVERAGE = {1: torch.nn.functional.avg_pool1d, 2: torch.nn.functional.avg_pool2d, 3: torch.nn.functional.avg_pool3d}


def cases() -> Iterator[Case]:
    for operation in ("avg_pool", "max_pool", "l2_pool"):
        yield from _pool(operation)


def _pool(operation: str) -> Iterator[Case]:
    def pool(label, opset, x, sizes, *, pad_type="valid", pad=None, strides=None, exclude=None, ceil=None):
        spatial = x.ndim - 2
        inputs = {"x": x, "kernel_sizes": const(sizes), "pad_type": const(pad_type)}
        stated = {"strides": strides, "pad": pad, "exclude_padding_from_average": exclude, "ceil_mode": ceil}
        inputs |= {name: const(value) for name, value in stated.items() if value is not None}
        strides = strides or [1] * spatial
        pads = pads_of(pad_type.lower(), pad, x.shape[2:], sizes, strides, [1] * spatial)
        wide = torch.from_numpy(x.astype(np.float64))
        judge = {"avg_pool": _average, "max_pool": _most, "l2_pool": _length}[operation]
        expected = judge(wide, sizes, strides, pads, bool(ceil), bool(exclude))
        dtype = {"float32": "fp32", "float16": "fp16"}[str(x.dtype)]
        return case(label, operation, opset, inputs, [expected.numpy()], dtypes=[dtype])

    inputs = {1: (2, 2, 8), 2: (1, 2, 6, 5), 3: (1, 1, 5, 4, 3)}
    sizes = {1: [3], 2: [3, 2], 3: [2, 3, 2]}
    for opset, dtype in ((IOS15, "fp32"), (IOS16, "fp16"), (IOS17, "fp32")):
        for spatial, shape in inputs.items():
            if spatial == 3 and operation == "l2_pool":
                continue
            x, size = draw(f"pool-{spatial}", *shape, dtype=dtype), sizes[spatial]
            strides, pad = [2, 3, 2][:spatial], [1, 0, 1, 1, 0, 1][: 2 * spatial]
            even = [1, 1, 0, 0][: 2 * spatial]
            name = f"{spatial}d-{dtype}"
            excludes = (None, True) if operation == "avg_pool" else (None,)
            for exclude in excludes:
                more = {"exclude": exclude}
                tail = "-exclude" if exclude else ""
                yield pool(f"{name}-valid{tail}", opset, x, size, **more)
                yield pool(f"{name}-strides{tail}", opset, x, size, strides=strides, **more)
                yield pool(f"{name}-same{tail}", opset, x, size, pad_type="same", **more)
                yield pool(f"{name}-same-strides{tail}", opset, x, size, pad_type="same", strides=strides, **more)
                yield pool(f"{name}-custom{tail}", opset, x, size, pad_type="custom", pad=pad, **more)
                yield pool(f"{name}-custom-strides{tail}", opset, x, size, pad_type="custom", pad=pad, strides=strides, **more)
                if opset != IOS15:
                    yield pool(f"{name}-same-lower{tail}", opset, x, size, pad_type="same_lower", **more)
                if spatial < 3:
                    # Only strides up to the window size: for longer ones coremltools counts a window that torch does
                    # not.
                    ceil = {"ceil": True, "strides": [2, 2][:spatial]}
                    yield pool(f"{name}-ceil{tail}", opset, x, size, **ceil, **more)
                    yield pool(f"{name}-ceil-custom{tail}", opset, x, size, pad_type="custom", pad=even, **ceil, **more)
    x = draw("more", 1, 2, 6, 7)
    yield pool("whole", IOS15, x, [6, 7])
    yield pool("one", IOS15, draw("one", 1, 1, 1), [1])
    yield pool("any-case", IOS15, x, [2, 2], pad_type="SAME")
    yield pool("strides-beyond-window", IOS15, x, [1, 2], strides=[3, 4])
    yield pool("ceil-last-window-in-padding", IOS15, draw("c", 1, 1, 6), [2], pad_type="custom", pad=[1, 1], strides=[3], ceil=True)
    yield pool("ceil-exact", IOS15, draw("c", 1, 1, 7), [3], strides=[2], ceil=True)
    yield pool("pad-of-valid", IOS15, x, [3, 3], pad_type="valid", pad=[1, 1, 1, 1])
    yield pool("no-batch", IOS15, draw("n", 0, 2, 4), [2])
    yield pool("negative-only", IOS15, draw("neg", 1, 1, 4, 4, low=-3, high=-1), [2, 2], pad_type="same")
    special = draw("special", 1, 1, 8)
    special[0, 0, 2], special[0, 0, 5], special[0, 0, 7] = np.nan, np.inf, -np.inf
    yield pool("special-values", IOS17, special, [2])
    if operation == "l2_pool":
        large = np.array([[[1e20, 1e20, 3, -4]]], np.float32)
        yield pool("large", IOS15, large, [2], strides=[2])


def _average(x, sizes, strides, pads, ceil, exclude):
    spatial = x.dim() - 2
    if ceil:
        return _AVERAGE[spatial](x, sizes, strides, pads[::2], ceil_mode=True, count_include_pad=not exclude)
    mean = _AVERAGE[spatial](padded(x, pads), sizes, strides)
    if exclude:
        mean = mean / _AVERAGE[spatial](padded(torch.ones_like(x), pads), sizes, strides)
    return mean


def _most(x, sizes, strides, pads, ceil, _):
    spatial = x.dim() - 2
    if ceil:
        return _MAX[spatial](x, sizes, strides, pads[::2], ceil_mode=True)
    return _MAX[spatial](padded(x, pads, -np.inf), sizes, strides)


def _length(x, sizes, strides, pads, ceil, _):
    # torch sums windows of two and three dimensions only.
    x, sizes, strides = (x.unsqueeze(2), [1, *sizes], [1, *strides]) if x.dim() == 3 else (x, sizes, strides)
    if len(pads) == 2:
        pads = [0, 0, *pads]
    before = pads[::2] if ceil else 0
    squares = x.square() if ceil else padded(x.square(), pads)
    sums = torch.nn.functional.avg_pool2d(squares, sizes, strides, before, ceil_mode=ceil, divisor_override=1)
    return sums.sqrt().squeeze(2) if sizes[0] == 1 and sums.shape[2] == 1 else sums.sqrt()
