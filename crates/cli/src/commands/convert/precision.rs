//! Results of `--precision auto`.

use coremill::precision::{MixedPrecisionPlan, Outcome, Output, PrecisionFix, choose};
use coremill_compiler::LowerOptions;
use coremill_pt2::ExportedProgram;
use serde::Serialize;

use super::options::ProgramArgs;
use crate::commands::{failure, figures};
use crate::output::Failure;
use crate::output::{Cell, ERROR, FAINT, GOOD, STRONG, Table};

/// Hint if no fix is sufficient.
pub(in crate::commands) const REMEDY: &str =
    "pass `--precision fp32`, or samples like those that the model will see";

/// Chooses the precision of operations if requested, and sets the options accordingly.
pub(in crate::commands) fn chosen(
    args: &ProgramArgs,
    program: &ExportedProgram,
    output: Output,
    options: &mut LowerOptions,
) -> Result<Option<MixedPrecisionPlan>, Failure> {
    let Some(samples) = args.auto()? else { return Ok(None) };
    let chosen = choose(program, output, options, samples, args.numerics());
    let chosen = chosen.map_err(|error| failure(&error))?;
    chosen.apply(&mut options.options);
    Ok(Some(chosen))
}

/// Error: `--precision auto` supports only one program per output.
pub(in crate::commands) fn of_several() -> Failure {
    Failure::user("the precision of several programs in one file cannot be chosen at once").hint(
        Some(
            "run `--precision auto` on each program separately, and pass the result as `--fp32-modules`",
        ),
    )
}

/// A table with a line per fix and per output.
pub(in crate::commands) fn render(chosen: &MixedPrecisionPlan) -> String {
    let mut table = Table::new(2);
    let title = |title: &'static str| Cell::text(title).style(FAINT);
    if !chosen.cures.is_empty() {
        table.row(["beyond fp16", "reason", "fix", "cost"].map(title));
    }
    for cure in &chosen.cures {
        let place = match &cure.module {
            Some(module) => format!("{} in {module}", cure.name),
            None => cure.name.clone(),
        };
        table.row([
            Cell::name(place).style(STRONG),
            Cell::text(&cure.reason),
            Cell::text(&cure.remedy),
            Cell::text(&cure.cost),
        ]);
    }
    let mut text = table.render();
    let mut table = Table::new(2);
    let head = ["output", "in fp16", "as written", ""];
    table.row(head.into_iter().enumerate().map(|(index, title)| {
        let cell = if (1..3).contains(&index) { Cell::number(title) } else { Cell::text(title) };
        cell.style(FAINT)
    }));
    let decibels = |found: Option<f64>| figures::decibels(found.unwrap_or(f64::INFINITY));
    for outcome in &chosen.outputs {
        let is_enough = outcome.after.is_none_or(|found| found >= coremill::precision::ENOUGH_DB);
        table.row([
            Cell::name(&outcome.name).style(STRONG),
            Cell::number(decibels(outcome.before)),
            Cell::number(decibels(outcome.after)),
            match is_enough {
                true => Cell::text("agrees with fp32").style(GOOD),
                false => Cell::text("is too far from fp32").style(ERROR),
            },
        ]);
    }
    text += &table.render();
    text
}

/// JSON form of the result.
#[derive(Serialize)]
pub(in crate::commands) struct ChosenReport {
    holds: bool,
    samples: usize,
    cures: Vec<PrecisionFix>,
    outputs: Vec<Outcome>,
}

impl ChosenReport {
    pub(in crate::commands) fn of(chosen: &MixedPrecisionPlan) -> ChosenReport {
        ChosenReport {
            holds: chosen.holds(),
            samples: chosen.samples,
            cures: chosen.cures.clone(),
            outputs: chosen.outputs.clone(),
        }
    }
}
