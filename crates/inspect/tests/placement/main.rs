//! Forecasts of where operations run, against what public studies of devices found.

mod networks;
mod operations;
mod plans;

use coremill_device::Chip;
use coremill_inspect::placement::{ComputePlan, ForecastOptions, forecast};
use coremill_mil::infer::analyze;
use coremill_mil::ir::Program;
use coremill_mil::model::Model;
use coremill_mil::text;

/// A model of a program that nothing describes.
fn undescribed(program: Program) -> Model {
    Model { specification_version: 9, program, ..Model::default() }
}

/// The model of a body of statements. Its operations must be sound; the types that it declares need not be.
fn read(inputs: &str, body: &str) -> Model {
    let source =
        format!("program(1.3)\n{{\n    func main<ios18>({inputs}) {{\n{body}\n}} -> (y);\n}}\n");
    let program = text::parse(&source, &text::NoWeights)
        .unwrap_or_else(|error| panic!("{}\n{source}", error.render("case")));
    let (_, problems) = analyze(&program.functions[0]);
    assert!(problems.is_empty(), "{source}\n{problems:?}");
    undescribed(program)
}

fn on(chip: &str, model: &Model) -> ComputePlan {
    let chip = Chip::parse(chip).unwrap_or_else(|error| panic!("{error}"));
    forecast(model, &ForecastOptions { chip, ..ForecastOptions::default() })
}
