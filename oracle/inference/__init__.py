"""Reference for type inference: the types that coremltools infers for thousands of programs of one operation.

How it works
    Each family of operations has a module here that yields instances. `python -m oracle.inference` builds every
    instance in coremltools and writes the inferred types, or the refusal, to `crates/mil/tests/inference/FAMILY.json`.
    The Rust test `crates/mil/tests/inference.rs` reads these files, builds the same programs, runs our inference and
    compares. `oracle/tests/test_inference.py` checks that the files are up to date.

How to add a family
    Write `oracle/inference/FAMILY.py` with

        OPERATIONS = ("conv", "conv_transpose")       # every operation that the module covers
        def instances() -> Iterator[Instance]: ...

    using the helpers of `language.py`; list it in `FAMILIES` below; run `python -m oracle.inference FAMILY`, then
    `cargo test -p coremill-mil --test inference`. That test requires every operation to be in exactly one family.

What to cover
    Every definition (operation and the opset that introduced it) needs three valid instances that differ in rank, element
    type or dynamic dimensions, and two invalid ones. `RARE` in the module lists the definitions that cannot have that
    many: `RARE = {("shape", "iOS15"): "any tensor is accepted"}`.

If coremltools is wrong
    Pass `because="reason"` and `instead=`: `REFUSED`, or the correct outputs in the format of the files. The Rust test
    then expects these, and fails if coremltools agrees with them.

    Every instance with dynamic dimensions is tested a second time, as `ID/fixed`, with numbers in their place. If
    coremltools is wrong about that one, list it in `WRONG_WHEN_FIXED` of the module:
    `WRONG_WHEN_FIXED = {"pow/iOS16/of-shape/fixed": ("why", REFUSED)}`.

    Values: our inference must compute every value that coremltools computes, except for the operations in `NOT_FOLDED` of
    the Rust test, on whose values no type can depend.
"""

FAMILIES = (
    "activation",
    "constexpr",
    "control_flow",
    "conv",
    "elementwise",
    "image_resizing",
    "linear",
    "normalization",
    "pool",
    "random",
    "recurrent",
    "reduction",
    "scatter_gather",
    "tensor_operation",
    "tensor_transformation",
)
