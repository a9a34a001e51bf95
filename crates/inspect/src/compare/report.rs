//! What lies how far apart, as JSON.

#[cfg(feature = "compiler")]
use coremill_compiler::SourceMap;
use serde::Serialize;

use super::{ErrorMetrics, PerOp, Step, ValueOrigin};

/// An output, or a value.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Operation or kernel that computes the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// Its element type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<&'static str>,
    /// Its shape.
    pub shape: Vec<usize>,
    /// How far it lies from the reference's.
    #[serde(flatten)]
    pub figures: Option<ErrorMetrics>,
    /// Why there are no figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mismatch: Option<String>,
}

/// Two programs, value by value. Its JSON form is stable: fields are only added.
#[derive(Clone, Debug, Serialize)]
pub struct PerOpReport {
    /// Where drift begins.
    pub threshold_db: f64,
    /// The first value that lies below the threshold, as an index into `values`.
    pub drift_begins_at: Option<usize>,
    /// Where that value comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift_origin: Option<ValueOrigin>,
    /// The first value of the other with elements that are NaN or infinite, if some are so there alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_not_finite: Option<NotFinite>,
    /// Where that value comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_finite_origin: Option<ValueOrigin>,
    /// How many values both compute.
    pub values_in_both: usize,
    /// How many values the reference computes.
    pub values_in_reference: usize,
    /// How many the other computes.
    pub values_in_other: usize,
    /// Values of one name that are not known to be the same: another operation computes them, or of other values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unpaired: Vec<UnpairedLine>,
    /// A value that comes about again, in a later step or in a loop, has `@1`, `@2`, ... behind its name.
    pub values: Vec<Line>,
}

/// A value with elements that are NaN or infinite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotFinite {
    /// Its name.
    pub name: String,
    /// Operation or kernel that computes the value.
    pub op: String,
    /// How many of its elements are NaN or infinite.
    pub count: usize,
    /// How many elements it has.
    pub elements: usize,
}

/// Two values of one name that are not known to be the same.
#[derive(Clone, Debug, Serialize)]
pub struct UnpairedLine {
    /// The name in the second program.
    pub name: String,
    /// What computes the one in the reference.
    pub reference_op: String,
    /// What computes the one in the other.
    pub op: String,
}

impl PerOpReport {
    /// Says where values begin to have less signal to noise than `threshold` decibels.
    pub fn new(per_op: &PerOp, threshold: f64) -> PerOpReport {
        let line = |step: &Step| Line {
            name: match step.repeat {
                0 => step.name.clone(),
                repeat => format!("{}@{repeat}", step.name),
            },
            op: Some(step.op.clone()),
            dtype: Some(step.dtype),
            shape: step.shape.clone(),
            figures: step.figures.clone().ok(),
            mismatch: step.figures.clone().err(),
        };
        let unpaired = per_op.unpaired.iter().map(|unpaired| UnpairedLine {
            name: unpaired.name.clone(),
            reference_op: unpaired.reference_op.clone(),
            op: unpaired.op.clone(),
        });
        PerOpReport {
            threshold_db: threshold,
            drift_begins_at: per_op.first_below(threshold),
            drift_origin: None,
            first_not_finite: None,
            not_finite_origin: None,
            values_in_both: per_op.steps.iter().filter(|step| step.repeat == 0).count(),
            values_in_reference: per_op.in_reference,
            values_in_other: per_op.in_other,
            unpaired: unpaired.collect(),
            values: per_op.steps.iter().map(line).collect(),
        }
    }

    /// Adds where the first bad values come from. `calls` are those of the program that one side was converted from.
    #[cfg(feature = "compiler")]
    pub fn add_origins(&mut self, calls: Option<&SourceMap>) {
        let drifting = self.drift_begins_at.and_then(|index| self.values.get(index));
        self.drift_origin = drifting.map(|line| ValueOrigin::of(&line.name, calls));
        let first = self.first_not_finite.as_ref();
        self.not_finite_origin = first.map(|first| ValueOrigin::of(&first.name, calls));
    }
}
