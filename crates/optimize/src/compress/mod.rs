//! Compression of the weights of finished models: integers, palettes, pruning and combinations, and
//! decompression. Activations with ranges from samples.

mod activations;
mod decompress;
mod program;
mod rules;
mod samples;

pub use activations::{ActivationRule, quantize_activations};
pub use coremill_compress::linear::{Config, Granularity, Integer, Mode};
pub use coremill_compress::{
    Algorithm, BITS, Budget, Channels, CompressedWeight, CompressionConfig, CompressionOutcome,
    Importance, IndexedWeight, Options, Palette, Prune, Rule, SMALL, Selector, TrainedCompression,
    TrainedIntegers, TrainedParameter, TrainedTable, Values,
};
use coremill_mil::model::Model;
pub use decompress::{decompress, decompress_further};
pub use program::for_each_model;
pub use rules::{Bits, BlockSize, Pruning, RuleText, Several, read_rules};

pub use samples::importance;

use crate::error::Error;
pub use crate::samples::Pixels;
pub use crate::trial::Artifact;

/// Compresses the weights of a model and returns a description of each. `watch` is called with the
/// number of finished weights and the total.
///
/// Only tables and scales are computed here. The weights are compressed when the model is saved.
pub fn compress(
    model: &mut Model,
    options: &Options,
    watch: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<CompressedWeight>, Error> {
    Ok(coremill_compress::compress(model, options, watch)?)
}

/// Replaces weights of a model by indices and lookup tables that the caller computed.
pub fn replace_by_indices(model: &mut Model, weights: &[IndexedWeight]) -> Result<(), Error> {
    Ok(coremill_compress::replace_by_indices(model, weights)?)
}

/// Returns the indices of rules with a selector that applied to no weight. `decided` are the
/// [`CompressedWeight::rule`]s of all models. Empty if a budget is set, since rules do not apply
/// then.
pub fn unused_rules(
    options: &Options,
    decided: impl IntoIterator<Item = Option<usize>>,
) -> Vec<usize> {
    let decided: Vec<usize> = decided.into_iter().flatten().collect();
    let selects = |at: &usize| options.rules[*at].selector != Selector::default();
    let rules = (0..options.rules.len()).filter(|_| options.budget.is_none());
    rules.filter(selects).filter(|at| !decided.contains(at)).collect()
}
