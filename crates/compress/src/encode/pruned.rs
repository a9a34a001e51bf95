//! Elements of a weight that become 0, as far as their neighbours decide.

use half::f16;

use crate::error::Refusal;
use crate::form::Channels;
use crate::weight::Weight;

/// Which elements become 0, decided by their neighbours at most.
#[derive(Clone, Debug)]
pub(super) enum PruneMask {
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
    /// Groups of so many neighbouring channels.
    pub(super) fn new(weight: &Weight, of: usize, along: Channels) -> Result<Groups, Refusal> {
        let is_layer = |user: &str| matches!(user, "conv" | "linear");
        if !weight.users.iter().all(|user| is_layer(user)) {
            return Err(Refusal::Kept(
                "groups of channels are pruned in weights of `conv` and `linear` only",
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
            // Groups of whole rows: no more than one is needed at a time.
            Channels::Output => of * stride,
            Channels::Input => weight.shape[1] * stride,
        };
        Ok(Groups { of, stride, row })
    }

    /// Calls `visit` with the elements from the first of a group on, and the places of its members among them.
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

/// The norm of a group. In half precision every step is rounded, as in numpy.
pub(super) fn norm(group: &[f32], members: &[usize], half: bool) -> f32 {
    let round = |number: f32| if half { f16::from_f32(number).to_f32() } else { number };
    let sum = members.iter().fold(0.0, |sum, &at| round(sum + round(group[at] * group[at])));
    round(sum.sqrt())
}

impl PruneMask {
    /// Elements are decided upon in parts of so many.
    pub(super) fn granule(&self) -> usize {
        match self {
            PruneMask::Below(_) => 1,
            PruneMask::Ratio { groups, .. } | PruneMask::Blocks { groups, .. } => groups.row,
        }
    }

    /// Makes elements 0, in whole granules.
    pub(super) fn apply(&self, numbers: &mut [f32]) {
        match self {
            PruneMask::Below(limit) => {
                for number in numbers {
                    *number = if number.abs() > *limit { *number } else { 0.0 };
                }
            }
            PruneMask::Ratio { zeros, groups } => {
                groups.for_each(numbers, &mut |group, members| {
                    // A group that the end of the channels cuts short is filled up with zeros, which go first.
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
    fn the_least_of_a_group_become_zero() {
        let pruned = PruneMask::Ratio { zeros: 2, groups: Groups { of: 4, stride: 2, row: 12 } };
        // Six channels of two elements: the first group is full, the second has two channels.
        let mut numbers = [1.0, -8.0, 2.0, -7.0, 3.0, -6.0, 4.0, -5.0, 0.5, 0.25, 9.0, 0.125];
        pruned.apply(&mut numbers);
        let expected = [0.0, -8.0, 0.0, -7.0, 3.0, 0.0, 4.0, 0.0, 0.5, 0.25, 9.0, 0.125];
        assert_eq!(numbers, expected);
    }

    #[test]
    fn groups_of_the_least_norm_become_zero() {
        let groups = Groups { of: 2, stride: 2, row: 6 };
        let pruned = PruneMask::Blocks { limit: 5.0, half: false, groups };
        // Three channels of two elements: the last of each column is by itself.
        let mut numbers = [3.0, 1.0, 4.0, 6.0, 5.5, -5.0];
        pruned.apply(&mut numbers);
        assert_eq!(numbers, [0.0, 1.0, 0.0, 6.0, 5.5, 0.0]);
    }
}
