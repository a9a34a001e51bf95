//! Whether a converted model computes what it should, on the inputs that its archive holds.

use coremill_compiler::{self as compiler, Options, Precision};
use coremill_engine::{Engine, LoadOptions, Outputs};
use coremill_mil::verify::{Verified, verify};
use coremill_pt2::ExportedProgram;

use super::samples::sample_inputs;
use crate::compare::{Figures, figures};
use crate::error::Error;

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
        let options = Options { precision: Precision::Fp32, target, ..options.clone() };
        let reference = compiler::convert(program, &options)
            .map_err(|error| Error::new(format!("in fp32: {error}")))?;
        let verified = verify(&reference.model).map_err(|report| {
            let first = report.diagnostics.first();
            let first = first.map_or_else(String::new, |diagnostic| diagnostic.message.clone());
            Error::new(format!("the program in fp32 is not sound: {first}"))
        })?;
        run_fast(&verified, &samples)?
    };
    let outputs = expected.0.iter().zip(&found.0).map(|((name, expected), (_, found))| {
        let figures = match (expected.as_array(), found.as_array()) {
            (Some(expected), Some(found)) => figures(expected, found),
            _ => Err("is no tensor".to_owned()),
        };
        OutputAgreement { name: name.clone(), figures }
    });
    Ok(Some(Agreement { outputs: outputs.collect(), bound }))
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
