//! Multifunction models: several programs in one model, with shared weights.

use coremill_compiler::{self as compiler, Conversion, FED_KEY, LoweringError, Options};
use coremill_mil::ir::{Opset, Program};
use coremill_mil::model::{FunctionDescription, Model, ModelDescription};
use coremill_pt2::ExportedProgram;

use super::with_notes;

/// Converts programs to functions of one model, all for the release that the most demanding one
/// needs. Core ML supports several functions from iOS 18 on.
pub fn convert_functions(
    programs: Vec<(String, ExportedProgram)>,
    options: &Options,
) -> Result<Vec<(String, Conversion)>, compiler::Error> {
    if let Some(target) = options.target.filter(|target| *target < Opset::Ios18) {
        let what = "a model of several functions";
        return Err(compiler::Error::Program(LoweringError::needs(what, Opset::Ios18, target)));
    }
    let mut wanted = Opset::Ios18;
    let mut converted: Vec<(String, Conversion)> = Vec::new();
    loop {
        let mut highest = wanted;
        for (name, program) in &programs {
            let options = Options { target: options.target, ..with_notes(program, options) };
            let conversion = compiler::convert_from(program.clone(), &options, wanted)?;
            highest = highest.max(conversion.target);
            converted.push((name.clone(), conversion));
        }
        if converted.iter().all(|(_, conversion)| conversion.target == highest) {
            let models = converted.iter().flat_map(|(_, made)| &made.model.program.functions);
            compiler::check_fp32_values(models, options)?;
            return Ok(converted);
        }
        wanted = highest;
        converted.clear();
    }
}

/// Merges models to one with a function for each. The first is the default function.
pub fn merge(models: Vec<(String, Model)>) -> Model {
    let mut merged = Model { program: Program::default(), ..Model::default() };
    let mut description = ModelDescription::default();
    let mut fed: Vec<serde_json::Value> = Vec::new();
    // Version 9 of the format introduced functions.
    merged.specification_version = 9;
    for (name, model) in models {
        merged.specification_version =
            merged.specification_version.max(model.specification_version);
        let of = model.description;
        let metadata = of.metadata.as_ref();
        let told = metadata.and_then(|metadata| metadata.user_defined(FED_KEY));
        let told: Option<Vec<serde_json::Value>> =
            told.and_then(|told| serde_json::from_str(told).ok());
        for one in told.into_iter().flatten() {
            if !fed.contains(&one) {
                fed.push(one);
            }
        }
        if description.metadata.is_none() {
            description.metadata = of.metadata;
        }
        if description.default_function.is_empty() {
            description.default_function.clone_from(&name);
        }
        description.functions.push(FunctionDescription {
            name: name.clone(),
            inputs: of.inputs,
            outputs: of.outputs,
            states: of.states,
            predicted_feature_name: of.predicted_feature_name,
            predicted_probabilities_name: of.predicted_probabilities_name,
            ..FunctionDescription::default()
        });
        for mut function in model.program.functions {
            function.name.clone_from(&name);
            merged.program.functions.push(function);
        }
    }
    if !fed.is_empty() {
        let told = serde_json::Value::from(fed).to_string();
        description.metadata.get_or_insert_default().set_user_defined(FED_KEY, told);
    }
    merged.description = description;
    merged
}
