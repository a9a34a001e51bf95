use coremill_engine::{Array, Elements};
use serde::Serialize;

use crate::error::Error;

/// Larger numbers count as infinite, as in attention masks.
const INFINITE: f64 = 1e30;
/// Minimum magnitude in `fp16` of an infinite number to which something was added.
const INFINITE_IN_HALF: f64 = 32768.0;

/// The error of an array compared with a reference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ErrorMetrics {
    /// Number of elements.
    pub elements: usize,
    /// Whether the elements are integers or bools.
    pub integers: bool,
    /// Number of elements that differ.
    pub differing: usize,
    /// Number of elements that are NaN or infinite in only one array.
    pub unlike: usize,
    /// Number of NaN elements in the reference and in the other array.
    pub nan: [usize; 2],
    /// Number of infinite elements in the reference and in the other array.
    pub infinite: [usize; 2],
    /// Maximum absolute error. This and the following fields cover elements that are finite in both
    /// arrays.
    pub max_absolute: f64,
    /// Mean absolute error.
    pub mean_absolute: f64,
    /// Maximum absolute error, relative to the reference's largest element.
    pub max_relative: f64,
    /// Cosine similarity, `None` if an array is all zeros.
    pub cosine: Option<f64>,
    /// SNR in decibels, `None` if nothing differs. [`ErrorMetrics::snr`] also covers elements that
    /// are not finite.
    pub snr_db: Option<f64>,
    /// Sums of squares of the reference and of the error. They allow to compute the SNR of several
    /// arrays together.
    #[serde(skip)]
    pub powers: [f64; 2],
}

impl ErrorMetrics {
    /// SNR in decibels: infinite if nothing differs, −∞ if an element is NaN or infinite in only
    /// one array.
    pub fn snr(&self) -> f64 {
        if self.unlike > 0 { f64::NEG_INFINITY } else { self.snr_db.unwrap_or(f64::INFINITY) }
    }

    /// Returns true if the error is within a bound: relative to the largest element for floats, the
    /// share of differing elements for integers.
    pub fn is_within(&self, bound: f64) -> bool {
        let distance = if self.integers {
            self.differing as f64 / self.elements.max(1) as f64
        } else {
            self.max_relative
        };
        self.unlike == 0 && distance <= bound
    }
}

/// The error of `other` compared with doubles. Fails if the elements are not comparable.
pub fn figures_of_doubles(
    shape: &[usize],
    reference: &[f64],
    other: &Array,
) -> Result<ErrorMetrics, Error> {
    fit(shape, other.shape())?;
    match other.elements() {
        Elements::Floats(y) => Ok(measure(false, pairs(reference, y, f64::from, f64::from))),
        Elements::Ints(y) => Ok(measure(false, pairs(reference, y, f64::from, f64::from))),
        Elements::Texts(_) => Err(Error::new("strings cannot be compared as numbers")),
    }
}

/// Checks that shapes are comparable. Torch's scalars have no dimension, Core ML's one.
fn fit(reference: &[usize], other: &[usize]) -> Result<(), Error> {
    let scalars = [reference, other].iter().all(|shape| matches!(shape, [] | [1]));
    match reference == other || scalars {
        true => Ok(()),
        false => Err(Error::new(format!("shapes {reference:?} and {other:?} differ"))),
    }
}

/// The error of `other` compared with `reference`. Fails if the elements are not comparable.
pub fn figures(reference: &Array, other: &Array) -> Result<ErrorMetrics, Error> {
    fit(reference.shape(), other.shape())?;
    let integers = reference.as_ints().is_some() && other.as_ints().is_some();
    match (reference.elements(), other.elements()) {
        (Elements::Floats(x), Elements::Floats(y)) => {
            Ok(measure(integers, pairs(x, y, f64::from, f64::from)))
        }
        (Elements::Ints(x), Elements::Ints(y)) => {
            Ok(measure(integers, pairs(x, y, f64::from, f64::from)))
        }
        (Elements::Floats(x), Elements::Ints(y)) => {
            Ok(measure(integers, pairs(x, y, f64::from, f64::from)))
        }
        (Elements::Ints(x), Elements::Floats(y)) => {
            Ok(measure(integers, pairs(x, y, f64::from, f64::from)))
        }
        _ => Err(Error::new("strings cannot be compared as numbers")),
    }
}

fn pairs<X: Copy, Y: Copy>(
    x: &[X],
    y: &[Y],
    x_number: impl Fn(X) -> f64,
    y_number: impl Fn(Y) -> f64,
) -> impl Iterator<Item = (f64, f64)> {
    x.iter().zip(y).map(move |(&x, &y)| (x_number(x), y_number(y)))
}

/// Returns true if both numbers are mask values: −3.4e38 and −65504 are equivalent. Excludes a
/// finite reference that became infinite, and doubles beyond the range of `f32` other than the
/// largest.
fn is_mask(x: f64, y: f64) -> bool {
    let meant = |mask: f64| {
        let is_held = mask.abs() <= f64::from(f32::MAX) || mask.abs() == f64::MAX;
        mask.abs() >= INFINITE && (is_held || mask.is_infinite())
    };
    let masks = |mask: f64, other: f64| meant(mask) && other.abs() >= INFINITE_IN_HALF;
    let alike = masks(x, y) || (y.is_finite() && masks(y, x));
    alike && x.is_sign_negative() == y.is_sign_negative()
}

fn measure(integers: bool, pairs: impl Iterator<Item = (f64, f64)>) -> ErrorMetrics {
    let (mut elements, mut differing, mut unlike, mut finite) = (0, 0, 0, 0usize);
    let (mut nan, mut infinite) = ([0; 2], [0; 2]);
    let (mut largest, mut max_absolute, mut sum_absolute) = (0f64, 0f64, 0f64);
    let (mut signal, mut power, mut product, mut noise) = (0f64, 0f64, 0f64, 0f64);
    for (x, y) in pairs {
        elements += 1;
        for (index, value) in [x, y].into_iter().enumerate() {
            nan[index] += usize::from(value.is_nan());
            infinite[index] += usize::from(value.is_infinite());
        }
        let is_mask = is_mask(x, y);
        if is_mask || !x.is_finite() || !y.is_finite() {
            let same = is_mask || x == y || (x.is_nan() && y.is_nan());
            unlike += usize::from(!same);
            differing += usize::from(!same);
            continue;
        }
        finite += 1;
        let distance = (x - y).abs();
        differing += usize::from(distance > 0.0);
        largest = largest.max(x.abs());
        max_absolute = max_absolute.max(distance);
        sum_absolute += distance;
        signal += x * x;
        power += y * y;
        product += x * y;
        noise += distance * distance;
    }
    let length = (signal * power).sqrt();
    ErrorMetrics {
        elements,
        integers,
        differing,
        unlike,
        nan,
        infinite,
        max_absolute,
        mean_absolute: sum_absolute / finite.max(1) as f64,
        // Any error relative to an all-zero reference exceeds every bound.
        max_relative: if max_absolute == 0.0 { 0.0 } else { max_absolute / largest },
        cosine: (length > 0.0).then(|| (product / length).clamp(-1.0, 1.0)),
        snr_db: (noise > 0.0).then(|| 10.0 * (signal / noise).log10()),
        powers: [signal, noise],
    }
}

#[cfg(test)]
mod tests {
    use coremill_tensor::DType;

    use super::*;

    fn floats(elements: &[f32]) -> Array {
        Array::floats(DType::Fp32, [elements.len()], elements.to_vec())
    }

    #[test]
    fn error_metrics_match_definition() {
        let found = figures(&floats(&[3.0, -4.0, 0.0]), &floats(&[3.0, -4.5, 0.25]))
            .expect("comparable arrays");
        assert_eq!((found.elements, found.differing, found.unlike), (3, 2, 0));
        assert_eq!((found.max_absolute, found.mean_absolute), (0.5, 0.25));
        assert_eq!(found.max_relative, 0.125);
        assert!((found.snr() - 10.0 * (25.0f64 / 0.3125).log10()).abs() < 1e-9);
        let cosine = 27.0 / (25.0f64 * (9.0 + 20.25 + 0.0625)).sqrt();
        assert!((found.cosine.expect("not zero") - cosine).abs() < 1e-12);
        assert!(found.is_within(0.125) && !found.is_within(0.12));
    }

    #[test]
    fn mismatched_non_finite_values_count_as_unlike() {
        let same = floats(&[f32::NAN, f32::INFINITY, 1.0]);
        let found = figures(&same, &same).expect("comparable arrays");
        assert_eq!((found.unlike, found.differing), (0, 0));
        assert_eq!((found.nan, found.infinite, found.snr()), ([1, 1], [1, 1], f64::INFINITY));
        let found = figures(&floats(&[1.0, 7e4]), &floats(&[1.0, f32::INFINITY]))
            .expect("comparable arrays");
        assert_eq!((found.unlike, found.infinite, found.snr()), (1, [0, 1], f64::NEG_INFINITY));
        assert!(!found.is_within(1.0));
    }

    #[test]
    fn mask_values_match_across_precisions() {
        let masked = floats(&[f32::MIN, f32::MIN, 1.0]);
        let found = figures(&masked, &floats(&[-65504.0, f32::NEG_INFINITY, 1.0]))
            .expect("comparable arrays");
        assert_eq!((found.differing, found.unlike, found.snr()), (0, 0, f64::INFINITY));
        let found =
            figures(&masked, &floats(&[65504.0, f32::NAN, 1.0])).expect("comparable arrays");
        assert_eq!((found.differing, found.unlike), (2, 1));
        assert!(!found.is_within(0.5));
    }

    #[test]
    fn fp64_overflow_is_not_treated_as_mask() {
        let found = floats(&[f32::INFINITY, -f32::INFINITY]);
        let figures =
            |reference| figures_of_doubles(&[2], reference, &found).expect("comparable arrays");
        assert_eq!(figures(&[1e300, -1e39]).unlike, 2);
        assert_eq!(figures(&[f64::MAX, f64::NEG_INFINITY]).unlike, 0);
    }

    #[test]
    fn compares_integers_zero_vectors_and_scalars() {
        let ints =
            |elements: &[i32]| Array::ints(DType::Int32, [elements.len()], elements.to_vec());
        let found = figures(&ints(&[1, 2, 3, 4]), &ints(&[1, 2, 3, 9])).expect("comparable arrays");
        assert!(found.is_within(0.25) && !found.is_within(0.2));
        let found =
            figures(&floats(&[0.0, 0.0]), &floats(&[0.0, 1e-9])).expect("comparable arrays");
        assert_eq!((found.cosine, found.max_relative), (None, f64::INFINITY));
        let scalar = Array::floats(DType::Fp32, [], vec![1.0]);
        assert!(figures(&scalar, &floats(&[1.0])).is_ok());
        assert!(figures(&floats(&[1.0, 2.0]), &floats(&[1.0])).is_err());
    }
}
