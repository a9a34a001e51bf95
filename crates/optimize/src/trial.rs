//! A program that is converted repeatedly with different options, and run.

use std::sync::Arc;

#[cfg(feature = "compiler")]
use coremill_compiler::{self as compiler, LowerOptions, LoweredModel, Options, Rewrite};
use coremill_engine::{Array, FeatureSpec, Hooks, Numerics, Value};
#[cfg(feature = "compiler")]
use coremill_mil::ir::Opset;
use coremill_mil::model::Model;
#[cfg(feature = "compiler")]
use coremill_pt2::ExportedProgram;
use coremill_pte as pte;
use coremill_session::{Executable, RunOptions, inputs};
use coremill_verify::{Verified, verify};

use crate::error::Error;
use crate::samples::Sample;

/// Output format of a conversion.
#[cfg(feature = "compiler")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// A Core ML model.
    #[default]
    Model,
    /// An ExecuTorch program with Core ML delegates.
    Program,
}

/// A converted program.
#[derive(Clone, Debug)]
pub enum Artifact {
    /// A Core ML model, not yet verified.
    Model(Model),
    /// An ExecuTorch program with Core ML delegates.
    Program(pte::Program),
}

/// A program to convert.
#[cfg(feature = "compiler")]
pub(crate) struct TrialCompiler(Source);

#[cfg(feature = "compiler")]
enum Source {
    /// Lowered once; only the last steps are repeated.
    Model(Box<LoweredModel>),
    /// Partitioned in every conversion.
    Program(Box<ExportedProgram>, LowerOptions),
}

#[cfg(feature = "compiler")]
impl TrialCompiler {
    /// Prepares a program for the release `floor` or newer.
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

    /// Converts the program. Also returns the target release.
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

/// A loaded program.
pub(crate) struct Machine(Arc<dyn Executable>);

/// Arrays that a run returns, by name.
pub(crate) type Outputs = Vec<(String, Array)>;

impl Machine {
    /// Loads a program.
    pub(crate) fn new(made: Artifact, numerics: Numerics) -> Result<Machine, Error> {
        let options = RunOptions { numerics, ..RunOptions::default() };
        Ok(Machine(match made {
            Artifact::Model(model) => coremill_session::load(&sound(&model)?, &options)?,
            Artifact::Program(program) => coremill_session::load_program(program, &options)?,
        }))
    }

    /// Inputs of the program.
    pub(crate) fn ports(&self) -> Result<Vec<FeatureSpec>, Error> {
        Ok(self.0.signature(self.0.default_function()?)?.inputs)
    }

    /// Checks that a sample has the arrays that a run needs.
    pub(crate) fn check(&self, sample: &Sample) -> Result<(), Error> {
        self.0.default_session()?.check(&inputs(sample))?;
        Ok(())
    }

    /// Runs a sample from initial states.
    #[cfg(feature = "compiler")]
    pub(crate) fn outputs(&self, sample: &Sample) -> Result<Outputs, Error> {
        self.run_with(sample, &mut Hooks::default())
    }

    /// Runs a sample from initial states, and passes every computed tensor to `look`. Operations
    /// are not fused, and each rounds its result.
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
        Error::new(format!("the rewritten program is invalid: {first}"))
    })
}
