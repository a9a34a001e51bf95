//! Whether a converted model computes what it should, on the inputs that its archive holds.

use coremill_compiler::{self as compiler, LowerOptions, Options, Precision};
use coremill_engine::{Array, Engine, LoadOptions, Outputs};
use coremill_mil::model::Model;
use coremill_mil::verify::{Verified, verify};
use coremill_pt2::ExportedProgram;
use coremill_pte as pte;
use coremill_runtime as runtime;

use super::samples::sample_inputs;
use crate::compare::{Figures, figures};
use crate::error::Error;
use crate::executorch::Runner;

/// How far outputs of a model in `fp16` may lie from those in `fp32`, in parts of the largest one.
pub const FP16_BOUND: f64 = 1e-2;
/// The same for models in `fp32`.
pub const FP32_BOUND: f64 = 1e-3;

/// How a model's outputs agree with those of the same program in `fp32`.
#[derive(Clone, Debug)]
pub struct Agreement {
    /// Each output.
    pub outputs: Vec<OutputAgreement>,
    /// How far they may lie apart: floats in parts of the largest, integers as the share that differs.
    pub bound: f64,
}

/// How one output agrees.
#[derive(Clone, Debug)]
pub struct OutputAgreement {
    /// Its name.
    pub name: String,
    /// How it differs; a text if it has another shape.
    pub figures: Result<Figures, String>,
}

impl Agreement {
    /// Compares outputs in their order; what is no tensor is none.
    fn of<'a>(
        expected: impl ExactSizeIterator<Item = (&'a str, Option<&'a Array>)>,
        found: impl ExactSizeIterator<Item = (&'a str, Option<&'a Array>)>,
        bound: f64,
    ) -> Result<Agreement, Error> {
        if expected.len() != found.len() {
            let (expected, found) = (expected.len(), found.len());
            return Err(Error::new(format!("there are {found} outputs; expected are {expected}")));
        }
        let outputs = expected.zip(found).map(|((name, expected), (_, found))| {
            let figures = match (expected, found) {
                (Some(expected), Some(found)) => figures(expected, found),
                _ => Err("is no tensor".to_owned()),
            };
            OutputAgreement { name: name.to_owned(), figures }
        });
        Ok(Agreement { outputs: outputs.collect(), bound })
    }

    /// Whether every output is within the bound.
    pub fn holds(&self) -> bool {
        self.outputs.iter().all(|output| self.accepts(output))
    }

    /// Whether an output is within the bound.
    pub fn accepts(&self, output: &OutputAgreement) -> bool {
        output.figures.as_ref().is_ok_and(|figures| figures.is_within(self.bound))
    }
}

/// The bound for models of a precision.
pub fn bound(precision: Precision) -> f64 {
    match precision {
        Precision::Fp16 => FP16_BOUND,
        Precision::Fp32 => FP32_BOUND,
    }
}

/// Runs a converted model on the archive's sample inputs, each result rounded as on the device, and the same
/// program in `fp32`, and compares. None if the archive holds no sample inputs.
///
/// `program` is what the model was made from.
pub fn check_numbers(
    program: ExportedProgram,
    options: &Options,
    made: &Verified<'_>,
    bound: f64,
) -> Result<Option<Agreement>, Error> {
    let faithful = engine(made, coremill_engine::Precision::Faithful)?;
    let mut session =
        faithful.session(faithful.default_function()).map_err(|error| Error::of_engine(&error))?;
    let Some(samples) = sample_inputs(&program, session.inputs())? else {
        return Ok(None);
    };
    let samples: Vec<_> = samples.iter().map(|(name, array)| (&**name, array.clone())).collect();
    let found = session.run(&samples).map_err(|error| Error::of_engine(&error))?;
    drop((session, faithful));

    let expected = if options.precision == Precision::Fp32 {
        run_fast(made, &samples)?
    } else {
        let target = made.model().program.functions.first().map(|function| function.opset);
        let reference = compiler::convert(program, &Options { target, ..in_fp32(options) })
            .map_err(|error| Error::new(format!("in fp32: {error}")))?;
        run_fast(&sound(&reference.model)?, &samples)?
    };
    Agreement::of(arrays(&expected), arrays(&found), bound).map(Some)
}

/// Runs a method of a lowered program on the sample inputs of the archive that it was made from, what is delegated
/// rounded as on the device, and the archive's program in `fp32`, and compares. None if the archive holds no sample
/// inputs.
///
/// What Core ML cannot run as a whole is compared with the same program outside of delegates.
pub fn check_method(
    lowered: pte::Program,
    method: &str,
    program: ExportedProgram,
    options: &Options,
    bound: f64,
) -> Result<Option<Agreement>, Error> {
    let faithful = runtime::LoadOptions { faithful: true, ..runtime::LoadOptions::default() };
    let mut runner = Runner::new(lowered, Some(method), faithful)?;
    let Some(samples) = sample_inputs(&program, runner.ports())? else {
        return Ok(None);
    };
    let found = runner.run(&samples)?;
    let found = found.iter().map(|(name, array)| (&**name, Some(array)));
    match compiler::convert(program.clone(), &in_fp32(options)) {
        Ok(reference) => {
            let verified = sound(&reference.model)?;
            let engine = engine(&verified, coremill_engine::Precision::Fast)?;
            let session = engine.session(engine.default_function());
            let mut session = session.map_err(|error| Error::of_engine(&error))?;
            let samples = sample_inputs(&program, session.inputs())?.unwrap_or_default();
            let samples: Vec<_> =
                samples.iter().map(|(name, array)| (&**name, array.clone())).collect();
            let expected = session.run(&samples).map_err(|error| Error::of_engine(&error))?;
            Agreement::of(arrays(&expected), found, bound).map(Some)
        }
        Err(compiler::Error::Refused(_)) => {
            let options = LowerOptions { portable: true, ..LowerOptions::default() };
            let outside = compiler::lower(vec![(method.to_owned(), program)], &options)
                .map_err(|error| Error::new(format!("outside of delegates: {error}")))?;
            let mut runner =
                Runner::new(outside.program, Some(method), runtime::LoadOptions::default())?;
            let expected = runner.run(&samples)?;
            let expected = expected.iter().map(|(name, array)| (&**name, Some(array)));
            Agreement::of(expected, found, bound).map(Some)
        }
        Err(error) => Err(Error::new(format!("in fp32: {error}"))),
    }
}

fn in_fp32(options: &Options) -> Options {
    Options { precision: Precision::Fp32, ..options.clone() }
}

fn sound(model: &Model) -> Result<Verified<'_>, Error> {
    verify(model).map_err(|report| {
        let first = report.diagnostics.first();
        let first = first.map_or_else(String::new, |diagnostic| diagnostic.message.clone());
        Error::new(format!("the program in fp32 is not sound: {first}"))
    })
}

fn arrays(outputs: &Outputs) -> impl ExactSizeIterator<Item = (&str, Option<&Array>)> {
    outputs.0.iter().map(|(name, value)| (&**name, value.as_array()))
}

fn run_fast(
    model: &Verified<'_>,
    inputs: &[(&str, coremill_engine::Array)],
) -> Result<Outputs, Error> {
    let engine = engine(model, coremill_engine::Precision::Fast)?;
    let session = engine.session(engine.default_function());
    let outputs = session.and_then(|mut session| session.run(inputs));
    outputs.map_err(|error| Error::of_engine(&error))
}

fn engine(model: &Verified<'_>, precision: coremill_engine::Precision) -> Result<Engine, Error> {
    let options = LoadOptions { precision, ..LoadOptions::default() };
    Engine::load(model, &options).map_err(|error| Error::of_engine(&error))
}
