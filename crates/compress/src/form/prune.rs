//! Elements of weights that become 0.

use std::fmt;

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
        /// Size of the group.
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

impl fmt::Display for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Channels::Output => "output channels",
            Channels::Input => "input channels",
        })
    }
}
