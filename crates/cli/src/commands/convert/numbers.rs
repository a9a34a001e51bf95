//! Results of verification: text and JSON.

use coremill::compare::ErrorMetrics;
use coremill::convert::{NumericsReport, OutputAgreement};
use serde::Serialize;

use crate::commands::figures::{decibels, distance, scientific};
use crate::output::{Cell, ERROR, FAINT, GOOD, STRONG, Table, paint};

/// Hint for outputs that exceed the bound.
pub(in crate::commands) const REMEDY: &str = "pass `--precision auto`, which keeps as few operations in fp32 as the \
     samples allow; or find where the outputs diverge with `compare --per-op`, and keep those operations in fp32 with \
     `--fp32-values`, `--fp32-modules` or `--fp32-ops`";

/// A table with a line per output.
pub(in crate::commands) fn render(agreement: &NumericsReport) -> String {
    let mut table = Table::new(2);
    let head = ["verified", "max relative", "SNR", "inexact", ""];
    table.row(head.into_iter().enumerate().map(|(index, title)| {
        let cell = if (1..4).contains(&index) { Cell::number(title) } else { Cell::text(title) };
        cell.style(FAINT)
    }));
    for output in &agreement.outputs {
        let verdict = if agreement.accepts(output) && output.undefined > 0 {
            Cell::text("is NaN in the reference").style(ERROR)
        } else if agreement.accepts(output) {
            Cell::text(format!("agrees (limit {})", scientific(agreement.bound))).style(GOOD)
        } else {
            Cell::text(format!("exceeds {}", scientific(agreement.bound))).style(ERROR)
        };
        let name = Cell::name(&output.name).style(STRONG);
        match &output.figures {
            Ok(figures) => table.row([
                name,
                Cell::number(distance(figures, figures.max_relative)),
                Cell::number(decibels(figures.snr())),
                Cell::number(format!("{} of {}", figures.differing, figures.elements)).minor(),
                verdict,
                match figures.unlike {
                    0 => Cell::text(""),
                    unlike => Cell::text(format!("{unlike} finite in only one")).style(ERROR),
                },
            ]),
            Err(why) => table.row([
                name,
                Cell::number(""),
                Cell::number(""),
                Cell::number(""),
                Cell::text(why).style(ERROR),
            ]),
        }
    }
    let mut text = table.render();
    for output in agreement.outputs.iter().filter(|output| output.undefined > 0) {
        let (name, count) = (&output.name, output.undefined);
        let warning = paint(ERROR, "warning");
        text += &format!(
            "  {warning}: the reference of `{name}` has {count} NaN; torch may not produce them, which was not verified\n"
        );
    }
    if let Some(caveat) = &agreement.caveat {
        text += &format!("  {}: {caveat}\n", paint(ERROR, "warning"));
    }
    text
}

/// JSON form of the result.
#[derive(Serialize)]
pub(in crate::commands) struct Verified {
    holds: bool,
    bound: f64,
    outputs: Vec<VerifiedOutput>,
    #[serde(skip_serializing_if = "Option::is_none")]
    caveat: Option<String>,
}

#[derive(Serialize)]
struct VerifiedOutput {
    name: String,
    agrees: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    undefined: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    figures: Option<ErrorMetrics>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mismatch: Option<String>,
}

impl Verified {
    pub(in crate::commands) fn of(agreement: &NumericsReport) -> Verified {
        let output = |output: &OutputAgreement| VerifiedOutput {
            name: output.name.clone(),
            agrees: agreement.accepts(output) && output.undefined == 0,
            undefined: Some(output.undefined).filter(|&count| count > 0),
            figures: output.figures.clone().ok(),
            mismatch: output.figures.clone().err(),
        };
        Verified {
            holds: agreement.holds(),
            bound: agreement.bound,
            outputs: agreement.outputs.iter().map(output).collect(),
            caveat: agreement.caveat.clone(),
        }
    }
}
