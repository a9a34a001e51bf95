//! Importance of a weight's elements: the mean square of their input channel.
//!
//! An error `d` in a weight changes the layer's outputs by `x · d`. The mean square of the change
//! is the sum of `d²` times the mean of `x²`, if channels are independent.

use std::sync::Arc;

use super::blocks::Blocks;

/// Minimum importance, relative to the mean, for channels without signal.
const LEAST: f32 = 1e-4;

/// Importance of each element. The blocks are the input channels.
#[derive(Clone)]
pub(super) struct ElementImportance {
    blocks: Blocks,
    channels: Arc<[f32]>,
}

impl ElementImportance {
    /// Creates the importance of a weight from the mean squares of its input channels. `None` if
    /// their number differs, or if all channels are equal.
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

    /// The importance of each input channel; the mean is 1.
    pub(super) fn channels(&self) -> &[f32] {
        &self.channels
    }

    /// The importance of consecutive elements.
    pub(super) fn of_elements(&self, at: usize, count: usize, to: &mut Vec<f32>) {
        to.clear();
        self.blocks.for_each_run(at, count, |run, channel| {
            to.extend(std::iter::repeat_n(self.channels[channel], run));
        });
    }
}
