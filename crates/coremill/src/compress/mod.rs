//! Weights of finished models made smaller: integers, palettes, pruning, joint forms, and back to floats.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let package = directory.path().join("small.mlpackage");
//! # let row = |row: usize| format!("{:?}", [0; 64].map(|_: i32| (row % 61) as f32 / 64.0));
//! # let weights: Vec<String> = (0..64).map(row).collect();
//! # let source = format!(
//! #     "program(1.3) {{
//! #         func main<ios16>(tensor<fp32, [1, 64]> x) {{
//! #             tensor<fp32, [64, 64]> w = const()[val = tensor<fp32, [64, 64]>([{}])];
//! #             tensor<fp32, [1, 64]> y = linear(x = x, weight = w);
//! #         }} -> (y);
//! #     }}",
//! #     weights.join(", ")
//! # );
//! # let path = directory.path().join("small.mil");
//! # std::fs::write(&path, source)?;
//! # let mut model = coremill::open(&path)?;
//! use coremill::compress::{Options, RuleText};
//!
//! let palette = RuleText { palettize: Some(4.into()), ..RuleText::default() };
//! let options = Options { rules: vec![palette.to_rule()?], ..Options::default() };
//! let report = coremill::compress::compress(&mut model, &options, &|_, _| {})?;
//! assert_eq!(report.len(), 1);
//!
//! let verified = coremill::verify(&model)?;
//! coremill::save(&package, &verified, &coremill::SaveOptions::default())?;
//! # Ok(())
//! # }
//! ```

mod decompress;
mod program;
mod rules;
#[cfg(feature = "compiler")]
mod samples;

use coremill_mil::model::Model;
pub use coremill_optimize::linear::{Config, Granularity, Integer, Mode};
pub use coremill_optimize::{
    Algorithm, BITS, Budget, Channels, CompressedWeight, CompressionConfig, CompressionOutcome,
    Importance, Options, Palette, Prune, Rule, SMALL, Selector, Values,
};
pub use decompress::decompress;
pub use program::for_each_model;
pub use rules::{Bits, Pruning, RuleText, Several, read_rules};

#[cfg(feature = "compiler")]
pub use samples::importance;

use crate::error::Error;
#[cfg(feature = "compiler")]
pub use crate::samples::Pixels;
#[cfg(feature = "compiler")]
pub use crate::subject::Artifact;

/// Compresses the weights of a model, and tells what became of each. `watch` is told how many of how many are done.
///
/// Nothing is computed but tables and scales; weights are compressed when the model is saved.
pub fn compress(
    model: &mut Model,
    options: &Options,
    watch: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<CompressedWeight>, Error> {
    coremill_optimize::compress(model, options, watch).map_err(of_mil)
}

/// Which rules for some weights decided on none, from 0 on: `decided` are the [`CompressedWeight::rule`]s of all models. Where a
/// budget decides, no rule does.
pub fn unused_rules(
    options: &Options,
    decided: impl IntoIterator<Item = Option<usize>>,
) -> Vec<usize> {
    let decided: Vec<usize> = decided.into_iter().flatten().collect();
    let selects = |at: &usize| options.rules[*at].selector != Selector::default();
    let rules = (0..options.rules.len()).filter(|_| options.budget.is_none());
    rules.filter(selects).filter(|at| !decided.contains(at)).collect()
}

fn of_mil(error: coremill_optimize::Error) -> Error {
    let hint = error.hint().map(str::to_owned);
    Error::new(error.to_string()).with_hint_of(hint).with_source(error)
}
