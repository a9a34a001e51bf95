//! Partitions that ExecuTorch cut, as what its runtime hands to the Core ML delegate.

use std::collections::HashMap;

use coremill_mil::ir::{Function, Opset};
use coremill_pt2::ExportedProgram;

use crate::emit::{Handles, payload_in};
use crate::error::Error;
use crate::options::LowerOptions;
use crate::pipeline::{
    check_quantization, described, lowered, needed_by_options, optimise, quantize,
};

/// A partition of a method.
#[derive(Clone, Debug)]
pub struct EdgeProgram {
    /// The method.
    pub method: String,
    /// The partition.
    pub program: ExportedProgram,
    /// How to lower it.
    pub options: LowerOptions,
}

/// What a delegate is given, in memory of the caller's.
#[derive(Clone, Debug)]
pub struct PreprocessResult<R> {
    /// A directory in one piece.
    pub data: R,
    /// Derived from the content.
    pub identifier: String,
    /// The number of the release that the model needs.
    pub specification_version: i32,
    /// By the name of an operation the numbers of the calls that it comes from.
    pub handles: Handles,
}

/// A model of one partition, in memory for which `room` is asked when its length is known.
pub fn preprocess<R: AsMut<[u8]>>(
    part: EdgeProgram,
    room: impl FnOnce(usize) -> Result<R, Error>,
) -> Result<PreprocessResult<R>, Error> {
    let (function, handles) = function(part.program, &part.options, Opset::Ios15)?;
    written(vec![function], &part.options, "lowered_module", Some(&handles), room)
}

/// A model of the partitions of several methods, which share weights: a function for each. `at` is their place among
/// the partitions of their methods. Its memory is asked of `room` when its length is known.
pub fn preprocess_methods<R: AsMut<[u8]>>(
    parts: Vec<EdgeProgram>,
    at: usize,
    room: impl FnOnce(usize) -> Result<R, Error>,
) -> Result<PreprocessResult<R>, Error> {
    let options = parts.first().map(|part| part.options.clone()).unwrap_or_default();
    let mut functions = Vec::with_capacity(parts.len());
    for part in parts {
        let (mut function, _) = function(part.program, &part.options, Opset::Ios18)?;
        function.name = part.method;
        functions.push(function);
    }
    let name = format!("lowered_module_partition_{at}");
    written(functions, &options, &name, None, room)
}

fn written<R: AsMut<[u8]>>(
    functions: Vec<Function>,
    options: &LowerOptions,
    name: &str,
    handles: Option<&HashMap<String, i64>>,
    room: impl FnOnce(usize) -> Result<R, Error>,
) -> Result<PreprocessResult<R>, Error> {
    let model = described(functions, &options.options)?;
    let ((data, identifier), handles) =
        payload_in(&model, options.model_type, name, handles, room)?;
    let specification_version = model.specification_version;
    Ok(PreprocessResult { data, identifier, specification_version, handles })
}

/// A partition as a function, and by the name of a value the number of the call that it was made for: profilers know
/// calls by the numbers that ExecuTorch gave them.
fn function(
    program: ExportedProgram,
    options: &LowerOptions,
    floor: Opset,
) -> Result<(Function, HashMap<String, i64>), Error> {
    let options = &options.options;
    check_quantization(options).map_err(Error::Program)?;
    let program = coremill_prepare::prepare(program)?;
    let floor = floor.max(needed_by_options(options));
    let attempt = lowered(&program, options, floor);
    let (draft, _) = attempt.draft?;
    let optimised = optimise(draft, &program, &attempt.origins, options)?;
    let (function, _) = quantize(optimised, options)?;
    let nodes = &program.graph.nodes;
    let handle = |(name, node): (String, usize)| {
        let noted = nodes[node].origin.notes.get("debug_handle")?;
        Some((name, noted.parse().ok()?))
    };
    Ok((function, attempt.origins.into_iter().filter_map(handle).collect()))
}
