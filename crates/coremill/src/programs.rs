//! Conversion of `torch.export.save` archives to Core ML and ExecuTorch in one call.

use std::path::Path;

use coremill_compiler::{self as compiler, Options, Precision, States};
use coremill_mil::ir::Opset;
use coremill_mil::model::Model;
use coremill_pte as pte;

use crate::error::{Error, ErrorKind};

/// Options of [`convert`].
///
/// ```
/// use coremill::{ConvertOptions, Opset, Precision};
///
/// let options = ConvertOptions::new()
///     .target(Opset::Ios17)
///     .precision(Precision::Fp32)
///     .output_names(["logits"]);
/// let archive = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits.pt2");
/// let converted = coremill::convert(archive, &options)?;
/// assert_eq!(converted.target, Opset::Ios17);
/// # Ok::<(), coremill::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ConvertOptions {
    options: Options,
}

/// Options of [`lower`].
///
/// ```
/// use coremill::{ConvertOptions, LowerOptions, Precision};
///
/// let options = LowerOptions::new()
///     .convert(ConvertOptions::new().precision(Precision::Fp32))
///     .skip_ops(["aten.nothing.default"]);
/// let archive = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits.pt2");
/// // The program has no such call.
/// let error = coremill::lower(archive, &options).unwrap_err();
/// assert_eq!(error.kind(), coremill::ErrorKind::Argument);
/// ```
#[derive(Clone, Debug, Default)]
pub struct LowerOptions {
    options: compiler::LowerOptions,
}

/// Result of [`convert`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Conversion {
    /// The model, not yet verified; see [`verify`](crate::verify) and [`save`](crate::save).
    pub model: Model,
    /// Target release of the model.
    pub target: Opset,
}

/// Result of [`lower`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoweredProgram {
    /// The ExecuTorch program.
    pub program: pte::Program,
    /// Number of delegated partitions.
    pub parts: usize,
    /// Number of calls outside the partitions.
    pub outside: usize,
}

impl ConvertOptions {
    /// Defaults: `fp16`, for the oldest release that supports the program.
    pub fn new() -> ConvertOptions {
        ConvertOptions::default()
    }

    /// Sets the oldest release that must run the model.
    pub fn target(mut self, target: Opset) -> ConvertOptions {
        self.options.target = Some(target);
        self
    }

    /// Sets the precision of floats.
    pub fn precision(mut self, precision: Precision) -> ConvertOptions {
        self.options.precision = precision;
        self
    }

    /// Sets the treatment of buffers that the program writes to.
    pub fn states(mut self, states: States) -> ConvertOptions {
        self.options.states = states;
        self
    }

    /// Sets the allowed shapes of an input.
    pub fn shapes(
        mut self,
        input: impl Into<String>,
        shapes: impl IntoIterator<Item = Vec<u64>>,
    ) -> ConvertOptions {
        self.options.shapes.insert(input.into(), shapes.into_iter().collect());
        self
    }

    /// Sets the names of the inputs, in the program's order.
    pub fn input_names(mut self, names: impl IntoIterator<Item: Into<String>>) -> ConvertOptions {
        self.options.input_names = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the names of the outputs, in the program's order.
    pub fn output_names(mut self, names: impl IntoIterator<Item: Into<String>>) -> ConvertOptions {
        self.options.output_names = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets paths of modules that compute in `fp32` regardless of the precision.
    pub fn fp32_modules(
        mut self,
        modules: impl IntoIterator<Item: Into<String>>,
    ) -> ConvertOptions {
        self.options.fp32_modules = modules.into_iter().map(Into::into).collect();
        self
    }

    /// Sets names of values whose operations compute in `fp32` regardless of the precision.
    pub fn fp32_values(mut self, values: impl IntoIterator<Item: Into<String>>) -> ConvertOptions {
        self.options.fp32_values = values.into_iter().map(Into::into).collect();
        self
    }
}

impl LowerOptions {
    /// Defaults: delegates all calls that Core ML supports, in `fp16`.
    pub fn new() -> LowerOptions {
        LowerOptions::default()
    }

    /// Sets the options for converting the delegated calls.
    pub fn convert(mut self, options: ConvertOptions) -> LowerOptions {
        self.options.options = options.options;
        self
    }

    /// Sets operators to leave outside delegates, by ExecuTorch's names, such as `aten.mm.default`.
    pub fn skip_ops(mut self, names: impl IntoIterator<Item: Into<String>>) -> LowerOptions {
        self.options.skip_ops = names.into_iter().map(Into::into).collect();
        self
    }

    /// Rejects programs that cannot be delegated completely.
    pub fn full_graph(mut self) -> LowerOptions {
        self.options.full_graph = true;
        self
    }
}

impl LoweredProgram {
    /// Writes the program to a `.pte` file.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        Ok(pte::write(path.as_ref(), &self.program, &pte::WriteOptions::default())?)
    }
}

/// Converts an archive of `torch.export.save` to a Core ML model.
///
/// ```
/// use coremill::ConvertOptions;
/// use coremill::graph::{Device, Session};
///
/// let archive = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits.pt2");
/// let converted = coremill::convert(archive, &ConvertOptions::new())?;
/// let mut model = Session::new(Device::Host).load(converted.model)?;
/// let function = model.default_function()?;
/// assert!(!model.inputs(&function)?.is_empty());
///
/// // What does not fit is an error before anything is lowered.
/// let twice = ConvertOptions::new().output_names(["y", "y"]);
/// let error = coremill::convert(archive, &twice).unwrap_err();
/// assert_eq!(error.kind(), coremill::ErrorKind::Argument);
/// # Ok::<(), coremill::Error>(())
/// ```
pub fn convert(path: impl AsRef<Path>, options: &ConvertOptions) -> Result<Conversion, Error> {
    let program = crate::convert::read(path)?;
    crate::convert::check_options(&program, &options.options)?;
    let conversion = crate::convert::convert(program, &options.options)?;
    Ok(Conversion { model: conversion.model, target: conversion.target })
}

/// Lowers an archive of `torch.export.save` to an ExecuTorch program with Core ML delegates.
///
/// ```
/// use coremill::LowerOptions;
///
/// let archive = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits.pt2");
/// let lowered = coremill::lower(archive, &LowerOptions::new())?;
/// assert_eq!((lowered.parts, lowered.outside), (1, 0));
/// let directory = tempfile::tempdir().unwrap();
/// lowered.save(directory.path().join("digits.pte"))?;
/// # Ok::<(), coremill::Error>(())
/// ```
pub fn lower(path: impl AsRef<Path>, options: &LowerOptions) -> Result<LoweredProgram, Error> {
    let program = crate::convert::read(path)?;
    crate::convert::check_options(&program, &options.options.options)?;
    let lowered = compiler::lower(vec![("forward".to_owned(), program)], &options.options)?;
    let vain: Vec<String> =
        lowered.reports.iter().flat_map(|report| report.skipped_in_vain.clone()).collect();
    if let Some(name) = vain.first() {
        let message = format!("`skip_ops` names `{name}`, which matches no call of the program");
        return Err(Error::new(message).with_kind(ErrorKind::Argument));
    }
    Ok(LoweredProgram {
        parts: lowered.reports.iter().map(|report| report.parts.len()).sum(),
        outside: lowered.reports.iter().map(|report| report.outside.len()).sum(),
        program: lowered.program,
    })
}
