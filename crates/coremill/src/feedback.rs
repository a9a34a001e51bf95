//! Buffers that are inputs and outputs of a model: what an output gives in a step is what an input takes in the next.
//!
//! Core ML's states hold floats. A counter of a cache is an integer, so it goes out and comes in again; the metadata of a
//! converted model says which output belongs to which input, and what the input takes first.
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

use coremill_compiler::FED_KEY;
use coremill_engine::{Array, FeatureSpec};
use coremill_mil::model::Model;
use coremill_tensor::DType;
use serde::Deserialize;

/// An input that an output feeds.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct StateFeedback {
    /// What the input is called.
    pub input: String,
    /// The output that says what the input takes in the next step.
    pub output: String,
    /// What the input takes first; none where nothing says so.
    pub first: Option<Vec<i32>>,
}

/// The inputs of a model that its outputs feed. Metadata that says something else says nothing.
pub fn state_feedback(model: &Model) -> Vec<StateFeedback> {
    let metadata = model.description.metadata.as_ref();
    let told = metadata.and_then(|metadata| metadata.user_defined(FED_KEY));
    told.and_then(|told| serde_json::from_str(told).ok()).unwrap_or_default()
}

impl StateFeedback {
    /// What the input takes first, if that is known.
    pub fn first(&self, ports: &[FeatureSpec]) -> Option<Array> {
        let port = ports.iter().find(|port| port.name == self.input)?;
        let first = self.first.as_ref()?;
        let array = Array::ints(DType::Int32, [first.len()], first.clone());
        array.reshaped(port.default_shape()?)
    }
}

/// Gives each fed input that nobody gave what it takes: what the step before gave, or what it takes first.
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
