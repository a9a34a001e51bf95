//! `coremill.Model`: a Core ML model.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use coremill::device::Chip;
use coremill::inspect::placement::{ForecastOptions, forecast};
use coremill::mil::pipeline::{Pipeline, Stage};
use coremill::precision::{MixedPrecisionPlan, Outcome, PrecisionFix};
use coremill::{OpenedModel, SaveOptions};
use coremill_mil::ir::Opset;
use coremill_mil::model::Metadata;
use coremill_mil::text::{self, Dialect, PrintOptions};
use coremill_session::{RunOptions, Session as Running, inputs as by_name};
use coremill_verify::{RenderOptions, Severity};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::{Count, Text};
use crate::error::{self, Failure};
use crate::exported::BorrowedTensor;
use crate::path::PathArgument;
use crate::{arrays, work};

/// A model in memory.
#[pyclass(frozen, module = "coremill._native")]
pub(crate) struct Model {
    opened: Mutex<Arc<OpenedModel>>,
    /// Report of `precision="auto"`, as JSON.
    plan: Option<String>,
    /// torch tensors that own the memory of the weights.
    lent: Vec<BorrowedTensor>,
    target: Option<Opset>,
    default: Mutex<Option<Py<Session>>>,
}

impl Model {
    pub(crate) fn new(
        opened: OpenedModel,
        lent: Vec<BorrowedTensor>,
        target: Option<Opset>,
    ) -> Model {
        let opened = Mutex::new(Arc::new(opened));
        Model { opened, plan: None, lent, target, default: Mutex::new(None) }
    }

    /// Adds the report of `precision="auto"`.
    pub(crate) fn with_plan(
        self,
        py: Python<'_>,
        plan: Option<&MixedPrecisionPlan>,
    ) -> PyResult<Model> {
        let Some(plan) = plan else { return Ok(self) };
        let (cures, outputs) = (&plan.cures, &plan.outputs);
        let told = Choice { format_version: 1, samples: plan.samples, cures, outputs };
        Ok(Model { plan: Some(json(py, &told)?), ..self })
    }

    /// The current model.
    pub(crate) fn opened(&self) -> Arc<OpenedModel> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the metadata.
    fn edit(&self, change: impl FnOnce(&mut Metadata)) {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let description = &mut Arc::make_mut(&mut opened).model.description;
        change(description.metadata.get_or_insert_default());
    }

    /// Reads a part of the metadata.
    fn noted<T: Default>(&self, part: impl FnOnce(&Metadata) -> T) -> T {
        self.opened().model.description.metadata.as_ref().map_or_else(T::default, part)
    }

    /// The tensors that own the memory of the weights, for another model that shares them.
    pub(crate) fn lent(&self, py: Python<'_>) -> Vec<BorrowedTensor> {
        self.lent.iter().map(|lent| lent.share(py)).collect()
    }

    fn unchanged(&self, py: Python<'_>) -> PyResult<()> {
        self.lent.iter().try_for_each(|lent| lent.check(py))
    }

    fn default_session(slf: &Bound<'_, Self>) -> PyResult<Py<Session>> {
        let py = slf.py();
        let known = |model: &Model| {
            let session = model.default.lock().unwrap_or_else(PoisonError::into_inner);
            session.as_ref().map(|session| session.clone_ref(py))
        };
        if let Some(session) = known(slf.get()) {
            return Ok(session);
        }
        let made = Py::new(py, slf.get().session(py, None, None, Count(0), None)?)?;
        let mut session = slf.get().default.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(session.get_or_insert(made).clone_ref(py))
    }
}

/// Report of `precision="auto"`.
#[derive(serde::Serialize)]
struct Choice<'p> {
    format_version: u32,
    samples: usize,
    /// Fixes, in program order.
    cures: &'p [PrecisionFix],
    /// Accuracy of each output.
    outputs: &'p [Outcome],
}

/// Fails if Core ML would reject the model.
pub(crate) fn proof(opened: &OpenedModel) -> Result<coremill::Verified<'_>, Failure> {
    coremill::verify(&opened.model).map_err(|mut report| {
        report.diagnostics.retain(|diagnostic| diagnostic.severity() == Severity::Error);
        Failure::Invalid(opened.render(&report, &RenderOptions::default()))
    })
}

/// The chip of the option `device`.
fn chip(py: Python<'_>, name: &str) -> PyResult<&'static Chip> {
    Chip::parse(name)
        .map_err(|unknown| error::option(py, unknown.to_string(), Some(unknown.hint())))
}

#[pymethods]
impl Model {
    /// Writes the model as `.mlpackage`, `.mlmodelc` or `.mil`, by extension.
    #[pyo3(signature = (path, *, sync = false))]
    fn save(&self, py: Python<'_>, path: PathArgument, sync: bool) -> PyResult<()> {
        let PathArgument(path) = path;
        self.unchanged(py)?;
        let opened = self.opened();
        work::run(py, move |stage| {
            stage.set(format!("writing {}", path.display()));
            let verified = proof(&opened)?;
            if path.extension().is_some_and(|extension| extension == "mil") {
                coremill::save_text(&path, &opened.model.program, Dialect::default())?;
            } else {
                coremill::save(&path, &verified, &SaveOptions { durable: sync })?;
            }
            Ok(())
        })
    }

    /// Runs the model.
    ///
    /// inputs: a dictionary of arrays by name, or the array of the only input; arrays may also be keyword arguments.
    /// outputs: names of the values to return, outputs or intermediate ones; all outputs if left out.
    ///
    /// An array is anything that numpy converts, including torch tensors. Image inputs also accept Pillow images. Returns a
    /// dictionary of arrays by name.
    #[pyo3(signature = (inputs = None, *, outputs = None, **named))]
    fn predict<'py>(
        slf: &Bound<'py, Self>,
        inputs: Option<&Bound<'py, PyAny>>,
        outputs: Option<&Bound<'py, PyAny>>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let py = slf.py();
        let session = Model::default_session(slf)?;
        session.get().predict(py, inputs, outputs, named)
    }

    /// States by name. Assigning to a name sets a state.
    #[getter]
    fn states<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let content = Model::default_session(slf)?.get().contents(slf.py())?;
        arrays::states(slf.as_any(), content)
    }

    /// The author in the metadata.
    #[getter]
    fn author(&self) -> String {
        self.noted(|metadata| metadata.author.clone())
    }

    #[setter]
    fn set_author(&self, author: Text) {
        self.edit(|metadata| metadata.author = author.0);
    }

    /// The license in the metadata.
    #[getter]
    fn license(&self) -> String {
        self.noted(|metadata| metadata.license.clone())
    }

    #[setter]
    fn set_license(&self, license: Text) {
        self.edit(|metadata| metadata.license = license.0);
    }

    /// The description in the metadata.
    #[getter]
    fn description(&self) -> String {
        self.noted(|metadata| metadata.short_description.clone())
    }

    #[setter]
    fn set_description(&self, description: Text) {
        self.edit(|metadata| metadata.short_description = description.0);
    }

    /// The version in the metadata.
    #[getter]
    fn model_version(&self) -> String {
        self.noted(|metadata| metadata.version.clone())
    }

    #[setter]
    fn set_model_version(&self, version: Text) {
        self.edit(|metadata| metadata.version = version.0);
    }

    /// The notes in the metadata, by key. Assigning to a key sets a note.
    #[getter]
    fn metadata<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let notes = slf.get().noted(|metadata| metadata.user_defined.clone());
        let dict = PyDict::new(py);
        for (key, value) in notes {
            dict.set_item(key, value)?;
        }
        py.import("coremill._mappings")?.call_method1("Metadata", (slf, dict))
    }

    #[setter]
    fn set_metadata(&self, notes: &Bound<'_, PyAny>) -> PyResult<()> {
        let what = "a dict of str to str";
        let wrong = || crate::options::wrong(notes, "metadata", what);
        let dict = notes.cast::<PyDict>().map_err(|_| wrong())?;
        let mut found = std::collections::BTreeMap::new();
        for (key, value) in dict.iter() {
            let key = key.extract::<String>().map_err(|_| wrong())?;
            found.insert(key, value.extract::<String>().map_err(|_| wrong())?);
        }
        self.edit(|metadata| metadata.user_defined = found.into_iter().collect());
        Ok(())
    }

    /// The report of `precision="auto"`: operations whose values do not fit fp16, the remedy for each, and the error of each
    /// output against fp32. `None` for other precisions.
    #[getter]
    fn precision_report<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(plan) = &slf.get().plan else { return Ok(None) };
        slf.py().import("coremill._reports")?.call_method1("Choice", (plan,)).map(Some)
    }

    /// Sets a state.
    fn set_state(slf: &Bound<'_, Self>, name: Text, value: &Bound<'_, PyAny>) -> PyResult<()> {
        Model::default_session(slf)?.get().set_state(slf.py(), name, value)
    }

    /// Sets all states to zeros.
    fn reset(slf: &Bound<'_, Self>) -> PyResult<()> {
        Model::default_session(slf)?.get().reset(slf.py())
    }

    /// Creates a session with states of its own.
    #[pyo3(
        signature = (function = None, *, numerics = None, threads = Count(0), precision = None),
        text_signature = "($self, function=None, *, numerics='fast', threads=0)"
    )]
    pub(crate) fn session(
        &self,
        py: Python<'_>,
        function: Option<Text>,
        numerics: Option<Text>,
        threads: Count,
        precision: Option<Text>,
    ) -> PyResult<Session> {
        self.unchanged(py)?;
        // `precision` is an older name.
        let name = numerics.or(precision).map_or_else(|| "fast".to_owned(), |Text(name)| name);
        let numerics = crate::options::numerics_named(py, &name)?;
        let threads = threads.0;
        let opened = self.opened();
        let session = work::run(py, move |stage| {
            stage.set("loading the model");
            let verified = proof(&opened)?;
            let options = RunOptions { numerics, threads, ..RunOptions::default() };
            let executable = coremill_session::load(&verified, &options)?;
            Ok(match function {
                Some(Text(function)) => executable.session(&function)?,
                None => executable.default_session()?,
            })
        })?;
        Ok(Session { session: Arc::new(Mutex::new(session)) })
    }

    /// Summarizes the model as `coremill inspect --json` does.
    fn inspect<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("coremill._reports")?.call_method1("inspect", (slf,))
    }

    /// Checks the model for errors that Core ML would report, and for slow or inaccurate operations.
    ///
    /// `device` is a chip or an iPhone, such as `"m4"` or `"iphone17pro"`: only warnings that concern it are reported. By
    /// default, warnings are for every chip that the model's target allows.
    #[pyo3(signature = (*, device = None))]
    fn check<'py>(
        slf: &Bound<'py, Self>,
        device: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("coremill._reports")?.call_method1("check_on", (slf, device))
    }

    /// Forecasts on which device Core ML runs each operation, as `coremill plan --forecast --json` does.
    ///
    /// `device` is a chip or an iPhone, such as `"m4"` or `"iphone17pro"`; the M4 by default, on which the cost model was
    /// studied. `neural_engine=False` forecasts for `cpu_only`. Times of GPUs are not published: all other operations are
    /// forecast on the CPU.
    #[pyo3(signature = (*, device = None, neural_engine = true))]
    fn forecast<'py>(
        slf: &Bound<'py, Self>,
        device: Option<Bound<'py, PyAny>>,
        neural_engine: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let reports = slf.py().import("coremill._reports")?;
        reports.call_method1("forecast", (slf, device, neural_engine))
    }

    fn __repr__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("coremill._reports")?.call_method1("describe", (slf,))
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("coremill._reports")?.call_method1("describe_html", (slf,))
    }

    /// The summary that `coremill inspect --json` prints, as JSON.
    fn _summary(&self, py: Python<'_>) -> PyResult<String> {
        work::held(py, || json(py, &coremill::summary::summarize(&self.opened().model)))
    }

    /// The report that `coremill check --json` prints, as JSON, and as text.
    #[pyo3(signature = (device = None))]
    fn _check(&self, py: Python<'_>, device: Option<Text>) -> PyResult<(String, String)> {
        let chip = device.map(|Text(name)| chip(py, &name)).transpose()?;
        work::held(py, || {
            let opened = self.opened();
            let report = match chip {
                Some(chip) => coremill::check_on(&opened.model, &[chip]),
                None => coremill::check(&opened.model),
            };
            let text = opened.render(&report, &RenderOptions::default());
            Ok((json(py, &report.to_json())?, text))
        })
    }

    /// The plan that `coremill plan --forecast --json` prints, as JSON.
    #[pyo3(signature = (device = None, neural_engine = true))]
    fn _forecast(
        &self,
        py: Python<'_>,
        device: Option<Text>,
        neural_engine: bool,
    ) -> PyResult<String> {
        let mut options = ForecastOptions { neural_engine, ..ForecastOptions::default() };
        if let Some(Text(name)) = device {
            options.chip = chip(py, &name)?;
        }
        work::held(py, || json(py, &forecast(&self.opened().model, &options)))
    }

    /// The program as MIL text.
    fn _text(&self, py: Python<'_>) -> PyResult<String> {
        work::held(py, || {
            Ok(text::print(&self.opened().model.program, &PrintOptions::default()).text)
        })
    }

    /// The model after edits, which JSON lists. The weights are shared.
    #[pyo3(signature = (edits, function = None))]
    fn _edit(&self, py: Python<'_>, edits: Text, function: Option<Text>) -> PyResult<Model> {
        let opened = self.opened();
        let edited = work::run(py, move |stage| {
            stage.set("editing the model");
            let mut model = opened.model.clone();
            let edits = coremill::edit::from_json(&edits.0)?;
            let function = function.as_ref().map(|Text(name)| name.as_str());
            coremill::edit::apply(&mut model, &edits, function)?;
            Ok(OpenedModel::made(model, Path::new("model")))
        })?;
        Ok(Model::new(edited, self.lent(py), self.target))
    }

    /// The oldest release that runs the model, such as `ios16`; `None` for a model that was opened.
    #[getter]
    fn target(&self) -> Option<&'static str> {
        self.target.map(Opset::tag)
    }
}

/// A model with a function of each model, by its new name. The default function is the first one unless another is named.
#[pyfunction]
#[pyo3(signature = (functions, default=None))]
pub(crate) fn merge(
    py: Python<'_>,
    functions: Vec<(String, Py<Model>, Option<String>)>,
    default: Option<String>,
) -> PyResult<Model> {
    let mut lent = Vec::new();
    let mut taken = Vec::new();
    for (name, model, function) in functions {
        let model = model.get();
        lent.extend(model.lent(py));
        taken.push((name, model.opened(), function));
    }
    let merged = work::run(py, move |stage| {
        stage.set("merging the models");
        let mut models = Vec::with_capacity(taken.len());
        for (name, opened, function) in taken {
            let model = coremill::edit::function(&opened.model, function.as_deref())?;
            models.push((name, model));
        }
        let mut merged = coremill::edit::merge(models)?;
        if let Some(name) = default.filter(|name| merged.program.function(name).is_some()) {
            merged.description.default_function = name;
        }
        Ok(OpenedModel::made(merged, Path::new("model")))
    })?;
    Ok(Model::new(merged, lent, None))
}

/// A model with random weights.
#[pyfunction]
pub(crate) fn randomize_weights(py: Python<'_>, model: Py<Model>, seed: u64) -> PyResult<Model> {
    let opened = model.get().opened();
    let made = work::run(py, move |stage| {
        stage.set("drawing the weights");
        let mut model = opened.model.clone();
        coremill::randomize_weights(&mut model, seed);
        Ok(OpenedModel::made(model, Path::new("model")))
    })?;
    Ok(Model::new(made, Vec::new(), None))
}

/// A model as pieces that run one after another: of at most `max_size`, after the operations of `after`, or halves.
#[pyfunction]
#[pyo3(signature = (model, max_size=None, after=None, function=None))]
pub(crate) fn split(
    py: Python<'_>,
    model: Py<Model>,
    max_size: Option<String>,
    after: Option<Vec<String>>,
    function: Option<String>,
) -> PyResult<Vec<Model>> {
    let max_size = match max_size {
        None => None,
        Some(text) => Some(coremill::quantity::parse_bytes(&text).map_err(|reason| {
            error::option(py, format!("`max_size`: {reason}, got `{text}`"), None)
        })?),
    };
    let model = model.get();
    let opened = model.opened();
    let pieces = work::run(py, move |stage| {
        stage.set("splitting the model");
        let steps = coremill::edit::Steps::of(&opened.model, function.as_deref())?;
        let ranges = match (max_size, after) {
            (Some(bytes), _) => steps.of_size(bytes)?,
            (None, Some(values)) => steps.after(&values)?,
            (None, None) => steps.halves(),
        };
        Ok(steps.pieces(&ranges)?)
    })?;
    let made = pieces.into_iter().map(|piece| {
        Model::new(OpenedModel::made(piece, Path::new("model")), model.lent(py), None)
    });
    Ok(made.collect())
}

/// Writes models as a pipeline. `whole` describes its inputs and outputs.
#[pyfunction]
pub(crate) fn save_pipeline(
    py: Python<'_>,
    path: std::path::PathBuf,
    whole: Py<Model>,
    stages: Vec<(String, Py<Model>)>,
) -> PyResult<()> {
    let description = whole.get().opened().model.description.clone();
    let stages: Vec<Stage> = stages
        .into_iter()
        .map(|(name, model)| Stage { name, model: model.get().opened().model.clone() })
        .collect();
    work::run(py, move |stage| {
        stage.set("writing the pipeline");
        let version = stages.iter().map(|stage| stage.model.specification_version).max();
        let pipeline = Pipeline {
            specification_version: version.unwrap_or_default(),
            description,
            stages,
            ..Pipeline::default()
        };
        Ok(coremill::save_pipeline(&path, &pipeline, &SaveOptions::default())?)
    })
}

pub(crate) fn json(py: Python<'_>, value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|failure| error::internal(py, &failure.to_string()))
}

/// States and working memory for runs of one function.
#[pyclass(frozen, module = "coremill._native")]
pub(crate) struct Session {
    session: Arc<Mutex<Box<dyn Running>>>,
}

impl Session {
    /// Copies of the states.
    fn contents<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let states = self.with(py, |session| Ok(session.read_states()?))?;
        let dict = PyDict::new(py);
        for (name, array) in states {
            dict.set_item(name, arrays::to_python(py, array, false)?)?;
        }
        Ok(dict)
    }

    fn with<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut dyn Running) -> Result<T, Failure> + Send + 'static,
    ) -> PyResult<T> {
        let session = self.session.clone();
        work::run(py, move |stage| {
            stage.set("running the model");
            work(&mut **session.lock().unwrap_or_else(PoisonError::into_inner))
        })
    }
}

#[pymethods]
impl Session {
    /// Runs the function. Arguments and result are the same as in `Model.predict`.
    #[pyo3(signature = (inputs = None, *, outputs = None, **named))]
    fn predict<'py>(
        &self,
        py: Python<'py>,
        inputs: Option<&Bound<'py, PyAny>>,
        outputs: Option<&Bound<'py, PyAny>>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let names = outputs.map(|outputs| arrays::names(outputs, "outputs")).transpose()?;
        let mut given = arrays::SuppliedArrays { items: Vec::new(), torch: false };
        let mut dicts = Vec::new();
        match inputs.map(|inputs| (inputs, inputs.cast::<PyDict>())) {
            Some((_, Ok(dict))) => dicts.push(dict),
            Some((array, Err(_))) => {
                let ports = self.with(py, |session| Ok(session.inputs().to_vec()))?;
                given = arrays::only(array, &ports)?;
            }
            None => {}
        }
        for dict in dicts.into_iter().chain(named) {
            let more = arrays::by_name(dict)?;
            given.items.extend(more.items);
            given.torch |= more.torch;
        }
        let torch = given.torch;
        let results = self.with(py, move |session| {
            let all = given.arrays(session.inputs())?;
            let Some(names) = names else { return Ok(session.run(&by_name(&all))?) };
            let is_output = |name: &String| session.outputs().iter().any(|it| it.name == *name);
            if names.iter().all(is_output) {
                let mut found = session.run(&by_name(&all))?;
                found.0.retain(|(name, _)| names.contains(name));
                let place = |name: &String| names.iter().position(|wanted| wanted == name);
                found.0.sort_by_key(|(name, _)| place(name));
                return Ok(found);
            }
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            Ok(session.run_values(&by_name(&all), &names)?.1)
        })?;
        arrays::results(py, results, torch)
    }

    /// States by name. Assigning to a name sets a state.
    #[getter]
    fn states<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let content = slf.get().contents(slf.py())?;
        arrays::states(slf.as_any(), content)
    }

    /// Sets a state.
    fn set_state(&self, py: Python<'_>, name: Text, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let Text(name) = name;
        let array = arrays::array(value, &name)?;
        self.with(py, move |session| Ok(session.set_state(&name, &array)?))
    }

    /// Sets all states to zeros.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |session| Ok(session.reset()?))
    }
}
