"""The judge of the engine: what torch, numpy and coremltools say that small programs give.

How it works
    Each family of operations has a module here that yields cases. `python -m oracle.engine` writes them to
    `crates/engine/tests/cases/FAMILY.jsonl`, a line for each: a program as MIL text, inputs, and what it gives. The Rust
    test `crates/engine/tests/cases.rs` runs every one in several ways. `oracle/test_engine_cases.py` checks that the
    files are fresh.

How to add a family
    Write `oracle/engine/FAMILY.py` with

        def cases() -> Iterator[Case]: ...

    out of the helpers in `language.py` and `judge.py`; list it in `FAMILIES` below; run
    `python -m oracle.engine FAMILY`, then `cargo test -p coremill-engine --test cases -- --nocapture`. That test wants
    a case of every definition (operation and opset that brought it) of the op table.

What to show
    Ten to fifteen cases for each definition: ranks, element types, attributes and their defaults, and edges (empty
    tensors, one element, broadcasting, negative axes, NaN, infinities, casts out of range). Inputs should be able to tell
    right from wrong. A definition that did not change what the operation computes may have fewer.

What is expected
    comes from a judge that we did not write, computed in fp32 or wider. Where that judge is known to differ from MIL, the
    module says so, and how it is known.
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
