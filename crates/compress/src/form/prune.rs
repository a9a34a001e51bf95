//! Pruning: setting elements of weights to 0.

use std::fmt;

/// Selection of the elements to prune.
#[derive(Clone, Debug, PartialEq)]
pub enum Prune {
    /// A share of the elements, the smallest magnitudes.
    Magnitude(f64),
    /// A share of blocks of consecutive elements along an axis, the smallest norms.
    Blocks {
        /// Share from 0 to 1.
        share: f64,
        /// Number of elements per block.
        size: usize,
        /// Axis of the blocks.
        along: Channels,
    },
    /// N:M sparsity: the `zeros` smallest of every `of` consecutive channels.
    Ratio {
        /// Number of pruned elements per group.
        zeros: usize,
        /// Number of elements per group.
        of: usize,
        /// Axis of the groups.
        along: Channels,
    },
    /// Elements up to a magnitude.
    Threshold {
        /// Largest magnitude of pruned elements.
        limit: f64,
        /// Minimum share of pruned elements, from 0 to 1. A weight with fewer is not pruned.
        least: f64,
    },
}

/// Axis of channels in a layer's weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// Axis 0 in weights of `conv` and `linear`.
    Output,
    /// Axis 1 in weights of `conv` and `linear`.
    Input,
}

impl fmt::Display for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Channels::Output => "output channels",
            Channels::Input => "input channels",
        })
    }
}
