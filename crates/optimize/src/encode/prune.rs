//! Weights that become 0, and which ones.

use std::io;

use coremill_tensor::DType;
use half::f16;

use super::source::Source;
use super::weight::Weight;

/// Which elements of a weight become 0.
#[derive(Clone, Debug, PartialEq)]
pub enum Prune {
    /// This share of them, those of the least magnitude.
    Magnitude(f64),
    /// This share of them, in runs of so many neighbours along an axis, those of the least norm.
    Blocks {
        /// From 0 to 1.
        share: f64,
        /// How many neighbours become 0 together.
        size: usize,
        /// Which channels are neighbours.
        along: Channels,
    },
    /// Of so many channels that follow one another, so many: those of the least magnitude.
    Ratio {
        /// How many become 0.
        zeros: usize,
        /// Of how many.
        of: usize,
        /// Which channels are neighbours.
        along: Channels,
    },
    /// Those whose magnitude is at most this, if they are at least half of all.
    Threshold(f64),
}

/// Channels of a layer's weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// Axis 0 of weights of `conv` and `linear`.
    Output,
    /// Axis 1.
    Input,
}

/// A weight of which less becomes 0 by a threshold is not worth a mask, as coremltools has it.
const LEAST_SHARE: f64 = 0.5;

/// Which elements become 0, decided by their neighbours at most.
#[derive(Clone, Debug)]
pub(super) enum Pruned {
    /// All that are not above a magnitude.
    Below(f32),
    /// So many of each group.
    Ratio { zeros: usize, groups: Groups },
    /// Groups whose norm is not above a limit. Norms of halves are computed in half precision.
    Blocks { limit: f32, half: bool, groups: Groups },
}

/// Groups of elements that are `stride` apart, so many each but for the last ones of a row.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    of: usize,
    stride: usize,
    row: usize,
}

impl Groups {
    /// The groups of so many channels; or why there are none.
    fn new(weight: &Weight, of: usize, along: Channels) -> Result<Groups, &'static str> {
        let is_layer = |user: &str| matches!(user, "conv" | "linear");
        if !weight.users.iter().all(|user| is_layer(user)) {
            return Err("groups of channels are pruned in weights of `conv` and `linear` only");
        }
        let axis = match along {
            Channels::Output => 0,
            Channels::Input => 1,
        };
        let stride: usize = weight.shape[axis + 1..].iter().product();
        if of > weight.shape[axis] / 2 {
            return Err("it has too few channels for groups of this size");
        }
        let row = match along {
            // Groups of whole rows: no more than one is needed at a time.
            Channels::Output => of * stride,
            Channels::Input => weight.shape[1] * stride,
        };
        Ok(Groups { of, stride, row })
    }

    /// Calls `visit` with the elements from the first of a group on, and the places of its members among them.
    fn for_each(&self, numbers: &mut [f32], visit: &mut dyn FnMut(&mut [f32], &mut Vec<usize>)) {
        let mut members = Vec::with_capacity(self.of);
        for row in numbers.chunks_mut(self.row) {
            for group in row.chunks_mut(self.of * self.stride) {
                let count = group.len() / self.stride;
                for column in 0..self.stride {
                    members.clear();
                    members.extend((0..count).map(|member| member * self.stride + column));
                    visit(group, &mut members);
                }
            }
        }
    }
}

impl Prune {
    /// What becomes 0 of a weight; or why it stays as it is.
    pub(super) fn of(
        &self,
        weight: &Weight,
        source: &Source,
    ) -> io::Result<Result<Pruned, &'static str>> {
        match *self {
            Prune::Magnitude(share) => {
                let limit = quantile(source, share, |numbers| {
                    numbers.iter_mut().for_each(|number| *number = number.abs());
                })?;
                Ok(Ok(Pruned::Below(limit)))
            }
            Prune::Blocks { share, size, along } => {
                let groups = match Groups::new(weight, size, along) {
                    Ok(groups) => groups,
                    Err(reason) => return Ok(Err(reason)),
                };
                let half = source.is_half();
                // For the time being nothing is pruned, but groups come whole.
                let pruned = Pruned::Blocks { limit: -1.0, half, groups: groups.clone() };
                let whole = Source { pruned: Some(pruned), ..source.clone() };
                let limit = quantile(&whole, share, |numbers| {
                    groups.for_each(numbers, &mut |group, members| {
                        let norm = norm(group, members, half);
                        members.iter().for_each(|&at| group[at] = norm);
                    });
                })?;
                Ok(Ok(Pruned::Blocks { limit, half, groups }))
            }
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
            Prune::Ratio { zeros, of, along } => {
                let groups = Groups::new(weight, of, along);
                Ok(groups.map(|groups| Pruned::Ratio { zeros, groups }))
            }
        }
    }
}

/// The norm of a group. In half precision every step is rounded, as in numpy.
fn norm(group: &[f32], members: &[usize], half: bool) -> f32 {
    let round = |number: f32| if half { f16::from_f32(number).to_f32() } else { number };
    let sum = members.iter().fold(0.0, |sum, &at| round(sum + round(group[at] * group[at])));
    round(sum.sqrt())
}

impl Pruned {
    /// Elements are decided upon in parts of so many.
    pub(super) fn granule(&self) -> usize {
        match self {
            Pruned::Below(_) => 1,
            Pruned::Ratio { groups, .. } | Pruned::Blocks { groups, .. } => groups.row,
        }
    }

    /// Makes elements 0, in whole granules.
    pub(super) fn apply(&self, numbers: &mut [f32]) {
        match self {
            Pruned::Below(limit) => {
                for number in numbers {
                    *number = if number.abs() > *limit { *number } else { 0.0 };
                }
            }
            Pruned::Ratio { zeros, groups } => {
                groups.for_each(numbers, &mut |group, members| {
                    // A group that the end of the channels cuts short is filled up with zeros, which go first.
                    let zeros = zeros.saturating_sub(groups.of - members.len());
                    members
                        .sort_by(|&left, &right| group[left].abs().total_cmp(&group[right].abs()));
                    members[..zeros].iter().for_each(|&place| group[place] = 0.0);
                });
            }
            Pruned::Blocks { limit, half, groups } => {
                groups.for_each(numbers, &mut |group, members| {
                    if norm(group, members, *half) <= *limit {
                        members.iter().for_each(|&place| group[place] = 0.0);
                    }
                });
            }
        }
    }
}

/// The magnitude that a share of the elements is not above, so that about as many become 0. As numpy's `percentile`,
/// which lies between this element and the next: no element is in between. `measure` makes magnitudes of elements.
fn quantile(source: &Source, share: f64, measure: impl Fn(&mut [f32])) -> io::Result<f32> {
    if share >= 1.0 {
        return Ok(f32::INFINITY);
    }
    if share <= 0.0 {
        return Ok(0.0);
    }
    let position = share * 100.0 / 100.0 * (source.count - 1) as f64;
    let wanted = position.floor() as u64;
    let mut magnitudes = Vec::new();
    let mut for_each = |visit: &mut dyn FnMut(u32)| {
        source.for_each_part(0, source.count, &mut |part| {
            magnitudes.clear();
            magnitudes.extend_from_slice(part.raw);
            measure(&mut magnitudes);
            magnitudes.iter().for_each(|magnitude| visit(magnitude.to_bits()));
        })
    };
    // By the upper half of the bits of the magnitude, and where these are the same by the lower.
    let mut upper = vec![0u64; 1 << 16];
    for_each(&mut |bits| upper[(bits >> 16) as usize] += 1)?;
    let (high, before) = find(&upper, wanted);
    let mut lower = vec![0u64; 1 << 16];
    for_each(&mut |bits| {
        if (bits >> 16) as usize == high {
            lower[(bits & 0xffff) as usize] += 1;
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
        let pruned = Pruned::Ratio { zeros: 2, groups: Groups { of: 4, stride: 2, row: 12 } };
        // Six channels of two elements: the first group is full, the second has two channels.
        let mut numbers = [1.0, -8.0, 2.0, -7.0, 3.0, -6.0, 4.0, -5.0, 0.5, 0.25, 9.0, 0.125];
        pruned.apply(&mut numbers);
        let expected = [0.0, -8.0, 0.0, -7.0, 3.0, 0.0, 4.0, 0.0, 0.5, 0.25, 9.0, 0.125];
        assert_eq!(numbers, expected);
    }

    #[test]
    fn groups_of_the_least_norm_become_zero() {
        let groups = Groups { of: 2, stride: 2, row: 6 };
        let pruned = Pruned::Blocks { limit: 5.0, half: false, groups };
        // Three channels of two elements: the last of each column is by itself.
        let mut numbers = [3.0, 1.0, 4.0, 6.0, 5.5, -5.0];
        pruned.apply(&mut numbers);
        assert_eq!(numbers, [0.0, 1.0, 0.0, 6.0, 5.5, 0.0]);
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
            weighting: None,
        };
        let mut magnitudes: Vec<f32> = numbers.iter().map(|number| number.abs()).collect();
        magnitudes.sort_by(f32::total_cmp);
        for share in [0.1, 0.5, 0.75, 0.999] {
            let expected = magnitudes[(share * 999.0f64).floor() as usize];
            let found = quantile(&source, share, |numbers| {
                numbers.iter_mut().for_each(|number| *number = number.abs());
            });
            assert_eq!(found.expect("memory can be read"), expected, "{share}");
        }
    }
}
