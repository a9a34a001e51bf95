//! Feedback of outputs to inputs: the value of an output in one step is the input of the next step.
//!
//! Core ML's states only store floats. An integer buffer, such as the position of a cache,
//! therefore becomes an output and an input. The metadata of a converted model lists the pairs and
//! the initial values.
//!
//! ```
//! use coremill::engine::Array;
//! use coremill::feedback::{StateFeedback, feed};
//! use coremill::graph::DType;
//!
//! let position = StateFeedback { input: "position".into(), output: "next".into(), first: Some(vec![0]) };
//! let before = [("next".to_owned(), Array::ints(DType::Int32, [1], vec![7]))];
//! let mut inputs = Vec::new();
//! feed(&[position], &[], Some(&before), &mut inputs);
//! assert_eq!(inputs[0].0, "position");
//! assert_eq!(inputs[0].1.as_ints(), Some(&[7][..]));
//! ```

use coremill_engine::{Array, FeatureSpec};
use coremill_mil::model::FED_KEY;
use coremill_mil::model::Model;
use coremill_tensor::DType;
use serde::Deserialize;

/// An input that receives the value of an output.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct StateFeedback {
    /// Name of the input.
    pub input: String,
    /// Name of the output whose value the input receives in the next step.
    pub output: String,
    /// Initial value of the input, `None` if unknown.
    pub first: Option<Vec<i32>>,
}

/// The feedback inputs of a model. Empty if the metadata is missing or malformed.
pub fn state_feedback(model: &Model) -> Vec<StateFeedback> {
    let metadata = model.description.metadata.as_ref();
    let told = metadata.and_then(|metadata| metadata.user_defined(FED_KEY));
    told.and_then(|told| serde_json::from_str(told).ok()).unwrap_or_default()
}

impl StateFeedback {
    /// Initial value of the input, if known.
    pub fn first(&self, ports: &[FeatureSpec]) -> Option<Array> {
        let port = ports.iter().find(|port| port.name == self.input)?;
        let first = self.first.as_ref()?;
        let array = Array::ints(DType::Int32, [first.len()], first.clone());
        array.reshaped(port.default_shape()?)
    }
}

/// Fills each feedback input that the caller left out: with the output of the previous step, or
/// with its initial value.
pub fn feed(
    fed: &[StateFeedback],
    ports: &[FeatureSpec],
    before: Option<&[(String, Array)]>,
    given: &mut Vec<(String, Array)>,
) {
    for one in fed {
        if given.iter().any(|(name, _)| *name == one.input) {
            continue;
        }
        let array = match before {
            Some(before) => {
                let found = before.iter().find(|(name, _)| *name == one.output);
                found.map(|(_, array)| array.clone())
            }
            None => one.first(ports),
        };
        given.extend(array.map(|array| (one.input.clone(), array)));
    }
}
