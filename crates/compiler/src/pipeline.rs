//! Conversion of an exported program to a model.

use std::collections::{BTreeSet, HashMap, HashSet};

use coremill_compress::linear;
use coremill_io::unknown_name;
use coremill_mil::ir::{Function, Opset, Program};
use coremill_mil::model::{self, FED_KEY, Model};
use coremill_mil::text::identifier;
use coremill_passes::{self as pass, AnalyzedFunction, KeepFp32, without_precision};
use coremill_pt2::ExportedProgram;
use coremill_tensor::Files;

use crate::calls::{SourceMap, program_calls};
use crate::error::{Error, LoweringError, Result, UnsupportedOp};
use crate::lower::{Attempt, LoopedBuffer, attempt};
use crate::options::{Options, Precision};

/// Result of a conversion.
#[derive(Clone, Debug)]
pub struct Conversion {
    /// The model, ready for verification and writing.
    pub model: Model,
    /// Release targeted by the model.
    pub target: Opset,
    /// Reasons for an automatically chosen target: features that the previous release lacks.
    pub demands: TargetRequirements,
    /// Source calls of the model's values.
    pub calls: SourceMap,
}

/// Reasons for a target; empty if the oldest release suffices.
#[derive(Clone, Debug, Default)]
pub struct TargetRequirements {
    /// Calls that older releases do not support.
    pub calls: Vec<UnsupportedOp>,
    /// A requirement of the whole program, such as a state, that older releases do not support.
    pub program: Option<LoweringError>,
}

/// A lowered and simplified program, before floats get their precision.
#[derive(Clone, Debug)]
pub struct LoweredModel {
    /// The function, with its analysis.
    pub draft: AnalyzedFunction,
    /// Release that the program was lowered for.
    pub target: Opset,
    /// Reasons for an automatically chosen target: features that the previous release lacks.
    pub demands: TargetRequirements,
    /// Source calls of the values.
    pub calls: SourceMap,
    keep: KeepFp32,
    fed: Vec<LoopedBuffer>,
}

/// Converts a program.
///
/// Without a target in the options, the oldest release that supports the program is chosen.
pub fn convert(program: ExportedProgram, options: &Options) -> Result<Conversion, Error> {
    convert_from(program, options, Opset::Ios15)
}

/// Converts a program like [`convert`]; an automatically chosen target is at least `floor`.
pub fn convert_from(
    program: ExportedProgram,
    options: &Options,
    floor: Opset,
) -> Result<Conversion, Error> {
    check_quantization(options).map_err(Error::Program)?;
    let files = program.files();
    let floor = floor.max(needed_by_options(options)).max(options.at_least.unwrap_or(floor));
    let prepared = prepare(program, options, floor)?;
    let (target, demands, calls) =
        (prepared.target, prepared.demands.clone(), prepared.calls.clone());
    let model = finish(prepared, options)?;
    check_files(&files)?;
    Ok(Conversion { model, target, demands, calls })
}

/// Fails if a file was truncated while it was being read, which makes the results invalid.
pub(crate) fn check_files(files: &Files) -> Result<(), Error> {
    files.check().map_err(|error| Error::Program(LoweringError::new(error.to_string())))
}

/// Lowers and simplifies a program. An automatically chosen target is at least `floor`.
pub fn prepare(
    program: ExportedProgram,
    options: &Options,
    floor: Opset,
) -> Result<LoweredModel, Error> {
    let program = coremill_prepare::prepare(program)?;
    let LoweredFunction { draft, demands, origins, fed, .. } = lowered(&program, options, floor);
    let (mut draft, target) = draft?;
    let keep = kept(&program, &origins, options);
    pass::simplify(&mut draft, &skipped(options));
    let calls = SourceMap { calls: program_calls(&program), by_value: origins };
    Ok(LoweredModel { draft, target, demands, calls, keep, fed })
}

/// Applies the precision to a prepared program, and creates its model.
pub fn finish(prepared: LoweredModel, options: &Options) -> Result<Model, Error> {
    let LoweredModel { draft, calls, keep, fed, .. } = prepared;
    let (function, _) = quantize(narrowed(draft, &calls, options, keep)?, options)?;
    let mut model = described(vec![function], options)?;
    describe_fed(&mut model, &fed);
    Ok(model)
}

/// Creates a model from functions, with the metadata of the options.
pub(crate) fn described(functions: Vec<Function>, options: &Options) -> Result<Model, Error> {
    let program = Program { functions, ..Program::default() };
    let mut model = model::describe(program)
        .map_err(|error| Error::Program(LoweringError::of(error.to_string(), error.hint())))?;
    model.description.metadata = Some(options.metadata.clone());
    Ok(model)
}

/// Documents fed-back outputs in the descriptions for people and in the metadata for programs.
fn describe_fed(model: &mut Model, fed: &[LoopedBuffer]) {
    if fed.is_empty() {
        return;
    }
    let description = &mut model.description;
    for LoopedBuffer { buffer, input, output, first } in fed {
        let first = match first.as_deref() {
            Some([only]) => format!("{only}"),
            _ => format!("the content of the buffer `{buffer}`"),
        };
        for feature in description.inputs.iter_mut().filter(|feature| feature.name == *input) {
            feature.short_description =
                format!("{first} in the first step, then `{output}` of the previous step");
        }
        for feature in description.outputs.iter_mut().filter(|feature| feature.name == *output) {
            feature.short_description = format!("value of `{input}` in the next step");
        }
    }
    let told = serde_json::json!(fed).to_string();
    description.metadata.get_or_insert_default().set_user_defined(FED_KEY, told);
}

/// Result of lowering a program.
pub(crate) struct LoweredFunction {
    /// The function and its target.
    pub(crate) draft: Result<(AnalyzedFunction, Opset), Error>,
    /// Index of the refused call for each error.
    pub(crate) refused_nodes: Vec<usize>,
    /// Maps a value name of the draft to the index of its call.
    pub(crate) origins: HashMap<String, usize>,
    /// Reasons for an automatically chosen target.
    pub(crate) demands: TargetRequirements,
    /// Buffers that are both inputs and outputs.
    pub(crate) fed: Vec<LoopedBuffer>,
}

/// Lowers a functional program for the requested target, or for the oldest suitable one from `floor` on.
pub(crate) fn lowered(
    program: &ExportedProgram,
    options: &Options,
    floor: Opset,
) -> LoweredFunction {
    let mut target = options.target.unwrap_or(floor);
    let mut demands = TargetRequirements::default();
    loop {
        let Attempt { draft, refused_nodes, origins, fed } = attempt(program, target, options);
        let error = match draft {
            Ok(draft) => {
                let draft = Ok((draft, target));
                return LoweredFunction { draft, refused_nodes, origins, demands, fed };
            }
            Err(error) => error,
        };
        match needed(&error).filter(|_| options.target.is_none()) {
            Some(needed) if needed > target => {
                target = needed;
                demands = demanding(error, needed);
            }
            _ => {
                return LoweredFunction { draft: Err(error), refused_nodes, origins, demands, fed };
            }
        }
    }
}

/// Values of a lowered program that stay in `fp32`.
fn kept(
    program: &ExportedProgram,
    origins: &HashMap<String, usize>,
    options: &Options,
) -> KeepFp32 {
    // A value created by a pass has the name of the value it replaces; names of outputs do not reveal their module.
    let prefixes = options.fp32_modules.iter().map(|path| format!("{}_", identifier(path)));
    let is_kept = |node: usize| {
        let path = program.graph.nodes[node].origin.module_path();
        path.is_some_and(|path| options.is_fp32_module(path))
    };
    let mut names: HashSet<String> = match options.fp32_modules.is_empty() {
        true => HashSet::new(),
        false => {
            let made = origins.iter().filter(|(_, node)| is_kept(**node));
            made.map(|(name, _)| name.clone()).collect()
        }
    };
    for name in &options.fp32_values {
        names.extend([name.clone(), without_precision(name).to_owned()]);
    }
    KeepFp32 { ops: options.fp32_ops.clone(), prefixes: prefixes.collect(), names }
}

/// Fails if the options name an `fp32` value that none of the functions has.
pub fn check_fp32_values<'f>(
    functions: impl IntoIterator<Item = &'f Function>,
    options: &Options,
) -> Result<(), Error> {
    if options.fp32_values.is_empty() {
        return Ok(());
    }
    let mut known: BTreeSet<&str> = BTreeSet::new();
    for function in functions {
        let outputs = function.all_ops().flat_map(|(_, op)| &op.outputs);
        known.extend(outputs.map(|&output| without_precision(&function.value(output).name)));
    }
    let mut wanted = options.fp32_values.iter();
    match wanted.find(|name| !known.contains(without_precision(name))) {
        Some(name) => {
            let message = unknown_name("value", without_precision(name), known);
            let hint = "`compare` with the option `per_op` lists the values of both programs";
            Err(Error::Program(LoweringError::new(message).hint(hint)))
        }
        None => Ok(()),
    }
}

/// Simplifies a lowered function and applies the precision. `origins` maps value names to call indices.
pub(crate) fn optimise(
    mut draft: AnalyzedFunction,
    program: &ExportedProgram,
    origins: &HashMap<String, usize>,
    options: &Options,
) -> Result<Function, Error> {
    let keep = kept(program, origins, options);
    pass::simplify(&mut draft, &skipped(options));
    let calls = match options.rewrite {
        Some(_) => SourceMap { calls: program_calls(program), by_value: origins.clone() },
        None => SourceMap::default(),
    };
    narrowed(draft, &calls, options, keep)
}

/// Names of disabled passes.
fn skipped(options: &Options) -> Vec<&str> {
    let mut skipped: Vec<_> = options.skipped_passes.iter().map(String::as_str).collect();
    if options.decompose_sdpa {
        skipped.push("fuse_attention");
    }
    skipped
}

/// Applies the precision to a simplified function.
fn narrowed(
    mut draft: AnalyzedFunction,
    calls: &SourceMap,
    options: &Options,
    mut keep: KeepFp32,
) -> Result<Function, Error> {
    if let Some(rewrite) = &options.rewrite {
        (rewrite.run)(&mut draft, calls, &mut keep);
    }
    let fp16 = (options.precision == Precision::Fp16).then_some(&keep);
    pass::finish(draft, fp16, &skipped(options)).map_err(fault)
}

/// The oldest release that supports the options.
pub(crate) fn needed_by_options(options: &Options) -> Opset {
    let quantization = options.quantization.as_ref().map_or(Opset::Ios15, linear::Config::needs);
    options.rewrite.as_ref().map_or(quantization, |rewrite| rewrite.needs.max(quantization))
}

/// Fails if the target does not support the requested quantization of weights.
pub(crate) fn check_quantization(options: &Options) -> Result<()> {
    let Some(target) = options.target else { return Ok(()) };
    let needed = needed_by_options(options);
    let refusal = || LoweringError::needs("the requested quantization of weights", needed, target);
    if needed > target { Err(refusal()) } else { Ok(()) }
}

/// Quantizes the weights of an optimized function if requested. Returns the function and a summary.
pub(crate) fn quantize(
    function: Function,
    options: &Options,
) -> Result<(Function, Option<linear::Outcome>), Error> {
    let Some(config) = &options.quantization else { return Ok((function, None)) };
    let mut draft = AnalyzedFunction::new(function).map_err(fault)?;
    let outcome = linear::quantize(&mut draft, config)
        .map_err(|error| Error::Program(LoweringError::of(error.to_string(), error.hint())))?;
    Ok((draft.function, Some(outcome)))
}

fn fault(error: pass::Error) -> Error {
    Error::Fault(error.to_string())
}

/// The newest release that an error requires. Calls that are unsupported for other reasons are then reported by the
/// retry, so no error suggests a newer release in vain.
fn needed(error: &Error) -> Option<Opset> {
    match error {
        Error::Refused(all) => all.iter().filter_map(|refused| refused.refusal.needs).max(),
        Error::Program(refusal) => refusal.needs,
        Error::Archive(_) | Error::Fault(_) => None,
    }
}

/// The parts of an error that require a release.
fn demanding(error: Error, needed: Opset) -> TargetRequirements {
    match error {
        Error::Refused(all) => {
            let calls = all.into_iter().filter(|refused| refused.refusal.needs == Some(needed));
            TargetRequirements { calls: calls.collect(), program: None }
        }
        Error::Program(refusal) => TargetRequirements { calls: Vec::new(), program: Some(refusal) },
        Error::Archive(_) | Error::Fault(_) => TargetRequirements::default(),
    }
}
