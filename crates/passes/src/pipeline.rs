//! The one order of the passes.
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
    matmul, noop_elimination, norms, padding, slice_updates, slices, to_fp16, transposes,
};

/// The passes in the order in which they run, in rounds until none changes anything. A pass that does not depend on
/// others stands where it leaves the least to those that follow; the comments give the dependencies.
pub const PASSES: &[Pass] = &[
    // First: operations that change nothing would stand between those of the patterns below. Rounds lead back to it, so
    // that it merges the transposes and reshapes that other passes leave side by side.
    renamed("noop_elimination", "cancel", noop_elimination::noop_elimination),
    // Patterns compare values by their ids: `x - mean(x)` that is computed twice has to be one value for
    // `fuse_norms`.
    renamed(
        "common_subexpression_elimination",
        "merge_duplicates",
        common_subexpressions::common_subexpression_elimination,
    ),
    // A slice goes only if all its users are slices. Equal slices are one by now.
    pass("merge_slices", slices::merge_slices),
    // Products take transposes of matrices in, and those with constant matrices become `linear`, which `fuse_affine`
    // folds into. `fuse_attention` looks for the `transpose_y` that this pass sets.
    renamed("canonicalize_matmul", "shape_products", matmul::canonicalize_matmul),
    // After `canonicalize_matmul`: scales and shifts by constants go into the weights of its `linear`, too.
    renamed("fuse_affine", "fold_affine", affine::fuse_affine),
    // Both replace a pattern by one operation, which lets transposes pass more often than the pattern does: they stand
    // before `sink_transposes`.
    renamed("fuse_activations", "recognise_activations", activations::fuse_activations),
    renamed("fuse_norms", "recognise_norms", norms::fuse_norms),
    // Independent of the others; padding that was next to a transpose is taken in when a later round has moved that.
    renamed("fuse_padding", "fold_padding", padding::fuse_padding),
    // The transpose of a shuffle is part of its pattern, so it has to be found before transposes move.
    pass("interleave", interleave::interleave),
    // After all patterns that contain elementwise operations, which it would reorder.
    pass("sink_transposes", transposes::sink_transposes),
    // Transposes that could sink are gone; those left on both sides of an update are moved to the part that it writes.
    renamed(
        "canonicalize_slice_update",
        "simplify_updates",
        slice_updates::canonicalize_slice_update,
    ),
    // Before `fuse_attention`: it follows the rows of a product through scale, mask and softmax one by one, and
    // takes the repetition of keys out, so that attention is found in its grouped form.
    renamed(
        "fuse_grouped_query_attention",
        "group_queries",
        grouped_queries::fuse_grouped_query_attention,
    ),
    // Last: its pattern is the longest, and every pass above brings a part of it into the expected form.
    renamed("fuse_attention", "recognise_attention", attention::fuse_attention),
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

/// Maximum number of rounds. What the passes leave then is sound, only larger.
const MAX_ROUNDS: usize = 8;

/// Runs all passes, but for those that are skipped by name; in `fp16` except what `fp16` keeps in `fp32`, or all in
/// `fp32` if it is `None`.
pub fn optimize(
    mut draft: AnalyzedFunction,
    fp16: Option<&KeepFp32>,
    skipped: &[&str],
) -> Result<Function, Error> {
    simplify(&mut draft, skipped);
    finish(draft, fp16, skipped)
}

/// Runs [`PASSES`], but for those that are skipped by name.
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

/// Gives a simplified function its precision and the form in which Core ML loads it.
pub fn finish(
    mut draft: AnalyzedFunction,
    fp16: Option<&KeepFp32>,
    skipped: &[&str],
) -> Result<Function, Error> {
    if let Some(keep) = fp16 {
        // After the patterns, which the casts around operations in fp32 would break up, and which decide what is in
        // fp32: a norm is one operation by now, with no squares that leave the range of fp16.
        draft = to_fp16(&draft, keep)?;
        // Casts that meet cancel each other, and constants became equal.
        simplify(&mut draft, skipped);
    }
    // After all passes that look for literals.
    materialize_literals(&mut draft);
    // Last: the passes may take the only use of an input, and would take out the operation that this adds.
    keep_unused_inputs(&mut draft.function);
    Ok(draft.function)
}

/// Refuses names of passes that do not exist.
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
    fn former_names_of_passes_are_accepted_and_unknown_ones_are_not() {
        let check = |name: &str| check_pass_names(&[name.to_owned()]);
        assert!(check("noop_elimination").is_ok() && check("cancel").is_ok());
        let message = check("noop_eliminatoin").expect_err("unknown").message;
        assert!(message.contains("did you mean `noop_elimination`"), "{message}");
        let mut names: Vec<_> =
            PASSES.iter().flat_map(|pass| [Some(pass.name), pass.former_name]).flatten().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "each name means one pass");
    }
}
