//! Messages and hints of inference errors.

use coremill_mil::infer::analyze;

use crate::{build, families, text};

const MESSAGES: &[(&str, &str)] = &[
    (
        "abs/iOS17/bool",
        "`x`: has element type `bool`; expected `fp16`, `fp32`, `int32` in iOS15; hint: `cast` it first",
    ),
    ("abs/iOS17/missing", "`x`: is required, but nothing is bound to it"),
    (
        "abs/iOS17/unknown",
        "`y`: is not a parameter of this operation; hint: its parameters are `x`",
    ),
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
        "`mean`: must have shape [3], one element for each channel of `x`, got `tensor<fp32, [4]>`",
    ),
    ("batch_norm/iOS17/rank2", "`x`: has rank 2 (`tensor<fp32, [1, 3]>`); expected rank 3 to 5"),
    (
        "cast/iOS15/to-int8",
        "`dtype`: must be `bool`, `fp16`, `fp32` or `int32` in iOS15, got `int8`; hint: declare the function with opset `CoreML7`",
    ),
    ("clip/iOS17/crossed", "`alpha`: is 2, but must be smaller than `beta`, which is 1"),
    ("elu/iOS17/vector", "`alpha`: expects one number, found `tensor<fp32, [2]>`"),
    (
        "gelu/iOS16/mode-exact",
        "`mode`: must be `EXACT`, `TANH_APPROXIMATION` or `SIGMOID_APPROXIMATION`, got `exact`",
    ),
    (
        "layer_norm/iOS15/gamma-length",
        "`gamma`: must have shape [8], the dimensions of `x` that `axes` names, got `tensor<fp32, [4]>`",
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
        "`alpha`: differs between channels, which requires `x` to have rank 4, got `tensor<fp32, [1, 3, 4]>`; hint: reshape `x` to rank 4, or use one value for all channels",
    ),
    (
        "reduce_argmax/iOS15/output-int32",
        "`output_dtype`: was introduced in iOS17; hint: declare the function with opset `CoreML7`, or leave it out",
    ),
    (
        "reduce_argmax/iOS17/output-int16",
        "`output_dtype`: must be `int32` or `uint16`, got `int16`",
    ),
    ("reduce_sum/iOS15/axes-rank0", "`axes`: expects a vector of axes, found `int32`"),
    (
        "reduce_sum/iOS15/too-small",
        "`axes`: axis -4 is outside a tensor of rank 3, whose axes are -3 to 2",
    ),
    ("reduce_sum/iOS15/twice", "`axes`: must name each axis once, got axis 0 twice"),
    (
        "softmax/iOS15/too-large",
        "`axis`: axis 2 is outside a tensor of rank 2, whose axes are -2 to 1",
    ),
    (
        "conv/iOS15/same-lower",
        "`pad_type`: is `same_lower`, which needs iOS16; this function is iOS15; hint: declare the function with opset `CoreML6`, or specify the pads with `custom`",
    ),
    (
        "conv/iOS15/channels",
        "`weight`: has size 3 along axis 1 (`tensor<fp32, [6, 3, 3, 2]>`); expected 4, the 4 input channels divided by 1 groups",
    ),
    (
        "conv/iOS15/kernel-too-large",
        "the window of 10 produces 0 elements along spatial dimension 0 of `x`, whose size is 9; expected at least 1; hint: pad more, or make the window smaller",
    ),
    (
        "conv/iOS15/dilated-computed",
        "`dilations`: is not all ones, but `weight` is computed when the program runs; hint: bind `weight` to a constant, or leave `dilations` out",
    ),
    (
        "conv/iOS15/strides-short",
        "`strides`: has 1 elements; expected 2, one for each of the 2 spatial dimensions",
    ),
    (
        "conv_transpose/iOS15/output-channels",
        "`output_shape`: has 5 at index 1; expected 6, the output channels of `weight`",
    ),
    (
        "conv_transpose/iOS15/padded-away",
        "pads of 9 and 9 leave -7 elements along spatial dimension 0; expected at least 1",
    ),
    (
        "avg_pool/iOS15/rounded-up-uneven",
        "`ceil_mode`: is true, but `pad` differs before and after a dimension; hint: pad with `pad` first, and pool without padding",
    ),
    (
        "max_pool/iOS15/pad-type",
        "`pad_type`: must be `valid`, `same`, `same_lower` or `custom`, got `full`",
    ),
    (
        "matmul/iOS15/inner",
        "`tensor<fp32, [1, 2, 3]>` and `tensor<fp32, [1, 4, 3]>` cannot be multiplied: 3 columns on the left, 4 rows on the right",
    ),
    (
        "matmul/iOS15/vector-right",
        "`y`: has rank 1 (`tensor<fp32, [3]>`); expected rank 2 or more; hint: add a last dimension of 1 with `expand_dims`, and remove it afterwards",
    ),
    (
        "matmul/iOS17/mixed",
        "`y`: has element type `fp32`, but `x` has `fp16`; both must be the same where both are computed; hint: `cast` one of them",
    ),
    (
        "einsum/iOS15/equation",
        "`equation`: must be `chw,whr->chr` or `nchw,nwhr->nchr`, with any letters, got `nchw,nwhu->nhcu`; hint: transpose and `matmul` instead",
    ),
    (
        "linear/iOS15/width",
        "`x`: has size 4 along axis 1 (`tensor<fp32, [2, 4]>`); expected 3, the last dimension of `weight`",
    ),
    (
        "scaled_dot_product_attention/iOS18/mask-sequence",
        "`attn_mask`: has size 4 along axis 1 (`tensor<fp32, [4, 4]>`); expected 5, the sequence length of `key`",
    ),
    (
        "scaled_dot_product_attention/iOS17/before",
        "`scaled_dot_product_attention` needs iOS18; this function is iOS17; hint: declare the function with opset `CoreML8`",
    ),
    (
        "resize/iOS17/too-many-dims",
        "`resized_dims`: must be from 0 to 2, limited by the length of `shape` and the rank of `x`, got 3",
    ),
    (
        "crop_resize/iOS17/too-many-boxes",
        "`box_indices`: is required, since it is not certain that the 5 boxes are no more than the 2 images of `x`",
    ),
    (
        "upsample_bilinear/iOS15/to-nothing",
        "scaling 8 by 0.01 results in 0 elements; expected 1 to 2147483647",
    ),
    (
        "lstm/iOS17/bidirectional-no-weight",
        "`weight_ih_back`: is required when `direction` is `bidirectional`",
    ),
    (
        "lstm/iOS17/weight-rows",
        "`weight_ih`: must have shape [16, 3], 4 gates for a hidden size of 4 by the last dimension of `x`, got `tensor<fp32, [8, 3]>`",
    ),
    (
        "random_uniform/iOS15/half-and-default",
        "`high`: defaults to `fp32`, but `low` has another type (`fp16`, `fp32`); both must have the same type; hint: bind both",
    ),
    ("random_normal/iOS15/open-rank", "`shape`: has s1048576 elements; expected a fixed number"),
    (
        "cond/iOS15/shapes",
        "returns `tensor<fp32, [2, 3]>` as value 0 if true, `tensor<fp32, [2, 4]>` if false; expected the same type",
    ),
    (
        "while_loop/iOS15/dtype",
        "passes a `tensor<fp32, [2, 3]>` as variable 1 to its body, which returns a `tensor<fp16, [2, 3]>`",
    ),
    (
        "while_loop/iOS15/declared-rank",
        "has a `tensor<fp32, [2, 3]>` as variable 1, but its condition accepts a `tensor<fp32, [2]>`",
    ),
    ("while_loop/iOS15/fewer", "has 2 `loop_vars`, but its body returns 1 values"),
    (
        "list_write/iOS15/extent",
        "`value`: writes `tensor<fp32, [4]>` to a list of `tensor<fp32, [3]>`; hint: reshape or cast it to the element type",
    ),
    ("make_list/iOS15/rank5", "`elem_shape`: has 5 dimensions; the maximum for list elements is 4"),
    ("classify/iOS15/too-many", "`classes`: has 3 classes; `probabilities` has 2 elements"),
    (
        "write_state/iOS18/open",
        "`data`: must be `tensor<fp16, [2, 3]>`, the type of the state, got `tensor<fp16, [s1048576, 3]>`",
    ),
    (
        "constexpr_lut_to_dense/iOS16/indices-short",
        "`indices`: has 17 bytes; 35 4-bit elements require 18",
    ),
    (
        "constexpr_lut_to_dense/iOS16/three-bits",
        "`lut`: must have 2, 4, 16, 64 or 256 entries, got 8; hint: tables of other sizes need the `constexpr_lut_to_dense` of iOS18",
    ),
    (
        "constexpr_lut_to_dense/iOS18/palettes",
        "`lut`: has size 8 along axis 2 (`tensor<fp16, [1, 1, 8, 1]>`); expected 16, the number of values of `uint4`, the element type of `indices`",
    ),
    (
        "constexpr_sparse_to_dense/iOS16/too-few",
        "`nonzero_data`: has 3 elements, but `mask` sets 4 bits",
    ),
    (
        "constexpr_blockwise_shift_scale/iOS18/not-dividing",
        "`scale`: has size 3 along axis 0, which does not divide the size 4 of `data`",
    ),
    ("quantize/iOS17/zero", "`scale`: must not be zero"),
    ("dequantize/iOS17/no-axis", "`axis`: is required when `scale` is a vector"),
];

#[test]
fn error_messages_and_hints_match_expected_text() {
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
    assert!(failures.is_empty(), "these messages differ:\n{}", failures.join("\n"));
}
