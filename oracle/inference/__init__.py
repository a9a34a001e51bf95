"""The judge of type inference: what coremltools infers for thousands of small programs of one operation.

How it works
    Each family of operations has a module here that yields instances. `python -m oracle.inference` builds every
    instance in coremltools and writes what it infers, or that it refuses, to `crates/mil/tests/inference/FAMILY.json`.
    The Rust test `crates/mil/tests/inference.rs` reads these files, builds the same programs, runs our inference and
    compares. `oracle/test_inference.py` checks that the files are fresh.

How to add a family
    Write `oracle/inference/FAMILY.py` with

        OPERATIONS = ("conv", "conv_transpose")       # every operation that the module judges
        def instances() -> Iterator[Instance]: ...

    out of the helpers in `language.py`; list it in `FAMILIES` below; run `python -m oracle.inference FAMILY`, then
    `cargo test -p coremill-mil --test inference`. That test wants every operation in just one family.

What an instance must show
    Every definition (operation and opset that brought it) needs three accepted instances that differ in rank, element
    type or openness of dimensions, and two refused ones. `RARE` in the module names the definitions that cannot have
    so many: `RARE = {("shape", "iOS15"): "any tensor is accepted"}`.

Where coremltools is wrong
    Give the instance `because="why"` and `instead=`: `REFUSED`, or the outputs that are right, in the form in which the
    files hold outputs. The Rust test then wants that, and wants that coremltools still says something else.

    Every instance with open dimensions is judged a second time, as `ID/fixed`, with numbers in their place. Where
    coremltools is wrong about that one, `WRONG_WHEN_FIXED` in the module says so:
    `WRONG_WHEN_FIXED = {"pow/iOS16/of-shape/fixed": ("why", REFUSED)}`.

    Values: our inference must know every element that coremltools knows, but for the operations in `NOT_FOLDED` of the
    Rust test, on whose values no type can depend.
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
