//! Tests of `rlx-coreml` that do not apply to our crate, each with the reason.

/// Files that import names that our crate lacks.
pub(super) const NOT_COMPILED: &[(&str, &str)] = &[(
    "coreml_update",
    "trains in `CoremlTrainingSession` of rlx-runtime, which runs the peer's backend",
)];

/// Reason why tests of GGUF blocks fail.
const BLOCKS: &str = "asserts a `mul` that unpacks codes; ours are compressed constants, or floats";

/// Tests that fail: the file, the test and the reason. They test how `rlx-coreml` lowers rather than its
/// results, unless the reason states otherwise.
pub(super) const NOT_PASSED: &[(&str, &str, &str)] = &[
    (
        "coreml_attention_custom_mask",
        "custom_mask_score_shaped_matches_cpu",
        "demands that of a mask with heads and queries only the first `[batch, keys]` values count, as in rlx-cpu; ours \
         applies them all",
    ),
    (
        "coreml_backward",
        "ane_max_pool2d_backward_matches_cpu",
        "gives the gradient to all maxima of a window that are equal; ours, like rlx-cpu's kernel and torch, to the first",
    ),
    (
        "coreml_bn_chain",
        "rewrite_targets_only_the_conv_fed_div",
        "tests a rewrite of the peer's graphs that avoids a crash of Core ML; ours has other rewrites",
    ),
    (
        "full_coverage_parity",
        "conv3d_input_weight_host_fallback",
        "asserts that a computed 3D kernel runs outside packages; ours lowers it",
    ),
    (
        "mil_lower",
        "ada_layer_norm_forward_lowers_to_native_kernel",
        "asserts `rsqrt`; ours is `layer_norm`",
    ),
    (
        "mil_lower",
        "dangling_reference_is_caught",
        "asserts the wording of an error; ours names the parameter and the remedy",
    ),
    ("mil_lower", "lowers_matmul_relu_chain", "asserts `matmul`; ours is `linear`"),
    (
        "mil_lower",
        "max_pool2d_backward_lowers_at_cnn_scale",
        "asserts `reduce_max`; ours is `maximum` of slices, without `scatter` as the test wants it",
    ),
    (
        "mil_lower",
        "silu_composes_to_sigmoid_and_mul",
        "asserts `sigmoid` and `mul`; ours is `silu`",
    ),
    (
        "mil_lower",
        "softmax_cross_entropy_lowers_to_native_one_hot",
        "asserts `one_hot`; ours gathers the label's logit, without `concat` as the test wants it",
    ),
    ("mil_p15", "lower_iq1_m_ondevice_uses_block_mul", BLOCKS),
    ("mil_p15", "lower_iq1_s_ondevice_uses_block_mul", BLOCKS),
    ("mil_p15", "lower_iq2_s_ondevice_uses_block_mul", BLOCKS),
    ("mil_p15", "lower_iq2_xs_ondevice_uses_block_mul", BLOCKS),
    ("mil_p15", "lower_iq2_xxs_ondevice_uses_block_mul", BLOCKS),
    ("mil_p15", "lower_iq3_s_ondevice_uses_block_mul", BLOCKS),
    ("mil_p15", "lower_iq3_xxs_ondevice_uses_block_mul", BLOCKS),
    ("mil_p15", "lower_iq4_nl_ondevice_uses_block_mul", BLOCKS),
    ("mil_p15", "lower_iq4_xs_ondevice_uses_block_mul", BLOCKS),
    ("mil_p15", "lower_mxfp4_ondevice_uses_block_mul", BLOCKS),
    ("mil_p15", "lower_nvfp4_ondevice_uses_block_mul", BLOCKS),
    (
        "mil_p15",
        "lower_q1_0_ondevice_int8_variations_compress_blob",
        "compares two ways to store one bit; ours has one, which is as small as the smaller",
    ),
    ("mil_p15", "lower_q1_0_ondevice_roundtrips_quantize", BLOCKS),
    ("mil_p15", "lower_q1_0_ondevice_uses_block_mul", BLOCKS),
    ("mil_p15", "lower_q2_k_ondevice_uses_block_mul", BLOCKS),
    ("mil_p15", "lower_q3_k_ondevice_uses_block_mul", BLOCKS),
    ("mil_p15", "lower_q5_0_ondevice_uses_block_mul", BLOCKS),
    ("mil_p15", "lower_q5_1_ondevice_uses_block_mul", BLOCKS),
    ("mil_p15", "lower_q6_k_ondevice_uses_block_mul", BLOCKS),
    ("mil_p15", "lower_q8_0_ondevice_uses_block_mul", BLOCKS),
    ("mil_p15", "lower_tq1_0_ondevice_uses_block_mul", BLOCKS),
    ("mil_p15", "lower_tq2_0_ondevice_uses_block_mul", BLOCKS),
    ("mil_tier1", "lowers_reverse_via_gather", "asserts `gather`; ours is `reverse`"),
];
