//! Values that a model computes times a power of two.
//!
//! `--precision auto` moves powers of two from operation to operation. The metadata of the model says which values they
//! are in, as a comparison with another model would find nothing but drift there.

use std::collections::HashMap;

use coremill_engine::Array;
use coremill_mil::model::Model;
use coremill_passes::without_precision;

/// The key of the metadata that says which values are computed times a power of two, as JSON: an object of exponents by
/// the names of values.
pub const SCALES_KEY: &str = "coremill.scales";

/// Exponents beyond these are of no number that a float holds.
const MOST: i32 = 126;

/// The exponents of a model's values, by their names without the endings of precisions. Metadata that says something else
/// says nothing.
pub(super) fn scales(model: &Model) -> HashMap<String, i32> {
    let metadata = model.description.metadata.as_ref();
    let told = metadata.and_then(|metadata| metadata.user_defined(SCALES_KEY));
    let told: Option<HashMap<String, i32>> = told.and_then(|told| serde_json::from_str(told).ok());
    let sound = told.into_iter().flatten().filter(|(_, exponent)| exponent.abs() <= MOST);
    sound.map(|(name, exponent)| (without_precision(&name).to_owned(), exponent)).collect()
}

/// A value without its power of two.
pub(super) fn unscaled(array: &Array, exponent: i32) -> Array {
    let mut unscaled = array.clone();
    if let Some(elements) = unscaled.floats_mut() {
        let factor = (-exponent as f32).exp2();
        elements.iter_mut().for_each(|element| *element *= factor);
    }
    unscaled
}
