//! Comparison of values with a reference.

use std::fmt::Write as _;

use coremill::compare::{ErrorMetrics, NotFinite, PerOp};
use coremill_engine::Array;
use coremill_passes::without_precision;

use crate::Report;
use crate::data::{Drift, DriftRow, Finding, Op, Place, Severity};
use crate::pictures::picture;
use crate::weights::histogram;

/// SNR in decibels below which drift is reported.
const WORTH_A_FINDING: f64 = 40.0;
/// SNR in decibels below which an output is wrong.
const NOTHING_LEFT: f64 = 10.0;

/// An output of both models.
pub struct Output<'a> {
    /// Name of the output.
    pub name: &'a str,
    /// Value in the reference.
    pub reference: Option<&'a Array>,
    /// Value in the other model.
    pub other: Option<&'a Array>,
    /// Error compared with the reference, or the reason why the values are not comparable.
    pub figures: &'a Result<ErrorMetrics, String>,
}

impl Report {
    /// Adds a comparison of two models' outputs, and of intermediate values if `per_op` is set.
    /// Operations are looked up in the models added before, the last one first. `first` is the
    /// first value of the other model with elements that are not finite.
    pub fn add_drift(
        &mut self,
        [reference, other]: [&str; 2],
        outputs: &[Output<'_>],
        per_op: Option<&PerOp>,
        first: Option<&NotFinite>,
    ) {
        let mut drift =
            Drift { reference: reference.to_owned(), other: other.to_owned(), ..Drift::default() };
        for output in outputs {
            let mut row = self.row(output.name, "output", output.figures);
            let sides = [("reference", output.reference), ("candidate", output.other)];
            row.pictures =
                sides.into_iter().filter_map(|(label, array)| picture(label, array?)).collect();
            row.errors = output.reference.zip(output.other).and_then(|(x, y)| errors(x, y));
            drift.outputs.push(row);
        }
        if let Some(per_op) = per_op {
            drift.computed = [per_op.in_reference, per_op.in_other];
            drift.values = per_op
                .steps
                .iter()
                .map(|step| self.row(&step.name, &step.op, &step.figures))
                .collect();
        }
        let first = first.map(|first| (first, self.find(&first.name, None)));
        let begins = per_op.and_then(|per_op| per_op.first_below(WORTH_A_FINDING));
        let origin = |place: Option<Place>| {
            place.and_then(|place| self.op(place)).map_or_else(String::new, origin)
        };
        let found = findings(&drift, begins, first, &origin);
        self.data.findings.extend(found);
        self.data.drift = Some(drift);
    }

    /// The operation that computes a value with this name, optionally only in functions with a
    /// given name.
    pub(crate) fn find(&self, value: &str, function: Option<&str>) -> Option<Place> {
        let models = self.data.models.iter().enumerate().rev();
        models
            .flat_map(|(model, data)| {
                data.functions.iter().enumerate().map(move |(at, function)| (model, at, function))
            })
            .filter(|(_, _, of)| function.is_none_or(|name| of.name == name))
            .find_map(|(model, at, function)| {
                let op = function.ops.iter().position(|op| op.name == value)?;
                Some(Place { model, function: at, op })
            })
    }

    fn op(&self, Place { model, function, op }: Place) -> Option<&Op> {
        self.data.models.get(model)?.functions.get(function)?.ops.get(op)
    }

    fn row(&self, name: &str, op: &str, figures: &Result<ErrorMetrics, String>) -> DriftRow {
        let place = self.find(name, None);
        let (name, op) = (name.to_owned(), op.to_owned());
        let row = DriftRow {
            name,
            op,
            place,
            snr: None,
            max_absolute: 0.0,
            max_relative: 0.0,
            unlike: 0,
            elements: 0,
            problem: None,
            pictures: Vec::new(),
            errors: None,
        };
        match figures {
            Ok(figures) => DriftRow {
                snr: figures.snr_db,
                max_absolute: figures.max_absolute,
                max_relative: figures.max_relative,
                unlike: figures.unlike,
                elements: figures.elements,
                ..row
            },
            Err(problem) => DriftRow { problem: Some(problem.clone()), ..row },
        }
    }
}

/// Findings about the first NaN or infinity, the start of drift, and the error of the outputs.
/// `begins` is the index of the first value below [`WORTH_A_FINDING`]. `origin` describes the call
/// that an operation comes from.
fn findings(
    drift: &Drift,
    begins: Option<usize>,
    first: Option<(&NotFinite, Option<Place>)>,
    origin: &dyn Fn(Option<Place>) -> String,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let at = |name: &str, op: &str| format!("`{name}` ({op})");
    let rows = || drift.values.iter().chain(&drift.outputs);
    // Not an error if the reference has the same elements, as in masks.
    if let Some(row) = rows().find(|row| row.unlike > 0) {
        let (subject, count, elements, place) = match first {
            Some((first, place)) => {
                (at(&first.name, &first.op), first.count, first.elements, place)
            }
            None => (at(&row.name, &row.op), row.unlike, row.elements, row.place),
        };
        findings.push(Finding {
            severity: Severity::Error,
            title: format!("{count} of {elements} elements of {subject} become NaN or infinite"),
            detail: format!(
                "It is the first such value; {} of the compared values are finite in {}. The fp16 maximum is 65504: \
                 keep this operation in fp32, or scale its inputs.{}",
                rows().filter(|row| row.unlike > 0).count(),
                drift.reference,
                origin(place)
            ),
            place,
        });
    }
    let drifts = |row: &&DriftRow| {
        row.unlike == 0 && row.elements > 0 && row.snr.is_some_and(|snr| snr < WORTH_A_FINDING)
    };
    // Values that are not finite are already reported.
    let begins = begins.and_then(|index| drift.values.get(index));
    if let Some(first) = begins.filter(|first| first.unlike == 0 && first.problem.is_none()) {
        findings.push(Finding {
            severity: Severity::Warning,
            title: format!("drift begins at {}: {}", at(&first.name, &first.op), decibels(first)),
            detail: format!(
                "It is the first value below {WORTH_A_FINDING} dB; the largest error is {}.{}",
                share(first.max_relative),
                origin(first.place)
            ),
            place: first.place,
        });
    }
    for row in &drift.outputs {
        let finding = |severity, title: String| Finding {
            severity,
            title,
            detail: format!("Compared with {}.", drift.reference),
            place: row.place,
        };
        match &row.problem {
            Some(problem) => {
                findings.push(finding(Severity::Error, format!("output `{}`: {problem}", row.name)))
            }
            None if row.unlike > 0 => {
                let title = format!(
                    "output `{}`: {} of {} elements are NaN or infinite on only one side",
                    row.name, row.unlike, row.elements
                );
                findings.push(finding(Severity::Error, title));
            }
            None if drifts(&row) => {
                let title = format!("output `{}`: {}", row.name, decibels(row));
                let lost = row.snr.is_some_and(|snr| snr < NOTHING_LEFT);
                let severity = if lost { Severity::Error } else { Severity::Warning };
                findings.push(finding(severity, title));
            }
            None => {
                let title = format!("output `{}` agrees: {}", row.name, decibels(row));
                findings.push(finding(Severity::Note, title));
            }
        }
    }
    findings
}

/// Describes the call that an operation comes from, and the options that keep it in fp32.
fn origin(op: &Op) -> String {
    let mut text = String::new();
    let value = without_precision(&op.name);
    let Some(operator) = &op.operator else {
        return format!(" To keep it in fp32, list `{value}` among the fp32 values.");
    };
    // The page shows module and source line below the finding.
    let _ = write!(text, " It comes from `{operator}`");
    let _ = write!(text, ". To keep it in fp32, list `{value}` among the fp32 values");
    if !op.module.is_empty() {
        let _ = write!(text, " or `{}` among the fp32 modules", op.module);
    }
    text + "."
}

/// Formats an error relative to the largest element.
fn share(relative: f64) -> String {
    let percent = relative * 100.0;
    match relative {
        _ if !relative.is_finite() => "infinitely larger than the largest element".to_owned(),
        2.0.. => format!("{relative:.0} times the largest element"),
        0.995.. => "as large as the largest element".to_owned(),
        0.1.. => format!("{percent:.0} % of the largest element"),
        0.001.. => format!("{percent:.1} % of the largest element"),
        _ => format!("{percent:.1e} % of the largest element"),
    }
}

fn decibels(row: &DriftRow) -> String {
    row.snr.map_or_else(|| "exact".to_owned(), |snr| format!("{snr:.1} dB"))
}

/// Distribution of the errors of an output's elements.
fn errors(reference: &Array, other: &Array) -> Option<crate::data::Histogram> {
    let (x, y) = (reference.as_floats()?, other.as_floats()?);
    let differences: Vec<f32> = x.iter().zip(y).map(|(x, y)| y - x).collect();
    if x.len() == y.len() { histogram(&differences) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describes_error_relative_to_largest_element() {
        for (relative, text) in [
            (f64::INFINITY, "infinitely larger than the largest element"),
            (12.4, "12 times the largest element"),
            (1.0, "as large as the largest element"),
            (0.25, "25 % of the largest element"),
            (0.0123, "1.2 % of the largest element"),
            (0.00002, "2.0e-3 % of the largest element"),
        ] {
            assert_eq!(share(relative), text);
        }
    }
}
