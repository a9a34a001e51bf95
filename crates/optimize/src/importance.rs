//! How much outputs depend on the elements of a weight: by the mean square of what each input channel is given.
//!
//! Where a weight is off by `d`, the outputs of its layer are off by `x · d`, and the mean of that squared is the sum of
//! `d²` times the mean of `x²`, as far as channels are independent of one another.

use std::collections::HashMap;
use std::sync::Arc;

use super::blocks::Blocks;
use super::linear::Error;
use super::weight::{Candidate, Weight, candidate};
use coremill_mil::ir::Function;
use coremill_mil::ops::OpKind;
use coremill_passes::{Draft, Editor};

/// Mean squares of input channels, by the name of the weight.
pub type Importance = HashMap<String, Vec<f32>>;

/// A value that a weight is multiplied by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feed {
    /// The name of the weight.
    pub weight: String,
    /// How many input channels the weight has. The value has as many, or a multiple for a convolution in groups.
    pub channels: usize,
    /// The name of the value.
    pub value: String,
    /// The axis of its channels, counted from its last one.
    pub axis_from_end: usize,
}

/// Parts of the mean that channels without a signal get.
const LEAST: f32 = 1e-4;

/// What the weights of a function are multiplied by.
pub fn feeds(function: &Function) -> Result<Vec<Feed>, Error> {
    let unsound =
        |error: &dyn std::fmt::Display| Error::new(format!("`{}`: {error}", function.name));
    let mut draft = Draft::new(function.clone()).map_err(|error| unsound(&error))?;
    let editor = Editor::new(&mut draft);
    let mut feeds = Vec::new();
    for id in editor.ops() {
        let Some(Candidate::Weight(weight)) = candidate(&editor, id) else { continue };
        let Some((input, _)) = weight.axes else { continue };
        for &user in &editor.uses(weight.value).ops {
            let fed = |name: &str| editor.argument(user, name).filter(|&fed| fed != weight.value);
            let flag = |name: &str| editor.flag(user, name).unwrap_or_default();
            let found = match editor.op(user).and_then(|op| op.kind()) {
                Some(OpKind::Linear) => fed("x").map(|value| (value, 0)),
                Some(OpKind::Conv | OpKind::ConvTranspose) => {
                    fed("x").map(|value| (value, weight.shape.len() - 2))
                }
                Some(OpKind::Matmul) => match fed("x") {
                    Some(value) => Some((value, usize::from(flag("transpose_x")))),
                    None => fed("y").map(|value| (value, usize::from(!flag("transpose_y")))),
                },
                _ => None,
            };
            if let Some((value, axis_from_end)) = found {
                feeds.push(Feed {
                    weight: weight.name.clone(),
                    channels: weight.shape[input],
                    value: editor.name(value).to_owned(),
                    axis_from_end,
                });
            }
        }
    }
    Ok(feeds)
}

/// The importance of each element of a weight: its blocks are the input channels.
#[derive(Clone)]
pub(super) struct Weighting {
    blocks: Blocks,
    channels: Arc<[f32]>,
}

impl Weighting {
    /// None if nothing is known of the weight's input channels, or they all are given the same.
    pub(super) fn of(weight: &Weight, known: &Importance) -> Option<Weighting> {
        let (input, _) = weight.axes?;
        let squares = known.get(&weight.name)?;
        if squares.len() != weight.shape[input] {
            return None;
        }
        let mean = squares.iter().sum::<f32>() / squares.len() as f32;
        if !(mean > 0.0 && mean.is_finite()) {
            return None;
        }
        let mut sizes = vec![0; weight.shape.len()];
        sizes[input] = 1;
        let blocks = Blocks::new(&weight.shape, &sizes)?;
        let channels = squares.iter().map(|square| (square / mean).max(LEAST)).collect();
        Some(Weighting { blocks, channels })
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
