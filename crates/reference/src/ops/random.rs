//! Reference kernels of random operations.
//!
//! Element `i` is a function of the seed and `i` alone: SplitMix64's finalizer over a counter. The
//! same seed therefore produces the same elements on every machine and for any number of threads.
//! Devices use other generators, so only the distributions agree.

use coremill_tensor::SplitMix64;

use crate::call::{Call, Results};
use crate::error::{Result, fail};

pub(super) fn random_bernoulli(call: &Call) -> Results {
    let (shape, count) = stated_shape(call)?;
    let (generator, chance) = (Generator::of(call)?, f64::from(call.float("prob")?));
    let ones = (0..count).map(|at| if generator.unit(at) < chance { 1.0 } else { 0.0 });
    call.give_floats(shape, ones.collect())
}

/// Draws indices with replacement. The probability of an index is its share of the row's weights.
pub(super) fn random_categorical(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let logits = match call.text("mode")? {
        "logits" => true,
        "probs" => false,
        mode => fail!("`mode` must be `logits` or `probs`, got `{mode}`"),
    };
    let size = call.int("size")?;
    let Ok(size) = usize::try_from(size) else {
        fail!("`size` must be at least 0, got {size}");
    };
    let Some((&classes, outer)) = x.shape.split_last() else {
        fail!("`x` must have a rank of at least 1, got a scalar");
    };
    let mut shape = outer.to_vec();
    shape.push(size);
    let count = call.count(&shape)?;
    if classes == 0 && count > 0 {
        fail!("`x` has no classes to draw from: its shape is {:?}", x.shape);
    }
    let generator = Generator::of(call)?;
    let mut drawn = Vec::with_capacity(count);
    let mut sums = Vec::with_capacity(classes);
    for (row, weights) in x.floats()?.chunks(classes.max(1)).enumerate() {
        let largest = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        sums.clear();
        for &weight in weights {
            let weight = match logits {
                // Infinite weights are equally likely.
                true if largest.is_infinite() => f64::from(u8::from(weight == largest)),
                true => f64::from(weight - largest).exp(),
                false => f64::from(weight),
            };
            // Invalid probabilities count as 0.
            sum += if weight > 0.0 { weight } else { 0.0 };
            sums.push(sum);
        }
        for sample in 0..size {
            let point = generator.unit((row * size + sample) as u64) * sum;
            let index = sums.partition_point(|&sum| sum <= point).min(classes - 1);
            drawn.push(index as f32);
        }
    }
    call.give_floats(shape, drawn)
}

pub(super) fn random_normal(call: &Call) -> Results {
    let (shape, count) = stated_shape(call)?;
    let generator = Generator::of(call)?;
    let (mean, deviation) = (f64::from(call.float("mean")?), f64::from(call.float("stddev")?));
    // Box–Muller transform of two uniform numbers. The argument of the logarithm must not be 0.
    let normal = |at: u64| {
        let radius = (-2.0 * (1.0 - generator.unit(2 * at)).ln()).sqrt();
        radius * (std::f64::consts::TAU * generator.unit(2 * at + 1)).cos()
    };
    call.give_floats(shape, (0..count).map(|at| (mean + deviation * normal(at)) as f32).collect())
}

pub(super) fn random_uniform(call: &Call) -> Results {
    let (shape, count) = stated_shape(call)?;
    let generator = Generator::of(call)?;
    let (low, high) = (call.float("low")?, call.float("high")?);
    let span = f64::from(high) - f64::from(low);
    let uniform = |at: u64| {
        let value = (f64::from(low) + span * generator.unit(at)) as f32;
        // `high` itself is excluded, but rounding may reach it.
        if value >= high && low < high { high.next_down() } else { value }
    };
    call.give_floats(shape, (0..count).map(uniform).collect())
}

/// The shape from the `shape` parameter, and its number of elements.
fn stated_shape(call: &Call) -> Result<(Vec<usize>, u64)> {
    let extents = call.ints("shape", 0)?;
    let shape: Vec<usize> = extents.iter().map_while(|&extent| extent.try_into().ok()).collect();
    if shape.len() != extents.len() {
        fail!("`shape` must hold sizes of at least 0, got {extents:?}");
    }
    let count = call.count(&shape)? as u64;
    Ok((shape, count))
}

/// A counter-based random number generator.
struct Generator {
    key: u64,
}

impl Generator {
    /// Uses the operation's seed, or the run's seed if it is -1.
    fn of(call: &Call) -> Result<Generator> {
        Ok(Generator::new(match call.int("seed")? {
            -1 => call.seed,
            stated => stated as u32 as u64,
        }))
    }

    fn new(seed: u64) -> Generator {
        // Mixing separates the sequences of consecutive seeds.
        Generator { key: SplitMix64::nth(seed, 0) }
    }

    /// A number in `[0, 1)`.
    fn unit(&self, at: u64) -> f64 {
        (SplitMix64::nth(self.key, at) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pearson's chi-squared statistic over 64 cells: its mean is 63, and it exceeds 103.4 with
    /// probability 0.001.
    #[test]
    fn random_values_and_pairs_are_uniform() {
        for seed in 0..8 {
            let generator = Generator::new(seed);
            let (mut cells, mut pairs) = ([0u32; 64], [0u32; 64]);
            for at in 0..64_000 {
                let (x, next) = (generator.unit(at), generator.unit(at + 1));
                assert!((0.0..1.0).contains(&x));
                cells[(x * 64.0) as usize] += 1;
                pairs[(x * 8.0) as usize * 8 + (next * 8.0) as usize] += 1;
            }
            for cells in [cells, pairs] {
                let statistic: f64 =
                    cells.iter().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
                assert!((20.0..120.0).contains(&statistic), "seed {seed}: {statistic}");
            }
        }
    }

    #[test]
    fn seeds_give_distinct_sequences() {
        let [left, right] = [0, 1].map(Generator::new);
        let equal = (0..1000).filter(|&at| (left.unit(at) - right.unit(at)).abs() < 1e-3).count();
        assert!(equal < 20, "{equal} of 1000 are near each other");
        assert!((0..1000).all(|at| left.unit(at + 1) != right.unit(at)));
    }
}
