//! Order of the passes.
//!
//! ```text
//! simplify ──▶ (changes of the caller) ──▶ finish: to_fp16 ──▶ simplify ──▶ materialize_literals ──▶ keep_unused_inputs
//! ```
//!
//! [`optimize`] runs both halves. A caller that changes the function between them, or tries several precisions on one
//! simplified function, calls [`simplify`] and [`finish`].

use coremill_io::unknown_among;
use coremill_mil::ir::Function;
use coremill_mil::ops::UnknownName;

use crate::{
    AnalyzedFunction, Editor, Error, KeepFp32, Pass, activations, affine, attention,
    common_subexpressions, grouped_queries, interleave, keep_unused_inputs, materialize_literals,
    matmul, noop_elimination, norms, padding, quantized_products, slice_updates, slices, to_fp16,
    transposes,
};

/// The passes in execution order, repeated in rounds until none changes anything. A pass without dependencies is
/// placed so that later passes have the least work; the comments state the dependencies.
pub const PASSES: &[Pass] = &[
    // First: operations without effect would break up the patterns below. Later rounds merge the transposes and
    // reshapes that other passes leave next to each other.
    renamed("noop_elimination", "cancel", noop_elimination::noop_elimination),
    // Patterns compare values by id: `x - mean(x)` that is computed twice has to become one value for `fuse_norms`.
    renamed(
        "common_subexpression_elimination",
        "merge_duplicates",
        common_subexpressions::common_subexpression_elimination,
    ),
    // A slice is merged only if all its users are slices. Equal slices have already been merged.
    pass("merge_slices", slices::merge_slices),
    // Transposes are merged into products, and products with constant matrices become `linear`, which `fuse_affine`
    // requires. `fuse_attention` expects the `transpose_y` that this pass sets.
    renamed("canonicalize_matmul", "shape_products", matmul::canonicalize_matmul),
    // After `canonicalize_matmul`, so that constant scales and shifts also merge into its `linear`.
    renamed("fuse_affine", "fold_affine", affine::fuse_affine),
    // Both replace a pattern by a single operation that transposes can cross more easily, so they precede
    // `sink_transposes`.
    renamed("fuse_activations", "recognise_activations", activations::fuse_activations),
    renamed("fuse_norms", "recognise_norms", norms::fuse_norms),
    // Independent of the others. Padding next to a transpose is merged after a later round has moved the transpose.
    renamed("fuse_padding", "fold_padding", padding::fuse_padding),
    // The transpose of a shuffle is part of the pattern, which must be found before transposes move.
    pass("interleave", interleave::interleave),
    // After all patterns with elementwise operations, which it reorders.
    pass("sink_transposes", transposes::sink_transposes),
    // Transposes that can sink are gone. Transposes on both sides of an update are moved to the written part.
    renamed(
        "canonicalize_slice_update",
        "simplify_updates",
        slice_updates::canonicalize_slice_update,
    ),
    // Before `fuse_attention`: it follows the rows of a product through scale, mask and softmax, and removes the
    // repetition of keys, so that attention is found in grouped form.
    renamed(
        "fuse_grouped_query_attention",
        "group_queries",
        grouped_queries::fuse_grouped_query_attention,
    ),
    // Its pattern is the longest, and all passes above bring parts of it into the expected form.
    renamed("fuse_attention", "recognise_attention", attention::fuse_attention),
    // Quantization of products is final. Its patterns are those of no other pass.
    pass("clip_quantized_products", quantized_products::clip_quantized_products),
];

const fn pass(name: &'static str, run: fn(&mut Editor<'_>) -> usize) -> Pass {
    Pass { name, former_name: None, run }
}

const fn renamed(
    name: &'static str,
    former_name: &'static str,
    run: fn(&mut Editor<'_>) -> usize,
) -> Pass {
    Pass { name, former_name: Some(former_name), run }
}

/// Maximum number of rounds. The result is valid in any case, only larger.
const MAX_ROUNDS: usize = 8;

/// Runs all passes except those in `skipped`. The result computes in `fp16` except for the operations selected by
/// `fp16`, or entirely in `fp32` if it is `None`.
pub fn optimize(
    mut draft: AnalyzedFunction,
    fp16: Option<&KeepFp32>,
    skipped: &[&str],
) -> Result<Function, Error> {
    simplify(&mut draft, skipped);
    finish(draft, fp16, skipped)
}

/// Runs [`PASSES`] except those in `skipped`.
pub fn simplify(draft: &mut AnalyzedFunction, skipped: &[&str]) {
    let mut editor = Editor::new(draft);
    editor.sweep_all();
    for _ in 0..MAX_ROUNDS {
        let passes = PASSES.iter().filter(|pass| !skipped.iter().any(|name| pass.is_named(name)));
        let run = |pass: &Pass| {
            coremill_io::cancel::point();
            (pass.run)(&mut editor)
        };
        if passes.map(run).sum::<usize>() == 0 {
            break;
        }
    }
    editor.sweep_all();
}

/// Applies the precision to a simplified function, and converts it to the form that Core ML loads.
pub fn finish(
    mut draft: AnalyzedFunction,
    fp16: Option<&KeepFp32>,
    skipped: &[&str],
) -> Result<Function, Error> {
    if let Some(keep) = fp16 {
        // After the patterns, because casts around fp32 operations would break them up. The patterns also affect
        // which operations stay in fp32: a norm is now a single operation without squares that exceed the range of
        // fp16.
        draft = to_fp16(&draft, keep)?;
        // Adjacent casts cancel, and constants may have become equal.
        simplify(&mut draft, skipped);
    }
    // After all passes that match literals.
    materialize_literals(&mut draft);
    // Last: a pass may remove the only use of an input, or the operation that this adds.
    keep_unused_inputs(&mut draft.function);
    Ok(draft.function)
}

/// Checks that passes with these names exist.
pub fn check_pass_names(names: &[String]) -> Result<(), UnknownName> {
    let exists = |name: &String| PASSES.iter().any(|pass| pass.is_named(name));
    let Some(name) = names.iter().find(|name| !exists(name)) else { return Ok(()) };
    let names: Vec<_> = PASSES.iter().map(|pass| pass.name).collect();
    let message = unknown_among("pass", name, names.iter().copied());
    Err(UnknownName { message, hint: format!("the passes are {}", names.join(", ")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_former_pass_names_and_rejects_unknown() {
        let check = |name: &str| check_pass_names(&[name.to_owned()]);
        assert!(check("noop_elimination").is_ok() && check("cancel").is_ok());
        let message = check("noop_eliminatoin").expect_err("an unknown pass").message;
        assert!(message.contains("did you mean `noop_elimination`"), "{message}");
        let mut names: Vec<_> =
            PASSES.iter().flat_map(|pass| [Some(pass.name), pass.former_name]).flatten().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "pass names are not unique");
    }
}
