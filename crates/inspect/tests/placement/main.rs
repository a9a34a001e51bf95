//! Compares placement forecasts with the results of public studies of devices.

mod networks;
mod operations;
mod plans;

use coremill_device::Chip;
use coremill_inspect::placement::{ComputePlan, ForecastOptions, forecast};
use coremill_mil::infer::analyze;
use coremill_mil::ir::Program;
use coremill_mil::model::Model;
use coremill_mil::text;

/// A model without a feature description.
fn without_description(program: Program) -> Model {
    Model { specification_version: 9, program, ..Model::default() }
}

/// Parses the statements of a function body as a model. The operations must be valid; the declared types need not be.
fn read(inputs: &str, body: &str) -> Model {
    let source =
        format!("program(1.3)\n{{\n    func main<ios18>({inputs}) {{\n{body}\n}} -> (y);\n}}\n");
    let program = text::parse(&source, &text::NoWeights)
        .unwrap_or_else(|error| panic!("{}\n{source}", error.render("case")));
    let (_, problems) = analyze(&program.functions[0]);
    assert!(problems.is_empty(), "{source}\n{problems:?}");
    without_description(program)
}

/// The forecast for a chip.
fn on(chip: &str, model: &Model) -> ComputePlan {
    let chip = Chip::parse(chip).unwrap_or_else(|error| panic!("{error}"));
    forecast(model, &ForecastOptions { chip, ..ForecastOptions::default() })
}
