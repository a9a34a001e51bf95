//! `mlProgramOperationTypeHistogram`: the number of operations of each type in a program.
//!
//! A key is the operation with the opset of its version: `Concat` for a version of iOS 15, `Ios16.relu`,
//! `Ios17.sliceByIndex`. Apple's compiler has versions that coremltools lacks: an `add` in an iOS 17 program
//! is `Ios17.add`, although its public definition is from iOS 15. [`VERSIONS`] lists the versions found in
//! its files. Operations without a row have the version of the op table.

use std::collections::BTreeMap;

use coremill_mil::ir::{Function, Op, Opset};
use coremill_mil::ops::OpKind;

/// Opsets in which Apple's compiler has a new version of an operation, in addition to iOS 15.
///
/// Most rows were observed in files of compilers 3402 to 3600: the files in `tests/compiled` and the files that
/// `cargo xtask apple-models` examines. A row marked as assumed contains operations that were not observed;
/// they have the versions of the previous row, which is of the same family.
const VERSIONS: &[(&[Opset], &[&str])] = &[
    // Arithmetic and comparisons.
    (
        &[Opset::Ios16, Opset::Ios17],
        &[
            "add",
            "floor_div",
            "greater",
            "greater_equal",
            "less",
            "logical_and",
            "logical_not",
            "maximum",
            "minimum",
            "mul",
            "pow",
            "sub",
        ],
    ),
    // Assumed.
    (
        &[Opset::Ios16, Opset::Ios17],
        &["equal", "less_equal", "logical_or", "logical_xor", "mod", "not_equal", "real_div"],
    ),
    // Functions of one operand.
    (&[Opset::Ios16, Opset::Ios17], &["cast", "clip", "floor", "log", "sqrt"]),
    // Assumed.
    (
        &[Opset::Ios16, Opset::Ios17],
        &[
            "abs",
            "acos",
            "asin",
            "atan",
            "atanh",
            "ceil",
            "cos",
            "cosh",
            "erf",
            "exp",
            "exp2",
            "inverse",
            "round",
            "rsqrt",
            "sign",
            "sin",
            "sinh",
            "square",
            "tan",
            "threshold",
        ],
    ),
    // Activations. iOS 18 was observed only for `relu`.
    (&[Opset::Ios16, Opset::Ios18], &["relu", "sigmoid", "silu", "softmax"]),
    // Assumed.
    (
        &[Opset::Ios16, Opset::Ios18],
        &[
            "clamped_relu",
            "elu",
            "gelu",
            "leaky_relu",
            "linear_activation",
            "prelu",
            "relu6",
            "scaled_tanh",
            "sigmoid_hard",
            "softplus",
            "softplus_parametric",
            "softsign",
            "tanh",
            "thresholded_relu",
        ],
    ),
    // Reductions.
    (&[Opset::Ios16], &["reduce_max", "reduce_mean", "reduce_sum"]),
    // Assumed.
    (
        &[Opset::Ios16],
        &[
            "reduce_l1_norm",
            "reduce_l2_norm",
            "reduce_log_sum",
            "reduce_log_sum_exp",
            "reduce_min",
            "reduce_prod",
            "reduce_sum_square",
        ],
    ),
    // Only `reduce_argmax` was observed.
    (&[Opset::Ios16, Opset::Ios17], &["reduce_argmax", "reduce_argmin"]),
    // Products, norms and recurrent layers.
    (&[Opset::Ios16, Opset::Ios17], &["conv", "layer_norm", "linear", "lstm", "matmul"]),
    // Assumed.
    (
        &[Opset::Ios16, Opset::Ios17],
        &[
            "batch_norm",
            "conv_transpose",
            "einsum",
            "gru",
            "instance_norm",
            "l2_norm",
            "local_response_norm",
            "rnn",
        ],
    ),
    (&[Opset::Ios16], &["max_pool"]),
    // Assumed.
    (&[Opset::Ios16], &["avg_pool", "l2_pool"]),
    // Moves of elements.
    (&[Opset::Ios16, Opset::Ios17], &["gather", "gather_along_axis", "reshape", "topk"]),
    (&[Opset::Ios17], &["concat", "expand_dims", "slice_by_index", "squeeze", "transpose"]),
    (&[], &["identity", "pad", "range_1d", "select", "shape", "split", "stack", "tile"]),
];

/// The number of operations for each key, without constants.
pub(super) fn of(functions: &[&Function]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for function in functions {
        for (_, op) in function.all_ops().filter(|(_, op)| op.kind() != Some(OpKind::Const)) {
            *counts.entry(key(op, function.opset)).or_default() += 1;
        }
    }
    counts
}

fn key(op: &Op, opset: Opset) -> String {
    let name = op.type_name();
    let version = match VERSIONS.iter().find(|(_, names)| names.contains(&name)) {
        Some((versions, _)) => versions.iter().copied().rfind(|&version| version <= opset),
        None => op.kind().and_then(|kind| kind.row(opset)).map(|row| row.since),
    };
    match version {
        None | Some(Opset::Ios15) => camel_case(name, true),
        Some(version) => format!("I{}.{}", &version.tag()[1..], camel_case(name, false)),
    }
}

/// Converts a name to camel case: `sliceByIndex`, or `SliceByIndex` with `upper`.
pub(super) fn camel_case(name: &str, mut upper: bool) -> String {
    let mut camel = String::new();
    for c in name.chars() {
        if c == '_' {
            upper = true;
        } else {
            camel.push(if upper { c.to_ascii_uppercase() } else { c });
            upper = false;
        }
    }
    camel
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys observed in metadata of Apple's compiler, by the opset of the function.
    const SEEN: [(Opset, &str); 6] = [
        (Opset::Ios15, "Add Cast Concat Conv Lstm ReduceMean Relu SliceByIndex Squeeze Transpose"),
        (
            Opset::Ios16,
            "Concat ExpandDims Pad SliceByIndex Squeeze Transpose Ios16.constexprLutToDense",
        ),
        (
            Opset::Ios16,
            "Ios16.add Ios16.cast Ios16.conv Ios16.maxPool Ios16.reduceArgmax Ios16.reshape",
        ),
        (
            Opset::Ios17,
            "Identity Ios16.relu Ios16.softmax Ios16.reduceSum Pad Range1d Select Shape Split",
        ),
        (
            Opset::Ios17,
            "Ios17.add Ios17.cast Ios17.concat Ios17.gather Ios17.layerNorm Ios17.topk Stack",
        ),
        (Opset::Ios18, "Ios18.relu"),
    ];

    #[test]
    fn keys_match_apple_compiler() {
        for (opset, keys) in SEEN {
            for expected in keys.split(' ') {
                let plain = expected.rsplit('.').next().unwrap_or_default();
                let kind = OpKind::ALL
                    .iter()
                    .find(|kind| camel_case(kind.name(), true).eq_ignore_ascii_case(plain));
                let op = Op::new(*kind.unwrap_or_else(|| panic!("no operation {plain}")));
                assert_eq!(key(&op, opset), expected);
            }
        }
    }

    #[test]
    fn version_table_lists_each_known_op_at_most_once() {
        let mut names: Vec<&str> = VERSIONS.iter().flat_map(|(_, names)| *names).copied().collect();
        assert!(names.iter().all(|name| OpKind::ALL.iter().any(|kind| kind.name() == *name)));
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
