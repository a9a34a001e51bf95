//! What refusals say: what was found, what is accepted, and where it helps what to do.

use coremill_mil::infer::analyze;

use crate::{build, families, text};

const MESSAGES: &[(&str, &str)] = &[
    (
        "abs/iOS17/bool",
        "`x`: has element type `bool`; accepted are `fp16`, `fp32`, `int32` in iOS15; hint: `cast` it first",
    ),
    ("abs/iOS17/missing", "`x`: is required, but nothing is bound to it"),
    ("abs/iOS17/unknown", "`y`: is no parameter of this operation; hint: it takes `x`"),
    (
        "add/iOS16/mismatch",
        "shapes [2, 3] and [2, 4] do not broadcast: 3 against 4; hint: aligned at the last dimension, dimensions must be equal or one of them 1",
    ),
    (
        "add/iOS17/mixed",
        "`y`: has element type `int32`, but `x` has `fp16`; both must be the same; hint: `cast` one of them",
    ),
    (
        "batch_norm/iOS17/mean-length",
        "`mean`: is `tensor<fp32, [4]>`; accepted is shape [3], one element for each channel of `x`",
    ),
    ("batch_norm/iOS17/rank2", "`x`: has rank 2 (`tensor<fp32, [1, 3]>`); accepted is rank 3 to 5"),
    (
        "cast/iOS15/to-int8",
        "`dtype`: is `int8`; accepted are `bool`, `fp16`, `fp32`, `int32` in iOS15; hint: declare the function with opset `CoreML7`",
    ),
    ("clip/iOS17/crossed", "`alpha`: is 2, but must be smaller than `beta`, which is 1"),
    ("elu/iOS17/vector", "`alpha`: expects one number, found `tensor<fp32, [2]>`"),
    (
        "gelu/iOS16/mode-exact",
        "`mode`: is `exact`; accepted are `EXACT`, `TANH_APPROXIMATION`, `SIGMOID_APPROXIMATION`",
    ),
    (
        "layer_norm/iOS15/gamma-length",
        "`gamma`: is `tensor<fp32, [4]>`; accepted is shape [8], the dimensions of `x` that `axes` names",
    ),
    (
        "log/iOS15/mixed",
        "`x`: has element type `fp16`, but `epsilon` has `fp32`; both must be the same; hint: `cast` one of them",
    ),
    (
        "log/iOS15/open-epsilon",
        "`epsilon`: must be known when the program is compiled; found a computed `fp32`; hint: bind it to a `const`",
    ),
    (
        "prelu/iOS17/open-channels",
        "`prelu` needs a fixed number of channels, but `x` is `tensor<fp32, [1, s1048576, 5, 5]>`",
    ),
    (
        "prelu/iOS17/rank3-different",
        "`alpha`: differs between channels, and `x` is `tensor<fp32, [1, 3, 4]>`; that needs rank 4; hint: reshape `x` to rank 4, or use one value for all channels",
    ),
    (
        "reduce_argmax/iOS15/output-int32",
        "`output_dtype`: came with iOS17; hint: declare the function with opset `CoreML7`, or leave it out",
    ),
    (
        "reduce_argmax/iOS17/output-int16",
        "`output_dtype`: is `int16`; accepted are `int32`, `uint16`",
    ),
    ("reduce_sum/iOS15/axes-rank0", "`axes`: expects a vector of axes, found `int32`"),
    (
        "reduce_sum/iOS15/too-small",
        "`axes`: axis -4 is outside of a tensor of rank 3, whose axes are -3 to 2",
    ),
    ("reduce_sum/iOS15/twice", "`axes`: names axis 0 twice; accepted is each axis once"),
    (
        "softmax/iOS15/too-large",
        "`axis`: axis 2 is outside of a tensor of rank 2, whose axes are -2 to 1",
    ),
];

#[test]
fn refusals_say_what_is_wrong() {
    let families = families();
    let instances = || families.iter().flat_map(|family| &family.instances);
    let mut failures = Vec::new();
    for (id, expected) in MESSAGES {
        let instance = instances().find(|instance| text(&instance["id"]) == *id);
        let (function, _) = build::function(instance.expect("an instance"), 1);
        let (_, problems) = analyze(&function);
        let refusal = &problems.first().expect("refused").refusal;
        let hint = refusal.hint.as_ref().map(|hint| format!("; hint: {hint}")).unwrap_or_default();
        let found = format!("{refusal}{hint}");
        if found != *expected {
            failures.push(format!("    ({id:?}, {found:?}),"));
        }
    }
    assert!(failures.is_empty(), "these differ:\n{}", failures.join("\n"));
}
