//! ExecuTorch programs: the Core ML models inside them, and what they compute.
//!
//! [`open`] reads a `.pte` file, [`models`] finds what is delegated to Core ML in it, [`extract`] writes these models
//! out, [`summarize`] counts what there is, and [`Runner`] runs a method.
//!
//! ```
//! # #[cfg(feature = "compiler")] {
//! use coremill::engine::Array;
//! use coremill::executorch::{self, Runner};
//! use coremill::graph::DType;
//!
//! let archive = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits.pt2");
//! let program = coremill::lower(archive, &coremill::LowerOptions::new())?.program;
//! assert_eq!(executorch::models(&program)?.len(), 1);
//!
//! let mut runner = Runner::new(program, Some("forward"), Default::default())?;
//! let port = runner.ports()[0].clone();
//! let shape = port.default_shape().unwrap_or_default();
//! let image = Array::floats(DType::Fp32, shape, vec![0.0; 64]);
//! let outputs = runner.run(&[(port.name.clone(), image)])?;
//! assert_eq!(outputs[0].1.shape(), [1, 10]);
//! # }
//! # Ok::<(), coremill::Error>(())
//! ```

mod extract;
mod names;
mod runner;
mod summary;

use std::path::Path;

use coremill_mlpackage::{compiled, package};
use coremill_pte as pte;
use coremill_pte::coreml::{BACKEND, Payload};
use coremill_pte::program::Delegate;

use crate::Model;
use crate::error::Error;

pub use coremill_pte::Program;
pub use coremill_runtime::{Hooks, LoadOptions, Span};
pub use extract::{Extracted, extract};
pub(crate) use runner::Exact;
pub use runner::Runner;
pub use summary::{
    CallCount, DelegateSummary, MethodSummary, ModelSummary, ProgramSummary, SpecSummary,
    ValueSummary, summarize,
};

/// A Core ML model in a program. Several methods may share it.
#[derive(Clone, Debug)]
pub struct DelegatedModel {
    /// A name that no other model of the program has, made from the methods that it is for.
    pub name: String,
    /// Who uses it.
    pub uses: Vec<Use>,
    /// All its files.
    pub payload: Payload,
}

/// A delegate that uses a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// The method.
    pub method: String,
    /// Which of the method's delegates.
    pub delegate: usize,
    /// The function of the model; none is the only one.
    pub function: Option<String>,
}

/// Whether the file at a path is an ExecuTorch program, by its content or, where it is damaged, its name.
pub fn is_program(path: impl AsRef<Path>) -> bool {
    use std::io::Read as _;
    let path = path.as_ref();
    if !path.is_file() {
        return false;
    }
    let mut start = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(8).read_to_end(&mut start));
    read.is_ok() && pte::is_program(&start)
        || path.extension().is_some_and(|extension| extension == "pte")
}

/// Reads a program. Errors name the file.
pub fn open(path: impl AsRef<Path>) -> Result<Program, Error> {
    let path = path.as_ref();
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::new(format!("there is nothing at {}", path.display())));
        }
        Err(error) => return Err(Error::io("read", path, &error)),
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
    let wrapped = Error::new(error.to_string());
    match error.hint() {
        Some(hint) => wrapped.hint(hint),
        None => wrapped,
    }
}

/// The Core ML models of a program, in the order in which its methods use them.
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

/// Where in a program a model lies.
#[derive(PartialEq, Eq)]
enum Source {
    /// By its place among what delegates are given.
    Data(u32),
    /// By its name.
    Named(String),
}

impl DelegatedModel {
    /// Whether the model is compiled already.
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

    /// What the inputs are called for one of the delegates that use the model.
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
