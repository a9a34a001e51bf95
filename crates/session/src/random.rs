//! Random inputs, reproducible by seed on every machine.

use coremill_engine::Array;
use coremill_tensor::{DType, SplitMix64};

use crate::FeatureSpec;
use crate::error::{Result, fail};

/// Maximum number of elements of a random input.
const MAX_ELEMENTS: usize = 1 << 30;

/// A random array for an input: floats from −1 to 1, indices within the vocabulary, other integers 0 or 1. The
/// sequence depends only on the seed and the input's name.
///
/// `vocabulary` is the number of rows of the table that the integers index.
pub fn random(
    spec: &FeatureSpec,
    shape: Vec<usize>,
    seed: u64,
    vocabulary: Option<u64>,
) -> Result<Array> {
    let name = &spec.name;
    let Some(ty) = spec.ty.as_tensor().filter(|ty| ty.dtype != DType::String) else {
        fail!(Input, "input `{name}` is a `{}`; random inputs must be numbers", spec.ty)
    };
    let count = shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size));
    let Some(count) = count.filter(|&count| count <= MAX_ELEMENTS) else {
        fail!(Input, "random inputs have at most {MAX_ELEMENTS} elements; input `{name}` has more")
    };
    let seed = name.bytes().fold(seed, |seed, byte| SplitMix64::nth(seed ^ u64::from(byte), 0));
    let mut random = SplitMix64::new(seed);
    if ty.dtype.is_float() {
        // 24 bits, so that each number is exact in fp32.
        let unit = |bits: u64| (bits >> 40) as f32 / (1 << 23) as f32 - 1.0;
        let floats = (0..count).map(|_| unit(random.next_u64())).collect();
        return Ok(Array::floats(DType::Fp32, shape, floats));
    }
    // 0 and 1 are valid for indices and masks.
    let dtype = if ty.dtype == DType::Bool { DType::Bool } else { DType::Int32 };
    let values = vocabulary.unwrap_or(2).clamp(1, i32::MAX as u64);
    // The upper half of the product scales a fraction to below `values`.
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
    fn random_inputs_depend_on_seed_and_name() {
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
