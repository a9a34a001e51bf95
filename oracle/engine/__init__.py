"""References for the engine: expected outputs of small programs, computed by torch, numpy and coremltools.

How it works
    Each family of operations has a module here that yields cases. `python -m oracle.engine` writes them to
    `crates/engine/tests/cases/FAMILY.jsonl`, one line per case: a program as MIL text, inputs, and expected outputs. The
    Rust test `crates/engine/tests/cases.rs` runs each case in several ways. `oracle/tests/test_engine_cases.py` checks that the
    files are up to date.

How to add a family
    Write `oracle/engine/FAMILY.py` with

        def cases() -> Iterator[Case]: ...

    using the helpers of `language.py` and `judge.py`; list it in `FAMILIES` below; run
    `python -m oracle.engine FAMILY`, then `cargo test -p coremill-engine --test cases -- --nocapture`. That test requires
    a case for every definition (operation and the opset that introduced it) of the op table.

What to cover
    Ten to fifteen cases for each definition: ranks, element types, attributes and their defaults, and edges (empty
    tensors, one element, broadcasting, negative axes, NaN, infinities, casts out of range). Inputs must be able to tell
    right from wrong. A definition that did not change what the operation computes may have fewer.

Expected outputs
    They come from independent implementations, computed in fp32 or wider. If such a reference is known to differ from
    MIL, the module documents the difference and its source.
"""

FAMILIES = (
    "activation",
    "compressed",
    "constexpr",
    "control_flow",
    "conv",
    "elementwise",
    "fusion",
    "image_resizing",
    "join",
    "linear",
    "normalization",
    "pool",
    "random",
    "recurrent",
    "reduction",
    "reshape",
    "scatter_gather",
    "slice",
    "tensor_operation",
    "tensor_transformation",
)
