//! Inputs of weights, and the importance of weights from samples.

use std::collections::HashMap;

use super::error::Error;
use super::weight::{Candidate, Weight, candidate};
use super::weighting::ElementImportance;
use coremill_mil::ir::Function;
use coremill_mil::ops::OpKind;
use coremill_passes::{AnalyzedFunction, Editor};

/// Mean square of each input channel, by the name of the weight.
pub type Importance = HashMap<String, Vec<f32>>;

/// The value that a weight is multiplied by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightInput {
    /// Name of the weight.
    pub weight: String,
    /// Number of the weight's input channels. The value has the same number, or a multiple for
    /// grouped convolutions.
    pub channels: usize,
    /// Name of the value.
    pub value: String,
    /// The value's channel axis, counted from the last axis.
    pub axis_from_end: usize,
}

/// The inputs of a function's weights.
pub fn feeds(function: &Function) -> Result<Vec<WeightInput>, Error> {
    let unsound =
        |error: &dyn std::fmt::Display| Error::model(format!("`{}`: {error}", function.name));
    let mut draft = AnalyzedFunction::new(function.clone()).map_err(|error| unsound(&error))?;
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
                feeds.push(WeightInput {
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

/// The element importance of a weight, `None` if its input channels are unknown.
pub(super) fn weighting(weight: &Weight, known: &Importance) -> Option<ElementImportance> {
    let (input, _) = weight.axes?;
    ElementImportance::new(&weight.shape, input, known.get(&weight.name)?)
}
