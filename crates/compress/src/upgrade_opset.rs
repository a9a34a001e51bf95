//! Conversion of functions to a newer opset.

use coremill_tensor::DType;

use super::error::Error;
use coremill_mil::ir::{Binding, Constant, Function, OpId, Opset};
use coremill_mil::ops::OpKind;
use coremill_passes::{AnalyzedFunction, Editor};

/// Converts a function to an opset that is not older. Operations whose semantics differ in the
/// newer opset are rewritten.
pub fn upgrade_opset(function: &Function, opset: Opset) -> Result<AnalyzedFunction, Error> {
    let from = function.opset;
    let mut raised = function.clone();
    raised.opset = raised.opset.max(opset);
    let mut draft = AnalyzedFunction::new(raised).map_err(|error| {
        let message = format!("`{}` cannot be converted to {opset}: {error}", function.name);
        let refused = Error::model(message).with_source(error);
        match from < opset {
            true => refused.with_hint("convert the model for this release, then compress it"),
            false => refused,
        }
    })?;
    if from < Opset::Ios17 && opset >= Opset::Ios17 {
        let mut editor = Editor::new(&mut draft);
        for id in editor.ops() {
            guard(&mut editor, id)?;
        }
    }
    Ok(draft)
}

/// Adds the size of the axis to negative indices, as `gather` did before iOS 17.
fn guard(editor: &mut Editor<'_>, id: OpId) -> Result<(), Error> {
    let Some(op) = editor.op(id) else { return Ok(()) };
    let op = op.clone();
    if !matches!(op.kind(), Some(OpKind::Gather | OpKind::GatherAlongAxis)) {
        return Ok(());
    }
    let (Some(x), Some(indices)) = (editor.argument(id, "x"), editor.argument(id, "indices"))
    else {
        return Ok(());
    };
    let name = editor.name(indices).to_owned();
    let known = editor.ints(id, "indices");
    let dtype = editor.dtype(indices);
    if known.is_some_and(|known| known.iter().all(|&index| index >= 0))
        || !matches!(dtype, Some(DType::Int32 | DType::Int16))
    {
        return Ok(());
    }
    let unknown = || {
        let message =
            format!("`{name}` may hold negative indices, which iOS17 does not count from the end");
        Error::model(message).with_hint("convert the model for the newer release, then compress it")
    };
    let rank = editor.shape(x).len() as i64;
    let axis = editor.number(id, "axis").unwrap_or(0.0) as i64;
    let axis = usize::try_from(if axis < 0 { axis + rank } else { axis }).map_err(|_| unknown())?;
    let extent = editor.shape(x).get(axis).and_then(|dim| dim.known()).ok_or_else(unknown)?;
    let number = |value: u64| match dtype {
        Some(DType::Int16) => {
            Constant::bytes(DType::Int16, &[], (value as i16).to_le_bytes().to_vec())
        }
        _ => Constant::int32(value as i32),
    };
    let failed = |_| unknown();
    let zero = editor.constant_before(id, number(0), &format!("{name}_zero"));
    let extent = editor.constant_before(id, number(extent), &format!("{name}_extent"));
    let value = Binding::Value;
    let binary = |kind, other| {
        coremill_mil::ir::Op::new(kind).with("x", value(indices)).with("y", value(other))
    };
    let test = binary(OpKind::GreaterEqual, zero);
    let test = editor.insert(id, test, &format!("{name}_is_counted")).map_err(failed)?[0];
    let shifted = binary(OpKind::Add, extent);
    let shifted = editor.insert(id, shifted, &format!("{name}_from_end")).map_err(failed)?[0];
    let select = coremill_mil::ir::Op::new(OpKind::Select)
        .with("cond", value(test))
        .with("a", value(indices))
        .with("b", value(shifted));
    let counted = editor.insert(id, select, &format!("{name}_counted")).map_err(failed)?[0];
    editor.rewrite(id, op.with("indices", value(counted))).map_err(failed)
}
