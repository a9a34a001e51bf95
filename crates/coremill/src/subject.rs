//! A program that is made again and again, each time with other changes, and run.

use coremill_compiler::{self as compiler, LowerOptions, Options, Prepared, Rewrite};
use coremill_engine::{self as engine, Array, Engine, Hooks, LoadOptions, Port, Value};
use coremill_mil::ir::Opset;
use coremill_mil::model::Model;
use coremill_mil::verify::{Verified, verify};
use coremill_pt2::ExportedProgram;
use coremill_pte as pte;
use coremill_runtime as runtime;

use crate::error::Error;
use crate::executorch::Runner;
use crate::samples::Sample;

/// What a program becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// A Core ML model.
    #[default]
    Model,
    /// An ExecuTorch program, of which Core ML runs what it can.
    Program,
}

/// What a program became.
#[derive(Clone, Debug)]
pub enum Made {
    /// A model, to be verified and written.
    Model(Model),
    /// An ExecuTorch program.
    Program(pte::Program),
}

/// A program to be made.
pub(crate) struct Subject(Source);

enum Source {
    /// Lowered, so that only its last steps are done anew.
    Model(Box<Prepared>),
    /// Divided anew each time.
    Program(Box<ExportedProgram>, LowerOptions),
}

impl Subject {
    /// A program to be lowered for the release `floor` at the oldest.
    pub(crate) fn new(
        program: ExportedProgram,
        output: Output,
        options: &LowerOptions,
        floor: Opset,
    ) -> Result<Subject, Error> {
        Ok(Subject(match output {
            Output::Model => {
                let prepared = compiler::prepare(program, &options.options, floor);
                Source::Model(Box::new(prepared?))
            }
            Output::Program => Source::Program(Box::new(program), options.clone()),
        }))
    }

    /// Makes it, and says for which release.
    pub(crate) fn make(
        &self,
        options: &Options,
        rewrite: Option<Rewrite>,
    ) -> Result<(Made, Opset), Error> {
        let options = Options { rewrite, ..options.clone() };
        match &self.0 {
            Source::Model(prepared) => {
                let model = compiler::finish((**prepared).clone(), &options)?;
                Ok((Made::Model(model), prepared.target))
            }
            Source::Program(program, lowering) => {
                let lowering = LowerOptions { options, ..lowering.clone() };
                let named = vec![("forward".to_owned(), (**program).clone())];
                let lowered = compiler::lower(named, &lowering)?;
                let parts = lowered.reports.iter().flat_map(|report| &report.parts);
                let target = parts.map(|part| part.target).max().unwrap_or(Opset::Ios15);
                Ok((Made::Program(lowered.program), target))
            }
        }
    }
}

/// What runs a program that was made.
pub(crate) enum Machine {
    Engine(Engine),
    Runner(Box<Runner>),
}

/// What a run gives, by name.
pub(crate) type Outputs = Vec<(String, Array)>;

impl Machine {
    /// Loads what was made; `faithful` rounds each result as on the device.
    pub(crate) fn new(made: Made, faithful: bool) -> Result<Machine, Error> {
        match made {
            Made::Model(model) => {
                let precision = match faithful {
                    true => engine::Precision::Faithful,
                    false => engine::Precision::Fast,
                };
                let options = LoadOptions { precision, ..LoadOptions::default() };
                let engine = Engine::load(&sound(&model)?, &options);
                Ok(Machine::Engine(engine.map_err(|error| Error::of_engine(&error))?))
            }
            Made::Program(program) => {
                let options = runtime::LoadOptions { faithful, ..runtime::LoadOptions::default() };
                Ok(Machine::Runner(Box::new(Runner::new(program, None, options)?)))
            }
        }
    }

    /// What it takes.
    pub(crate) fn ports(&self) -> Result<Vec<Port>, Error> {
        match self {
            Machine::Engine(engine) => Ok(session(engine)?.inputs().to_vec()),
            Machine::Runner(runner) => Ok(runner.ports().to_vec()),
        }
    }

    /// Checks that a sample is what it takes.
    pub(crate) fn check(&self, sample: &Sample) -> Result<(), Error> {
        match self {
            Machine::Engine(engine) => {
                let checked = session(engine)?.check(&borrowed(sample)).map(drop);
                checked.map_err(|error| Error::of_engine(&error))
            }
            Machine::Runner(runner) => runner.check(sample),
        }
    }

    /// Runs a sample from fresh states, as who uses it does.
    pub(crate) fn outputs(&self, sample: &Sample) -> Result<Outputs, Error> {
        match self {
            Machine::Engine(engine) => of_engine(engine, sample, &mut Hooks::default()),
            Machine::Runner(runner) => {
                runner.afresh()?.run_with(sample, &mut runtime::Hooks::default())
            }
        }
    }

    /// The same, and shows every tensor that comes about in models. Operations that would run as one run each by itself for
    /// that, and round for themselves.
    pub(crate) fn run(
        &self,
        sample: &Sample,
        look: &mut dyn FnMut(&str, &Array),
    ) -> Result<Outputs, Error> {
        let mut observe = |_: &str, name: &str, value: &Value| {
            if let Some(array) = value.as_array() {
                look(name, array);
            }
        };
        match self {
            Machine::Engine(engine) => {
                let mut hooks = Hooks { observe: Some(&mut observe), ..Hooks::default() };
                of_engine(engine, sample, &mut hooks)
            }
            Machine::Runner(runner) => {
                let mut hooks =
                    runtime::Hooks { observe: Some(&mut observe), ..runtime::Hooks::default() };
                runner.afresh()?.run_with(sample, &mut hooks)
            }
        }
    }
}

fn of_engine(engine: &Engine, sample: &Sample, hooks: &mut Hooks<'_>) -> Result<Outputs, Error> {
    let outputs = session(engine)?.run_with(&borrowed(sample), hooks);
    let outputs = outputs.map_err(|error| Error::of_engine(&error))?.0;
    let arrays = outputs
        .into_iter()
        .filter_map(|(name, value)| value.as_array().cloned().map(|array| (name, array)));
    Ok(arrays.collect())
}

fn session(engine: &Engine) -> Result<engine::Session, Error> {
    engine.session(engine.default_function()).map_err(|error| Error::of_engine(&error))
}

fn borrowed(sample: &Sample) -> Vec<(&str, Array)> {
    sample.iter().map(|(name, array)| (&**name, array.clone())).collect()
}

fn sound(model: &Model) -> Result<Verified<'_>, Error> {
    verify(model).map_err(|report| {
        let first = report.diagnostics.first();
        let first = first.map_or_else(String::new, |diagnostic| diagnostic.message.clone());
        Error::new(format!("what the program became is not sound: {first}"))
    })
}
