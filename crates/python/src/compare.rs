//! `coremill.compare`: what lies how far apart.

use std::sync::Arc;

use coremill::Opened;
use coremill::compare::{self as library, PerOpReport, Running, Target};
use coremill::executorch::Runner;
use coremill_engine::{Engine, LoadOptions, Precision};
use coremill_pte as pte;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::Failure;
use crate::model::{Model, json, of_engine, precision, proof};
use crate::program::Program;
use crate::{arrays, error, work};

/// How far an array lies from a reference, as JSON; whether it is within the bound, where one is given.
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
        library::figures(&reference, &other).map_err(|message| error::option(py, message, None))
    })?;
    Ok((json(py, &figures)?, figures.is_within(bound)))
}

/// Runs two programs on the same inputs and compares every value that both compute, as JSON. `precisions` say where the
/// results of each are rounded.
#[pyfunction]
pub(crate) fn per_op(
    py: Python<'_>,
    reference: &Bound<'_, PyAny>,
    other: &Bound<'_, PyAny>,
    inputs: &Bound<'_, PyDict>,
    precisions: (String, String),
    threshold: f64,
) -> PyResult<String> {
    let one = Side::of(reference, precision(py, &precisions.0)?)?;
    let two = Side::of(other, precision(py, &precisions.1)?)?;
    let given = arrays::by_name(inputs)?;
    let report = work::run(py, move |stage| {
        stage.set("loading both");
        let (one, two) = (one.load()?, two.load()?);
        let steps = [given.arrays(&one.ports()?)?];
        stage.set("running both, value by value");
        let running = |side| Running { target: Ready::target(side), steps: &steps };
        let found = library::per_op(&running(&one), &running(&two))?;
        Ok(PerOpReport::new(&found, threshold))
    })?;
    json(py, &report)
}

/// One of two programs.
enum Side {
    Model(Arc<Opened>, Precision),
    Program(Arc<pte::Program>, Precision),
}

impl Side {
    fn of(side: &Bound<'_, PyAny>, precision: Precision) -> PyResult<Side> {
        if let Ok(model) = side.cast::<Model>() {
            return Ok(Side::Model(model.get().opened.clone(), precision));
        }
        if let Ok(program) = side.cast::<Program>() {
            return Ok(Side::Program(program.get().program.clone(), precision));
        }
        let class = side.get_type().name()?;
        let message = format!("a {class} cannot be compared value by value");
        let hint = "pass models, programs, or paths of these".to_owned();
        Err(error::option(side.py(), message, Some(hint)))
    }

    fn load(self) -> Result<Ready, Failure> {
        match self {
            Side::Model(opened, precision) => {
                let options = LoadOptions { precision, ..LoadOptions::default() };
                let engine = Engine::load(&proof(&opened)?, &options).map_err(of_engine)?;
                Ok(Ready::Model(opened, engine))
            }
            Side::Program(program, precision) => {
                let faithful = precision == Precision::Faithful;
                let options = coremill_runtime::LoadOptions { faithful, ..Default::default() };
                Ok(Ready::Method(Box::new(Runner::new((*program).clone(), None, options)?)))
            }
        }
    }
}

/// A program that can be run.
enum Ready {
    Model(Arc<Opened>, Engine),
    Method(Box<Runner>),
}

impl Ready {
    fn target(&self) -> Target<'_> {
        match self {
            Ready::Model(opened, engine) => Target::Model {
                model: &opened.model,
                engine,
                function: engine.default_function(),
                results: None,
            },
            Ready::Method(runner) => Target::Method(runner),
        }
    }

    fn ports(&self) -> Result<Vec<coremill_engine::Port>, Failure> {
        match self {
            Ready::Model(_, engine) => {
                let session = engine.session(engine.default_function()).map_err(of_engine)?;
                Ok(session.inputs().to_vec())
            }
            // Methods take tensors, and no pictures.
            Ready::Method(_) => Ok(Vec::new()),
        }
    }
}
