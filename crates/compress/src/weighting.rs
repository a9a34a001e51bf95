//! How much outputs depend on the elements of a weight: by the mean square of what each input channel is given.
//!
//! Where a weight is off by `d`, the outputs of its layer are off by `x · d`, and the mean of that squared is the sum of
//! `d²` times the mean of `x²`, as far as channels are independent of one another.

use std::sync::Arc;

use super::blocks::Blocks;

/// Parts of the mean that channels without a signal get.
const LEAST: f32 = 1e-4;

/// The importance of each element of a weight: its blocks are the input channels.
#[derive(Clone)]
pub(super) struct ElementImportance {
    blocks: Blocks,
    channels: Arc<[f32]>,
}

impl ElementImportance {
    /// The weighting of a weight of this shape by the mean squares along its input channels; `None` if there are not as
    /// many squares as channels, or they all are given the same.
    pub(super) fn new(shape: &[usize], input: usize, squares: &[f32]) -> Option<ElementImportance> {
        if squares.len() != shape[input] {
            return None;
        }
        let mean = squares.iter().sum::<f32>() / squares.len() as f32;
        if !(mean > 0.0 && mean.is_finite()) {
            return None;
        }
        let mut sizes = vec![0; shape.len()];
        sizes[input] = 1;
        let blocks = Blocks::new(shape, &sizes)?;
        let channels = squares.iter().map(|square| (square / mean).max(LEAST)).collect();
        Some(ElementImportance { blocks, channels })
    }

    /// The importance of each input channel, 1 on average.
    pub(super) fn channels(&self) -> &[f32] {
        &self.channels
    }

    /// The importance of neighbouring elements.
    pub(super) fn of_elements(&self, at: usize, count: usize, to: &mut Vec<f32>) {
        to.clear();
        self.blocks.for_each_run(at, count, |run, channel| {
            to.extend(std::iter::repeat_n(self.channels[channel], run));
        });
    }
}
