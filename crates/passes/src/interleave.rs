//! Replaces a channel shuffle in four operations by an interleaved concatenation.
//!
//! ```text
//! a = concat(values = (x, y), axis = 1);               d = concat(values = (x, y), axis = 1, interleave = true);
//! b = reshape(x = a, shape = [1, 2, c, h, w]);
//! c = transpose(x = b, perm = [0, 2, 1, 3, 4]);
//! d = reshape(x = c, shape = [1, 2·c, h, w]);   becomes
//! ```

use super::Editor;
use super::noop_elimination::order_of;
use coremill_mil::ir::{Binding, Constant, Dim, OpId, ValueId};
use coremill_mil::ops::OpKind;

/// Runs the pass and returns the number of recognized shuffles.
pub(super) fn interleave(editor: &mut Editor<'_>) -> usize {
    let ops = editor.ops();
    ops.into_iter().filter(|&id| shuffle(editor, id).is_some()).count()
}

fn shuffle(editor: &mut Editor<'_>, id: OpId) -> Option<()> {
    editor.op_of(id, OpKind::Reshape)?;
    let transpose = before(editor, id, OpKind::Transpose)?;
    let split = before(editor, transpose, OpKind::Reshape)?;
    let concat = before(editor, split, OpKind::Concat)?;
    let joined = editor.op(concat)?.outputs[0];
    let rank = editor.shape(joined).len();
    let axis = *editor.ints(concat, "axis")?.first()?;
    let axis = usize::try_from(if axis < 0 { axis + rank as i64 } else { axis }).ok()?;
    if editor.flag(concat, "interleave") == Some(true) {
        return None;
    }
    let values: Vec<ValueId> = editor
        .op(concat)?
        .bindings("values")
        .iter()
        .map(|binding| match binding {
            Binding::Value(value) => Some(*value),
            Binding::Literal(_) => None,
        })
        .collect::<Option<_>>()?;
    let each = editor.shape(*values.first()?).get(axis)?.known()?;
    if values.iter().any(|&value| editor.shape(value).get(axis).and_then(Dim::known) != Some(each))
    {
        return None;
    }
    // The axis is split in two, which the transpose swaps.
    let mut wanted = editor.shape(joined).to_vec();
    wanted.splice(axis..=axis, [Dim::Known(values.len() as u64), Dim::Known(each)]);
    let mut order: Vec<_> = (0..=rank).collect();
    order.swap(axis, axis + 1);
    let output = editor.op(id)?.outputs[0];
    let fits = editor.shape(editor.op(split)?.outputs[0]) == wanted
        && order_of(editor, transpose)? == order
        && editor.shape(output) == editor.shape(joined)
        && !wanted.contains(&Dim::Unknown);
    if !fits {
        return None;
    }
    let mut op = editor.op(concat)?.clone();
    op.outputs.clear();
    let op = op.with("interleave", Binding::Literal(Constant::bool(true)));
    editor.rewrite(id, op).ok()
}

/// The operation of a given kind that produces an operation's input, if the input has no other user.
fn before(editor: &Editor<'_>, id: OpId, kind: OpKind) -> Option<OpId> {
    let x = editor.argument(id, "x")?;
    (editor.sole_user(x) == Some(id)).then(|| editor.produced_by(x, kind))?
}
