"""Operations that reduce along axes."""

from __future__ import annotations

from collections.abc import Iterator

from .language import IOS15, IOS16, IOS17, IOS18, REFUSED, Instance, const, filled, gives, instance, tensor

ALONG_AXES = (
    "reduce_l1_norm", "reduce_l2_norm", "reduce_log_sum", "reduce_log_sum_exp", "reduce_max", "reduce_mean",
    "reduce_min", "reduce_prod", "reduce_sum", "reduce_sum_square",
)  # fmt: skip
POSITIONS = ("reduce_argmax", "reduce_argmin")

OPERATIONS = (*ALONG_AXES, *POSITIONS)

OUT_OF_RANGE = "coremltools counts an axis below -rank from the end of the list of dimensions once more"
TWICE = "coremltools takes an axis out as often as it is named, and another one the second time"
TWICE_KEPT = "coremltools does not see that an axis is named twice as long as dimensions are kept"
OF_FIXED_SHAPE = "coremltools counts what it can compute as constant; that Core ML does so is nowhere said"


def instances() -> Iterator[Instance]:
    for operation in ALONG_AXES:
        yield from _along_axes(operation)
    for operation in POSITIONS:
        for opset in (IOS15, IOS17):
            yield from _position(operation, opset)


def _along_axes(operation: str) -> Iterator[Instance]:
    for dtype in ("fp16", "fp32", "int32"):
        yield instance(operation, IOS15, f"all-{dtype}", x=tensor(dtype, 2, "s0", 3))
        yield instance(operation, IOS17, f"last-{dtype}", x=tensor(dtype, 1, "s0", 8), axes=const("int32", [-1]))
        yield instance(
            operation,
            IOS18,
            f"rank5-{dtype}",
            x=tensor(dtype, 1, 2, "s0", 4, "s1"),
            axes=const("int32", [1, -2]),
            keep_dims=const("bool", True),
        )
        yield instance(operation, IOS16, f"rank1-{dtype}", x=tensor(dtype, "s0"), axes=const("int32", [0]))
        yield instance(operation, IOS16, f"rank0-{dtype}", x=tensor(dtype))
    yes, no = const("bool", True), const("bool", False)
    x = tensor("fp32", 2, "s0", 4)
    yield instance(operation, IOS15, "all-kept", x=x, keep_dims=yes)
    yield instance(operation, IOS15, "unsorted", x=tensor("fp32", 2, 3, 4, 5), axes=const("int32", [3, 0]), keep_dims=no)
    yield instance(operation, IOS15, "open-gone", x=x, axes=const("int32", [1]))
    yield instance(operation, IOS15, "no-axes", x=x, axes=filled("int32", 0))
    yield instance(operation, IOS15, "too-large", x=x, axes=const("int32", [3]))
    yield instance(operation, IOS15, "too-large-kept", x=x, axes=const("int32", [3]), keep_dims=yes)
    yield instance(
        operation, IOS15, "too-small", x=x, axes=const("int32", [-4]), because=OUT_OF_RANGE, instead=REFUSED
    )
    yield instance(operation, IOS15, "too-small-kept", x=x, axes=const("int32", [-4]), keep_dims=yes)
    yield instance(operation, IOS15, "twice", x=x, axes=const("int32", [0, 0]), because=TWICE, instead=REFUSED)
    yield instance(
        operation,
        IOS15,
        "twice-kept",
        x=x,
        axes=const("int32", [0, -3]),
        keep_dims=yes,
        because=TWICE_KEPT,
        instead=REFUSED,
    )
    yield instance(operation, IOS15, "axes-rank0", x=x, axes=const("int32", 1))
    yield instance(operation, IOS15, "axes-open", x=x, axes=tensor("int32", 1))
    computed = gives("sub", x=const("int32", [2, 3]), y=const("int32", 2))
    yield instance(operation, IOS15, "axes-computed", x=x, axes=computed)
    kept = gives("cast", x=const("int32", 1), dtype=const("string", "bool"))
    yield instance(operation, IOS15, "keep-computed", x=x, keep_dims=kept)
    yield instance(
        operation,
        IOS15,
        "axes-of-shape",
        x=x,
        axes=gives("shape", x=tensor("fp32", 1)),
        because=OF_FIXED_SHAPE,
        instead=REFUSED,
    )
    yield instance(operation, IOS15, "axes-of-open-shape", x=x, axes=gives("shape", x=tensor("fp32", "s0")))
    yield instance(operation, IOS15, "axes-float", x=x, axes=const("fp32", [1.0]))
    yield instance(operation, IOS15, "keep-number", x=x, keep_dims=const("int32", 1))
    yield instance(operation, IOS17, "bool", x=tensor("bool", 3))
    yield instance(operation, IOS18, "int8", x=tensor("int8", 3))
    yield instance(operation, IOS18, "missing", axes=const("int32", [0]))
    yield instance(operation, IOS18, "axis", x=x, axis=const("int32", 0))

    matrix = [[1.5, 2.0, 0.25], [4.0, 0.5, 3.0]]
    yield instance(operation, IOS15, "const-all", x=const("fp32", matrix))
    yield instance(operation, IOS15, "const-rows", x=const("fp32", matrix), axes=const("int32", [1]))
    yield instance(operation, IOS15, "const-columns", x=const("fp16", matrix), axes=const("int32", [-2]), keep_dims=yes)
    yield instance(operation, IOS15, "const-vector", x=const("fp32", [2.0, 3.0, 7.0]), axes=const("int32", [0]))
    yield instance(operation, IOS15, "const-int", x=const("int32", [2, 3, 4]), axes=const("int32", [0]))
    yield instance(operation, IOS15, "const-int-kept", x=const("int32", [[2, 3], [4, 9]]), keep_dims=yes)
    if operation != "reduce_log_sum":
        yield instance(operation, IOS15, "const-negative", x=const("int32", [[2, -3], [-4, 9]]), axes=const("int32", [1]))
    shape = gives("shape", x=tensor("fp32", 2, "s0", 4))
    yield instance(operation, IOS15, "of-shape", x=shape, axes=const("int32", [0]))
    fixed = gives("shape", x=tensor("fp32", 2, 3, 4))
    yield instance(operation, IOS15, "of-fixed-shape", x=fixed, keep_dims=yes)


def _position(operation: str, opset: str) -> Iterator[Instance]:
    yes = const("bool", True)
    for dtype in ("fp16", "fp32", "int32"):
        yield instance(operation, opset, f"default-{dtype}", x=tensor(dtype, 2, "s0", 3))
        yield instance(operation, opset, f"first-{dtype}", x=tensor(dtype, "s0", 8), axis=const("int32", 0))
        yield instance(
            operation, opset, f"rank5-{dtype}", x=tensor(dtype, 1, 2, "s0", 4, "s1"), axis=const("int32", -2), keep_dims=yes
        )
        yield instance(operation, opset, f"rank1-{dtype}", x=tensor(dtype, 7))
    x = tensor("fp32", 2, "s0", 4)
    yield instance(operation, opset, "rank1-kept", x=tensor("fp32", "s0"), keep_dims=yes)
    yield instance(operation, opset, "rank0", x=tensor("fp32"))
    yield instance(operation, opset, "too-large", x=x, axis=const("int32", 3))
    yield instance(operation, opset, "too-small", x=x, axis=const("int32", -4), because=OUT_OF_RANGE, instead=REFUSED)
    yield instance(operation, opset, "axis-open", x=x, axis=tensor("int32"))
    yield instance(operation, opset, "axes", x=x, axes=const("int32", [0]))
    yield instance(operation, opset, "bool", x=tensor("bool", 3))
    yield instance(operation, opset, "missing")
    for name in ("int32", "uint16", "UINT16", "int16", "fp32"):
        yield instance(operation, opset, f"output-{name}", x=x, output_dtype=const("string", name))
    yield instance(operation, opset, "const", x=const("fp32", [[1.0, 5.0, 2.0], [4.0, 0.5, 4.0]]))
    yield instance(operation, opset, "const-kept", x=const("int32", [[1, 5, 2], [4, 0, 4]]), axis=const("int32", 0), keep_dims=yes)
    yield instance(operation, opset, "const-vector", x=const("fp16", [1.0, -5.0, 2.0]))
    if opset == IOS17:
        yield instance(operation, opset, "const-short", x=const("fp16", [[1.0, -5.0]]), output_dtype=const("string", "uint16"))
