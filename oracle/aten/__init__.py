"""Programs of one ATen operator each, with what torch computes: the judge of every lowering.

    python -m oracle.aten OUTDIR [--family NAME ...] [--only TEXT ...] [--target ios18] [--precision fp32]

exports the cases, converts all of them with `coremill convert` (the variable COREMILL says where it is), runs the packages
and compares. `--list` prints the cases.

How to add a family
    Write `oracle/aten/FAMILY.py` with `def cases() -> Iterator[Case]`, out of what `case.py` has; list it in `FAMILIES`.
    A case calls one overload, as the export keeps it:

        yield case("aten.add.Tensor", real(2, 3), real(3), alpha=2)

    Tensors become inputs of the program, `Weight(tensor)` its parameters, all else is written into the call. Operators that
    write to their operand get a copy of it. `dynamic` makes sizes free, and then the case is run on other sizes, too.

What to show
    Every overload that real exports contain, over element types, ranks, arguments and their defaults, and free sizes;
    edges: empty tensors, one element, broadcasting, negative dimensions, NaN, infinities. Inputs should be able to tell
    right from wrong.

The tolerance of a case is that of its element type, in `judge.TOLERANCE`, unless it says another; the error is relative
to the largest magnitude of an output. NaN and infinities must be where torch has them.
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
