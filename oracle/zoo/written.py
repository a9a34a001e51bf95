"""Programs written op by op, for op families and forms that networks seldom use.

Every op has an input as its main operand, because coremltools would fold constants, and every result leads to an
output, because dead code is removed.
"""

from collections.abc import Callable
from typing import Any

import coremltools as ct
import numpy
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types

from .entry import Written

Tensor = Any
RANDOM = numpy.random


def values(*shape: int, kind: type = numpy.float32) -> numpy.ndarray:
    """Random constants."""
    return RANDOM.standard_normal(shape).astype(kind)


def program(
    target: str, *specs: Any, arguments: dict[str, Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[[], Written]]:
    """Decorator that converts a function to a builder; its arguments are the inputs in order."""

    def decorate(function: Callable[..., Any]) -> Callable[[], Written]:
        def build() -> Written:
            made = mb.program(input_specs=list(specs), opset_version=getattr(ct.target, target))(function)
            return Written(made, arguments or {})

        return build

    return decorate


def floats(*shape: Any) -> Any:
    """An input of type fp32."""
    return mb.TensorSpec(shape=shape, dtype=types.fp32)


def integers(*shape: Any) -> Any:
    """An input of type int32."""
    return mb.TensorSpec(shape=shape, dtype=types.int32)


def unary(target: str) -> Callable[[], Written]:
    """Every elementwise op of one operand."""

    @program(target, floats(2, 6))
    def body(x: Tensor) -> tuple[Tensor, ...]:
        unit = mb.clip(x=x, alpha=-0.9, beta=0.9)
        positive = mb.add(x=mb.abs(x=x), y=0.5)
        results = [getattr(mb, name)(x=unit) for name in ("acos", "asin", "atan", "atanh", "erf", "exp", "exp2")]
        results += [getattr(mb, name)(x=x) for name in ("ceil", "floor", "round", "sign", "square")]
        results += [getattr(mb, name)(x=unit) for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh")]
        results += [mb.sqrt(x=positive), mb.rsqrt(x=positive, epsilon=1e-4), mb.log(x=positive, epsilon=1e-3)]
        results += [mb.inverse(x=positive, epsilon=1e-3), mb.threshold(x=x, alpha=0.25)]
        denied = mb.logical_not(x=mb.cast(x=mb.greater(x=x, y=0.0), dtype="bool"))
        results += [mb.cast(x=denied, dtype="fp32"), mb.cast(x=mb.mul(x=x, y=3.0), dtype="int32")]
        return tuple(results)

    return body


def activations(target: str) -> Callable[[], Written]:
    """Every activation."""

    @program(target, floats(1, 4, 3, 5))
    def body(x: Tensor) -> tuple[Tensor, ...]:
        results = [getattr(mb, name)(x=x) for name in ("relu", "relu6", "sigmoid", "silu", "softplus", "softsign")]
        results += [mb.gelu(x=x, mode=mode) for mode in ("EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION")]
        results += [mb.clamped_relu(x=x, alpha=0.1, beta=3.0), mb.elu(x=x, alpha=0.7), mb.leaky_relu(x=x, alpha=0.2)]
        results += [mb.linear_activation(x=x, alpha=2.0, beta=-1.0), mb.scaled_tanh(x=x, alpha=1.5, beta=0.5)]
        results += [mb.sigmoid_hard(x=x, alpha=0.3, beta=0.4), mb.thresholded_relu(x=x, alpha=0.3)]
        slopes = numpy.array([0.1, 0.2, 0.3, 0.4], numpy.float32)
        results += [mb.prelu(x=x, alpha=slopes), mb.softplus_parametric(x=x, alpha=slopes, beta=slopes + 1)]
        results += [mb.softmax(x=x, axis=-1), mb.softmax(x=x, axis=1)]
        return tuple(results)

    return body


def binary(target: str) -> Callable[[], Written]:
    """Every elementwise op of two operands, with broadcasting, comparisons and select."""

    @program(target, floats(2, 3, 4), floats(3, 1), integers(2, 3, 4))
    def body(x: Tensor, y: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        safe = mb.add(x=mb.abs(x=y), y=1.0)
        results = [getattr(mb, name)(x=x, y=y) for name in ("add", "sub", "mul", "maximum", "minimum")]
        results += [getattr(mb, name)(x=x, y=safe) for name in ("real_div", "floor_div", "mod")]
        results += [mb.pow(x=safe, y=x), mb.mod(x=n, y=3), mb.floor_div(x=n, y=2), mb.mul(x=n, y=n)]
        compared = [
            getattr(mb, name)(x=x, y=y)
            for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
        ]
        some = mb.logical_or(
            x=mb.logical_and(x=compared[2], y=compared[1]), y=mb.logical_xor(x=compared[4], y=compared[0])
        )
        results += [mb.select(cond=some, a=x, b=mb.add(x=x, y=y))]
        results += [mb.cast(x=one, dtype="int32") for one in compared]
        return tuple(results)

    return body


def reductions(target: str) -> Callable[[], Written]:
    """Every reduction, over one axis, several, and all."""

    @program(target, floats(2, 3, 4))
    def body(x: Tensor) -> tuple[Tensor, ...]:
        names = ["l1_norm", "l2_norm", "max", "mean", "min", "prod", "sum", "sum_square", "log_sum_exp"]
        results = [getattr(mb, f"reduce_{name}")(x=x, axes=[1, -1], keep_dims=False) for name in names]
        results += [mb.reduce_log_sum(x=mb.add(x=mb.abs(x=x), y=1.0), axes=[0], keep_dims=True)]
        results += [mb.reduce_argmax(x=x, axis=-1, keep_dims=False), mb.reduce_argmin(x=x, axis=1, keep_dims=True)]
        # A reduction over all axes has rank 0, which a program may contain but not return.
        whole = mb.reduce_max(x=x, keep_dims=False)
        results += [mb.mul(x=x, y=whole), mb.expand_dims(x=mb.sqrt(x=mb.abs(x=whole)), axes=[0])]
        return tuple(results)

    return body


def shapes(target: str) -> Callable[[], Written]:
    """Ops that move elements."""

    @program(target, floats(2, 8, 4, 6))
    def body(x: Tensor) -> tuple[Tensor, ...]:
        results = [mb.reshape(x=x, shape=[4, -1, 6]), mb.transpose(x=x, perm=[0, 2, 3, 1]), mb.flatten2d(x=x, axis=2)]
        results += [mb.squeeze(x=mb.expand_dims(x=x, axes=[1]), axes=[1]), mb.reverse(x=x, axes=[1, 3])]
        results += [mb.reverse_sequence(x=x, lengths=[3, 7], seq_axis=1, batch_axis=0)]
        results += [mb.depth_to_space(x=x, block_size=2), mb.space_to_depth(x=x, block_size=2)]
        results += [mb.pixel_shuffle(x=x, upscale_factor=2), mb.sliding_windows(x=x, axis=1, size=3, stride=2)]
        blocks = mb.space_to_batch(x=x, block_shape=[2, 2], paddings=[[0, 0], [1, 1]])
        results += [blocks, mb.batch_to_space(x=blocks, block_shape=[2, 2], crops=[[0, 0], [1, 1]])]
        results += [
            mb.slice_by_index(
                x=x,
                begin=[0, 1, 0, -1],
                end=[2, 8, 0, -6],
                stride=[1, 2, 1, -2],
                begin_mask=[True, False, True, False],
                end_mask=[True, False, True, False],
            )
        ]
        results += [
            mb.slice_by_index(x=x, begin=[1, 0, 2, 0], end=[0, 8, 3, 6], squeeze_mask=[True, False, True, False])
        ]
        results += [mb.slice_by_size(x=x, begin=[0, 2, 1, 0], size=[2, 3, -1, 6])]
        results += [mb.concat(values=[x, mb.relu(x=x)], axis=1), mb.stack(values=[x, mb.tanh(x=x)], axis=0)]
        results += [*mb.split(x=x, num_splits=2, axis=1), *mb.split(x=x, split_sizes=[1, 2, 3], axis=-1)]
        results += [mb.tile(x=x, reps=[1, 2, 1, 3]), mb.band_part(x=x, lower=1, upper=2)]
        results += [mb.cumsum(x=x, axis=1, exclusive=True, reverse=True), mb.identity(x=mb.cumsum(x=x, axis=3))]
        results += [mb.pad(x=x, pad=[0, 0, 1, 2], mode="constant", constant_val=1.5)]
        results += [mb.pad(x=x, pad=[1, 1, 2, 1], mode="reflect"), mb.pad(x=x, pad=[1, 0, 0, 3], mode="replicate")]
        results += [mb.crop(x=x, crop_height=[1, 1], crop_width=[2, 1])]
        return tuple(results)

    return body


@program("iOS16", floats(1, 4, 8, 8))
def newer_shapes(x: Tensor) -> tuple[Tensor, ...]:
    """Ops that iOS16 added."""
    square = mb.reshape(x=mb.relu(x=x), shape=[16, 16])
    alike = mb.reshape_like(x=x, ref_tensors=(square,), begins=(0,), ends=(2,), end_masks=(False,))
    return alike, mb.pixel_unshuffle(x=x, downscale_factor=numpy.uint32(2)), mb.fill_like(ref_tensor=x, value=2.5)


@program("iOS15", floats(2, 3, 4), integers(3))
def lookups(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
    """Gathers and scatters with indices that are inputs."""
    pairs = mb.stack(values=[n, n], axis=1)
    column = mb.reshape(x=n, shape=[1, 3, 1])
    results = [mb.gather(x=x, indices=n, axis=1), mb.gather_nd(x=x, indices=mb.minimum(x=pairs, y=1))]
    along = mb.tile(x=column, reps=[2, 1, 4])
    results += [mb.gather_along_axis(x=x, indices=along, axis=1)]
    results += [
        mb.scatter(data=x, indices=n, updates=mb.mul(x=x, y=2.0), axis=1, mode=mode) for mode in ("add", "update")
    ]
    results += [mb.scatter_along_axis(data=x, indices=along, updates=mb.tanh(x=x), axis=1, mode="max")]
    rows = mb.gather(x=mb.reshape(x=x, shape=[6, 4]), indices=n, axis=0)
    results += [mb.scatter_nd(data=x, indices=mb.minimum(x=pairs, y=1), updates=rows, mode="mul")]
    results += [mb.one_hot(indices=n, one_hot_vector_size=5, on_value=2.0, off_value=-1.0)]
    return tuple(results)


def ordering(target: str) -> Callable[[], Written]:
    """Sorting and related ops."""

    @program(target, floats(3, 8))
    def body(x: Tensor) -> tuple[Tensor, ...]:
        options = {} if target == "iOS15" else {"sort": False}
        results = [*mb.topk(x=x, k=3, axis=-1), *mb.topk(x=x, k=2, axis=0, ascending=True, **options)]
        return (*results, mb.argsort(x=x, axis=1, ascending=True), mb.argsort(x=x, axis=0))

    return body


def dynamic(target: str) -> Callable[[], Written]:
    """Shapes that are computed at run time."""

    @program(target, floats(4, 6), integers(1))
    def body(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        found = mb.non_zero(x=mb.cast(x=mb.greater(x=x, y=0.0), dtype="fp32"))
        count = mb.squeeze(x=n)
        line = mb.range_1d(start=0, end=count, step=1)
        size = mb.concat(values=[n, mb.slice_by_size(x=mb.shape(x=x), begin=[1], size=[1])], axis=0)
        filled = mb.fill(shape=size, value=1.25)
        return found, line, filled, mb.reshape(x=x, shape=mb.concat(values=[n, [-1]], axis=0))

    return body


@program("iOS15", integers(2))
def random(n: Tensor) -> tuple[Tensor, ...]:
    """Random tensors, with and without a seed, of constant and computed shapes."""
    weights = mb.cast(x=mb.reshape(x=n, shape=[1, 2]), dtype="fp32")
    return (
        mb.random_normal(shape=n, mean=1.0, stddev=2.0, seed=3),
        mb.random_uniform(shape=n, low=-1.0, high=1.0),
        mb.random_bernoulli(shape=n, prob=0.25, seed=11),
        mb.random_categorical(x=weights, mode="logits", size=4, seed=5),
    )


def suppression(target: str) -> Callable[[], Written]:
    """Non-maximum suppression; iOS17 removed one of its parameters and changed the layout of boxes."""
    columns = target == "iOS17"

    @program(target, floats(1, 4, 20) if columns else floats(1, 20, 4), floats(1, 3, 20) if columns else floats(1, 20, 3))
    def body(boxes: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
        options = {} if columns else {"score_threshold": 0.2}
        return mb.non_maximum_suppression(
            boxes=boxes, scores=scores, iou_threshold=0.5, max_boxes=5, per_class_suppression=True, **options
        )

    return body


def resizing(target: str) -> Callable[[], Written]:
    """Every op of the target that resizes, crops or warps images."""

    @program(target, floats(1, 3, 8, 10), floats(1, 3, 4), floats(1, 5, 6, 2), floats(1, 6))
    def body(x: Tensor, boxes: Tensor, grid: Tensor, matrix: Tensor) -> tuple[Tensor, ...]:
        results = [mb.upsample_nearest_neighbor(x=x, scale_factor_height=2, scale_factor_width=3)]
        results += [mb.upsample_bilinear(x=x, scale_factor_height=2.5, scale_factor_width=2.0, align_corners=False)]
        results += [mb.resize_nearest_neighbor(x=x, target_size_height=4, target_size_width=5)]
        for mode in ("DEFAULT", "STRICT_ALIGN_CORNERS", "ALIGN_CORNERS", "UNALIGN_CORNERS"):
            results += [mb.resize_bilinear(x=x, target_size_height=12, target_size_width=7, sampling_mode=mode)]
        cut = {"x": x, "target_height": 4, "target_width": 3, "normalized_coordinates": True}
        cut |= {"box_coordinate_mode": "CORNERS_HEIGHT_FIRST", "sampling_mode": "ALIGN_CORNERS", "spatial_scale": 0.5}
        if target == "iOS17":
            few = mb.slice_by_size(x=mb.squeeze(x=boxes, axes=[0]), begin=[0, 0], size=[2, 4])
            results += [mb.crop_resize(boxes=few, box_indices=[0, 0], pad_value=0.5, **cut)]
            results += [
                mb.resize(
                    x=x,
                    shape=[5, 0],
                    resized_dims=numpy.uint32(2),
                    interpolation_mode="NEAREST_NEIGHBOR",
                    sampling_mode="DEFAULT",
                )
            ]
        else:
            regions = mb.reshape(x=mb.concat(values=[[[[0.0], [0.0], [0.0]]], boxes], axis=2), shape=[3, 1, 5, 1, 1])
            results += [mb.crop_resize(roi=regions, **cut)]
        warp = {"sampling_mode": "bilinear", "padding_value": 0.0, "align_corners": False}
        warp |= {"coordinates_mode": "normalized_minus_one_to_one"}
        results += [mb.resample(x=x, coordinates=grid, padding_mode="reflection", **warp)]
        results += [
            mb.affine(
                x=x,
                transform_matrix=matrix,
                output_height=6,
                output_width=6,
                padding_mode="constant",
                **(warp | {"align_corners": True}),
            )
        ]
        return tuple(results)

    return body


def convolutions(target: str) -> Callable[[], Written]:
    """Convolutions in one to three dimensions, with every kind of padding, groups, dilations, and their transposes."""

    @program(target, floats(1, 4, 16), floats(1, 4, 12, 12), floats(1, 2, 4, 6, 6))
    def body(line: Tensor, plane: Tensor, cube: Tensor) -> tuple[Tensor, ...]:
        results = [mb.conv(x=line, weight=values(6, 4, 3), pad_type="same", strides=[2])]
        results += [mb.conv(x=plane, weight=values(8, 2, 3, 3), bias=values(8), groups=2, dilations=[2, 1])]
        results += [mb.conv(x=plane, weight=values(4, 1, 5, 5), groups=4, pad_type="custom", pad=[2, 1, 0, 2])]
        results += (
            [mb.conv(x=plane, weight=values(4, 4, 3, 3), pad_type="same_lower", strides=[2, 2])]
            if (target != "iOS15")
            else []
        )
        results += [mb.conv(x=cube, weight=values(3, 2, 2, 3, 3), bias=values(3), strides=[1, 2, 2])]
        results += [mb.conv_transpose(x=line, weight=values(4, 5, 4), strides=[2], pad_type="custom", pad=[1, 1])]
        results += [
            mb.conv_transpose(
                x=plane,
                weight=values(4, 3, 3, 3),
                bias=values(6),
                groups=2,
                strides=[2, 2],
                output_shape=[1, 6, 24, 24],
                pad_type="same",
            )
        ]
        return tuple(results)

    return body


def norms_and_pools(target: str) -> Callable[[], Written]:
    """Normalizations and pools with all their parameters."""

    @program(target, floats(1, 6, 8, 8), floats(2, 6, 10))
    def body(x: Tensor, line: Tensor) -> tuple[Tensor, ...]:
        gain, shift, spread = values(6), values(6), numpy.abs(values(6)) + 1
        results = [mb.batch_norm(x=mb.relu(x=x), mean=shift, variance=spread, gamma=gain, beta=shift, epsilon=1e-3)]
        results += [mb.instance_norm(x=x, gamma=gain, beta=shift), mb.instance_norm(x=line)]
        results += [mb.layer_norm(x=line, axes=[-1], gamma=values(10), beta=values(10), epsilon=1e-4)]
        results += [mb.layer_norm(x=x, axes=[1, 2, 3]), mb.l2_norm(x=x, epsilon=1e-3)]
        results += [mb.local_response_norm(x=x, size=3, alpha=1e-3, beta=0.5, k=2.0)]
        results += [
            mb.avg_pool(x=x, kernel_sizes=[3, 3], strides=[2, 2], pad_type="same", exclude_padding_from_average=True)
        ]
        results += [mb.avg_pool(x=line, kernel_sizes=[4], pad_type="custom", pad=[1, 2])]
        results += [
            mb.max_pool(x=x, kernel_sizes=[3, 3], strides=[2, 2], pad_type="custom", pad=[1, 1, 1, 1], ceil_mode=True)
        ]
        results += [mb.l2_pool(x=x, kernel_sizes=[2, 2], pad_type="valid")]
        return tuple(results)

    return body


def products(target: str) -> Callable[[], Written]:
    """Linear layers, matrix products, einsum, and from iOS18 attention."""

    @program(target, floats(2, 4, 8, 16), floats(2, 4, 8, 16), floats(2, 4, 8, 16))
    def body(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        results = [mb.linear(x=x, weight=values(12, 16), bias=values(12)), mb.linear(x=y, weight=values(5, 16))]
        results += [mb.matmul(x=x, y=y, transpose_y=True), mb.matmul(x=x, y=y, transpose_x=True)]
        results += [
            mb.matmul(x=z, y=values(16, 9)),
            mb.einsum(values=(x, mb.transpose(x=y, perm=[0, 3, 2, 1])), equation="nchw,nwhu->nchu"),
        ]
        if target == "iOS18":
            mask = numpy.triu(numpy.full((8, 8), -1e4, numpy.float32), 1)
            results += [mb.scaled_dot_product_attention(query=x, key=y, value=z)]
            results += [mb.scaled_dot_product_attention(query=x, key=y, value=z, attn_mask=mask)]
        return tuple(results)

    return body


def sequences(target: str) -> Callable[[], Written]:
    """The recurrent ops with all their parameters."""

    @program(target, floats(5, 2, 6), floats(2, 4), floats(2, 8))
    def body(x: Tensor, held: Tensor, both: Tensor) -> tuple[Tensor, ...]:
        results = [
            *mb.lstm(
                x=x,
                initial_h=held,
                initial_c=mb.tanh(x=held),
                weight_ih=values(16, 6),
                weight_hh=values(16, 4),
                bias=values(16),
                peephole=values(12),
                output_sequence=True,
                recurrent_activation="hard_sigmoid",
                direction="reverse",
                clip=3.0,
            )
        ]
        results += [
            *mb.lstm(
                x=x,
                initial_h=both,
                initial_c=both,
                weight_ih=values(16, 6),
                weight_hh=values(16, 4),
                weight_ih_back=values(16, 6),
                weight_hh_back=values(16, 4),
                bias=values(16),
                bias_back=values(16),
                direction="bidirectional",
            )
        ]
        results += [*mb.rnn(x=x, initial_h=held, weight_ih=values(4, 6), weight_hh=values(4, 4), activation="relu")]
        options = {"reset_after": True, "input_bias": values(12)} if target == "iOS18" else {}
        results += [
            *mb.gru(
                x=x,
                initial_h=held,
                weight_ih=values(12, 6),
                weight_hh=values(12, 4),
                bias=values(12),
                output_sequence=True,
                **options,
            )
        ]
        return tuple(results)

    return body


def lists(target: str) -> Callable[[], Written]:
    """Lists of tensors, of fixed length and growing, filled in a loop."""

    @program(target, floats(4, 3), integers(2))
    def body(x: Tensor, places: Tensor) -> tuple[Tensor, ...]:
        fixed = mb.make_list(init_length=4, dynamic_length=False, elem_shape=(3,), dtype="fp32")
        fixed = mb.list_scatter(ls=fixed, indices=[0, 1, 2, 3], value=x)
        fixed = mb.list_write(ls=fixed, index=1, value=mb.reduce_sum(x=x, axes=[0], keep_dims=False))

        def going(count: Tensor, rows: Tensor) -> Tensor:
            return mb.less(x=count, y=4)

        def step(count: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            row = mb.list_read(ls=fixed, index=count)
            return mb.add(x=count, y=1), mb.list_write(ls=rows, index=count, value=mb.mul(x=row, y=2.0))

        rows = mb.make_list(init_length=1, dynamic_length=True, elem_shape=(3,), dtype="fp32")
        _count, rows = mb.while_loop(_cond=going, _body=step, loop_vars=(0, rows))
        length = mb.expand_dims(x=mb.list_length(ls=rows), axes=[0])
        return mb.list_gather(ls=rows, indices=places), mb.list_read(ls=rows, index=2), length

    return body


def control(target: str) -> Callable[[], Written]:
    """Nested branches and loops that use values from outside."""

    @program(target, floats(1, 4), integers(1))
    def body(x: Tensor, times: Tensor) -> tuple[Tensor, ...]:
        limit = mb.squeeze(x=times)
        outside = mb.mul(x=x, y=0.5)

        def going(count: Tensor, held: Tensor) -> Tensor:
            return mb.less(x=count, y=limit)

        def step(count: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
            large = mb.greater(x=mb.reduce_sum(x=held, keep_dims=False), y=10.0)
            then = lambda: mb.sub(x=held, y=outside)  # noqa: E731
            other = lambda: mb.linear(x=held, weight=values(4, 4), bias=values(4))  # noqa: E731
            return mb.add(x=count, y=1), mb.cond(pred=large, _true_fn=then, _false_fn=other)

        count, held = mb.while_loop(_cond=going, _body=step, loop_vars=(0, x))
        first = mb.squeeze(x=mb.slice_by_size(x=held, begin=[0, 0], size=[1, 1]))
        both = mb.cond(
            pred=mb.greater(x=first, y=0.0),
            _true_fn=lambda: (mb.relu(x=held), mb.tanh(x=outside)),
            _false_fn=lambda: (mb.exp(x=outside), mb.sigmoid(x=held)),
        )
        return mb.expand_dims(x=count, axes=[0]), held, *both

    return body


@program("iOS17", floats(1, 4, 8, 8))
def quantized_activations(x: Tensor) -> Tensor:
    """Quantize and dequantize around a convolution, per tensor and per channel."""
    narrow = mb.quantize(input=x, zero_point=numpy.uint8(128), scale=numpy.float32(0.1), output_dtype="uint8")
    wide = mb.dequantize(input=narrow, zero_point=numpy.uint8(128), scale=numpy.float32(0.1))
    wide = mb.conv(x=wide, weight=values(6, 4, 3, 3), bias=values(6))
    scales = numpy.linspace(0.1, 0.6, 6, dtype=numpy.float32)
    narrow = mb.quantize(input=wide, scale=scales, axis=1, output_dtype="int8")
    return mb.dequantize(input=narrow, scale=scales, axis=1)


@program("iOS17", integers(2, 6), floats(2, 6))
def narrow_types(n: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """Casts among the narrow types of iOS17, and ops on them."""
    results = []
    for kind in ("int8", "uint8", "int16", "uint16"):
        narrow = mb.cast(x=n, dtype=kind)
        moved = mb.transpose(x=mb.reshape(x=narrow, shape=[3, 4]), perm=[1, 0])
        results.append(mb.cast(x=moved, dtype="int32"))
    best, places = mb.topk(x=x, k=2, axis=1, output_indices_dtype="uint16")
    picked = mb.gather_along_axis(x=x, indices=places, axis=1, validate_indices=False)
    return *results, best, picked, mb.cast(x=places, dtype="int32")


@program("iOS16", floats(1, 12, 16))
def wide_constants(x: Tensor) -> Tensor:
    """Constants that are stored as fp16 and cast to fp32."""
    weight = mb.constexpr_cast(source_val=values(12, 16, kind=numpy.float16), output_dtype="fp32")
    return mb.linear(x=x, weight=weight)


@program("iOS16", floats(1, 16))
def edges_of_numbers(x: Tensor) -> tuple[Tensor, ...]:
    """Constants at the limits of their types: infinities, NaN, denormals, negative zero."""
    edges = numpy.array(
        [numpy.inf, -numpy.inf, numpy.nan, 1e-45, -0.0, 1.1754944e-38, 3.4028235e38, 6e-8, 65504, 0.1] + [1] * 6,
        numpy.float32,
    )
    whole = numpy.array([2**31 - 1, -(2**31), 0, -1] * 4, numpy.int32)
    return mb.maximum(x=x, y=edges), mb.add(x=mb.cast(x=x, dtype="int32"), y=whole)


@program("iOS18", floats(1, 8, 16), integers(3))
def updates(x: Tensor, begin: Tensor) -> tuple[Tensor, ...]:
    """`slice_update` with constant begins and with begins that are an input."""
    row = mb.slice_by_size(x=mb.tanh(x=x), begin=[0, 0, 0], size=[1, 2, 16])
    fixed = mb.slice_update(x=x, update=row, begin=[0, 3, 0], end=[1, 5, 16])
    moving = mb.slice_update(x=fixed, update=row, begin=begin, end=mb.add(x=begin, y=[1, 2, 16]))
    return moving, mb.slice_update(
        x=x,
        update=row,
        begin=[0, 0, 0],
        end=[0, 8, 0],
        stride=[1, 4, 1],
        begin_mask=[True, False, True],
        end_mask=[True, False, True],
    )
