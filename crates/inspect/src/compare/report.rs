//! Serializable results of comparisons.

#[cfg(feature = "compiler")]
use coremill_compiler::SourceMap;
use serde::Serialize;

use super::{ErrorMetrics, PerOp, Step, ValueOrigin};

/// Comparison of an output or a value.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Name of the output or value.
    pub name: String,
    /// Operation or kernel that computes the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// Element type, `None` in comparisons of outputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<&'static str>,
    /// Size of each dimension, outermost first.
    pub shape: Vec<usize>,
    /// Error compared with the reference.
    #[serde(flatten)]
    pub figures: Option<ErrorMetrics>,
    /// The reason why there are no figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mismatch: Option<String>,
}

/// Comparison of two programs, value by value. The JSON form is stable: fields are only added.
#[derive(Clone, Debug, Serialize)]
pub struct PerOpReport {
    /// SNR in decibels below which a value drifts.
    pub threshold_db: f64,
    /// Index in `values` of the first value below the threshold.
    pub drift_begins_at: Option<usize>,
    /// Origin of that value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift_origin: Option<ValueOrigin>,
    /// The first value of the other program with elements that are NaN or infinite only there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_not_finite: Option<NotFinite>,
    /// Origin of that value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_finite_origin: Option<ValueOrigin>,
    /// Number of values in both programs.
    pub values_in_both: usize,
    /// Number of values in the reference.
    pub values_in_reference: usize,
    /// Number of values in the other program.
    pub values_in_other: usize,
    /// Values with the same name that do not correspond: their operations or operands differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unpaired: Vec<UnpairedLine>,
    /// Compared values. Repeated values, in later steps or loop iterations, have the suffix `@1`,
    /// `@2`, and so on.
    pub values: Vec<Line>,
}

/// A value with elements that are NaN or infinite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotFinite {
    /// Name of the value.
    pub name: String,
    /// Operation or kernel that computes the value.
    pub op: String,
    /// Number of elements that are NaN or infinite.
    pub count: usize,
    /// Number of elements.
    pub elements: usize,
}

/// Two values with the same name that do not correspond.
#[derive(Clone, Debug, Serialize)]
pub struct UnpairedLine {
    /// Name in the second program.
    pub name: String,
    /// Operation or kernel that computes the value in the reference.
    pub reference_op: String,
    /// Operation or kernel that computes the value in the other program.
    pub op: String,
}

impl PerOpReport {
    /// Creates a report. `threshold` is the SNR in decibels below which a value drifts.
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

    /// Adds the origins of the first bad values. `calls` is the source map of the program that one
    /// side was converted from.
    #[cfg(feature = "compiler")]
    pub fn add_origins(&mut self, calls: Option<&SourceMap>) {
        let drifting = self.drift_begins_at.and_then(|index| self.values.get(index));
        self.drift_origin = drifting.map(|line| ValueOrigin::of(&line.name, calls));
        let first = self.first_not_finite.as_ref();
        self.not_finite_origin = first.map(|first| ValueOrigin::of(&first.name, calls));
    }
}
