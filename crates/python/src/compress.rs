//! `coremill.compress`: compression of weights.

use std::path::Path;
use std::sync::Arc;

use coremill::compress::{
    self as library, Budget, CompressedWeight, CompressionOutcome, Options, Rule, RuleText,
};
use coremill::convert::parse_target;
use coremill::{OpenedModel, quantity};
use coremill_mil::model::Model as CoreModel;
use pyo3::prelude::*;
use serde::Serialize;

use crate::model::{Model, json};
use crate::program::Program;
use crate::{error, work};

#[derive(Serialize)]
struct Weight {
    /// Name of the model, if it is in a program.
    model: Option<String>,
    function: String,
    name: String,
    shape: Vec<usize>,
    bytes_before: u64,
    bytes_after: u64,
    form: Option<String>,
    /// `None` if the compression is lossless.
    snr: Option<f64>,
    kept: Option<&'static str>,
}

/// Compresses the weights of a model, or of the models in a program, by rules in JSON. Returns a
/// new model or program, and a description of each weight as JSON. `size`, bytes or a string with a
/// unit, or `snr`, decibels, chooses the bits of each weight. With `joint`, weights that are compressed already
/// get the forms of the rules in addition.
#[pyfunction]
#[pyo3(signature = (model, rules, target, decompress, *, size = None, snr = None, joint = false))]
#[expect(clippy::too_many_arguments, reason = "one for each option")]
pub(crate) fn compress<'py>(
    py: Python<'py>,
    model: &Bound<'py, PyAny>,
    rules: &str,
    target: Option<&str>,
    decompress: bool,
    size: Option<&str>,
    snr: Option<f64>,
    joint: bool,
) -> PyResult<(Bound<'py, PyAny>, String)> {
    let texts: Vec<RuleText> = serde_json::from_str(rules)
        .map_err(|failure| error::option(py, format!("cannot parse a rule: {failure}"), None))?;
    let rules = texts.iter().map(RuleText::to_rule).collect::<Result<Vec<Rule>, _>>();
    let rules = rules.map_err(|failure| error::of_library(py, &failure.into()))?;
    let target = match target {
        None => None,
        Some(name) => Some(parse_target(name).ok_or_else(|| {
            error::option(py, format!("`target` must be a release, got `{name}`"), None)
        })?),
    };
    let size = match size {
        None => None,
        Some(text) => Some(quantity::parse_bytes(text).map_err(|reason| {
            error::option(py, format!("`target_size`: {reason}, got `{text}`"), None)
        })?),
    };
    if let Some(snr) = snr.filter(|snr| !snr.is_finite()) {
        return Err(error::option(
            py,
            format!("`target_snr` must be a finite number of decibels, got {snr}"),
            None,
        ));
    }
    let how = Before { decompress, joint };
    let budget = size.map(Budget::Bytes).or(snr.map(Budget::Snr));
    let options = Options { rules, target, budget, ..Options::default() };
    if let Ok(model) = model.cast::<Model>() {
        let model = model.get();
        let opened = model.opened();
        let (made, weights) = work::run(py, move |stage| {
            let mut made = opened.model.clone();
            let weights = apply(&mut made, &options, how, None, stage)?;
            Ok((OpenedModel::made(made, Path::new("model")), weights))
        })?;
        let made = Model::new(made, model.lent(py), None);
        return Ok((Bound::new(py, made)?.into_any(), json(py, &weights)?));
    }
    let Ok(program) = model.cast::<Program>() else {
        let class = model.get_type().name()?;
        return Err(error::option(
            py,
            format!("compress() expects a model or a program, got a {class}"),
            None,
        ));
    };
    let program = program.get();
    let source = program.program.clone();
    let (made, weights) = work::run(py, move |stage| {
        let mut made = Arc::unwrap_or_clone(source);
        let mut all = Vec::new();
        library::for_each_model(&mut made, &mut |name, model| {
            all.extend(apply(model, &options, how, Some(name), stage)?);
            Ok(())
        })?;
        Ok((made, all))
    })?;
    let made = Program::new(made, program.lent(py), Vec::new());
    Ok((Bound::new(py, made)?.into_any(), json(py, &weights)?))
}

/// Treatment of weights that are compressed already.
#[derive(Clone, Copy)]
struct Before {
    decompress: bool,
    joint: bool,
}

fn apply(
    model: &mut CoreModel,
    options: &Options,
    before: Before,
    name: Option<&str>,
    stage: &work::Stage,
) -> Result<Vec<Weight>, coremill::optimize::Error> {
    if before.decompress {
        library::decompress(model)?;
    }
    if options.rules.is_empty() {
        return Ok(Vec::new());
    }
    let mut options = options.clone();
    if before.joint {
        options.earlier = library::decompress_further(model)?;
    }
    let watch =
        |done: usize, all: usize| stage.set(format!("compressing weights: {done} of {all}"));
    let found = library::compress(model, &options, &watch)?;
    Ok(found.into_iter().map(|weight| of_weight(weight, name)).collect())
}

fn of_weight(weight: CompressedWeight, model: Option<&str>) -> Weight {
    let CompressedWeight { function, name, shape, before, rule: _, fate } = weight;
    let (form, after, snr, kept) = match fate {
        CompressionOutcome::Compressed { form, after, snr } => {
            (Some(form.to_string()), after, Some(snr).filter(|snr| snr.is_finite()), None)
        }
        CompressionOutcome::Kept(reason) => (None, before, None, Some(reason)),
    };
    Weight {
        model: model.map(str::to_owned),
        function,
        name,
        shape,
        bytes_before: before,
        bytes_after: after,
        form,
        snr,
        kept,
    }
}
