//! Loaded models and ExecuTorch programs.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use coremill::compare::{Contents, Target};
use coremill::feedback::{StateFeedback, state_feedback};
use coremill::{OpenedModel, executorch};
use coremill_compiler::SourceMap;
use coremill_engine::Numerics;
use coremill_pt2::ExportedProgram;
use coremill_session::{Device, Executable, RunOptions, Session};

use crate::inputs::failure;
use crate::output::Failure;

/// Value of the option `device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum DeviceArg {
    /// coremill's engine on the CPU, on any system
    Host,
    /// Core ML on the CPU
    Cpu,
    /// Core ML on the GPU
    Gpu,
    /// Core ML on the Neural Engine
    Ane,
    /// Core ML on any device
    All,
}

/// Value of the option `numerics`.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum NumericsArg {
    /// Floats are computed and stored in fp32
    Fast,
    /// Each result is rounded to its type
    #[value(alias = "faithful")]
    Rounded,
    /// As on the Neural Engine: sums in fixed point, functions by tables, ties away from zero
    Ane,
    /// As Core ML computes on the CPU: sums in half precision
    CoremlCpu,
}

/// A loaded function of a model or an ExecuTorch program.
pub(super) struct LoadedFunction {
    pub(super) content: Content,
    pub(super) executable: Arc<dyn Executable>,
    /// The function, or the method of a program.
    pub(super) function: String,
    pub(super) numerics: Numerics,
    pub(super) device: Device,
    /// Feedback inputs.
    pub(super) fed: Vec<StateFeedback>,
    /// The exported program, if the model was converted by this command.
    pub(super) archive: Option<ExportedProgram>,
    /// The source map, if the model was converted by this command.
    pub(super) calls: Option<SourceMap>,
    /// Names of values that are results of calls in the exported program.
    results: Option<HashSet<String>>,
}

/// The content of a loaded file.
pub(super) enum Content {
    Model(Box<OpenedModel>),
    Program(Box<executorch::Program>),
}

impl From<DeviceArg> for Device {
    fn from(device: DeviceArg) -> Device {
        match device {
            DeviceArg::Host => Device::Host,
            DeviceArg::Cpu => Device::Cpu,
            DeviceArg::Gpu => Device::Gpu,
            DeviceArg::Ane => Device::NeuralEngine,
            DeviceArg::All => Device::All,
        }
    }
}

impl From<NumericsArg> for Numerics {
    fn from(numerics: NumericsArg) -> Numerics {
        match numerics {
            NumericsArg::Fast => Numerics::Fast,
            NumericsArg::Rounded => Numerics::Rounded,
            NumericsArg::Ane => Numerics::Ane,
            NumericsArg::CoremlCpu => Numerics::CoremlCpu,
        }
    }
}

impl LoadedFunction {
    /// Loads a file. A `.pt2` archive is converted.
    pub(super) fn load(
        path: &Path,
        function: Option<&str>,
        options: &RunOptions,
    ) -> Result<LoadedFunction, Failure> {
        if executorch::is_program(path) {
            return LoadedFunction::program(path, function, options);
        }
        let (opened, archive) = super::open_or_convert(path)?;
        LoadedFunction::model(opened, archive, None, function, options)
    }

    /// Loads an ExecuTorch program.
    pub(super) fn program(
        path: &Path,
        function: Option<&str>,
        options: &RunOptions,
    ) -> Result<LoadedFunction, Failure> {
        let program = executorch::open(path).map_err(|error| super::failure(&error))?;
        let content = Content::Program(Box::new(program.clone()));
        let executable = coremill_session::load_program(program, options);
        LoadedFunction::new(content, executable, function, options)
            .map_err(|error| within(path, &error))
    }

    /// Loads a model. `archive` and `calls` are its source, if it was converted.
    pub(super) fn model(
        opened: OpenedModel,
        archive: Option<ExportedProgram>,
        calls: Option<SourceMap>,
        function: Option<&str>,
        options: &RunOptions,
    ) -> Result<LoadedFunction, Failure> {
        let executable = coremill_session::load(&super::verify(&opened)?, options);
        let fed = state_feedback(&opened.model);
        let content = Content::Model(Box::new(opened));
        let loaded = LoadedFunction::new(content, executable, function, options);
        let loaded = loaded.map_err(|error| failure(&error))?;
        let results = calls.as_ref().map(SourceMap::results);
        Ok(LoadedFunction { fed, archive, calls, results, ..loaded })
    }

    fn new(
        content: Content,
        executable: coremill_session::Result<Arc<dyn Executable>>,
        function: Option<&str>,
        options: &RunOptions,
    ) -> coremill_session::Result<LoadedFunction> {
        let executable = executable?;
        let function = function.map_or_else(|| executable.default_function(), Ok)?.to_owned();
        let (device, numerics) = (options.device, options.numerics);
        let (fed, archive, calls, results) = Default::default();
        Ok(LoadedFunction {
            content,
            executable,
            function,
            numerics,
            device,
            fed,
            archive,
            calls,
            results,
        })
    }

    /// Creates a session of the function.
    pub(super) fn session(&self) -> Result<Box<dyn Session>, Failure> {
        self.executable.session(&self.function).map_err(|error| failure(&error))
    }

    /// Number of rows of the lookup table that an input indexes, if known.
    pub(super) fn vocabulary(&self, input: &str) -> Option<u64> {
        self.executable.vocabulary(&self.function, input)
    }

    /// The function as a side of a comparison by value.
    pub(super) fn target(&self) -> Target<'_> {
        let contents = match &self.content {
            Content::Model(opened) => {
                Contents::Model { model: &opened.model, results: self.results.as_ref() }
            }
            Content::Program(program) => Contents::Program(program),
        };
        Target { executable: &*self.executable, function: &self.function, contents }
    }
}

fn within(path: &Path, error: &coremill_session::Error) -> Failure {
    Failure::user(format_args!("{}: {error}", path.display())).hint(error.hint())
}
