//! Values that a model scales by a power of two.
//!
//! `--precision auto` moves powers of two between operations. The model's metadata lists the scaled
//! values, because a comparison with another model would otherwise report them as drift.

use std::collections::HashMap;

use coremill_engine::Array;
use coremill_mil::model::Model;
use coremill_passes::without_precision;

/// Metadata key of the scaled values: a JSON object that maps names of values to exponents.
pub const SCALES_KEY: &str = "coremill.scales";

/// Largest valid exponent. Powers beyond it are not normal `f32` numbers.
const MOST: i32 = 126;

/// The exponents of a model's scaled values, by name without precision suffix. Empty if the
/// metadata is missing or malformed.
pub(super) fn scales(model: &Model) -> HashMap<String, i32> {
    let metadata = model.description.metadata.as_ref();
    let told = metadata.and_then(|metadata| metadata.user_defined(SCALES_KEY));
    let told: Option<HashMap<String, i32>> = told.and_then(|told| serde_json::from_str(told).ok());
    let sound = told.into_iter().flatten().filter(|(_, exponent)| exponent.abs() <= MOST);
    sound.map(|(name, exponent)| (without_precision(&name).to_owned(), exponent)).collect()
}

/// Divides a value by its power of two.
pub(super) fn unscaled(array: &Array, exponent: i32) -> Array {
    let mut unscaled = array.clone();
    if let Some(elements) = unscaled.floats_mut() {
        let factor = (-exponent as f32).exp2();
        elements.iter_mut().for_each(|element| *element *= factor);
    }
    unscaled
}
