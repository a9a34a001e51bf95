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

pub use coremill_mil::compress::linear::{Config, Granularity, Integer, Mode};
pub use coremill_mil::compress::{
    Algorithm, BITS, Budget, Channels, Compressed, Fate, Form, Importance, Options, Palette, Prune,
    Rule, Selector, Values,
};
use coremill_mil::model::Model;
pub use decompress::decompress;
pub use program::for_each_model;
pub use rules::{Bits, Pruning, RuleText, Several, read_rules};

#[cfg(feature = "compiler")]
pub use samples::importance;

use crate::error::Error;
#[cfg(feature = "compiler")]
pub use crate::samples::Pixels;
#[cfg(feature = "compiler")]
pub use crate::subject::Made;

/// Compresses the weights of a model, and tells what became of each. `watch` is told how many of how many are done.
///
/// Nothing is computed but tables and scales; weights are compressed when the model is saved.
pub fn compress(
    model: &mut Model,
    options: &Options,
    watch: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Compressed>, Error> {
    coremill_mil::compress::compress(model, options, watch).map_err(of_mil)
}

/// Refuses rules for some weights that decided on none: `decided` are the [`Compressed::rule`]s of all models.
pub fn check_rules(
    options: &Options,
    decided: impl IntoIterator<Item = Option<usize>>,
) -> Result<(), Error> {
    let mut idle: Vec<bool> =
        options.rules.iter().map(|rule| rule.selector != Selector::default()).collect();
    for rule in decided.into_iter().flatten() {
        if let Some(idle) = idle.get_mut(rule) {
            *idle = false;
        }
    }
    let Some(at) = idle.iter().position(|idle| *idle) else { return Ok(()) };
    let message = format!("rule {} selects no weight that those before it leave", at + 1);
    Err(Error::new(message).hint(
        "look at the names of the weights; without `min_elements` a rule is for those of more than 2048 elements",
    ))
}

fn of_mil(error: coremill_mil::compress::linear::Error) -> Error {
    let wrapped = Error::new(error.message);
    match error.hint {
        Some(hint) => wrapped.hint(hint),
        None => wrapped,
    }
}
