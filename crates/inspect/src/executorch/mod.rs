//! ExecuTorch programs and their Core ML models.
//!
//! [`open`] reads a `.pte` file, [`models`] lists the models delegated to Core ML, [`extract`]
//! writes them to files, and [`summarize`] describes the program.
//! [`coremill_session::load_program`] runs methods.

mod extract;
mod names;
mod summary;

use std::path::Path;

use coremill_mil::model::Model;
use coremill_mlpackage::{compiled, package};
use coremill_pte as pte;
use coremill_pte::coreml::{BACKEND, Payload};
use coremill_pte::program::Delegate;
use coremill_session::FileKind;

use crate::error::Error;

pub use coremill_pte::Program;
pub use coremill_runtime::{Hooks, Span};
pub use extract::{ExtractedModel, extract};
pub use summary::{
    CallCount, DelegateSummary, MethodSummary, ModelSummary, ProgramSummary, SpecSummary,
    ValueSummary, summarize,
};

/// A Core ML model in a program. Several methods may share it.
#[derive(Clone, Debug)]
pub struct DelegatedModel {
    /// Name that is unique in the program, derived from the methods that use the model.
    pub name: String,
    /// Delegates that use the model.
    pub uses: Vec<Use>,
    /// The model's files.
    pub payload: Payload,
}

/// A delegate that uses a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// Name of the method.
    pub method: String,
    /// Index of the delegate in the method.
    pub delegate: usize,
    /// The function of the model. `None` if there is only one.
    pub function: Option<String>,
}

/// Returns true if a file is an ExecuTorch program, see [`FileKind::detect`].
pub fn is_program(path: impl AsRef<Path>) -> bool {
    FileKind::detect(path).is_ok_and(|kind| kind == FileKind::ExecuTorchProgram)
}

/// Reads a program. Errors contain the path.
pub fn open(path: impl AsRef<Path>) -> Result<Program, Error> {
    let path = path.as_ref();
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::missing(path));
        }
        Err(error) => return Err(Error::io("read", path, error)),
        Ok(metadata) if !metadata.is_file() => {
            let message =
                format!("{} is not a file, so it cannot be an ExecuTorch program", path.display());
            return Err(Error::new(message));
        }
        Ok(_) => {}
    }
    pte::read(path).map_err(|error| of_program(&error).within(path))
}

fn of_program(error: &pte::Error) -> Error {
    Error::new(error.to_string()).with_hint_of(error.hint())
}

/// The Core ML models of a program, in the order of their first use.
pub fn models(program: &Program) -> Result<Vec<DelegatedModel>, Error> {
    let mut found: Vec<(Source, DelegatedModel)> = Vec::new();
    for plan in &program.plans {
        for (index, delegate) in plan.delegates.iter().enumerate() {
            if delegate.id != BACKEND {
                continue;
            }
            let payload = Payload::of(program, delegate).map_err(|error| {
                let error = of_program(&error);
                let place = format!("method `{}`, delegate {index}: {error}", plan.name);
                Error::new(place)
            })?;
            let source = match &payload.reference {
                Some(reference) => Source::Named(reference.key.clone()),
                None => Source::Data(delegate.data),
            };
            let function = payload.function().map(str::to_owned);
            let user = Use { method: plan.name.clone(), delegate: index, function };
            match found.iter_mut().find(|(known, _)| *known == source) {
                Some((_, model)) => model.uses.push(user),
                None => {
                    let model = DelegatedModel { name: String::new(), uses: vec![user], payload };
                    found.push((source, model));
                }
            }
        }
    }
    let mut models: Vec<DelegatedModel> = found.into_iter().map(|(_, model)| model).collect();
    names::give(&mut models);
    Ok(models)
}

/// Location of a model in the program's file.
#[derive(PartialEq, Eq)]
enum Source {
    /// Index of the delegate's data.
    Data(u32),
    /// Name of the data.
    Named(String),
}

impl DelegatedModel {
    /// Returns true if the model is compiled.
    pub fn is_compiled(&self) -> Result<bool, Error> {
        self.payload.model().map(|(compiled, _)| compiled).map_err(|error| self.failed(&error))
    }

    /// Reads the model. Its weights stay in the program's file.
    pub fn read(&self) -> Result<Model, Error> {
        let (is_compiled, files) = self.payload.model().map_err(|error| self.failed(&error))?;
        let model = match is_compiled {
            true => compiled::from_tree(files),
            false => package::from_tree(files),
        };
        model.map_err(|error| Error::of_package(Path::new(&self.name), &error))
    }

    /// Names of the inputs for one of the delegates that use the model.
    pub(crate) fn inputs_of(
        &self,
        program: &Program,
        delegate: &Delegate,
    ) -> Result<Vec<String>, Error> {
        let payload = Payload::of(program, delegate);
        let inputs = payload.and_then(|payload| Ok(payload.interface()?.inputs.clone()));
        inputs.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &pte::Error) -> Error {
        of_program(error).within(Path::new(&self.name))
    }
}
