//! `coremill.Model`: a Core ML model.

use std::sync::{Arc, Mutex, PoisonError};

use coremill::{OpenedModel, SaveOptions};
use coremill_engine::Numerics;
use coremill_mil::ir::Opset;
use coremill_mil::text::{self, Dialect, PrintOptions};
use coremill_mil::verify::{RenderOptions, Severity};
use coremill_session::{RunOptions, Session as Running, inputs as by_name};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{self, Failure};
use crate::exported::BorrowedTensor;
use crate::path::PathArgument;
use crate::{arrays, work};

/// A model in memory.
#[pyclass(frozen, module = "coremill._native")]
pub(crate) struct Model {
    pub(crate) opened: Arc<OpenedModel>,
    /// The tensors of torch whose memory the weights lie in.
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
        Model { opened: Arc::new(opened), lent, target, default: Mutex::new(None) }
    }

    /// The tensors whose memory this model's weights lie in, for another that shares them.
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
        let made = Py::new(py, slf.get().session(py, None, "fast", 0)?)?;
        let mut session = slf.get().default.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(session.get_or_insert(made).clone_ref(py))
    }
}

/// Refuses what Core ML would refuse.
pub(crate) fn proof(opened: &OpenedModel) -> Result<coremill::Verified<'_>, Failure> {
    coremill::verify(&opened.model).map_err(|mut report| {
        report.diagnostics.retain(|diagnostic| diagnostic.severity() == Severity::Error);
        Failure::Invalid(opened.render(&report, &RenderOptions::default()))
    })
}

#[pymethods]
impl Model {
    /// Writes the model, in the form that the path's extension names.
    #[pyo3(signature = (path, *, sync = false))]
    fn save(&self, py: Python<'_>, path: PathArgument, sync: bool) -> PyResult<()> {
        let PathArgument(path) = path;
        self.unchanged(py)?;
        let opened = self.opened.clone();
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

    /// Runs the model on arrays by name.
    #[pyo3(signature = (inputs = None, **named))]
    fn predict<'py>(
        slf: &Bound<'py, Self>,
        inputs: Option<&Bound<'py, PyDict>>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let py = slf.py();
        let session = Model::default_session(slf)?;
        session.get().predict(py, inputs, named)
    }

    /// What the model keeps between predictions, by name.
    #[getter]
    fn states<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        Model::default_session(slf)?.get().states(slf.py())
    }

    /// Sets a state.
    fn set_state(slf: &Bound<'_, Self>, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        Model::default_session(slf)?.get().set_state(slf.py(), name, value)
    }

    /// Sets all states to zeros.
    fn reset(slf: &Bound<'_, Self>) -> PyResult<()> {
        Model::default_session(slf)?.get().reset(slf.py())
    }

    /// A user of the model with states of its own.
    #[pyo3(signature = (function = None, *, precision = "fast", threads = 0))]
    pub(crate) fn session(
        &self,
        py: Python<'_>,
        function: Option<String>,
        precision: &str,
        threads: usize,
    ) -> PyResult<Session> {
        self.unchanged(py)?;
        let precision = self::precision(py, precision)?;
        let opened = self.opened.clone();
        let session = work::run(py, move |stage| {
            stage.set("loading the model");
            let verified = proof(&opened)?;
            let options = RunOptions { numerics: precision, threads, ..RunOptions::default() };
            let executable = coremill_session::load(&verified, &options)?;
            Ok(match function {
                Some(function) => executable.session(&function)?,
                None => executable.default_session()?,
            })
        })?;
        Ok(Session { session: Arc::new(Mutex::new(session)) })
    }

    /// What the model holds, counted, as `coremill inspect --json` prints it.
    fn inspect<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("coremill._reports")?.call_method1("inspect", (slf,))
    }

    /// Everything that Core ML would refuse of the model, and what keeps it from running well.
    fn check<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("coremill._reports")?.call_method1("check", (slf,))
    }

    fn __repr__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("coremill._reports")?.call_method1("describe", (slf,))
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("coremill._reports")?.call_method1("describe_html", (slf,))
    }

    /// The summary that `coremill inspect --json` prints, as JSON.
    fn _summary(&self, py: Python<'_>) -> PyResult<String> {
        work::held(py, || json(py, &coremill::summary::summarize(&self.opened.model)))
    }

    /// The report that `coremill check --json` prints, as JSON, and as text.
    fn _check(&self, py: Python<'_>) -> PyResult<(String, String)> {
        work::held(py, || {
            let report = coremill::check(&self.opened.model);
            let text = self.opened.render(&report, &RenderOptions::default());
            Ok((json(py, &report.to_json())?, text))
        })
    }

    /// The program as MIL text.
    fn _text(&self, py: Python<'_>) -> PyResult<String> {
        work::held(
            py,
            || Ok(text::print(&self.opened.model.program, &PrintOptions::default()).text),
        )
    }

    /// The oldest release that runs the model, `ios16` for instance; none for a model that was read.
    #[getter]
    fn target(&self) -> Option<&'static str> {
        self.target.map(Opset::tag)
    }
}

/// Where results are rounded.
pub(crate) fn precision(py: Python<'_>, name: &str) -> PyResult<Numerics> {
    match name {
        "fast" => Ok(Numerics::Fast),
        "faithful" => Ok(Numerics::Rounded),
        other => {
            let message = format!("`precision` is `{other}`; expected `fast` or `faithful`");
            Err(error::option(py, message, None))
        }
    }
}

pub(crate) fn json(py: Python<'_>, value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|failure| error::internal(py, &failure.to_string()))
}

/// One user of a model's function: its states, and memory for intermediate values.
#[pyclass(frozen, module = "coremill._native")]
pub(crate) struct Session {
    session: Arc<Mutex<Box<dyn Running>>>,
}

impl Session {
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
    /// Runs the function on arrays by name.
    #[pyo3(signature = (inputs = None, **named))]
    fn predict<'py>(
        &self,
        py: Python<'py>,
        inputs: Option<&Bound<'py, PyDict>>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let mut given = arrays::SuppliedArrays { items: Vec::new(), torch: false };
        for dict in [inputs, named].into_iter().flatten() {
            let more = arrays::by_name(dict)?;
            given.items.extend(more.items);
            given.torch |= more.torch;
        }
        let torch = given.torch;
        let outputs = self.with(py, move |session| {
            let all = given.arrays(session.inputs())?;
            Ok(session.run(&by_name(&all))?)
        })?;
        arrays::results(py, outputs, torch)
    }

    /// What the function keeps between predictions, by name.
    #[getter]
    fn states<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let states = self.with(py, |session| Ok(session.read_states()?))?;
        let dict = PyDict::new(py);
        for (name, array) in states {
            dict.set_item(name, arrays::to_python(py, array, false)?)?;
        }
        Ok(dict)
    }

    /// Sets a state.
    fn set_state(&self, py: Python<'_>, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let array = arrays::array(value, name)?;
        let name = name.to_owned();
        self.with(py, move |session| Ok(session.set_state(&name, &array)?))
    }

    /// Sets all states to zeros.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |session| Ok(session.reset()?))
    }
}
