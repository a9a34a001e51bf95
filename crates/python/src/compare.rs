//! `coremill.compare`: comparison of models and arrays.

use std::sync::Arc;

use coremill::OpenedModel;
use coremill::compare::{self as library, Contents, PerOpReport, RunningModel, Target};
use coremill_engine::Numerics;
use coremill_pte as pte;
use coremill_session::{Executable, FeatureSpec, RunOptions};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::Failure;
use crate::model::{Model, json, proof};
use crate::options::numerics_named;
use crate::program::Program;
use crate::{arrays, error, work};

/// Compares an array with a reference. Returns the figures as JSON, and whether the error is within
/// the bound.
#[pyfunction]
pub(crate) fn figures(
    py: Python<'_>,
    reference: &Bound<'_, PyAny>,
    other: &Bound<'_, PyAny>,
    bound: f64,
) -> PyResult<(String, bool)> {
    let reference = arrays::array(reference, "reference")?;
    let other = arrays::array(other, "other")?;
    let figures = work::held(py, || {
        let figures = library::figures(&reference, &other);
        figures.map_err(|failure| error::option(py, failure.to_string(), None))
    })?;
    Ok((json(py, &figures)?, figures.is_within(bound)))
}

/// Runs two programs on the same inputs and compares all common values. Returns JSON. `precisions`
/// selects the rounding of each program.
#[pyfunction]
pub(crate) fn per_op(
    py: Python<'_>,
    reference: &Bound<'_, PyAny>,
    other: &Bound<'_, PyAny>,
    inputs: &Bound<'_, PyDict>,
    precisions: (String, String),
    threshold: f64,
) -> PyResult<String> {
    let one = Side::of(reference, numerics_named(py, &precisions.0)?)?;
    let two = Side::of(other, numerics_named(py, &precisions.1)?)?;
    let given = arrays::by_name(inputs)?;
    let report = work::run(py, move |stage| {
        stage.set("loading both");
        let (one, two) = (one.load()?, two.load()?);
        let steps = [given.arrays(&one.inputs()?)?];
        stage.set("running both, value by value");
        let running = |side| RunningModel { target: Ready::target(side), steps: &steps };
        let found = library::per_op(&running(&one), &running(&two))?;
        Ok(PerOpReport::new(&found, threshold))
    })?;
    json(py, &report)
}

/// One of the two programs.
enum Side {
    Model(Arc<OpenedModel>, Numerics),
    Program(Arc<pte::Program>, Numerics),
}

impl Side {
    fn of(side: &Bound<'_, PyAny>, precision: Numerics) -> PyResult<Side> {
        if let Ok(model) = side.cast::<Model>() {
            return Ok(Side::Model(model.get().opened(), precision));
        }
        if let Ok(program) = side.cast::<Program>() {
            return Ok(Side::Program(program.get().program.clone(), precision));
        }
        let class = side.get_type().name()?;
        let message = format!("a {class} cannot be compared value by value");
        let hint = "pass models, programs, or their paths".to_owned();
        Err(error::option(side.py(), message, Some(hint)))
    }

    fn load(self) -> Result<Ready, Failure> {
        let (Side::Model(_, numerics) | Side::Program(_, numerics)) = self;
        let options = RunOptions { numerics, ..RunOptions::default() };
        let executable = match &self {
            Side::Model(opened, _) => coremill_session::load(&proof(opened)?, &options)?,
            Side::Program(program, _) => {
                coremill_session::load_program((**program).clone(), &options)?
            }
        };
        let function = executable.default_function()?.to_owned();
        Ok(Ready { side: self, executable, function })
    }
}

/// A loaded program.
struct Ready {
    side: Side,
    executable: Arc<dyn Executable>,
    function: String,
}

impl Ready {
    fn target(&self) -> Target<'_> {
        let contents = match &self.side {
            Side::Model(opened, _) => Contents::Model { model: &opened.model, results: None },
            Side::Program(program, _) => Contents::Program(program),
        };
        Target { executable: &*self.executable, function: &self.function, contents }
    }

    fn inputs(&self) -> Result<Vec<FeatureSpec>, Failure> {
        Ok(self.executable.signature(&self.function)?.inputs)
    }
}
