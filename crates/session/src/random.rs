//! Random inputs, the same for the same seed on every machine.

use coremill_engine::Array;
use coremill_tensor::{DType, SplitMix64};

use crate::FeatureSpec;
use crate::error::{Result, fail};

/// The largest number of elements of a random input. A description may allow any size.
const MAX_ELEMENTS: usize = 1 << 30;

/// A random array for an input: floats in −1 to 1, indices within the vocabulary, other integers 0 or 1. The sequence
/// depends on the seed and the input's name alone.
///
/// `vocabulary` is the number of rows of the table that the integers are indices of.
pub fn random(
    spec: &FeatureSpec,
    shape: Vec<usize>,
    seed: u64,
    vocabulary: Option<u64>,
) -> Result<Array> {
    let name = &spec.name;
    let Some(ty) = spec.ty.as_tensor().filter(|ty| ty.dtype != DType::String) else {
        fail!(Input, "input `{name}` is a `{}`; random inputs are numbers", spec.ty)
    };
    let count = shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size));
    let Some(count) = count.filter(|&count| count <= MAX_ELEMENTS) else {
        fail!(Input, "a random input has up to {MAX_ELEMENTS} elements; input `{name}` has more")
    };
    let seed = name.bytes().fold(seed, |seed, byte| SplitMix64::nth(seed ^ u64::from(byte), 0));
    let mut random = SplitMix64::new(seed);
    if ty.dtype.is_float() {
        // 24 bits, so that every one is an fp32 number.
        let unit = |bits: u64| (bits >> 40) as f32 / (1 << 23) as f32 - 1.0;
        let floats = (0..count).map(|_| unit(random.next_u64())).collect();
        return Ok(Array::floats(DType::Fp32, shape, floats));
    }
    // Indices of whatever is looked up, and masks: 0 and 1 are good for both.
    let dtype = if ty.dtype == DType::Bool { DType::Bool } else { DType::Int32 };
    let values = vocabulary.unwrap_or(2).clamp(1, i32::MAX as u64);
    // The upper half of a product is below the number that a fraction was multiplied by.
    let below = |bits: u64| ((u128::from(bits) * u128::from(values)) >> 64) as i32;
    Ok(Array::ints(dtype, shape, (0..count).map(|_| below(random.next_u64())).collect()))
}

#[cfg(test)]
mod tests {
    use coremill_mil::ir::Type;

    use super::*;

    fn spec(name: &str, dtype: DType) -> FeatureSpec {
        FeatureSpec { name: name.to_owned(), ty: Type::tensor(dtype, &[1000]), description: None }
    }

    #[test]
    fn seeds_and_names_tell_sequences_apart() {
        let draw = |name: &str, seed| random(&spec(name, DType::Fp16), vec![1000], seed, None);
        let x = draw("x", 1).expect("floats");
        assert_eq!(draw("x", 1).expect("floats"), x);
        assert_ne!(draw("x", 2).expect("floats"), x);
        assert_ne!(draw("y", 1).expect("floats"), x);
        let floats = x.as_floats().expect("floats");
        assert!(floats.iter().all(|x| (-1.0..1.0).contains(x)));
        let mean = floats.iter().sum::<f32>() / 1000.0;
        assert!(mean.abs() < 0.1, "{mean}");
        let ids = random(&spec("ids", DType::Int32), vec![1000], 1, None).expect("integers");
        let ones = ids.as_ints().expect("integers").iter().sum::<i32>();
        assert!((400..600).contains(&ones), "{ones}");
        let ids = random(&spec("ids", DType::Int32), vec![1000], 1, Some(50)).expect("integers");
        let ids = ids.as_ints().expect("integers");
        assert_eq!((ids.iter().min(), ids.iter().max()), (Some(&0), Some(&49)));
    }
}
