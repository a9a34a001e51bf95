//! Functions: several models as one, and one function alone.

use coremill_io::unknown_name;
use coremill_mil::ir::Program;
use coremill_mil::model::{FED_KEY, FunctionDescription, Model, ModelDescription};
use coremill_mil::text::identifier;

use crate::error::Error;

/// The first version of the format that has several functions.
const FUNCTIONS_VERSION: i32 = 9;

/// One function of a model, as a model of its own; the default one if no name is given.
pub fn function(model: &Model, name: Option<&str>) -> Result<Model, Error> {
    let name = name.unwrap_or(model.default_function_name());
    let known = model.program.functions.iter().map(|function| &function.name);
    let Some(found) = model.program.function(name) else {
        return Err(Error::new(unknown_name("function", name, known)));
    };
    let Some(signature) = model.signature(name) else {
        return Err(Error::new(format!("function `{name}` has no description")));
    };
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    let description = ModelDescription {
        inputs: signature.inputs.to_vec(),
        outputs: signature.outputs.to_vec(),
        states: signature.states.to_vec(),
        predicted_feature_name: text(signature.predicted_feature_name),
        predicted_probabilities_name: text(signature.predicted_probabilities_name),
        metadata: model.description.metadata.clone(),
        ..ModelDescription::default()
    };
    let program = Program { functions: vec![found.clone()], ..model.program.clone() };
    Ok(Model { description, program, ..model.clone() })
}

/// One model with a function of each model, by its new name. The first one runs by default. Weights of equal content are
/// stored once.
pub fn merge(models: Vec<(String, Model)>) -> Result<Model, Error> {
    let mut merged = Model { specification_version: FUNCTIONS_VERSION, ..Model::default() };
    let mut description = ModelDescription::default();
    let mut fed: Vec<serde_json::Value> = Vec::new();
    for (name, model) in models {
        if identifier(&name) != name {
            return Err(Error::new(format!("`{name}` is not a valid function name"))
                .with_hint(format!("`{}` is valid", identifier(&name))));
        }
        if description.functions.iter().any(|function| function.name == name) {
            return Err(Error::new(format!("two functions would be named `{name}`")));
        }
        if model.program.functions.len() != 1 {
            let count = model.program.functions.len();
            return Err(Error::new(format!(
                "the model for `{name}` must have 1 function, got {count}"
            ))
            .with_hint("select one of them"));
        }
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
    if merged.program.functions.is_empty() {
        return Err(Error::new("expected at least one model to merge"));
    }
    if !fed.is_empty() {
        let told = serde_json::Value::from(fed).to_string();
        description.metadata.get_or_insert_default().set_user_defined(FED_KEY, told);
    }
    merged.description = description;
    Ok(merged)
}
