//! The whole way from an archive to a model.

use std::collections::{BTreeSet, HashMap, HashSet};

use coremill_compress::linear;
use coremill_io::unknown_name;
use coremill_mil::ir::{Function, Opset, Program};
use coremill_mil::model::{self, Model};
use coremill_mil::text::identifier;
use coremill_passes::{self as pass, AnalyzedFunction, KeepFp32, without_precision};
use coremill_pt2::ExportedProgram;
use coremill_tensor::Files;

use crate::calls::{SourceMap, program_calls};
use crate::error::{Error, LoweringError, Result, UnsupportedOp};
use crate::lower::{Attempt, LoopedBuffer, attempt};
use crate::options::{Options, Precision};

/// A converted program.
#[derive(Clone, Debug)]
pub struct Conversion {
    /// The model, to be verified and written.
    pub model: Model,
    /// The release that it was written for.
    pub target: Opset,
    /// Where the target was chosen: what is asked of it that the release before it has not.
    pub demands: TargetRequirements,
    /// Which calls of the program the values of the model come from.
    pub calls: SourceMap,
}

/// Why a target was chosen; empty where the oldest release will do.
#[derive(Clone, Debug, Default)]
pub struct TargetRequirements {
    /// Calls that older releases have no operations for.
    pub calls: Vec<UnsupportedOp>,
    /// What is refused of the program as a whole for older releases: a state, for instance.
    pub program: Option<LoweringError>,
}

/// A program that was lowered and made small, before its floats get their precision.
#[derive(Clone, Debug)]
pub struct LoweredModel {
    /// The function, and what is known about its values.
    pub draft: AnalyzedFunction,
    /// The release that it was lowered for.
    pub target: Opset,
    /// Where the target was chosen: what is asked of it that the release before it has not.
    pub demands: TargetRequirements,
    /// Which calls of the program the values come from.
    pub calls: SourceMap,
    keep: KeepFp32,
    fed: Vec<LoopedBuffer>,
}

/// Converts a program.
///
/// Without a target in the options, the oldest release is chosen that has all the operations that the program
/// needs.
pub fn convert(program: ExportedProgram, options: &Options) -> Result<Conversion, Error> {
    convert_from(program, options, Opset::Ios15)
}

/// The same, for the release `floor` at the oldest where the options have none.
pub fn convert_from(
    program: ExportedProgram,
    options: &Options,
    floor: Opset,
) -> Result<Conversion, Error> {
    check_quantization(options).map_err(Error::Program)?;
    let files = program.files();
    let prepared = prepare(program, options, floor.max(needed_by_options(options)))?;
    let (target, demands, calls) =
        (prepared.target, prepared.demands.clone(), prepared.calls.clone());
    let model = finish(prepared, options)?;
    check_files(&files)?;
    Ok(Conversion { model, target, demands, calls })
}

/// Fails if a file became too short while it was read: what was computed of it is nothing.
pub(crate) fn check_files(files: &Files) -> Result<(), Error> {
    files.check().map_err(|error| Error::Program(LoweringError::new(error.to_string())))
}

/// Lowers a program, for the release `floor` at the oldest where none is asked for, and makes it small.
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

/// Gives a prepared program its precision, and makes a model of it.
pub fn finish(prepared: LoweredModel, options: &Options) -> Result<Model, Error> {
    let LoweredModel { draft, calls, keep, fed, .. } = prepared;
    let (function, _) = quantize(narrowed(draft, &calls, options, keep)?, options)?;
    let mut model = described(vec![function], options)?;
    describe_fed(&mut model, &fed);
    Ok(model)
}

/// A model of functions, with the notes of the caller.
pub(crate) fn described(functions: Vec<Function>, options: &Options) -> Result<Model, Error> {
    let program = Program { functions, ..Program::default() };
    let mut model = model::describe(program)
        .map_err(|error| Error::Program(LoweringError::of(error.to_string(), error.hint())))?;
    model.description.metadata = Some(options.metadata.clone());
    Ok(model)
}

/// The key of the metadata that says which outputs go to which inputs in the next step, as JSON: a list of objects
/// with `buffer`, `input`, `output`, and the integers that the input takes `first`.
pub const FED_KEY: &str = "coremill.fed";

/// Says which outputs are inputs of the next step, for people and for who runs steps.
fn describe_fed(model: &mut Model, fed: &[LoopedBuffer]) {
    if fed.is_empty() {
        return;
    }
    let description = &mut model.description;
    for LoopedBuffer { buffer, input, output, first } in fed {
        let first = match first.as_deref() {
            Some([only]) => format!("{only}"),
            _ => format!("what the buffer `{buffer}` holds"),
        };
        for feature in description.inputs.iter_mut().filter(|feature| feature.name == *input) {
            feature.short_description =
                format!("first {first}, then what `{output}` gave in the step before");
        }
        for feature in description.outputs.iter_mut().filter(|feature| feature.name == *output) {
            feature.short_description = format!("what `{input}` takes in the next step");
        }
    }
    let told = serde_json::json!(fed).to_string();
    description.metadata.get_or_insert_default().set_user_defined(FED_KEY, told);
}

/// A program that was lowered for a target.
pub(crate) struct LoweredFunction {
    /// The function, and the release that it was lowered for.
    pub(crate) draft: Result<(AnalyzedFunction, Opset), Error>,
    /// The calls that are refused, one for each refusal.
    pub(crate) refused_nodes: Vec<usize>,
    /// By the name of a value in the draft, the call that it was made for.
    pub(crate) origins: HashMap<String, usize>,
    /// Why that release was chosen.
    pub(crate) demands: TargetRequirements,
    /// Buffers that are inputs and outputs.
    pub(crate) fed: Vec<LoopedBuffer>,
}

/// Lowers a program that is functional for the target that is asked for, or else the oldest that will do, from a floor on.
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

/// What of a lowered program stays in `fp32`.
fn kept(
    program: &ExportedProgram,
    origins: &HashMap<String, usize>,
    options: &Options,
) -> KeepFp32 {
    // What passes make bears the name of what it stands for; outputs bear one that says nothing of their module.
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

/// Refuses names of values that are to compute in `fp32` and that none of the functions has.
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

/// Makes a lowered function small and fast, and gives it its precision. `origins` says which call of the program each value
/// was made for.
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

/// The passes that are left out.
fn skipped(options: &Options) -> Vec<&str> {
    let mut skipped: Vec<_> = options.skipped_passes.iter().map(String::as_str).collect();
    if options.decompose_sdpa {
        skipped.push("fuse_attention");
    }
    skipped
}

/// Gives a small function its precision.
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

/// The oldest release that has what the options ask for.
pub(crate) fn needed_by_options(options: &Options) -> Opset {
    let quantization = options.quantization.as_ref().map_or(Opset::Ios15, linear::Config::needs);
    options.rewrite.as_ref().map_or(quantization, |rewrite| rewrite.needs.max(quantization))
}

/// Refuses quantized weights that the target does not have.
pub(crate) fn check_quantization(options: &Options) -> Result<()> {
    let Some(target) = options.target else { return Ok(()) };
    let needed = needed_by_options(options);
    let refusal =
        || LoweringError::needs("the quantization of weights that is asked for", needed, target);
    if needed > target { Err(refusal()) } else { Ok(()) }
}

/// Quantizes the weights of an optimised function, if that is asked for, and tells what became of them.
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

/// The newest release that is asked for. Where other calls are refused for other reasons, those remain then, and
/// nobody is told of a release that does not help.
fn needed(error: &Error) -> Option<Opset> {
    match error {
        Error::Refused(all) => all.iter().filter_map(|refused| refused.refusal.needs).max(),
        Error::Program(refusal) => refusal.needs,
        Error::Archive(_) | Error::Fault(_) => None,
    }
}

/// What asks for a release.
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
