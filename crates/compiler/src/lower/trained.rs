//! Compression that `coremltools.optimize.torch` noted in a trained model.
//!
//! Buffers such as `layer._COREML_/weight/quantization_scale` state how a parameter was compressed. The parameter
//! becomes the operations with exactly these scales, zero points and tables.

use std::collections::BTreeMap;

use coremill_compress::{
    TrainedCompression, TrainedIntegers, TrainedParameter, TrainedTable, compress_trained,
};
use coremill_mil::ir::{Opset, ValueId};
use coremill_passes::AnalyzedFunction;
use coremill_pt2::{ExportedProgram, StoredValue};
use coremill_tensor::DType;

use super::weights;
use crate::error::{LoweringError, Result, refuse};
use crate::options::Options;

/// Prefix of the buffers of a module.
const PREFIX: &str = "_COREML_/";

/// Codes of methods in the note `compression_type`.
const PRUNING: f32 = 1.0;
const PALETTIZATION: f32 = 2.0;
const QUANTIZATION: f32 = 3.0;

/// Notes for a parameter by name.
type Notes = BTreeMap<String, TrainedParameter>;

/// The noted compression of each parameter.
pub(super) fn notes(program: &ExportedProgram) -> Result<Vec<(String, TrainedCompression)>> {
    let mut found: BTreeMap<String, Notes> = BTreeMap::new();
    for (name, stored) in &program.tensors {
        let Some((module, note)) = name.split_once(PREFIX) else { continue };
        let Some((parameter, note)) = note.rsplit_once('/') else { continue };
        let notes = found.entry(format!("{module}{parameter}")).or_default();
        notes.insert(note.to_owned(), parameter_of(name, stored)?);
    }
    found.into_iter().map(|(name, notes)| Ok((name.clone(), compression(&name, notes)?))).collect()
}

fn parameter_of(name: &str, stored: &StoredValue) -> Result<TrainedParameter> {
    let constant = weights::constant(name, stored)?;
    let Some(shape) = constant.tensor_type().and_then(|ty| ty.known_shape()) else {
        refuse!("`{name}` is not a tensor");
    };
    let recipe = constant.recipe().and_then(|recipe| recipe.cast(DType::Fp32).ok());
    let Some(buffer) = recipe.map(|recipe| recipe.to_buffer()) else {
        refuse!("`{name}` is not a tensor of numbers");
    };
    let mut elements = Vec::with_capacity(buffer.len() / 4);
    let read = buffer.for_each_window(0..buffer.len(), 1 << 16, &mut |bytes| {
        let (numbers, _) = bytes.as_chunks::<4>();
        elements.extend(numbers.iter().map(|&number| f32::from_le_bytes(number)));
        Ok(())
    });
    if let Err(error) = read {
        refuse!("`{name}` cannot be read: {error}");
    }
    let shape = shape.iter().map(|&size| size as usize).collect();
    Ok(TrainedParameter { shape, elements })
}

fn compression(name: &str, mut notes: Notes) -> Result<TrainedCompression> {
    let Some(methods) = notes.remove("compression_type") else {
        refuse!("`{name}` has compression metadata, but `compression_type` is missing");
    };
    let known = [PRUNING, PALETTIZATION, QUANTIZATION];
    if let Some(method) = methods.elements.iter().find(|method| !known.contains(method)) {
        refuse!("`{name}`: `compression_type` must be 1, 2 or 3, got {method}");
    }
    let has = |method: f32| methods.elements.contains(&method);
    let number = |parameter: &TrainedParameter| parameter.elements.first().copied();
    let table = match (has(PALETTIZATION), notes.remove("lut")) {
        (false, _) => None,
        (true, None) => refuse!("`{name}` is marked as palettized, but `lut` is missing"),
        (true, Some(entries)) => Some(TrainedTable {
            entries,
            scale: notes.remove("palettization_scale"),
            vector_axis: notes.get("vector_axis").and_then(number).map(|axis| axis as i64),
        }),
    };
    let bits = notes.get("quantization_n_bits").and_then(number);
    let integers = match (has(QUANTIZATION), bits, notes.remove("quantization_scale")) {
        (false, ..) => None,
        (true, Some(bits), Some(scale)) => {
            let zero_point = notes.remove("zero_point");
            Some(TrainedIntegers { bits: bits as u32, scale, zero_point })
        }
        (true, ..) => refuse!(
            "`{name}` is marked as quantized, but `quantization_n_bits` or `quantization_scale` is missing"
        ),
    };
    Ok(TrainedCompression { is_sparse: has(PRUNING), table, integers })
}

/// Compresses parameters as noted. iOS15 has no compressed weights.
pub(super) fn apply(
    draft: &mut AnalyzedFunction,
    trained: Vec<(ValueId, String, TrainedCompression)>,
    options: &Options,
) -> Result<()> {
    let opset = draft.function.opset;
    if options.target.is_some_and(|target| target < Opset::Ios16) {
        return Ok(());
    }
    for (value, name, trained) in trained {
        let needed = trained.needs();
        if needed > opset {
            let what = format!("the compression of `{name}`");
            return Err(LoweringError::needs(&what, needed, opset));
        }
        if let Err(error) = compress_trained(draft, value, &trained) {
            let message = format!("the compression of `{name}`: {error}");
            return Err(LoweringError::of(message, error.hint()));
        }
    }
    Ok(())
}
