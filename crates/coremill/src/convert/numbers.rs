//! Verification of a converted model on the archive's sample inputs.

use coremill_compiler::{self as compiler, LowerOptions, Options, Precision};
use coremill_engine::{Array, Numerics, Outputs, Value as EngineValue};
use coremill_mil::model::Model;
use coremill_pt2::{Argument, ExportedProgram, Graph, Meta, ScalarType, Value};
use coremill_pte as pte;
use coremill_session::{
    ExactValue, ProgramExecutable, RunOptions, Session, inputs, load, load_program,
};
use coremill_verify::{Verified, verify};

use coremill_inspect::compare::{ErrorMetrics, figures, figures_of_doubles};
use coremill_optimize::sample_inputs;

use crate::error::Error;

/// Maximum error of fp16 outputs compared with fp32, relative to the largest element.
pub const FP16_BOUND: f64 = 1e-2;
/// Maximum error of fp32 outputs, relative to the largest element.
pub const FP32_BOUND: f64 = 1e-3;

/// Comparison of a model's outputs with the same program in `fp32`, or in torch's own types if it
/// computes in fp64.
#[derive(Clone, Debug)]
pub struct NumericsReport {
    /// Comparison of each output.
    pub outputs: Vec<OutputAgreement>,
    /// Maximum error: relative to the largest element for floats, share of differing elements for
    /// integers.
    pub bound: f64,
    /// Limitation of the reference, set if fp64 operations were computed in `fp32`.
    pub caveat: Option<String>,
}

/// Comparison of one output.
#[derive(Clone, Debug)]
pub struct OutputAgreement {
    /// Name of the output.
    pub name: String,
    /// Error of the output, or a message if the shapes differ.
    pub figures: Result<ErrorMetrics, String>,
    /// Number of NaN elements in the reference, with which nothing can agree. The reference is
    /// lowered like the model, so a defect may affect both.
    pub undefined: usize,
}

/// Expected value of an output.
enum ExpectedOutput<'a> {
    Array(&'a Array),
    Doubles(&'a [usize], &'a [f64]),
    NoTensor,
}

impl ExpectedOutput<'_> {
    /// Number of NaN elements.
    fn undefined(&self) -> usize {
        match self {
            ExpectedOutput::Array(array) => {
                let floats = array.as_floats().unwrap_or_default();
                floats.iter().filter(|element| element.is_nan()).count()
            }
            ExpectedOutput::Doubles(_, elements) => {
                elements.iter().filter(|element| element.is_nan()).count()
            }
            ExpectedOutput::NoTensor => 0,
        }
    }
}

impl NumericsReport {
    /// Compares outputs in order. Values that are not tensors are `None`.
    fn of<'a>(
        expected: impl ExactSizeIterator<Item = (&'a str, ExpectedOutput<'a>)>,
        found: impl ExactSizeIterator<Item = Option<&'a Array>>,
        bound: f64,
    ) -> Result<NumericsReport, Error> {
        if expected.len() != found.len() {
            let (expected, found) = (expected.len(), found.len());
            return Err(Error::new(format!("expected {expected} outputs, got {found}")));
        }
        let outputs = expected.zip(found).map(|((name, expected), found)| {
            let undefined = expected.undefined();
            let figures = match (expected, found) {
                (ExpectedOutput::Array(expected), Some(found)) => {
                    figures(expected, found).map_err(|error| error.to_string())
                }
                (ExpectedOutput::Doubles(shape, expected), Some(found)) => {
                    figures_of_doubles(shape, expected, found).map_err(|error| error.to_string())
                }
                (ExpectedOutput::NoTensor, _) | (_, None) => Err("is not a tensor".to_owned()),
            };
            OutputAgreement { name: name.to_owned(), figures, undefined }
        });
        Ok(NumericsReport { outputs: outputs.collect(), bound, caveat: None })
    }

    /// Compares with the results of torch's kernels in torch's types.
    fn with_exact<'a>(
        expected: &'a [(String, ExactValue)],
        found: impl ExactSizeIterator<Item = Option<&'a Array>>,
        bound: f64,
    ) -> Result<NumericsReport, Error> {
        let expected = expected.iter().map(|(name, exact)| {
            let expected = match exact {
                ExactValue::Array(array) => ExpectedOutput::Array(array),
                ExactValue::Doubles(shape, numbers) => ExpectedOutput::Doubles(shape, numbers),
            };
            (&**name, expected)
        });
        NumericsReport::of(expected, found, bound)
    }

    /// Returns true if every output is within the bound.
    pub fn holds(&self) -> bool {
        self.outputs.iter().all(|output| self.accepts(output))
    }

    /// Returns true if an output is within the bound.
    pub fn accepts(&self, output: &OutputAgreement) -> bool {
        output.figures.as_ref().is_ok_and(|figures| figures.is_within(self.bound))
    }
}

/// Error bound for a precision.
pub fn bound(precision: Precision) -> f64 {
    match precision {
        Precision::Fp16 => FP16_BOUND,
        Precision::Fp32 => FP32_BOUND,
    }
}

/// Runs a converted model on the archive's sample inputs, in the arithmetic of a device.
/// Compares with the same program in `fp32`, or in torch's own types if it computes in fp64.
/// Returns `None` if the archive has no sample inputs.
///
/// `program` is the source of the model.
pub fn check_numbers(
    program: ExportedProgram,
    options: &Options,
    made: &Verified<'_>,
    bound: f64,
    numerics: Numerics,
) -> Result<Option<NumericsReport>, Error> {
    let mut rounded = session(made, numerics)?;
    let Some(samples) = sample_inputs(&program, rounded.inputs())? else {
        return Ok(None);
    };
    let found = rounded.run(&inputs(&samples))?;
    drop(rounded);
    let caveat = match in_torch_types(&program, found.0.len()) {
        Ok(Some(exact)) => {
            let found = found.0.iter().map(|(_, value)| value.as_array());
            return NumericsReport::with_exact(&exact, found, bound).map(Some);
        }
        Ok(None) => None,
        Err(why) => Some(why),
    };

    let expected = if options.precision == Precision::Fp32 {
        session(made, Numerics::Fast)?.run(&inputs(&samples))?
    } else {
        let target = made.model().program.functions.first().map(|function| function.opset);
        let reference = compiler::convert(program, &Options { target, ..in_fp32(options) })
            .map_err(|error| Error::new(format!("in fp32: {error}")))?;
        session(&sound(&reference.model)?, Numerics::Fast)?.run(&inputs(&samples))?
    };
    let found = found.0.iter().map(|(_, value)| value.as_array());
    let agreement = NumericsReport::of(arrays(&expected), found, bound)?;
    Ok(Some(NumericsReport { caveat, ..agreement }))
}

/// Runs a method of a lowered program on the archive's sample inputs, with delegates in
/// the arithmetic of a device. Compares with the archive's program in `fp32`. Returns `None` if the
/// archive has no sample inputs.
///
/// If Core ML does not support the whole program, the reference is the same program without
/// delegates.
pub fn check_method(
    lowered: pte::Program,
    method: &str,
    program: ExportedProgram,
    options: &Options,
    bound: f64,
    numerics: Numerics,
) -> Result<Option<NumericsReport>, Error> {
    let rounding = RunOptions { numerics, ..RunOptions::default() };
    let mut rounded = load_program(lowered, &rounding)?.session(method)?;
    let Some(samples) = sample_inputs(&program, rounded.inputs())? else {
        return Ok(None);
    };
    let found = rounded.run(&inputs(&samples))?;
    let exact = in_torch_types(&program, found.0.len());
    let found = found.0.iter().map(|(_, value)| value.as_array());
    let caveat = match exact {
        Ok(Some(exact)) => return NumericsReport::with_exact(&exact, found, bound).map(Some),
        Ok(None) => None,
        Err(why) => Some(why),
    };
    match compiler::convert(program.clone(), &in_fp32(options)) {
        Ok(reference) => {
            let verified = sound(&reference.model)?;
            let mut session = session(&verified, Numerics::Fast)?;
            let samples = sample_inputs(&program, session.inputs())?.unwrap_or_default();
            let mut expected = session.run(&inputs(&samples))?;
            // The program stores buffers that the reference returns as outputs.
            let fed = crate::feedback::state_feedback(&reference.model);
            if expected.0.len() > found.len() {
                expected.0.retain(|(name, _)| !fed.iter().any(|fed| fed.output == *name));
            }
            let agreement = NumericsReport::of(arrays(&expected), found, bound)?;
            Ok(Some(NumericsReport { caveat, ..agreement }))
        }
        Err(compiler::Error::Refused(_) | compiler::Error::Program(_)) => {
            let expected = outside_of_delegates(program)?;
            NumericsReport::with_exact(&expected, found, bound).map(Some)
        }
        Err(error) => Err(Error::new(format!("in fp32: {error}"))),
    }
}

/// Runs the program in torch's own types, if these include fp64. `None` if they do not; a message
/// if portable kernels do not support the whole program.
fn in_torch_types(
    program: &ExportedProgram,
    outputs: usize,
) -> Result<Option<Vec<(String, ExactValue)>>, String> {
    if !has_doubles(&program.graph) {
        return Ok(None);
    }
    const CAVEAT: &str = "the program computes in fp64, but was verified in fp32";
    let exact = outside_of_delegates(program.clone());
    let exact = exact.map_err(|error| format!("{CAVEAT}: {error}"))?;
    match exact.len() == outputs {
        true => Ok(Some(exact)),
        false => {
            Err(format!("{CAVEAT}: its kernels return {} outputs, expected {outputs}", exact.len()))
        }
    }
}

fn has_doubles(graph: &Graph) -> bool {
    let is_double = |value: &Value| matches!(&value.meta, Meta::Tensor(meta) if meta.dtype == ScalarType::Float64);
    let arguments = graph.nodes.iter().flat_map(|node| &node.arguments);
    let mut inner = arguments.filter_map(|argument| match argument {
        Argument::Graph(inner) => Some(&inner.graph),
        _ => None,
    });
    graph.values.iter().any(is_double) || inner.any(has_doubles)
}

/// Results for the sample inputs, computed by portable kernels without delegates.
fn outside_of_delegates(program: ExportedProgram) -> Result<Vec<(String, ExactValue)>, Error> {
    let options = LowerOptions { portable: true, ..LowerOptions::default() };
    let method = "forward";
    let outside =
        compiler::lower(vec![(method.to_owned(), program.clone())], &options).map_err(|error| {
            match error {
                compiler::Error::Refused(calls) => {
                    let operator = calls.first().map_or("a call", |call| &call.operator);
                    Error::new(format!("ExecuTorch has no kernel for `{operator}`"))
                }
                error => Error::new(format!("outside delegates: {error}")),
            }
        })?;
    let outside = ProgramExecutable::load(outside.program, &RunOptions::default())?;
    let mut session = outside.method(method)?;
    let samples = sample_inputs(&program, session.inputs())?.unwrap_or_default();
    Ok(session.run_exactly(&inputs(&samples))?)
}

fn in_fp32(options: &Options) -> Options {
    Options { precision: Precision::Fp32, rewrite: None, ..options.clone() }
}

fn sound(model: &Model) -> Result<Verified<'_>, Error> {
    verify(model).map_err(|report| {
        let first = report.diagnostics.first();
        let first = first.map_or_else(String::new, |diagnostic| diagnostic.message.clone());
        Error::new(format!("the fp32 program is invalid: {first}"))
    })
}

fn arrays(outputs: &Outputs) -> impl ExactSizeIterator<Item = (&str, ExpectedOutput<'_>)> {
    let expected = |value| {
        EngineValue::as_array(value).map_or(ExpectedOutput::NoTensor, ExpectedOutput::Array)
    };
    outputs.0.iter().map(move |(name, value)| (&**name, expected(value)))
}

fn session(model: &Verified<'_>, numerics: Numerics) -> Result<Box<dyn Session>, Error> {
    let options = RunOptions { numerics, ..RunOptions::default() };
    Ok(load(model, &options)?.default_session()?)
}

#[cfg(test)]
mod tests {
    use coremill_tensor::DType;

    use super::*;

    #[test]
    fn counts_nan_in_reference_outputs() {
        let array = |elements: &[f32]| Array::floats(DType::Fp32, [2], elements.to_vec());
        let (nan, plain) = (array(&[f32::NAN, 1.0]), array(&[2.0, 1.0]));
        let expected = [("y", ExpectedOutput::Array(&nan)), ("z", ExpectedOutput::Array(&plain))];
        let found = [Some(&nan), Some(&plain)];
        let agreement = NumericsReport::of(expected.into_iter(), found.into_iter(), FP32_BOUND);
        let agreement = agreement.expect("matching outputs");
        let undefined: Vec<_> = agreement.outputs.iter().map(|output| output.undefined).collect();
        assert_eq!(undefined, [1, 0]);
        let doubles = ExpectedOutput::Doubles(&[2], &[f64::NAN, f64::NAN]);
        assert_eq!(doubles.undefined(), 2);
    }
}
