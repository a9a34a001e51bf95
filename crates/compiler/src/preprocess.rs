//! Compiles partitions made by ExecuTorch to payloads of its Core ML delegate.

use std::collections::HashMap;

use coremill_delegate::{Handles, payload_in};
use coremill_mil::ir::{Function, Opset};
use coremill_pt2::ExportedProgram;

use crate::error::Error;
use crate::options::LowerOptions;
use crate::pipeline::{
    check_quantization, described, lowered, needed_by_options, optimise, quantize,
};

/// A partition of a method.
#[derive(Clone, Debug)]
pub struct EdgeProgram {
    /// Name of the method.
    pub method: String,
    /// Program of the partition.
    pub program: ExportedProgram,
    /// Options for lowering it.
    pub options: LowerOptions,
}

/// Payload of a delegate, in memory provided by the caller.
#[derive(Clone, Debug)]
pub struct PreprocessResult<R> {
    /// Serialized directory.
    pub data: R,
    /// Identifier derived from the content.
    pub identifier: String,
    /// Core ML specification version of the model.
    pub specification_version: i32,
    /// Call numbers by operation name.
    pub handles: Handles,
}

/// Compiles one partition. `room` allocates the payload when its size is known.
pub fn preprocess<R: AsMut<[u8]>>(
    part: EdgeProgram,
    room: impl FnOnce(usize) -> Result<R, Error>,
) -> Result<PreprocessResult<R>, Error> {
    let (function, handles) = function(part.program, &part.options, Opset::Ios15)?;
    written(vec![function], &part.options, "lowered_module", Some(&handles), room)
}

/// Compiles the partitions of several methods to one model with a function per method and shared weights. `at` is
/// the index of the partition in each method. `room` allocates the payload when its size is known.
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

/// Lowers a partition to a function, and maps value names to the call numbers assigned by ExecuTorch, which
/// profilers use.
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
