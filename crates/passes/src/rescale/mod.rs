//! Keeps values within the range of fp16 by scaling with powers of two.
//!
//! ```text
//! y = conv(x = x, weight = w);      up to 1e6      y = conv(x = x, weight = w · 2⁻⁶);      up to 16,000
//! z = relu(x = y);                     becomes     z = relu(x = y);
//! a = linear(x = z, weight = v);    up to 10       a = linear(x = z, weight = v · 2⁶);     up to 10
//! ```
//!
//! Each value has an exponent `e` and is computed as `value · 2ᵉ`. Linear operations propagate exponents. Operations
//! with constant weights can change them at no cost, because the weight absorbs the power of two; norms absorb it in
//! their epsilon. Other operations need unscaled values (`e = 0`), which an inserted `mul` restores. Measurements
//! determine which values leave the range, as passes cannot.

mod change;
mod expand;
mod role;
mod solve;

use std::collections::HashMap;

use super::{AnalyzedFunction, Editor, KeepFp32};
use coremill_mil::ir::ValueId;

/// Magnitude of a value's elements.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Magnitude {
    /// The largest magnitude.
    pub max: f64,
    /// Root mean square of the nonzero elements.
    pub rms: f64,
}

/// Maximum exponent of a value: half the range of fp16, as a margin for other inputs.
const MOST: i32 = 15;
/// Exponent below which typical values lose digits in fp16.
const LEAST: i32 = -17;
/// Target exponent for typical values that are scaled up, if their maximum permits. Their squares are then far above
/// the smallest epsilon of fp16.
const SOUND: i32 = -4;

impl Magnitude {
    /// Whether the values exceed the range of fp16.
    pub fn is_too_large(&self) -> bool {
        self.max > f64::from(MOST).exp2()
    }

    /// Whether the values are too small for the precision of fp16.
    pub fn is_too_small(&self) -> bool {
        self.rms > 0.0 && self.rms < f64::from(LEAST).exp2()
    }

    fn is_out(&self) -> bool {
        self.is_too_large() || self.is_too_small()
    }
}

/// Values scaled by the same power of two.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledGroup {
    /// Names of the values, in program order.
    pub values: Vec<String>,
    /// Exponent of the scale.
    pub exponent: i32,
    /// Largest unscaled magnitude.
    pub largest: f64,
    /// Smallest typical unscaled magnitude.
    pub smallest: f64,
    /// Number of inserted operations.
    pub added: usize,
    /// Operations in `fp32` because an unscaled input or output exceeds fp16.
    pub in_fp32: Vec<String>,
}

/// Result of rescaling.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RescaleOutcome {
    /// Scaled values.
    pub scaled: Vec<ScaledGroup>,
    /// Results of norms that were decomposed to avoid squares.
    pub norms: Vec<String>,
    /// Names and exponents of the scaled values.
    pub exponents: Vec<(String, i32)>,
}

/// Rescales values that leave the range of fp16. `magnitudes` are measured magnitudes by value name.
pub fn rescale(
    draft: &mut AnalyzedFunction,
    magnitudes: &HashMap<String, Magnitude>,
    keep: &mut KeepFp32,
) -> RescaleOutcome {
    let mut editor = Editor::new(draft);
    let sizes = Sizes(magnitudes);
    let norms = expand::expand(&mut editor, &sizes);
    let solution = solve::solve(&editor, &sizes);
    let (scaled, exponents) = change::change(&mut editor, &sizes, &solution, keep);
    RescaleOutcome { scaled, norms, exponents }
}

/// Magnitudes by value name; unknown values are assumed to be in range.
struct Sizes<'m>(&'m HashMap<String, Magnitude>);

impl Sizes<'_> {
    fn of(&self, editor: &Editor<'_>, value: ValueId) -> Option<Magnitude> {
        self.0.get(editor.name(value)).copied()
    }

    fn are_out(&self, editor: &Editor<'_>, value: ValueId) -> bool {
        self.of(editor, value).is_some_and(|it| it.is_out())
    }
}
