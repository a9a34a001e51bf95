//! Linear quantization of weights: integers with a scale and a zero point per block.
//!
//! ```text
//! w = const(val = …);                          w_quantized = constexpr_blockwise_shift_scale(data = …, scale = …);
//! y = linear(x = x, weight = w);    becomes    y = linear(x = x, weight = w_quantized);
//! ```
//!
//! Before iOS 18 the operation is `constexpr_affine_dequantize`, with a single scale or one per
//! channel. The selection of weights and the rounding match coremltools, so that both produce the
//! same integers.

use super::encode::{build, insert, step};
use super::error::{Error, Refusal};
pub use super::form::linear::{
    Config, DEFAULT_BLOCK_SIZE, DEFAULT_THRESHOLD, Granularity, Integer, Mode,
};
use super::form::{CompressionConfig, Values};
use super::weight::{Candidate, candidate};
use coremill_mil::ir::Constant;
use coremill_passes::{AnalyzedFunction, Editor};
use coremill_tensor::DType;
use half::f16;

/// Scale and zero point of integers for numbers in a range, computed in a float type. `None` if the range is too
/// large for the type.
pub fn quantization_step(
    integer: Integer,
    mode: Mode,
    dtype: DType,
    min: f32,
    max: f32,
) -> Option<(f32, f32)> {
    let config = Config { mode, dtype: integer, ..Config::default() };
    let rounded = |number: f32| match dtype {
        DType::Fp16 => f16::from_f32(number).to_f32(),
        _ => number,
    };
    step(&config, dtype, rounded(min), rounded(max)).map(|step| (step.scale, step.zero_point))
}

/// A scalar in `fp16` if that is the type of the values to scale, else in `fp32`.
pub fn scale_constant(dtype: Option<DType>, scale: f32) -> Constant {
    match dtype {
        Some(DType::Fp16) => Constant::fp16(f16::from_f32(scale)),
        _ => Constant::fp32(scale),
    }
}

/// Result of quantization.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Number of quantized weights.
    pub quantized: usize,
    /// Weights that stay unquantized, with the reason.
    pub kept: Vec<(String, &'static str)>,
}

/// Quantizes the weights of a function.
///
/// Quantizes float constants with at least two dimensions. Tables used only by `gather` are
/// skipped, since embeddings lose more accuracy than they save space. A table that is also the
/// weight of another operation is quantized.
pub fn quantize(draft: &mut AnalyzedFunction, config: &Config) -> Result<Outcome, Error> {
    let mut editor = Editor::new(draft);
    let (needed, opset) = (config.needs(), editor.opset());
    if opset < needed {
        let message =
            format!("quantized weights of this kind need {needed}; the program targets {opset}");
        return Err(Error::option(message)
            .with_hint("target a newer release, or use 8 bits without blocks"));
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
            Err(Refusal::Kept("it is a lookup table that only `gather` uses"))
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
