//! Reference kernels: random elements.
//!
//! Element `i` is a function of the seed and `i` alone (SplitMix64's finalizer over a counter), so that
//! the same seed gives the same elements on every machine and at any number of threads. Devices have
//! other generators: distributions agree with theirs, elements do not.

use coremill_tensor::SplitMix64;

use crate::call::{Call, Results};
use crate::error::{Result, fail};

pub(super) fn random_bernoulli(call: &Call) -> Results {
    let (shape, count) = stated_shape(call)?;
    let (generator, chance) = (Generator::of(call)?, f64::from(call.float("prob")?));
    let ones = (0..count).map(|at| if generator.unit(at) < chance { 1.0 } else { 0.0 });
    call.give_floats(shape, ones.collect())
}

/// Indices drawn with replacement, each with the probability that its weight has among all of its row.
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
                // Of infinite ones, all have the same chance.
                true if largest.is_infinite() => f64::from(u8::from(weight == largest)),
                true => f64::from(weight - largest).exp(),
                false => f64::from(weight),
            };
            // What is not a probability is never drawn.
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
    // Box and Muller's transform of two uniform numbers; the logarithm wants one that is not zero.
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

/// The shape that the elements of `shape` are, and how many elements it holds.
fn stated_shape(call: &Call) -> Result<(Vec<usize>, u64)> {
    let extents = call.ints("shape", 0)?;
    let shape: Vec<usize> = extents.iter().map_while(|&extent| extent.try_into().ok()).collect();
    if shape.len() != extents.len() {
        fail!("`shape` must hold sizes of at least 0, got {extents:?}");
    }
    let count = call.count(&shape)? as u64;
    Ok((shape, count))
}

/// A sequence of random numbers, any of which can be had at once.
struct Generator {
    key: u64,
}

impl Generator {
    /// The one with the seed that the operation states, or with one of the run's own.
    fn of(call: &Call) -> Result<Generator> {
        Ok(Generator::new(match call.int("seed")? {
            -1 => call.seed,
            stated => stated as u32 as u64,
        }))
    }

    fn new(seed: u64) -> Generator {
        // Neighbouring seeds would give the same numbers in turn if they were not mixed.
        Generator { key: SplitMix64::nth(seed, 0) }
    }

    /// A number from 0 up to, but not, 1.
    fn unit(&self, at: u64) -> f64 {
        (SplitMix64::nth(self.key, at) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pearson's statistic over 64 cells: its mean is 63, and it is above 103.4 once in a thousand times.
    #[test]
    fn numbers_are_uniform_and_so_are_their_neighbours() {
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
    fn seeds_have_sequences_of_their_own() {
        let [left, right] = [0, 1].map(Generator::new);
        let equal = (0..1000).filter(|&at| (left.unit(at) - right.unit(at)).abs() < 1e-3).count();
        assert!(equal < 20, "{equal} of 1000 are near each other");
        assert!((0..1000).all(|at| left.unit(at + 1) != right.unit(at)));
    }
}
