//! Keyword arguments as options, the same as for the commands `convert` and `lower`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use coremill::convert::parse_target;
use coremill::edit::Edit;
use coremill_compiler::{
    CompileSpec, Constant, LowerOptions, ModelType, Options, Precision, States, WeightSharing,
};
use coremill_compress::linear;
use coremill_engine::Numerics;
use coremill_io::unknown_name;
use coremill_passes::check_pass_names;
use coremill_session::Device;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use serde::Deserialize;

use crate::error::{self, Failure};
use crate::path::path_of;

/// Takes keywords one by one, so that unknown ones are found.
pub(crate) struct Keywords<'py> {
    py: Python<'py>,
    left: BTreeMap<String, Bound<'py, PyAny>>,
    known: Vec<&'static str>,
    /// Samples for choosing the precision, if `precision` is `auto`.
    samples: Option<Vec<PathBuf>>,
    /// Changes of inputs and outputs after the conversion.
    edits: Vec<Edit>,
}

impl<'py> Keywords<'py> {
    pub(crate) fn new(py: Python<'py>, keywords: Option<&Bound<'py, PyDict>>) -> PyResult<Self> {
        let mut left = BTreeMap::new();
        if let Some(keywords) = keywords {
            for (key, value) in keywords.iter() {
                left.insert(key.extract()?, value);
            }
        }
        Ok(Keywords { py, left, known: Vec::new(), samples: None, edits: Vec::new() })
    }

    /// Takes the samples for choosing the precision. `None` unless `precision` is `auto`.
    pub(crate) fn take_samples(&mut self) -> Option<Vec<PathBuf>> {
        self.samples.take()
    }

    /// Takes the changes of inputs and outputs.
    pub(crate) fn take_edits(&mut self) -> Vec<Edit> {
        std::mem::take(&mut self.edits)
    }

    /// The value of a keyword, `None` if it is missing or `None`.
    pub(crate) fn take(&mut self, name: &'static str) -> Option<Bound<'py, PyAny>> {
        self.known.push(name);
        self.left.remove(name).filter(|value| !value.is_none())
    }

    pub(crate) fn of<T>(&mut self, name: &'static str, what: &str) -> PyResult<Option<T>>
    where
        T: for<'a> FromPyObject<'a, 'py>,
    {
        let Some(value) = self.take(name) else { return Ok(None) };
        let found = value.extract::<T>().map_err(|_| wrong(&value, name, what))?;
        Ok(Some(found))
    }

    pub(crate) fn text(&mut self, name: &'static str) -> PyResult<Option<String>> {
        self.of(name, "a str")
    }

    pub(crate) fn flag(&mut self, name: &'static str) -> PyResult<bool> {
        let Some(value) = self.take(name) else { return Ok(false) };
        match value.cast::<PyBool>() {
            Ok(truth) => Ok(truth.is_true()),
            Err(_) => Err(wrong(&value, name, "True or False")),
        }
    }

    fn flag_or(&mut self, name: &'static str, default: bool) -> PyResult<bool> {
        match self.left.get(name).is_some_and(|value| !value.is_none()) {
            true => self.flag(name),
            false => {
                self.take(name);
                Ok(default)
            }
        }
    }

    /// A list of names. A single string is a list with one name.
    pub(crate) fn texts(&mut self, name: &'static str) -> PyResult<Vec<String>> {
        let Some(value) = self.take(name) else { return Ok(Vec::new()) };
        if let Ok(one) = value.cast::<PyString>() {
            return Ok(vec![one.to_cow()?.into_owned()]);
        }
        let wrong = |_| wrong(&value, name, "a list of str");
        value.try_iter().map_err(wrong)?.map(|item| item?.extract().map_err(wrong)).collect()
    }

    fn named(&mut self, name: &'static str) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
        let Some(value) = self.take(name) else { return Ok(Vec::new()) };
        let Ok(dict) = value.cast::<PyDict>() else {
            return Err(wrong(&value, name, "a dict with names as keys"));
        };
        dict.iter().map(|(key, value)| Ok((key.extract::<String>()?, value))).collect()
    }

    /// Rejects keywords that were not taken.
    pub(crate) fn finish(self, function: &str) -> PyResult<()> {
        let Some((name, _)) = self.left.first_key_value() else { return Ok(()) };
        let message = format!("{function}(): {}", unknown_name("option", name, &self.known));
        let hint = format!("the options are {}", self.known.join(", "));
        let hint = (self.known.len() > 1).then_some(hint);
        Err(error::option(self.py, message, hint))
    }
}

pub(crate) fn wrong(value: &Bound<'_, PyAny>, name: &str, what: &str) -> PyErr {
    let shown = value.repr().map_or_else(|_| "an object".to_owned(), |text| text.to_string());
    let shown: String = shown.chars().take(80).collect();
    error::option(value.py(), format!("`{name}` is {shown}; expected {what}"), None)
}

/// The conversion options that `convert` and `lower` share.
pub(crate) fn program(keywords: &mut Keywords<'_>) -> PyResult<Options> {
    let py = keywords.py;
    let mut options = Options::default();
    if let Some(target) = keywords.take("target") {
        options.target = Some(release(&target)?);
    }
    if let Some(precision) = keywords.text("precision")? {
        options.precision = match precision.to_lowercase().as_str() {
            "fp16" | "float16" => Precision::Fp16,
            "fp32" | "float32" => Precision::Fp32,
            "auto" => {
                keywords.samples = Some(Vec::new());
                Precision::Fp16
            }
            _ => {
                let message =
                    format!("`precision` is `{precision}`; expected `fp16`, `fp32` or `auto`");
                return Err(error::option(py, message, None));
            }
        };
    }
    options.fp32_ops = keywords.texts("fp32_ops")?;
    options.fp32_modules = keywords.texts("fp32_modules")?;
    options.fp32_values = keywords.texts("fp32_values")?;
    options.decompose_sdpa = keywords.flag("decompose_sdpa")?;
    options.skipped_passes = keywords.texts("skip_passes")?;
    check_pass_names(&options.skipped_passes)
        .map_err(|unknown| error::option(py, unknown.message, Some(unknown.hint)))?;
    for (name, value) in keywords.named("shapes")? {
        options.shapes.insert(name, shapes(&value)?);
    }
    if let Some(value) = keywords.take("quantization") {
        options.quantization = Some(quantization(&value)?);
    }
    Ok(options)
}

/// Quantization of weights: the fields of coremltools' `OpLinearQuantizerConfig` as a dictionary or
/// JSON.
fn quantization(value: &Bound<'_, PyAny>) -> PyResult<linear::Config> {
    let py = value.py();
    let text = match value.cast::<PyString>() {
        Ok(text) => text.to_cow()?.into_owned(),
        Err(_) => {
            let what = "a dict, such as `{\"mode\": \"linear_symmetric\", \"dtype\": \"int8\"}`";
            let text = py.import("json")?.call_method1("dumps", (value,));
            text.and_then(|text| text.extract()).map_err(|_| wrong(value, "quantization", what))?
        }
    };
    linear::Config::from_json(&text).map_err(|failure| {
        let message = format!("`quantization`: {failure}");
        error::option(py, message, failure.hint().map(str::to_owned))
    })
}

/// A release: `"ios18"`, or a coremltools enum member named `iOS18`.
fn release(value: &Bound<'_, PyAny>) -> PyResult<coremill_mil::ir::Opset> {
    let name = match value.cast::<PyString>() {
        Ok(text) => text.to_cow()?.into_owned(),
        Err(_) => match value.getattr_opt("name")? {
            Some(name) => name.extract().map_err(|_| wrong(value, "target", "a release"))?,
            None => return Err(wrong(value, "target", "a release, such as `ios18`")),
        },
    };
    parse_target(&name).ok_or_else(|| {
        let hint =
            "releases are ios15 to ios18 and ios26, and the macos, watchos and tvos releases of the same years";
        error::option(
            value.py(),
            format!("`target` is `{name}`, which is not a release that supports ML Programs"),
            Some(hint.to_owned()),
        )
    })
}

/// A shape, or a list of shapes.
fn shapes(value: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<u64>>> {
    let shapes = match value.extract::<Vec<u64>>() {
        Ok(one) => vec![one],
        Err(_) => value
            .extract::<Vec<Vec<u64>>>()
            .map_err(|_| wrong(value, "shapes", "a shape or a list of shapes for each input"))?,
    };
    let is_size = |size: &u64| (1..=i32::MAX as u64).contains(size);
    if !shapes.iter().flatten().all(is_size) {
        return Err(wrong(value, "shapes", "sizes from 1 to 2147483647"));
    }
    if shapes.iter().any(|shape| shape.len() != shapes[0].len()) {
        return Err(wrong(value, "shapes", "shapes of the same rank for each input"));
    }
    Ok(shapes)
}

/// The error bound for verification: `True` for the default, or a number.
pub(crate) fn bound(keywords: &mut Keywords<'_>, precision: Precision) -> PyResult<Option<f64>> {
    let Some(value) = keywords.take("verify") else { return Ok(None) };
    if let Ok(truth) = value.cast::<PyBool>() {
        return Ok(truth.is_true().then(|| coremill::convert::bound(precision)));
    }
    match value.extract::<f64>() {
        Ok(bound) if bound.is_finite() && bound >= 0.0 => Ok(Some(bound)),
        _ => Err(wrong(&value, "verify", "True, False, or a bound of at least 0")),
    }
}

/// An arithmetic by its name.
pub(crate) fn numerics_named(py: Python<'_>, name: &str) -> PyResult<Numerics> {
    name.parse().map_err(|_| {
        let expected = "expected `fast`, `rounded`, `ane` or `coreml-cpu`";
        error::option(py, format!("`numerics` is `{name}`; {expected}"), None)
    })
}

/// The arithmetic in which fp16 programs are judged.
pub(crate) fn numerics(keywords: &mut Keywords<'_>) -> PyResult<Numerics> {
    match keywords.text("numerics")? {
        Some(name) => numerics_named(keywords.py, &name),
        None => Ok(Numerics::Rounded),
    }
}

/// The samples of `precision="auto"`: files and folders.
fn samples(keywords: &mut Keywords<'_>) -> PyResult<()> {
    let py = keywords.py;
    let Some(value) = keywords.take("samples") else { return Ok(()) };
    let paths = match path_of(&value)? {
        Some(path) => vec![path],
        None => {
            let what = "a path, or a list of paths";
            let items = value.try_iter().map_err(|_| wrong(&value, "samples", what))?;
            let path = |item: PyResult<Bound<'_, PyAny>>| {
                path_of(&item?)?.ok_or_else(|| wrong(&value, "samples", what))
            };
            items.map(path).collect::<PyResult<Vec<_>>>()?
        }
    };
    match &mut keywords.samples {
        Some(samples) => *samples = paths,
        None if paths.is_empty() => {}
        None => {
            let hint = "also pass `precision=\"auto\"`".to_owned();
            return Err(error::option(
                py,
                "`samples` are only used to choose the precision",
                Some(hint),
            ));
        }
    }
    Ok(())
}

/// The options of `convert`.
pub(crate) fn convert(keywords: &mut Keywords<'_>) -> PyResult<Options> {
    let mut options = program(keywords)?;
    samples(keywords)?;
    if let Some(states) = keywords.text("states")? {
        options.states = match states.as_str() {
            "keep" => States::Keep,
            "io" => States::Io,
            _ => {
                let message = format!("`states` is `{states}`; expected `keep` or `io`");
                return Err(error::option(keywords.py, message, None));
            }
        };
    }
    if let Some(text) = keywords.text("edits")? {
        let edits = coremill::edit::from_json(&text)
            .map_err(|failure| error::option(keywords.py, failure.to_string(), None))?;
        options.at_least = Some(coremill::edit::needs(&edits));
        keywords.edits = edits;
    }
    options.input_names = keywords.texts("input_names")?;
    options.output_names = keywords.texts("output_names")?;
    let metadata = &mut options.metadata;
    metadata.author = keywords.text("author")?.unwrap_or_default();
    metadata.license = keywords.text("license")?.unwrap_or_default();
    metadata.short_description = keywords.text("description")?.unwrap_or_default();
    metadata.version = keywords.text("model_version")?.unwrap_or_default();
    let mut notes = BTreeMap::new();
    for (key, value) in keywords.named("metadata")? {
        notes.insert(key, value.extract().map_err(|_| wrong(&value, "metadata", "a str"))?);
    }
    metadata.user_defined = notes.into_iter().collect();
    Ok(options)
}

/// The options of `lower`.
pub(crate) fn lower(keywords: &mut Keywords<'_>) -> PyResult<LowerOptions> {
    let py = keywords.py;
    let mut options = LowerOptions { options: program(keywords)?, ..LowerOptions::default() };
    samples(keywords)?;
    options.skip_ops = keywords.texts("skip_ops")?;
    options.full_graph = keywords.flag("full_graph")?;
    options.portable = keywords.flag("portable")?;
    options.take_over_constant_data = keywords.flag_or("take_over_constant_data", true)?;
    options.take_over_mutable_buffer = keywords.flag_or("take_over_mutable_buffer", true)?;
    options.debug_info = keywords.flag_or("debug_info", true)?;
    if let Some(sharing) = keywords.text("weight_sharing")? {
        options.weight_sharing = Some(match sharing.as_str() {
            "positional" => WeightSharing::Positional,
            "disabled" => WeightSharing::Disabled,
            _ => {
                let message =
                    format!("`weight_sharing` is `{sharing}`; expected `positional` or `disabled`");
                return Err(error::option(py, message, None));
            }
        });
    }
    if let Some(value) = keywords.take("constant_methods") {
        let Ok(methods) = value.cast::<PyDict>() else {
            return Err(wrong(&value, "constant_methods", "a dict with names as keys"));
        };
        options.constant_methods = constants(methods)?;
    }
    if keywords.flag("compiled")? {
        options.model_type = ModelType::CompiledModel;
    }
    if let Some(specs) = keywords.take("compile_specs") {
        apply(&mut options, &self::specs(&specs)?, py)?;
    }
    Ok(options)
}

/// Constant methods, by name.
pub(crate) fn constants(methods: &Bound<'_, PyDict>) -> PyResult<Vec<(String, Constant)>> {
    methods.iter().map(|(name, value)| Ok((name.extract()?, constant(&value)?))).collect()
}

fn constant(value: &Bound<'_, PyAny>) -> PyResult<Constant> {
    Ok(if let Ok(truth) = value.cast::<PyBool>() {
        Constant::Bool(truth.is_true())
    } else if let Ok(number) = value.cast::<PyInt>() {
        let wide = |_| wrong(value, "constant_methods", "a 64-bit integer");
        Constant::Int(number.extract().map_err(wide)?)
    } else if let Ok(number) = value.cast::<PyFloat>() {
        Constant::Double(number.value())
    } else if let Ok(text) = value.cast::<PyString>() {
        Constant::Text(text.to_cow()?.into_owned())
    } else if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let items = value.try_iter()?.map(|item| constant(&item?));
        Constant::Several(items.collect::<PyResult<_>>()?)
    } else {
        let expected = "a bool, an int, a float, a str or a list of them";
        return Err(wrong(value, "constant_methods", expected));
    })
}

/// Compile specs: objects with `key` and `value`, or pairs.
pub(crate) fn specs(value: &Bound<'_, PyAny>) -> PyResult<Vec<CompileSpec>> {
    let mut specs = Vec::new();
    for item in value.try_iter()? {
        let item = item?;
        let (key, value) = match item.getattr_opt("key")? {
            Some(key) => (key, item.getattr("value")?),
            None => item
                .extract()
                .map_err(|_| wrong(&item, "compile_specs", "a pair of key and value"))?,
        };
        let value = match value.cast::<PyBytes>() {
            Ok(bytes) => bytes.as_bytes().to_vec(),
            Err(_) => value.extract().map_err(|_| wrong(&item, "compile_specs", "bytes"))?,
        };
        specs.push(CompileSpec { key: key.extract()?, value });
    }
    Ok(specs)
}

/// Applies compile specs to the options.
pub(crate) fn apply(
    options: &mut LowerOptions,
    specs: &[CompileSpec],
    py: Python<'_>,
) -> PyResult<()> {
    options
        .apply_specs(specs)
        .map_err(|refusal| error::option(py, refusal.reason.clone(), refusal.hint.clone()))
}

/// Parses options that `coremill.llm` wrote.
pub(crate) fn parsed<T: for<'de> Deserialize<'de>>(py: Python<'_>, text: &str) -> PyResult<T> {
    serde_json::from_str(text)
        .map_err(|error| error::option(py, format!("an option is invalid: {error}"), None))
}

/// The device of a name.
pub(crate) fn device_named(name: &str) -> Result<Device, Failure> {
    Ok(match name {
        "host" => Device::Host,
        "cpu" => Device::Cpu,
        "gpu" => Device::Gpu,
        "ane" => Device::NeuralEngine,
        "all" => Device::All,
        _ => {
            let message = format!("`device` is `{name}`; expected host, cpu, gpu, ane or all");
            return Err(Failure::Run { message, hint: None });
        }
    })
}
