//! `coremill.quantize`: post-training quantization.

use std::path::{Path, PathBuf};

use coremill::quantize::{
    self as library, Artifact, Config, Loss, Observer, Output, Pixels, Quantizer, Recipe, Rule,
    RuleText, Sample, Scheme,
};
use coremill::{OpenedModel, convert as conversion};
use coremill_compiler::LowerOptions;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use serde::Serialize;

use crate::arrays::{self, Item};
use crate::model::{Model, json};
use crate::options::{self, Keywords, wrong};
use crate::path::path_of;
use crate::program::Program;
use crate::{Source, error, work};

/// The loss of each layer.
#[derive(Serialize)]
struct Report<'q> {
    format_version: u32,
    target: &'static str,
    samples: usize,
    /// SNR of the worst output with all layers quantized.
    model_db: Option<f64>,
    /// The effort of the result.
    effort: u8,
    layers: &'q [Loss],
}

/// Quantizes a program by a recipe. Returns the model or the ExecuTorch program, and the loss of
/// each layer as JSON.
#[pyfunction]
#[pyo3(signature = (program, recipe, samples, **options))]
pub(crate) fn quantize<'py>(
    py: Python<'py>,
    program: &Bound<'py, PyAny>,
    recipe: &str,
    samples: &Bound<'py, PyAny>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<(Bound<'py, PyAny>, String)> {
    let mut keywords = Keywords::new(py, options)?;
    let config = config(py, recipe, &mut keywords)?;
    let output = match keywords.text("output")?.as_deref() {
        None | Some("model") => Output::Model,
        Some("program") => Output::Program,
        Some(other) => {
            let message = format!("`output` is `{other}`; expected `model` or `program`");
            return Err(error::option(py, message, None));
        }
    };
    let options = match output {
        Output::Model => {
            LowerOptions { options: options::convert(&mut keywords)?, ..LowerOptions::default() }
        }
        Output::Program => options::lower(&mut keywords)?,
    };
    if keywords.take_samples().is_some() {
        let message = "`precision` is `auto`; expected `fp16` or `fp32`";
        return Err(error::option(py, message, None));
    }
    keywords.finish("quantize")?;
    let mut lent = Vec::new();
    let source = Source::of(program, "quantize", &mut lent)?;
    let quantizer = work::run(py, move |stage| {
        stage.set("reading the program");
        let program = source.read()?;
        conversion::check_options(&program, &options.options)?;
        stage.set("lowering");
        Ok(Quantizer::new(program, output, &options, &config)?)
    })?;
    let names: Vec<String> = quantizer.inputs().iter().map(|port| port.name.clone()).collect();
    let given = all(samples, &names)?;
    let quantized = work::run(py, move |stage| {
        let mut samples: Vec<Sample> = Vec::new();
        for one in given {
            match one {
                One::Given(items) => {
                    let mut sample = Sample::with_capacity(items.len());
                    for (name, item) in items {
                        let array = match item {
                            Item::Array(array) => array,
                            Item::Picture(bytes) => quantizer.picture(&name, &bytes)?,
                        };
                        sample.push((name, array));
                    }
                    samples.push(sample);
                }
                One::Path(path) => samples.extend(quantizer.read_samples(&[path])?),
            }
        }
        stage.set(format!("quantizing with {} samples", samples.len()));
        Ok(quantizer.run(&samples)?)
    })?;
    let target = quantized.target;
    let report = Report {
        format_version: 1,
        target: target.tag(),
        samples: quantized.samples,
        model_db: quantized.model_db,
        effort: quantized.effort,
        layers: &quantized.layers,
    };
    let report = json(py, &report)?;
    let made = match quantized.made {
        Artifact::Model(model) => {
            let opened = OpenedModel::made(model, Path::new("model"));
            Bound::new(py, Model::new(opened, lent, Some(target)))?.into_any()
        }
        Artifact::Program(program) => {
            Bound::new(py, Program::new(program, lent, Vec::new()))?.into_any()
        }
    };
    Ok((made, report))
}

fn config(py: Python<'_>, recipe: &str, keywords: &mut Keywords<'_>) -> PyResult<Config> {
    let refuse = |error: coremill::optimize::Error| error::option(py, error.to_string(), None);
    let recipe: Recipe = recipe.parse().map_err(refuse)?;
    let mut config = Config::new(recipe);
    if let Some(observer) = keywords.text("observer")? {
        config.observer = observer.parse::<Observer>().map_err(refuse)?;
    }
    let usual = Pixels::default();
    config.pixels = Pixels {
        mean: channels(keywords, "mean")?.unwrap_or(usual.mean),
        std: channels(keywords, "std")?.unwrap_or(usual.std),
    };
    let count = "a non-negative integer";
    let scheme = &mut config.scheme;
    scheme.group_size = keywords.of("group_size", count)?.unwrap_or(scheme.group_size);
    scheme.bits = keywords.of("bits", "1 to 8")?.unwrap_or(scheme.bits);
    if let Some(block) = keywords.take("block") {
        let sizes = block.extract::<(i64, i64)>().ok();
        let size = |size: i64| match size {
            -1 => Some(0),
            _ => usize::try_from(size).ok().filter(|size| *size > 0),
        };
        let sizes = sizes.and_then(|(rows, columns)| size(rows).zip(size(columns)));
        let what = "numbers of rows and columns, with -1 for all, such as `(16, -1)`";
        scheme.block = sizes.ok_or_else(|| wrong(&block, "block", what))?;
    }
    config.keep = keywords.texts("keep")?;
    config.keep_ops = keywords.texts("keep_ops")?;
    config.min_elements = keywords.of("min_elements", count)?.unwrap_or_default();
    config.keep_worst = keywords.of("keep_worst", count)?.unwrap_or_default();
    config.effort = keywords.of("effort", "0, 1 or 2")?.unwrap_or_default();
    if let Some(value) = keywords.take("rules") {
        config.rules = rules(&value, config.scheme)?;
    }
    Ok(config)
}

/// Rules: the path of a TOML file, or dictionaries with the same keys.
fn rules(value: &Bound<'_, PyAny>, usual: Scheme) -> PyResult<Vec<Rule>> {
    let py = value.py();
    if let Some(path) = path_of(value)? {
        return library::read_rules(&path, usual)
            .map_err(|error| error::of_library(py, &error.into()));
    }
    let text = py.import("json")?.call_method1("dumps", (value,));
    let text: String = text
        .and_then(|text| text.extract())
        .map_err(|_| wrong(value, "rules", "a path, or a list of dicts"))?;
    let texts: Vec<RuleText> = serde_json::from_str(&text)
        .map_err(|failure| error::option(py, format!("cannot parse a rule: {failure}"), None))?;
    let rules = texts.iter().enumerate().map(|(at, rule)| rule.to_rule(at, usual));
    rules.map(|rule| rule.map_err(|error| error::of_library(py, &error.into()))).collect()
}

/// One number for all channels of images, or three.
fn channels(keywords: &mut Keywords<'_>, name: &'static str) -> PyResult<Option<[f32; 3]>> {
    let Some(value) = keywords.take(name) else { return Ok(None) };
    if let Ok(all) = value.extract::<f32>() {
        return Ok(Some([all; 3]));
    }
    value.extract().map(Some).map_err(|_| wrong(&value, name, "one number, or three"))
}

/// A sample, or a path of samples.
enum One {
    Given(Vec<(String, Item)>),
    Path(PathBuf),
}

/// Samples: a path, or an iterable of samples.
fn all(samples: &Bound<'_, PyAny>, names: &[String]) -> PyResult<Vec<One>> {
    if let Some(path) = path_of(samples)? {
        return Ok(vec![One::Path(path)]);
    }
    let what = "a path, or a list of inputs";
    if samples.is_instance_of::<PyDict>() || arrays::is_torch(samples)? {
        let message = "`samples` is one sample; expected a list of them";
        let hint = "pass `samples=[sample]`".to_owned();
        return Err(error::option(samples.py(), message, Some(hint)));
    }
    let samples = samples.try_iter().map_err(|_| wrong(samples, "samples", what))?;
    samples.enumerate().map(|(at, sample)| one(&sample?, at, names)).collect()
}

/// A sample: a path, a dictionary of arrays and images, a tuple in the order of the inputs, or the
/// value of the only input.
fn one(sample: &Bound<'_, PyAny>, at: usize, names: &[String]) -> PyResult<One> {
    let py = sample.py();
    if let Some(path) = path_of(sample)? {
        return Ok(One::Path(path));
    }
    if let Ok(dict) = sample.cast::<PyDict>() {
        return Ok(One::Given(arrays::by_name(dict)?.items));
    }
    let values: Vec<Bound<'_, PyAny>> = match sample.cast::<PyTuple>() {
        Ok(tuple) => tuple.iter().collect(),
        Err(_) if sample.is_instance_of::<PyList>() => {
            sample.try_iter()?.collect::<PyResult<_>>()?
        }
        Err(_) => vec![sample.clone()],
    };
    if values.len() != names.len() {
        let inputs = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let message = format!(
            "sample {at} has {} arrays, but the inputs of the program are {inputs}",
            values.len()
        );
        let hint = "pass only the inputs, without labels".to_owned();
        return Err(error::option(py, message, Some(hint)));
    }
    let pairs = names.iter().zip(&values);
    let found = pairs.map(|(name, value)| Ok((name.clone(), Item::of(value, name)?)));
    Ok(One::Given(found.collect::<PyResult<_>>()?))
}
