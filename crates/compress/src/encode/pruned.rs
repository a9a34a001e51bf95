//! Pruning masks that depend only on neighbouring elements.

use half::f16;

use crate::error::Refusal;
use crate::form::Channels;
use crate::weight::Weight;

/// Selection of pruned elements.
#[derive(Clone, Debug)]
pub(super) enum PruneMask {
    /// Elements with at most this magnitude.
    Below(f32),
    /// The `zeros` smallest elements of each group.
    Ratio { zeros: usize, groups: Groups },
    /// Groups with at most this norm. For fp16 weights, norms are computed in fp16.
    Blocks { limit: f32, half: bool, groups: Groups },
}

/// Groups of `of` elements with distance `stride`. The last group of a row may be shorter.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    of: usize,
    stride: usize,
    row: usize,
}

impl Groups {
    /// Groups of `of` consecutive channels.
    pub(super) fn new(weight: &Weight, of: usize, along: Channels) -> Result<Groups, Refusal> {
        let is_layer = |user: &str| matches!(user, "conv" | "linear");
        if !weight.users.iter().all(|user| is_layer(user)) {
            return Err(Refusal::Kept(
                "channel groups can be pruned only in weights of `conv` and `linear`",
            ));
        }
        let axis = match along {
            Channels::Output => 0,
            Channels::Input => 1,
        };
        let stride: usize = weight.shape[axis + 1..].iter().product();
        if of > weight.shape[axis] / 2 {
            return Err(Refusal::Kept("it has too few channels for groups of this size"));
        }
        let row = match along {
            // Groups consist of whole rows, so one group at a time suffices.
            Channels::Output => of * stride,
            Channels::Input => weight.shape[1] * stride,
        };
        Ok(Groups { of, stride, row })
    }

    /// Calls `visit` with each group: a slice that starts at its first element, and the offsets of
    /// its elements in the slice.
    pub(super) fn for_each(
        &self,
        numbers: &mut [f32],
        visit: &mut dyn FnMut(&mut [f32], &mut Vec<usize>),
    ) {
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

/// The norm of a group. In fp16 every step is rounded, as in numpy.
pub(super) fn norm(group: &[f32], members: &[usize], half: bool) -> f32 {
    let round = |number: f32| if half { f16::from_f32(number).to_f32() } else { number };
    let sum = members.iter().fold(0.0, |sum, &at| round(sum + round(group[at] * group[at])));
    round(sum.sqrt())
}

impl PruneMask {
    /// Number of elements of the unit to which the mask is applied.
    pub(super) fn granule(&self) -> usize {
        match self {
            PruneMask::Below(_) => 1,
            PruneMask::Ratio { groups, .. } | PruneMask::Blocks { groups, .. } => groups.row,
        }
    }

    /// Sets pruned elements to 0. The length must be a multiple of the granule.
    pub(super) fn apply(&self, numbers: &mut [f32]) {
        match self {
            PruneMask::Below(limit) => {
                for number in numbers {
                    *number = if number.abs() > *limit { *number } else { 0.0 };
                }
            }
            PruneMask::Ratio { zeros, groups } => {
                groups.for_each(numbers, &mut |group, members| {
                    // A shorter group counts as padded with zeros, which are pruned first.
                    let zeros = zeros.saturating_sub(groups.of - members.len());
                    members
                        .sort_by(|&left, &right| group[left].abs().total_cmp(&group[right].abs()));
                    members[..zeros].iter().for_each(|&place| group[place] = 0.0);
                });
            }
            PruneMask::Blocks { limit, half, groups } => {
                groups.for_each(numbers, &mut |group, members| {
                    if norm(group, members, *half) <= *limit {
                        members.iter().for_each(|&place| group[place] = 0.0);
                    }
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_mask_zeroes_smallest_elements_per_group() {
        let pruned = PruneMask::Ratio { zeros: 2, groups: Groups { of: 4, stride: 2, row: 12 } };
        // Six channels with two elements: the first group is complete, the second has two channels.
        let mut numbers = [1.0, -8.0, 2.0, -7.0, 3.0, -6.0, 4.0, -5.0, 0.5, 0.25, 9.0, 0.125];
        pruned.apply(&mut numbers);
        let expected = [0.0, -8.0, 0.0, -7.0, 3.0, 0.0, 4.0, 0.0, 0.5, 0.25, 9.0, 0.125];
        assert_eq!(numbers, expected);
    }

    #[test]
    fn block_mask_zeroes_groups_with_small_norm() {
        let groups = Groups { of: 2, stride: 2, row: 6 };
        let pruned = PruneMask::Blocks { limit: 5.0, half: false, groups };
        // Three channels with two elements: the last group has only one channel.
        let mut numbers = [3.0, 1.0, 4.0, 6.0, 5.5, -5.0];
        pruned.apply(&mut numbers);
        assert_eq!(numbers, [0.0, 1.0, 0.0, 6.0, 5.5, 0.0]);
    }
}
