//! What is not worth a delegate.
//!
//! Handing tensors to Core ML and back costs more than moving their elements does, so that calls which do nothing
//! but that stay with their neighbours where those are outside.

use coremill_pt2::Target;

/// Operators that move elements, or give them another type, and compute nothing.
const MOVEMENTS: [&str; 46] = [
    "_reshape_alias",
    "_to_copy",
    "_to_dim_order_copy",
    "_unsafe_view",
    "alias",
    "alias_copy",
    "arange",
    "clone",
    "contiguous",
    "detach",
    "detach_copy",
    "empty",
    "expand",
    "expand_as",
    "expand_copy",
    "flatten",
    "full",
    "full_like",
    "lift_fresh_copy",
    "movedim",
    "narrow",
    "narrow_copy",
    "ones",
    "ones_like",
    "permute",
    "permute_copy",
    "reshape",
    "select",
    "select_copy",
    "slice",
    "slice_copy",
    "squeeze",
    "squeeze_copy",
    "swapaxes",
    "t",
    "t_copy",
    "to",
    "transpose",
    "transpose_copy",
    "unflatten",
    "unsqueeze",
    "unsqueeze_copy",
    "view",
    "view_copy",
    "zeros",
    "zeros_like",
];

/// Whether a call computes nothing.
pub(super) fn is_movement(target: &Target) -> bool {
    match target {
        Target::Operator { namespace, name, .. } => {
            matches!(namespace.as_str(), "aten" | "dim_order_ops")
                && MOVEMENTS.contains(&name.as_str())
        }
        Target::HigherOrder(_) | Target::Function(_) => false,
    }
}
