use std::collections::HashMap;

use coremill_compress::{TrainedCompression, compression_of};
use coremill_mil::ir::{Constant, Dim, Op, OpId};
use coremill_mil::model::Model;
use coremill_mil::ops::OpKind;
use coremill_passes::{AnalyzedFunction, Editor};

use crate::error::Error;

/// Minimum number of elements of a weight that rules apply to.
const MIN_ELEMENTS: u64 = 10;

/// Replaces the compressed weights of a model by plain floats, which are computed when the model is
/// saved. Returns the number of weights.
pub fn decompress(model: &mut Model) -> Result<usize, Error> {
    let mut count = 0;
    expand_all(model, &mut |_, _| true, &mut |_, _, _| count += 1)?;
    Ok(count)
}

/// Replaces the compressed weights of a model by plain floats if further compression can be applied to
/// them. Returns their compression by function and weight: [`Options::earlier`](super::Options::earlier).
pub fn decompress_further(
    model: &mut Model,
) -> Result<HashMap<(String, String), TrainedCompression>, Error> {
    let (mut chosen, mut found) = (Vec::new(), HashMap::new());
    let mut choose = |editor: &Editor<'_>, id: OpId| {
        let value = editor.function().op(id).outputs[0];
        let shape: Option<Vec<u64>> = editor.shape(value).iter().map(Dim::known).collect();
        let is_matrix = shape
            .is_some_and(|shape| shape.len() >= 2 && shape.iter().product::<u64>() >= MIN_ELEMENTS);
        let known = compression_of(editor, value).filter(|_| is_matrix && !editor.is_output(value));
        let is_known = known.is_some();
        chosen.extend(known);
        is_known
    };
    let mut visit = |function: &str, name: &str, at: usize| {
        found.insert((function.to_owned(), name.to_owned()), at);
    };
    expand_all(model, &mut choose, &mut visit)?;
    let of = |(key, at): ((String, String), usize)| (key, chosen[at].clone());
    Ok(found.into_iter().map(of).collect())
}

/// Expands the chosen weights. `visit` is called with the function, the name of the weight, and the number of
/// weights before.
fn expand_all(
    model: &mut Model,
    choose: &mut dyn FnMut(&Editor<'_>, OpId) -> bool,
    visit: &mut dyn FnMut(&str, &str, usize),
) -> Result<(), Error> {
    let mut count = 0;
    for function in &mut model.program.functions {
        let named = |error: &dyn std::fmt::Display| {
            Error::new(format!("function `{}`: {error}", function.name))
        };
        let mut draft = AnalyzedFunction::new(function.clone()).map_err(|error| named(&error))?;
        let mut editor = Editor::new(&mut draft);
        for id in editor.ops() {
            if is_weight(&editor, id) && choose(&editor, id) {
                let name = expand(&mut editor, id)?;
                visit(&function.name, &name, count);
                count += 1;
            }
        }
        *function = draft.function;
    }
    Ok(())
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

/// Replaces a compressed weight by a constant. Returns its name.
fn expand(editor: &mut Editor<'_>, id: OpId) -> Result<String, Error> {
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
        return Err(Error::new(format!("`{name} = {kind}` cannot be expanded to a constant"))
            .with_hint("leave out the option `decompress`"));
    };
    let label = ["_quantized", "_palettized", "_sparsified"]
        .into_iter()
        .find_map(|suffix| name.strip_suffix(suffix))
        .unwrap_or(&name);
    let plain = editor.constant_before(id, constant, label);
    editor.replace(value, plain);
    Ok(editor.name(plain).to_owned())
}
