use coremill_mil::ir::{Constant, Op, OpId};
use coremill_mil::model::Model;
use coremill_mil::ops::OpKind;
use coremill_passes::{AnalyzedFunction, Editor};

use crate::error::Error;

/// Replaces the compressed weights of a model by plain floats, which are computed when the model is
/// saved. Returns the number of weights.
pub fn decompress(model: &mut Model) -> Result<usize, Error> {
    let mut count = 0;
    for function in &mut model.program.functions {
        let named = |error: &dyn std::fmt::Display| {
            Error::new(format!("function `{}`: {error}", function.name))
        };
        let mut draft = AnalyzedFunction::new(function.clone()).map_err(|error| named(&error))?;
        let mut editor = Editor::new(&mut draft);
        for id in editor.ops() {
            if is_weight(&editor, id) {
                expand(&mut editor, id)?;
                count += 1;
            }
        }
        *function = draft.function;
    }
    Ok(count)
}

/// Returns true for an operation whose result is a compressed weight, not part of one.
fn is_weight(editor: &Editor<'_>, id: OpId) -> bool {
    let Some(op) = editor.op(id) else { return false };
    let is_constexpr = |op: &Op| op.kind().is_some_and(OpKind::is_constexpr);
    let used = op.outputs.iter().any(|&output| {
        let uses = editor.uses(output);
        let other = |&user: &OpId| editor.op(user).is_some_and(|user| !is_constexpr(user));
        uses.outputs > 0 || uses.ops.iter().any(other)
    });
    is_constexpr(op) && used
}

fn expand(editor: &mut Editor<'_>, id: OpId) -> Result<(), Error> {
    let function = editor.function();
    let value = function.op(id).outputs[0];
    let name = function.value(value).name.clone();
    let kind = function.op(id).type_name().to_owned();
    let known = || {
        let ty = editor.analysis().ty(value)?.as_tensor()?;
        let elements = coremill_engine::expanded(function, value)?;
        Some(Constant::by_size(ty.dtype, &ty.known_shape()?, elements))
    };
    let Some(constant) = known() else {
        return Err(Error::new(format!("`{name} = {kind}` has a form that cannot be expanded"))
            .with_hint("leave out the option `decompress`"));
    };
    let label = ["_quantized", "_palettized", "_sparsified"]
        .into_iter()
        .find_map(|suffix| name.strip_suffix(suffix))
        .unwrap_or(&name);
    let plain = editor.constant_before(id, constant, label);
    editor.replace(value, plain);
    Ok(())
}
