//! Compression with parameters from training: scales, zero points and lookup tables that fit a weight.

use coremill_mil::ir::{Opset, ValueId};
use coremill_mil::model::Model;
use coremill_mil::ops::OpKind;
use coremill_passes::{AnalyzedFunction, Editor};
use coremill_tensor::DType;

use super::encode::{build_indexed, build_trained, insert};
use super::error::Error;
use super::form::trained::{IndexedWeight, TrainedCompression};
use super::upgrade_opset::upgrade_opset;
use super::weight::Weight;

/// Largest share of a weight's power that its parameters may lose: 40 dB, far above the rounding of
/// floats. Parameters that lose more do not belong to the weight.
const MAX_LOSS: f64 = 1e-4;

/// Compresses a constant of a function with known parameters. Returns the reason if the constant is not
/// compressed.
pub fn compress_trained(
    draft: &mut AnalyzedFunction,
    value: ValueId,
    trained: &TrainedCompression,
) -> Result<Option<&'static str>, Error> {
    trained.check()?;
    let mut editor = Editor::new(draft);
    let opset = editor.opset();
    let Some(weight) = constant(&editor, value) else {
        return Ok(Some("it is not a constant of floats that an operation uses"));
    };
    let built = match build_trained(&weight, trained, opset) {
        Ok(built) => built,
        Err(refusal) => return refusal.reason(&weight.name).map(Some),
    };
    if built.loss() > MAX_LOSS {
        return Ok(Some("its parameters do not match its elements"));
    }
    insert(&mut editor, &weight, built.with_parameters())?;
    Ok(None)
}

/// Replaces weights of a model by indices and tables.
pub fn replace_by_indices(model: &mut Model, weights: &[IndexedWeight]) -> Result<(), Error> {
    for function in &mut model.program.functions {
        let mut found = weights.iter().filter(|weight| weight.function == function.name).peekable();
        if found.peek().is_none() {
            continue;
        }
        let mut draft = upgrade_opset(function, function.opset.max(Opset::Ios16))?;
        let mut editor = Editor::new(&mut draft);
        let opset = editor.opset();
        for indexed in found {
            let values = editor
                .ops()
                .into_iter()
                .filter_map(|id| editor.op_of(id, OpKind::Const)?.outputs.first().copied());
            let value = values.into_iter().find(|&value| editor.name(value) == indexed.name);
            let Some(weight) = value.and_then(|value| constant(&editor, value)) else {
                let message = format!("`{}` is not a weight of the model", indexed.name);
                return Err(Error::option(message));
            };
            match build_indexed(&weight, indexed, opset) {
                Ok(built) => insert(&mut editor, &weight, built)?,
                Err(refusal) => {
                    let reason = refusal.reason(&weight.name)?;
                    return Err(Error::option(format!("`{}`: {reason}", weight.name)));
                }
            }
        }
        let version = opset.specification_version();
        model.specification_version = model.specification_version.max(version);
        *function = draft.function;
    }
    Ok(())
}

fn constant(editor: &Editor<'_>, value: ValueId) -> Option<Weight> {
    let id = editor.producer(value)?;
    let op = editor.op_of(id, OpKind::Const)?;
    let constant = op.attributes.get("val")?;
    let ty = constant.tensor_type()?;
    let shape = ty.known_shape()?;
    let shape = shape.iter().map(|&size| usize::try_from(size).ok()).collect::<Option<Vec<_>>>()?;
    let elements = constant.elements()?.clone();
    let is_used = !editor.uses(value).ops.is_empty() && !editor.is_output(value);
    let is_float = matches!(ty.dtype, DType::Fp16 | DType::Fp32);
    (is_used && is_float && !shape.is_empty() && !shape.contains(&0)).then(|| Weight {
        id,
        value,
        name: editor.name(value).to_owned(),
        dtype: ty.dtype,
        shape,
        elements,
        users: Vec::new(),
        axes: None,
        groups: 1,
        weighting: None,
    })
}
