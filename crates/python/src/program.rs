//! `coremill.Program`: an ExecuTorch program.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use coremill::SaveOptions;
use coremill::executorch;
use coremill_compiler::{LoweringError, Reason, Report};
use coremill_engine::{Array, Numerics, Value};
use coremill_io::{fill_windows, unknown_name};
use coremill_pte as pte;
use coremill_session::{RunOptions, Session, inputs as by_name};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::arguments::{Count, Flag, Text};
use crate::bytes::PyBytesWriter;
use crate::error;
use crate::exported::BorrowedTensor;
use crate::model::{Model, json};
use crate::path::PathArgument;
use crate::{arrays, work};

/// Bytes that a thread writes at a time.
const WINDOW: usize = 1 << 20;

/// A program in memory.
#[pyclass(frozen, module = "coremill._native")]
pub(crate) struct Program {
    pub(crate) program: Arc<pte::Program>,
    lent: Vec<BorrowedTensor>,
    /// Partitioning of each method. Empty for a program read from a file.
    reports: Vec<Report>,
}

impl Program {
    pub(crate) fn new(
        program: pte::Program,
        lent: Vec<BorrowedTensor>,
        reports: Vec<Report>,
    ) -> Program {
        Program { program: Arc::new(program), lent, reports }
    }

    /// The tensors that own the memory of the weights, for another program that shares them.
    pub(crate) fn lent(&self, py: Python<'_>) -> Vec<BorrowedTensor> {
        self.lent.iter().map(|lent| lent.share(py)).collect()
    }

    fn unchanged(&self, py: Python<'_>) -> PyResult<()> {
        self.lent.iter().try_for_each(|lent| lent.check(py))
    }
}

#[pymethods]
impl Program {
    /// Writes the program.
    #[pyo3(signature = (path, *, sync = false))]
    fn save(&self, py: Python<'_>, path: PathArgument, sync: bool) -> PyResult<()> {
        let PathArgument(path) = path;
        self.unchanged(py)?;
        let program = self.program.clone();
        work::run(py, move |stage| {
            stage.set(format!("writing {}", path.display()));
            Ok(pte::write(&path, &program, &pte::WriteOptions { durable: sync })?)
        })
    }

    /// The bytes of the program's file.
    fn to_bytes(&self, py: Python<'_>) -> PyResult<Py<PyBytes>> {
        self.unchanged(py)?;
        let program = self.program.clone();
        let written = work::run(py, move |stage| {
            stage.set("writing the program");
            let data = pte::to_data(&program)?;
            let mut written = PyBytesWriter::of(data.len())?;
            fill_windows(written.as_mut(), WINDOW, |offset, window| data.read_at(offset, window))
                .map_err(|error| LoweringError::new(format!("a weight cannot be read: {error}")))
                .map_err(coremill_compiler::Error::Program)?;
            Ok(written)
        })?;
        Ok(written.into_bytes())
    }

    /// The names of the methods.
    #[getter]
    fn methods(&self) -> Vec<String> {
        self.program.plans.iter().map(|plan| plan.name.clone()).collect()
    }

    /// Loads a method. The default is the only method, or `forward`.
    #[pyo3(
        signature = (
            name = None, *, threads = Count(0), numerics = None, data = Vec::new(), faithful = Flag(false)
        ),
        text_signature = "($self, name=None, *, threads=0, numerics='fast', data=...)"
    )]
    fn method(
        &self,
        py: Python<'_>,
        name: Option<Text>,
        threads: Count,
        numerics: Option<Text>,
        data: Vec<PathArgument>,
        faithful: Flag,
    ) -> PyResult<Method> {
        self.unchanged(py)?;
        let (name, threads) = (name.map(|Text(name)| name), threads.0);
        // `faithful` is an older way to say `rounded`.
        let numerics = match numerics {
            Some(Text(name)) => crate::options::numerics_named(py, &name)?,
            None if faithful.0 => Numerics::Rounded,
            None => Numerics::Fast,
        };
        if let Some(name) = &name
            && !self.methods().contains(name)
        {
            return Err(error::option(py, unknown_name("method", name, self.methods()), None));
        }
        let program = self.program.clone();
        let data = data.into_iter().map(|PathArgument(path)| path).collect();
        let session = work::run(py, move |stage| {
            stage.set("loading the method");
            let options = RunOptions { threads, numerics, data, ..RunOptions::default() };
            let executable = coremill_session::load_program((*program).clone(), &options)?;
            Ok(match name {
                Some(name) => executable.session(&name)?,
                None => executable.default_session()?,
            })
        })?;
        let name = session.function().to_owned();
        Ok(Method { name, session: Arc::new(Mutex::new(session)) })
    }

    /// Writes the Core ML models of the program to a directory, and returns their paths.
    #[pyo3(signature = (directory, *, sync = false))]
    fn extract(
        &self,
        py: Python<'_>,
        directory: PathArgument,
        sync: bool,
    ) -> PyResult<Vec<PathBuf>> {
        let PathArgument(directory) = directory;
        self.unchanged(py)?;
        let program = self.program.clone();
        work::run(py, move |stage| {
            stage.set("extracting models");
            let extracted =
                executorch::extract(&program, directory, &SaveOptions { durable: sync })?;
            Ok(extracted.into_iter().map(|model| model.path).collect())
        })
    }

    /// The Core ML models of the program, by name.
    #[getter]
    fn models<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let program = self.program.clone();
        let models = work::run(py, move |stage| {
            stage.set("reading the models");
            let mut models = Vec::new();
            for model in executorch::models(&program)? {
                let opened =
                    coremill::OpenedModel::made(model.read()?, std::path::Path::new(&model.name));
                models.push((model.name.clone(), opened));
            }
            Ok(models)
        })?;
        let dict = PyDict::new(py);
        for (name, opened) in models {
            dict.set_item(name, Bound::new(py, Model::new(opened, Vec::new(), None))?)?;
        }
        Ok(dict)
    }

    /// Summarizes the program as `coremill inspect --json` does.
    fn inspect<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("coremill._reports")?.call_method1("inspect", (slf,))
    }

    /// Checks the models in the program for errors that Core ML would report. `device` is a chip or an iPhone, such as
    /// `"m4"`: only warnings that concern it are reported.
    #[pyo3(signature = (*, device = None))]
    fn check<'py>(
        slf: &Bound<'py, Self>,
        device: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("coremill._reports")?.call_method1("check_on", (slf, device))
    }

    /// For each method, its delegates and the calls outside them with the reasons. Empty for a program that was opened.
    #[getter]
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let methods = PyDict::new(py);
        for report in &self.reports {
            let delegates = PyList::empty(py);
            for part in &report.parts {
                let delegate = PyDict::new(py);
                delegate.set_item("calls", part.calls)?;
                delegate.set_item("target", part.target.tag())?;
                delegate.set_item("inputs", part.inputs)?;
                delegate.set_item("outputs", part.outputs)?;
                delegate.set_item("bytes", part.bytes)?;
                delegate.set_item("states", &part.states)?;
                delegates.append(delegate)?;
            }
            let outside = PyList::empty(py);
            for call in &report.outside {
                let told = error::refused_call(py, &call.call)?;
                told.setattr(
                    "kind",
                    match call.reason {
                        Reason::Asked => "asked",
                        Reason::Refused => "refused",
                        Reason::TooSmall => "too_small",
                    },
                )?;
                outside.append(told)?;
            }
            let method = PyDict::new(py);
            method.set_item("delegates", delegates)?;
            method.set_item("outside", outside)?;
            method.set_item("skipped_in_vain", &report.skipped_in_vain)?;
            methods.set_item(&report.method, method)?;
        }
        py.import("coremill._reports")?.call_method1("Division", (methods,))
    }

    fn __repr__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("coremill._reports")?.call_method1("describe", (slf,))
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("coremill._reports")?.call_method1("describe_html", (slf,))
    }

    /// The summary that `coremill inspect --json` prints, as JSON.
    fn _summary(&self, py: Python<'_>) -> PyResult<String> {
        let program = self.program.clone();
        let summary = work::run(py, move |_| Ok(executorch::summarize(&program)?))?;
        json(py, &summary)
    }
}

/// A loaded method with states of its own.
#[pyclass(frozen, module = "coremill._native")]
pub(crate) struct Method {
    #[pyo3(get)]
    name: String,
    session: Arc<Mutex<Box<dyn Session>>>,
}

impl Method {
    fn with<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut dyn Session) -> coremill_session::Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let session = self.session.clone();
        work::run(py, move |stage| {
            stage.set("running the method");
            Ok(work(&mut **session.lock().unwrap_or_else(PoisonError::into_inner))?)
        })
    }
}

#[pymethods]
impl Method {
    /// Runs the method on arrays, in order or by name. Returns an array, or a list of arrays.
    #[pyo3(signature = (*inputs, **named))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let names = self.inputs(py)?;
        if inputs.len() > names.len() {
            let (given, count) = (inputs.len(), names.len());
            let message = format!("`{}` got {given} inputs; the maximum is {count}", self.name);
            return Err(error::option(py, message, None));
        }
        let mut all: Vec<(String, Array)> = Vec::new();
        let mut torch = false;
        for (name, value) in names.iter().zip(inputs.iter()) {
            torch |= arrays::is_torch(&value)?;
            all.push((name.clone(), arrays::array(&value, name)?));
        }
        if let Some(named) = named {
            for (name, value) in named.iter() {
                torch |= arrays::is_torch(&value)?;
                let name: String = name.extract()?;
                all.push((name.clone(), arrays::array(&value, &name)?));
            }
        }
        let outputs = self.with(py, move |session| session.run(&by_name(&all)))?;
        let mut results = Vec::with_capacity(outputs.0.len());
        for (_, value) in outputs.0 {
            if let Value::Array(array) = value {
                results.push(arrays::to_python(py, array, torch)?);
            }
        }
        match results.len() {
            1 => Ok(results.remove(0)),
            _ => Ok(PyList::new(py, results)?.into_any()),
        }
    }

    /// The names of the inputs, in order.
    #[getter]
    fn inputs(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.with(py, |session| Ok(session.inputs().iter().map(|spec| spec.name.clone()).collect()))
    }

    /// States by name. Assigning to a name sets a state.
    #[getter]
    fn states<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let dict = PyDict::new(py);
        for (name, array) in slf.get().with(py, |session| session.read_states())? {
            dict.set_item(name, arrays::to_python(py, array, false)?)?;
        }
        arrays::states(slf.as_any(), dict)
    }

    /// Sets a state.
    fn set_state(&self, py: Python<'_>, name: Text, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let Text(name) = name;
        let array = arrays::array(value, &name)?;
        self.with(py, move |session| session.set_state(&name, &array))
    }

    /// Resets the method to the state before its first run.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |session| session.reset())
    }
}
