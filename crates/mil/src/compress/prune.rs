//! Weights that become 0, and which ones.

use std::io;

use coremill_tensor::DType;

use super::source::Source;
use super::weight::Weight;

/// Which elements of a weight become 0.
#[derive(Clone, Debug, PartialEq)]
pub enum Prune {
    /// This share of them, those of the least magnitude.
    Magnitude(f64),
    /// Of so many input channels that follow one another, so many: those of the least magnitude.
    Ratio {
        /// How many become 0.
        zeros: usize,
        /// Of how many.
        of: usize,
    },
    /// Those whose magnitude is at most this, if they are at least half of all.
    Threshold(f64),
}

/// A weight of which less becomes 0 by a threshold is not worth a mask, as coremltools has it.
const LEAST_SHARE: f64 = 0.5;

/// Which elements become 0, decided by their neighbours at most.
#[derive(Clone, Debug)]
pub(super) enum Pruned {
    /// All that are not above a magnitude.
    Below(f32),
    /// So many of each `of` that are `stride` elements apart, in rows of a length.
    Ratio { zeros: usize, of: usize, stride: usize, row: usize },
}

impl Prune {
    /// What becomes 0 of a weight; or why it stays as it is.
    pub(super) fn of(
        &self,
        weight: &Weight,
        source: &Source,
    ) -> io::Result<Result<Pruned, &'static str>> {
        match *self {
            Prune::Magnitude(share) => Ok(Ok(Pruned::Below(quantile(source, share)?))),
            Prune::Threshold(threshold) => {
                let threshold = threshold as f32;
                let mut zeros = 0;
                source.for_each_part(0, source.count, &mut |part| {
                    zeros += part.raw.iter().filter(|number| number.abs() <= threshold).count();
                })?;
                if (zeros as f64) < LEAST_SHARE * source.count as f64 {
                    return Ok(Err("less than half of it is below the threshold"));
                }
                Ok(Ok(Pruned::Below(threshold)))
            }
            Prune::Ratio { zeros, of } => {
                let is_layer = |user: &str| matches!(user, "conv" | "linear");
                if !weight.users.iter().all(|user| is_layer(user)) {
                    return Ok(Err("ratios are for weights of `conv` and `linear`"));
                }
                let (channels, stride) = (weight.shape[1], weight.shape[2..].iter().product());
                if of > channels / 2 {
                    return Ok(Err("it has too few input channels for the ratio"));
                }
                Ok(Ok(Pruned::Ratio { zeros, of, stride, row: channels * stride }))
            }
        }
    }
}

impl Pruned {
    /// Elements are decided upon in parts of so many.
    pub(super) fn granule(&self) -> usize {
        match self {
            Pruned::Below(_) => 1,
            Pruned::Ratio { row, .. } => *row,
        }
    }

    /// Makes elements 0, in whole granules.
    pub(super) fn apply(&self, numbers: &mut [f32]) {
        match *self {
            Pruned::Below(limit) => {
                for number in numbers {
                    *number = if number.abs() > limit { *number } else { 0.0 };
                }
            }
            Pruned::Ratio { zeros, of, stride, row } => {
                let mut order: Vec<usize> = Vec::with_capacity(of);
                for row in numbers.chunks_mut(row) {
                    for group in row.chunks_mut(of * stride) {
                        let members = group.len() / stride;
                        // A group that the end of the channels cuts short is filled up with zeros, which go first.
                        let zeros = zeros.saturating_sub(of - members);
                        for column in 0..stride {
                            order.clear();
                            order.extend((0..members).map(|member| member * stride + column));
                            order.sort_by(|&left, &right| {
                                group[left].abs().total_cmp(&group[right].abs())
                            });
                            order[..zeros].iter().for_each(|&place| group[place] = 0.0);
                        }
                    }
                }
            }
        }
    }
}

/// The magnitude that a share of the elements is not above, so that about as many become 0. As numpy's `percentile`,
/// which lies between this element and the next: no element is in between.
fn quantile(source: &Source, share: f64) -> io::Result<f32> {
    if share >= 1.0 {
        return Ok(f32::INFINITY);
    }
    let position = share * 100.0 / 100.0 * (source.count - 1) as f64;
    let wanted = position.floor() as u64;
    if share <= 0.0 {
        return Ok(0.0);
    }
    // By the upper half of the bits of the magnitude, and where these are the same by the lower.
    let mut upper = vec![0u64; 1 << 16];
    source.for_each_part(0, source.count, &mut |part| {
        part.raw.iter().for_each(|number| upper[(number.abs().to_bits() >> 16) as usize] += 1);
    })?;
    let (high, before) = find(&upper, wanted);
    let mut lower = vec![0u64; 1 << 16];
    source.for_each_part(0, source.count, &mut |part| {
        for number in part.raw {
            let bits = number.abs().to_bits();
            if (bits >> 16) as usize == high {
                lower[(bits & 0xffff) as usize] += 1;
            }
        }
    })?;
    let (low, _) = find(&lower, wanted - before);
    debug_assert!(matches!(source.dtype, DType::Fp16 | DType::Fp32));
    Ok(f32::from_bits((high as u32) << 16 | low as u32))
}

/// The bin that the element of a rank is in, and how many there are in the bins before.
fn find(counts: &[u64], rank: u64) -> (usize, u64) {
    let mut before = 0;
    for (bin, &count) in counts.iter().enumerate() {
        if rank < before + count {
            return (bin, before);
        }
        before += count;
    }
    (counts.len() - 1, before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_a_group_become_zero() {
        let pruned = Pruned::Ratio { zeros: 2, of: 4, stride: 2, row: 12 };
        // Six channels of two elements: the first group is full, the second has two channels.
        let mut numbers = [1.0, -8.0, 2.0, -7.0, 3.0, -6.0, 4.0, -5.0, 0.5, 0.25, 9.0, 0.125];
        pruned.apply(&mut numbers);
        let expected = [0.0, -8.0, 0.0, -7.0, 3.0, 0.0, 4.0, 0.0, 0.5, 0.25, 9.0, 0.125];
        assert_eq!(numbers, expected);
    }

    #[test]
    fn quantiles_are_elements() {
        let numbers: Vec<f32> = (0..1000).map(|at| (at * 7919 % 1000) as f32 - 500.0).collect();
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let source = Source {
            elements: bytes.into(),
            dtype: DType::Fp32,
            count: 1000,
            pruned: None,
            scales: None,
        };
        let mut magnitudes: Vec<f32> = numbers.iter().map(|number| number.abs()).collect();
        magnitudes.sort_by(f32::total_cmp);
        for share in [0.1, 0.5, 0.75, 0.999] {
            let expected = magnitudes[(share * 999.0f64).floor() as usize];
            assert_eq!(quantile(&source, share).expect("memory can be read"), expected, "{share}");
        }
    }
}
