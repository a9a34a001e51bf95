//! Linear quantization of weights: integers, and a scale and a zero point for each block of them.
//!
//! ```text
//! w = const(val = …);                          w_quantized = constexpr_blockwise_shift_scale(data = …, scale = …);
//! y = linear(x = x, weight = w);    becomes    y = linear(x = x, weight = w_quantized);
//! ```
//!
//! Before iOS 18 it is `constexpr_affine_dequantize`, which has one scale or one for each channel. Which weights are
//! taken and how numbers are rounded is as in coremltools, so that the same model becomes the same integers.

use super::encode::{build, insert};
use super::error::{Error, Refusal};
pub use super::form::linear::{
    Config, DEFAULT_BLOCK_SIZE, DEFAULT_THRESHOLD, Granularity, Integer, Mode,
};
use super::form::{CompressionConfig, Values};
use super::weight::{Candidate, candidate};
use coremill_passes::{AnalyzedFunction, Editor};

/// What became of the weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// How many were quantized.
    pub quantized: usize,
    /// Those that stay as they are, each with the reason.
    pub kept: Vec<(String, &'static str)>,
}

/// Quantizes the weights of a function.
///
/// Taken are float constants of two dimensions and more. Tables that only `gather` uses stay, since embeddings lose
/// more by it than they save; one that is another operation's weight, too, is taken.
pub fn quantize(draft: &mut AnalyzedFunction, config: &Config) -> Result<Outcome, Error> {
    let mut editor = Editor::new(draft);
    let (needed, opset) = (config.needs(), editor.opset());
    if opset < needed {
        let message =
            format!("quantized weights of this kind need {needed}; the program is for {opset}");
        return Err(Error::option(message)
            .with_hint("ask for a newer release, or for 8 bits and no blocks"));
    }
    let form = CompressionConfig {
        values: Values::Linear(config.clone()),
        ..CompressionConfig::default()
    };
    let mut outcome = Outcome::default();
    for id in editor.ops() {
        let weight = match candidate(&editor, id) {
            None => continue,
            Some(Candidate::Kept(name, reason)) => {
                outcome.kept.push((name, reason));
                continue;
            }
            Some(Candidate::Weight(weight)) => weight,
        };
        let built = if weight.count() as u64 <= config.weight_threshold {
            Err(Refusal::Kept("it has no more elements than `weight_threshold`"))
        } else if weight.is_table() {
            Err(Refusal::Kept("it is a table that rows are looked up in"))
        } else {
            build(&weight, &form, opset)
        };
        match built {
            Ok(built) => {
                insert(&mut editor, &weight, built)?;
                outcome.quantized += 1;
            }
            Err(refusal) => {
                let reason = refusal.reason(&weight.name)?;
                outcome.kept.push((weight.name, reason));
            }
        }
    }
    Ok(outcome)
}
