//! Importance of weights, measured with samples.

use std::collections::HashMap;
use std::path::PathBuf;

use coremill_compress::{Importance, WeightInput, feeds};
use coremill_engine::{Array, Numerics};
use coremill_inspect::executorch;
use coremill_mil::model::Model;

use crate::error::Error;
use crate::samples::{self, Pixels};
use crate::trial::{Artifact, Machine};

/// Runs a model or program on samples: `.npz` files, and folders of `.npz` files or images. Returns
/// the mean square of the values that multiply each input channel of each weight:
/// [`Options::importance`](super::Options::importance).
pub fn importance(made: Artifact, paths: &[PathBuf], pixels: &Pixels) -> Result<Importance, Error> {
    pixels.check()?;
    let mut found = Vec::new();
    let mut add = |model: &Model| -> Result<(), Error> {
        for function in &model.program.functions {
            found.extend(feeds(function)?);
        }
        Ok(())
    };
    match &made {
        Artifact::Model(model) => add(model)?,
        Artifact::Program(program) => {
            for delegated in executorch::models(program)? {
                add(&delegated.read()?)?;
            }
        }
    }
    let machine = Machine::new(made, Numerics::Fast)?;
    let ports = machine.ports()?;
    let check = |sample: &samples::Sample| machine.check(sample);
    let samples = samples::read(paths, &ports, pixels, &check)?;
    let mut by_value: HashMap<&str, Vec<&WeightInput>> = HashMap::new();
    for feed in &found {
        by_value.entry(&feed.value).or_default().push(feed);
    }
    let mut sums: HashMap<&str, (Vec<f64>, usize)> = HashMap::new();
    for (index, sample) in samples.iter().enumerate() {
        let mut bad = None;
        let mut look = |name: &str, array: &Array| {
            for &feed in by_value.get(name).into_iter().flatten() {
                let new = || (vec![0.0; feed.channels], 0);
                if !see(feed, array, sums.entry(&feed.weight).or_insert_with(new)) {
                    bad.get_or_insert_with(|| name.to_owned());
                }
            }
        };
        sample.iter().for_each(|(name, array)| look(name, array));
        machine.run(sample, &mut look)?;
        if let Some(name) = bad {
            let message = format!("sample {index} makes `{name}` NaN or infinite");
            return Err(Error::new(message).with_hint("check the sample, or leave it out"));
        }
    }
    let mean = |(name, (sums, count)): (&str, (Vec<f64>, usize))| {
        let mean = |sum: f64| (sum / count.max(1) as f64) as f32;
        (name.to_owned(), sums.into_iter().map(mean).collect())
    };
    Ok(sums.into_iter().map(mean).collect())
}

/// Adds the squares of a value's channels. Returns false if one is not finite.
fn see(feed: &WeightInput, array: &Array, (sums, count): &mut (Vec<f64>, usize)) -> bool {
    let Some(elements) = array.as_floats() else { return true };
    let shape = array.shape();
    let Some(axis) = shape.len().checked_sub(1 + feed.axis_from_end) else { return true };
    let inner: usize = shape[axis + 1..].iter().product();
    if inner == 0 || !shape[axis].is_multiple_of(feed.channels) {
        return true;
    }
    let mut finite = true;
    for (at, run) in elements.chunks(inner).enumerate() {
        let sum: f64 = run.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        finite &= sum.is_finite();
        sums[at % shape[axis] % feed.channels] += sum;
    }
    *count += elements.len() / feed.channels;
    finite
}

#[cfg(test)]
mod tests {
    use coremill_tensor::DType;

    use super::*;

    #[test]
    fn sums_squares_per_channel_along_any_axis() {
        let array = Array::floats(DType::Fp32, [2, 4, 2], (0..16).map(|x| x as f32).collect());
        let feed = |channels, axis_from_end| WeightInput {
            weight: "w".to_owned(),
            channels,
            value: "x".to_owned(),
            axis_from_end,
        };
        let found = |feed: &WeightInput| {
            let mut sums = (vec![0.0; feed.channels], 0);
            assert!(see(feed, &array, &mut sums));
            sums
        };
        let squares = |of: &[i32]| of.iter().map(|x| f64::from(x * x)).sum::<f64>();
        let even = squares(&[0, 2, 4, 6, 8, 10, 12, 14]);
        let odd = squares(&[1, 3, 5, 7, 9, 11, 13, 15]);
        assert_eq!(found(&feed(2, 0)), (vec![even, odd], 8));
        // Two groups with two channels each.
        let first = squares(&[0, 1, 4, 5, 8, 9, 12, 13]);
        let second = squares(&[2, 3, 6, 7, 10, 11, 14, 15]);
        assert_eq!(found(&feed(2, 1)), (vec![first, second], 8));
    }
}
