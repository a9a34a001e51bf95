"""`conv` and `conv_transpose`, compared with torch in fp64.

`conv_transpose` is the gradient of `conv` with respect to its input, so its reference is that gradient: for every
padding, `output_shape` and strides exactly one convolution has it. coremltools documents only the total padding of
`same`. An odd element is added after the input, or before it for `same_lower`, as coremltools' tests on devices
expect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from coremltools.converters.mil.mil.ops.defs._utils import aggregated_pad

from .language import IOS15, IOS16, IOS17, IOS18, Case, case, const, draw

_CONV = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}


def cases() -> Iterator[Case]:
    yield from _conv()
    yield from _conv_transpose()


def pads_of(pad_type: str, pad: Sequence[int] | None, extents, kernel, strides, dilations) -> list[int]:
    """Padding before and after each dimension."""
    if pad_type == "valid":
        return [0] * (2 * len(extents))
    if pad_type == "custom":
        return list(pad)
    pads = []
    for total in aggregated_pad(pad_type, kernel, extents, strides, dilations):
        less, more = total // 2, total - total // 2
        pads += [more, less] if pad_type == "same_lower" else [less, more]
    return pads


def padded(x: torch.Tensor, pads: Sequence[int], value: float = 0.0) -> torch.Tensor:
    # torch's order starts with the last dimension.
    reversed_pairs = [pad for at in range(len(pads) - 2, -1, -2) for pad in pads[at : at + 2]]
    return torch.nn.functional.pad(x, reversed_pairs, value=value)


def _wide(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.float64))


def _dtype(array: np.ndarray) -> str:
    return {"float32": "fp32", "float16": "fp16"}[str(array.dtype)]


def _conv() -> Iterator[Case]:
    def conv(label, opset, x, weight, bias=None, *, pad_type=None, pad=None, strides=None, dilations=None, groups=None,
             computed=False):
        spatial = x.ndim - 2
        bind = (lambda value: value) if computed else const
        inputs = {"x": x, "weight": bind(weight)} | ({} if bias is None else {"bias": const(bias)})
        stated = {"strides": strides, "pad_type": pad_type, "pad": pad, "dilations": dilations, "groups": groups}
        inputs |= {name: const(value) for name, value in stated.items() if value is not None}
        strides, dilations = strides or [1] * spatial, dilations or [1] * spatial
        pads = pads_of(pad_type or "valid", pad, x.shape[2:], weight.shape[2:], strides, dilations)
        expected = _CONV[spatial](
            padded(_wide(x), pads), _wide(weight), None if bias is None else _wide(bias), strides, 0, dilations, groups or 1
        )
        return case(label, "conv", opset, inputs, [expected.numpy()], dtypes=[_dtype(x)], abs=1e-5)

    inputs = {1: (2, 4, 8), 2: (1, 4, 6, 5), 3: (1, 4, 4, 3, 4)}
    kernels = {1: (3,), 2: (3, 2), 3: (2, 3, 1)}
    for opset, dtype in ((IOS15, "fp32"), (IOS16, "fp16"), (IOS17, "fp32")):
        for spatial, shape in inputs.items():
            x = draw(f"conv-{spatial}", *shape, dtype=dtype)
            weight = draw(f"weight-{spatial}", 2, 4, *kernels[spatial], dtype=dtype)
            grouped = draw(f"grouped-{spatial}", 2, 2, *kernels[spatial], dtype=dtype)
            bias = draw(f"bias-{spatial}", 2, dtype=dtype)
            strides, pad = [2, 3, 1][:spatial], [1, 0, 2, 1, 0, 3][: 2 * spatial]
            name = f"{spatial}d-{dtype}"
            yield conv(f"{name}-default", opset, x, weight)
            yield conv(f"{name}-bias", opset, x, weight, bias, pad_type="valid")
            yield conv(f"{name}-strides", opset, x, weight, bias, pad_type="valid", strides=strides)
            yield conv(f"{name}-same", opset, x, weight, bias, pad_type="same")
            yield conv(f"{name}-same-strides", opset, x, weight, pad_type="same", strides=strides)
            yield conv(f"{name}-custom", opset, x, weight, bias, pad_type="custom", pad=pad)
            yield conv(f"{name}-custom-strides", opset, x, weight, pad_type="custom", pad=pad, strides=strides)
            yield conv(f"{name}-groups", opset, x, grouped, bias, groups=2, pad_type="custom", pad=pad)
            yield conv(f"{name}-dilations", opset, x, weight, bias, dilations=[2, 2, 1][:spatial], pad_type="custom", pad=pad)
            if opset != IOS15:
                yield conv(f"{name}-same-lower", opset, x, weight, bias, pad_type="same_lower")
                yield conv(f"{name}-same-lower-strides", opset, x, weight, bias, pad_type="same_lower", strides=strides)
    for opset in (IOS15, IOS17):
        x = draw("more", 1, 4, 6, 7)
        yield conv("depthwise", opset, x, draw("dw", 4, 1, 3, 3), draw("db", 4), groups=4, pad_type="same")
        yield conv("depthwise-strides", opset, x, draw("dw", 4, 1, 3, 3), groups=4, pad_type="same", strides=[2, 2])
        yield conv("depthwise-multiplied", opset, x, draw("dm", 8, 1, 2, 3), draw("dmb", 8), groups=4)
        yield conv("pointwise", opset, x, draw("pw", 5, 4, 1, 1), draw("pb", 5))
        yield conv("pointwise-strides", opset, x, draw("pw", 5, 4, 1, 1), strides=[2, 3])
        yield conv("pointwise-groups", opset, x, draw("pg", 6, 2, 1, 1), groups=2)
        yield conv("pointwise-pad", opset, x, draw("pw", 5, 4, 1, 1), draw("pb", 5), pad_type="custom", pad=[1, 0, 0, 2])
        yield conv("whole", opset, x, draw("whole", 3, 4, 6, 7))
        yield conv("same-dilations", opset, x, draw("sd", 2, 4, 3, 3), pad_type="same", dilations=[2, 3])
        yield conv("same-dilations-strides", opset, x, draw("sd", 2, 4, 3, 3), pad_type="same", dilations=[2, 3], strides=[2, 2])
        yield conv("same-even", opset, x, draw("se", 2, 4, 4, 2), pad_type="same")
        yield conv("strides-beyond-window", opset, x, draw("sb", 2, 4, 2, 1), pad_type="same", strides=[3, 4])
        yield conv("pad-beyond-window", opset, x, draw("pbw", 2, 4, 2, 2), draw("pbb", 2), pad_type="custom", pad=[3, 4, 0, 5])
        yield conv("one", opset, draw("o", 1, 1, 1), draw("ow", 1, 1, 1), draw("ob", 1))
        yield conv("no-batch", opset, draw("nb", 0, 2, 5), draw("nbw", 3, 2, 3))
        yield conv("computed-weight", opset, x, draw("cw", 3, 4, 2, 2), draw("cb", 3), computed=True)
        yield conv("many-channels", opset, draw("mc", 1, 33, 5), draw("mcw", 17, 33, 3), draw("mcb", 17), pad_type="same")
        # NaN and infinity are outside every window that does not contain them: zero padding is not multiplied with
        # them.
        special = draw("nan", 1, 1, 5)
        special[0, 0, 4], special[0, 0, 0] = np.nan, np.inf
        yield conv("special-values", opset, special, draw("nw", 2, 1, 2))
    for dtype, other in (("fp16", "fp32"), ("fp32", "fp16")):
        x, weight, bias = draw("mx", 1, 2, 5, dtype=dtype), draw("mw", 3, 2, 3, dtype=other), draw("mb", 3, dtype=other)
        for opset in (IOS17, IOS18):
            yield conv(f"{dtype}-by-{other}", opset, x, weight, bias, pad_type="same")


def _conv_transpose() -> Iterator[Case]:
    def transposed(label, opset, x, weight, bias=None, *, pad_type=None, pad=None, strides=None, dilations=None, groups=None,
                   output=None, state_output=False, computed=False):
        """`output` is the input size of the convolution whose gradient this is. `state_output` binds it as
        `output_shape`."""
        spatial = x.ndim - 2
        bind = (lambda value: value) if computed else const
        inputs = {"x": x, "weight": bind(weight)} | ({} if bias is None else {"bias": const(bias)})
        stated = {"strides": strides, "pad_type": pad_type, "pad": pad, "dilations": dilations, "groups": groups}
        inputs |= {name: const(value) for name, value in stated.items() if value is not None}
        strides, dilations, groups = strides or [1] * spatial, dilations or [1] * spatial, groups or 1
        reach = [(extent - 1) * dilation + 1 for extent, dilation in zip(weight.shape[2:], dilations, strict=False)]
        if output is None:
            given = pad if pad_type == "custom" else [0] * (2 * spatial)
            output = [
                extent * stride if pad_type == "same" else (extent - 1) * stride + window - given[2 * at] - given[2 * at + 1]
                for at, (extent, stride, window) in enumerate(zip(x.shape[2:], strides, reach, strict=False))
            ]
        shape = [x.shape[0], weight.shape[1] * groups, *output]
        if state_output:
            inputs["output_shape"] = const(shape)
        pads = pads_of(pad_type or "valid", pad, output, weight.shape[2:], strides, dilations)
        origin = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
        made = _CONV[spatial](padded(origin, pads), _wide(weight), None, strides, 0, dilations, groups)
        if tuple(made.shape) != tuple(x.shape):
            raise ValueError(f"{label}: the convolution returns shape {tuple(made.shape)}, expected {x.shape}")
        (expected,) = torch.autograd.grad(made, origin, _wide(x))
        if bias is not None:
            expected = expected + _wide(bias).reshape(-1, *([1] * spatial))
        return case(label, "conv_transpose", opset, inputs, [expected.numpy()], dtypes=[_dtype(x)], abs=1e-5)

    inputs = {1: (2, 4, 5), 2: (1, 4, 3, 2), 3: (1, 4, 2, 1, 3)}
    kernels = {1: (3,), 2: (3, 4), 3: (2, 3, 2)}
    for opset, dtype in ((IOS15, "fp32"), (IOS16, "fp16"), (IOS17, "fp32")):
        for spatial, shape in inputs.items():
            x = draw(f"transposed-{spatial}", *shape, dtype=dtype)
            weight = draw(f"tw-{spatial}", 4, 2, *kernels[spatial], dtype=dtype)
            bias, grouped = draw(f"tb-{spatial}", 2, dtype=dtype), draw(f"tg-{spatial}", 4, dtype=dtype)
            strides, pad = [2, 3, 1][:spatial], [1, 0, 1, 1, 0, 1][: 2 * spatial]
            name = f"{spatial}d-{dtype}"
            yield transposed(f"{name}-default", opset, x, weight)
            yield transposed(f"{name}-bias", opset, x, weight, bias, pad_type="valid")
            yield transposed(f"{name}-strides", opset, x, weight, bias, pad_type="valid", strides=strides)
            yield transposed(f"{name}-same", opset, x, weight, bias, pad_type="same")
            yield transposed(f"{name}-same-strides", opset, x, weight, pad_type="same", strides=strides)
            yield transposed(f"{name}-custom", opset, x, weight, bias, pad_type="custom", pad=pad)
            yield transposed(f"{name}-custom-strides", opset, x, weight, pad_type="custom", pad=pad, strides=strides)
            yield transposed(f"{name}-groups", opset, x, weight, grouped, groups=2, strides=strides)
            yield transposed(f"{name}-dilations", opset, x, weight, bias, dilations=[2, 1, 2][:spatial], strides=strides)
            # `output_shape` selects among the input sizes that a convolution maps to the same output size.
            longer = [
                (extent - 1) * stride + window + min(1, stride - 1)
                for extent, stride, window in zip(shape[2:], strides, kernels[spatial], strict=False)
            ]
            yield transposed(f"{name}-output", opset, x, weight, bias, strides=strides, output=longer, state_output=True)
            shorter = [extent * stride - min(1, stride - 1) for extent, stride in zip(shape[2:], strides, strict=False)]
            yield transposed(
                f"{name}-same-output", opset, x, weight, bias, pad_type="same", strides=strides, output=shorter, state_output=True
            )
    for opset in (IOS15, IOS17):
        x = draw("tm", 1, 4, 3, 4)
        yield transposed("depthwise", opset, x, draw("tdw", 4, 1, 3, 3), draw("tdb", 4), groups=4, strides=[2, 2], pad_type="same")
        yield transposed("pointwise", opset, x, draw("tpw", 4, 5, 1, 1), draw("tpb", 5))
        yield transposed("gaps", opset, x, draw("tgw", 4, 2, 1, 2), draw("tgb", 2), strides=[3, 4])
        yield transposed("gaps-same", opset, x, draw("tgw", 4, 2, 1, 2), draw("tgb", 2), strides=[3, 4], pad_type="same")
        yield transposed("stated-default", opset, x, draw("tsw", 4, 2, 3, 3), state_output=True, strides=[2, 1])
        yield transposed(
            "stated-custom", opset, x, draw("tsw", 4, 2, 3, 3), draw("tsb", 2), pad_type="custom", pad=[1, 1, 0, 2], strides=[2, 2],
            state_output=True,
        )
        yield transposed(
            "output-padding", opset, x, draw("tsw", 4, 2, 3, 3), draw("tsb", 2), pad_type="custom", pad=[1, 1, 1, 1], strides=[2, 2],
            output=[6, 8], state_output=True,
        )
        yield transposed("one", opset, draw("to", 1, 1, 1), draw("tow", 1, 1, 1), draw("tob", 1))
        yield transposed("many-channels", opset, draw("tc", 1, 19, 5), draw("tcw", 19, 9, 3), strides=[2])
    yield transposed("computed-weight", IOS17, draw("tcx", 1, 2, 4), draw("tcw", 2, 3, 2), strides=[2], computed=True)
    for dtype, other in (("fp16", "fp32"), ("fp32", "fp16")):
        x, weight, bias = draw("tmx", 1, 2, 4, dtype=dtype), draw("tmw", 2, 3, 3, dtype=other), draw("tmb", 3, dtype=other)
        for opset in (IOS17, IOS18):
            yield transposed(f"{dtype}-by-{other}", opset, x, weight, bias, strides=[2])
