//! A program that is made again and again, each time with other changes, and run.

use std::sync::Arc;

#[cfg(feature = "compiler")]
use coremill_compiler::{self as compiler, LowerOptions, LoweredModel, Options, Rewrite};
use coremill_engine::{Array, FeatureSpec, Hooks, Numerics, Value};
#[cfg(feature = "compiler")]
use coremill_mil::ir::Opset;
use coremill_mil::model::Model;
use coremill_mil::verify::{Verified, verify};
#[cfg(feature = "compiler")]
use coremill_pt2::ExportedProgram;
use coremill_pte as pte;
use coremill_session::{Executable, RunOptions, inputs};

use crate::error::Error;
use crate::samples::Sample;

/// What a program becomes.
#[cfg(feature = "compiler")]
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
pub enum Artifact {
    /// A model, to be verified and written.
    Model(Model),
    /// An ExecuTorch program.
    Program(pte::Program),
}

/// A program to be made.
#[cfg(feature = "compiler")]
pub(crate) struct TrialCompiler(Source);

#[cfg(feature = "compiler")]
enum Source {
    /// Lowered, so that only its last steps are done anew.
    Model(Box<LoweredModel>),
    /// Divided anew each time.
    Program(Box<ExportedProgram>, LowerOptions),
}

#[cfg(feature = "compiler")]
impl TrialCompiler {
    /// A program to be lowered for the release `floor` at the oldest.
    pub(crate) fn new(
        program: ExportedProgram,
        output: Output,
        options: &LowerOptions,
        floor: Opset,
    ) -> Result<TrialCompiler, Error> {
        Ok(TrialCompiler(match output {
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
    ) -> Result<(Artifact, Opset), Error> {
        let options = Options { rewrite, ..options.clone() };
        match &self.0 {
            Source::Model(prepared) => {
                let model = compiler::finish((**prepared).clone(), &options)?;
                Ok((Artifact::Model(model), prepared.target))
            }
            Source::Program(program, lowering) => {
                let lowering = LowerOptions { options, ..lowering.clone() };
                let named = vec![("forward".to_owned(), (**program).clone())];
                let lowered = compiler::lower(named, &lowering)?;
                let parts = lowered.reports.iter().flat_map(|report| &report.parts);
                let target = parts.map(|part| part.target).max().unwrap_or(Opset::Ios15);
                Ok((Artifact::Program(lowered.program), target))
            }
        }
    }
}

/// A program that was made, ready to run.
pub(crate) struct Machine(Arc<dyn Executable>);

/// The arrays that a run returns, by name.
pub(crate) type Outputs = Vec<(String, Array)>;

impl Machine {
    /// Loads the program.
    pub(crate) fn new(made: Artifact, numerics: Numerics) -> Result<Machine, Error> {
        let options = RunOptions { numerics, ..RunOptions::default() };
        Ok(Machine(match made {
            Artifact::Model(model) => coremill_session::load(&sound(&model)?, &options)?,
            Artifact::Program(program) => coremill_session::load_program(program, &options)?,
        }))
    }

    /// The inputs.
    pub(crate) fn ports(&self) -> Result<Vec<FeatureSpec>, Error> {
        Ok(self.0.signature(self.0.default_function()?)?.inputs)
    }

    /// Checks that a sample has the arrays that a run takes.
    pub(crate) fn check(&self, sample: &Sample) -> Result<(), Error> {
        self.0.default_session()?.check(&inputs(sample))?;
        Ok(())
    }

    /// Runs a sample from initial states.
    #[cfg(feature = "compiler")]
    pub(crate) fn outputs(&self, sample: &Sample) -> Result<Outputs, Error> {
        self.run_with(sample, &mut Hooks::default())
    }

    /// Runs a sample from initial states, and shows every tensor that is computed in models. Operations that would run as
    /// one run each by itself for that, and round for themselves.
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
        self.run_with(sample, &mut Hooks { observe: Some(&mut observe), ..Hooks::default() })
    }

    fn run_with(&self, sample: &Sample, hooks: &mut Hooks<'_>) -> Result<Outputs, Error> {
        let outputs = self.0.default_session()?.run_with(&inputs(sample), hooks)?.0.into_iter();
        let arrays = outputs
            .filter_map(|(name, value)| value.as_array().cloned().map(|array| (name, array)));
        Ok(arrays.collect())
    }
}

fn sound(model: &Model) -> Result<Verified<'_>, Error> {
    verify(model).map_err(|report| {
        let first = report.diagnostics.first();
        let first = first.map_or_else(String::new, |diagnostic| diagnostic.message.clone());
        Error::new(format!("what the program became is not sound: {first}"))
    })
}
