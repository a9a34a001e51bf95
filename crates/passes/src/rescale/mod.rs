//! Keeps values within the range of half precision by powers of two.
//!
//! ```text
//! y = conv(x = x, weight = w);      up to 1e6      y = conv(x = x, weight = w · 2⁻⁶);      up to 16,000
//! z = relu(x = y);                     becomes     z = relu(x = y);
//! a = linear(x = z, weight = v);    up to 10       a = linear(x = z, weight = v · 2⁶);     up to 10
//! ```
//!
//! Each value has an exponent `e` and is computed as `value · 2ᵉ`. Operations that are linear pass exponents on; those
//! with constant weights change them for nothing, as the weight takes the power of two; norms do so with their epsilon.
//! Other operations take values as they are (`e = 0`), and a `mul` stands before them where something else arrives.
//! Which values leave the range is measured: passes do not know numbers.

mod change;
mod expand;
mod role;
mod solve;

use std::collections::HashMap;

use super::{AnalyzedFunction, Editor, KeepFp32};
use coremill_mil::ir::ValueId;

/// How large the elements of a value are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Magnitude {
    /// The largest magnitude.
    pub max: f64,
    /// The root of the mean square of the elements that are not 0.
    pub rms: f64,
}

/// Values may become as large as 2 to this, half of what half precision holds, so that other inputs have room.
const MOST: i32 = 15;
/// Values that are typically smaller than 2 to this lose digits in half precision.
const LEAST: i32 = -17;
/// Values that are scaled up become typically as large as 2 to this, if their largest allow: so large that their squares are
/// far from the smallest epsilon of half precision.
const SOUND: i32 = -4;

impl Magnitude {
    /// Whether half precision cannot hold such values.
    pub fn is_too_large(&self) -> bool {
        self.max > f64::from(MOST).exp2()
    }

    /// Whether half precision has too few digits for such values.
    pub fn is_too_small(&self) -> bool {
        self.rms > 0.0 && self.rms < f64::from(LEAST).exp2()
    }

    fn is_out(&self) -> bool {
        self.is_too_large() || self.is_too_small()
    }
}

/// Values that are computed with the same power of two.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledGroup {
    /// Their names, in the order of the program.
    pub values: Vec<String>,
    /// The exponent of the power of two that they are multiplied by.
    pub exponent: i32,
    /// The largest magnitude among them without it.
    pub largest: f64,
    /// The smallest typical magnitude among them without it.
    pub smallest: f64,
    /// How many operations had to be added.
    pub added: usize,
    /// Operations that compute in `fp32` for it: what goes in or out is itself beyond half precision.
    pub in_fp32: Vec<String>,
}

/// What a pass did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RescaleOutcome {
    /// Values that have a power of two.
    pub scaled: Vec<ScaledGroup>,
    /// Results of norms that square nothing any more.
    pub norms: Vec<String>,
    /// The values that the program now computes times a power of two, by name, and its exponent.
    pub exponents: Vec<(String, i32)>,
}

/// Rescales what leaves the range of half precision. Magnitudes are those of values by name.
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

/// How large values are, by name; what is not known is sound.
struct Sizes<'m>(&'m HashMap<String, Magnitude>);

impl Sizes<'_> {
    fn of(&self, editor: &Editor<'_>, value: ValueId) -> Option<Magnitude> {
        self.0.get(editor.name(value)).copied()
    }

    fn are_out(&self, editor: &Editor<'_>, value: ValueId) -> bool {
        self.of(editor, value).is_some_and(|it| it.is_out())
    }
}
