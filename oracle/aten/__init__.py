"""Reference tests of the ATen lowerings: one program per operator call, compared with torch.

    python -m oracle.aten OUTDIR [--family NAME ...] [--only TEXT ...] [--target ios18] [--precision fp32]

exports the cases, converts them with `coremill convert` (the environment variable COREMILL holds its path), runs the
packages and compares the outputs. `--list` prints the cases.

How to add a family
    Write `oracle/aten/FAMILY.py` with `def cases() -> Iterator[Case]`, using the helpers of `case.py`; list it in `FAMILIES`.
    A case calls one overload:

        yield case("aten.add.Tensor", real(2, 3), real(3), alpha=2)

    Tensors become program inputs, `Weight(tensor)` becomes a parameter, and every other argument is a constant of the call.
    In-place operators get a copy of their first operand. `free(...)` makes dimensions dynamic; the case then also runs on
    the other sizes.

What to cover
    Every overload that real exports contain, over element types, ranks, arguments, defaults and dynamic sizes.
    Edge cases: empty tensors, one element, broadcasting, negative dimensions, NaN, infinities. Inputs must be able to
    tell right from wrong.

The tolerance is that of the precision in `judge.TOLERANCE`, unless the case sets its own. The error is relative to the
largest magnitude of an output. NaN and infinities must be at the same indices as in torch.
"""

FAMILIES = (
    "unary",
    "binary",
    "comparison",
    "activation",
    "reduction",
    "shape",
    "index",
    "creation",
    "conversion",
    "linear",
    "convolution",
    "pool",
    "normalization",
    "attention",
    "resize",
    "padding",
    "order",
    "complex_numbers",
    "ranges",
    "recurrent",
    "loss",
    "sizes",
    "defects",
)
