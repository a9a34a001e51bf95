//! Simplifies slice updates.
//!
//! ```text
//! a = expand_dims(x = u, axes = [0]);
//! y = slice_update(x = x, update = a, …);    becomes    y = slice_update(x = x, update = u, squeeze_mask = [true, …], …);
//!
//! a = transpose(x = x, perm = p);
//! b = slice_update(x = a, update = u, …);               v = transpose(x = u, perm = p⁻¹);
//! y = transpose(x = b, perm = p⁻¹);          becomes    y = slice_update(x = x, update = v, …);
//!
//! a = cast(x = x, dtype = "fp32");
//! b = slice_update(x = a, update = u, …);               v = cast(x = u, dtype = "fp16");
//! y = cast(x = b, dtype = "fp16");           becomes    y = slice_update(x = x, update = v, …);
//! ```
//!
//! In the second rewrite, a constant `u` is transposed at compile time. The third occurs when an fp32 model updates
//! an fp16 state: only the written part is cast instead of the whole state.

use coremill_tensor::DType;

use super::Editor;
use super::noop_elimination::{holds, order_of};
use coremill_mil::ir::{Binding, Constant, Op, OpId, ValueId};
use coremill_mil::ops::OpKind;

/// Runs the pass and returns the number of removed operations.
pub(super) fn canonicalize_slice_update(editor: &mut Editor<'_>) -> usize {
    let mut changed = 0;
    for id in editor.ops() {
        if editor.op_of(id, OpKind::SliceUpdate).is_some() {
            changed += usize::from(squeezed(editor, id).is_some());
            changed += usize::from(turned(editor, id).is_some());
            changed += usize::from(cast(editor, id).is_some());
        }
    }
    changed
}

/// Uses `squeeze_mask` instead of inserting axes into the update.
fn squeezed(editor: &mut Editor<'_>, id: OpId) -> Option<()> {
    let rank = editor.shape(editor.argument(id, "x")?).len();
    let update = editor.argument(id, "update")?;
    let expand = editor.produced_by(update, OpKind::ExpandDims)?;
    let source = editor.argument(expand, "x")?;
    let mut mask = flags(editor, id, "squeeze_mask", rank)?;
    let begins_open = flags(editor, id, "begin_mask", rank)?;
    if mask.contains(&true) {
        return None;
    }
    for axis in editor.ints(expand, "axes")? {
        let axis = usize::try_from(if axis < 0 { axis + rank as i64 } else { axis }).ok()?;
        if *begins_open.get(axis)? {
            return None;
        }
        mask[axis] = true;
    }
    let mut op = editor.op(id)?.clone();
    op.outputs.clear();
    op.set_input("update".into(), vec![Binding::Value(source)]);
    op.set_input("squeeze_mask".into(), vec![Binding::Literal(bools(&mask))]);
    editor.rewrite(id, op).ok()
}

/// Updates the tensor before a transpose instead of the transposed tensor.
fn turned(editor: &mut Editor<'_>, id: OpId) -> Option<()> {
    let x = editor.argument(id, "x")?;
    let before = editor.produced_by(x, OpKind::Transpose)?;
    let order = order_of(editor, before)?;
    let rank = order.len();
    let written = editor.op(id)?.outputs[0];
    let stated = editor.constant_argument(id, "update").is_some();
    if !stated && editor.sole_user(x) != Some(id) {
        // Otherwise the update would be transposed while both transposes remain.
        return None;
    }
    let after = editor.sole_user(written)?;
    editor.op_of(after, OpKind::Transpose)?;
    let back = order_of(editor, after)?;
    if back.iter().enumerate().any(|(at, &from)| order.get(from) != Some(&at)) {
        return None;
    }
    let squeezed = flags(editor, id, "squeeze_mask", rank)?;
    let kept = |order: &mut dyn Iterator<Item = usize>| -> Vec<usize> {
        order.filter(|&axis| !squeezed[axis]).collect()
    };
    let (from, to) = (kept(&mut (0..rank)), kept(&mut back.iter().copied()));
    let turn: Vec<usize> =
        to.iter().map(|axis| from.iter().position(|from| from == axis)).collect::<Option<_>>()?;

    let mut op = editor.op(id)?.clone();
    op.outputs.clear();
    for name in ["begin", "end", "stride"] {
        if op.binding(name).is_some() {
            let ints = editor.ints(id, name)?;
            let ints = back.iter().map(|&at| i32::try_from(*ints.get(at)?).ok());
            let ints = Constant::int32s(&ints.collect::<Option<Vec<_>>>()?);
            op.set_input(name.into(), vec![Binding::Literal(ints)]);
        }
    }
    for name in ["begin_mask", "end_mask", "squeeze_mask"] {
        if op.binding(name).is_some() {
            let all = flags(editor, id, name, rank)?;
            let all: Vec<bool> = back.iter().map(|&at| all[at]).collect();
            op.set_input(name.into(), vec![Binding::Literal(bools(&all))]);
        }
    }
    let source = editor.argument(before, "x")?;
    op.set_input("x".into(), vec![Binding::Value(source)]);
    let y = *editor.op(after)?.outputs.first()?;
    let label = editor.name(y).to_owned();
    let update = turned_update(editor, id, &turn, &format!("{label}_update"))?;
    op.set_input("update".into(), vec![update]);
    // The second transpose becomes the update, so that it follows all its operands.
    editor.rewrite(after, op).ok()
}

/// Updates the tensor before a cast instead of the cast tensor.
fn cast(editor: &mut Editor<'_>, id: OpId) -> Option<()> {
    let before = editor.produced_by(editor.argument(id, "x")?, OpKind::Cast)?;
    let source = editor.argument(before, "x")?;
    let written = editor.op(id)?.outputs[0];
    let after = editor.sole_user(written)?;
    let back = editor.op_of(after, OpKind::Cast)?.binding("dtype")?.clone();
    let y = *editor.op(after)?.outputs.first()?;
    let [from, middle, to] = [source, written, y].map(|value| editor.dtype(value));
    if from != to || !holds(from?, middle?, to?) {
        return None;
    }
    let mut op = editor.op(id)?.clone();
    op.outputs.clear();
    let update = Op::new(OpKind::Cast).with("x", op.binding("update")?.clone()).with("dtype", back);
    let label = format!("{}_update", editor.name(y));
    let update: ValueId = *editor.insert(id, update, &label).ok()?.first()?;
    op.set_input("x".into(), vec![Binding::Value(source)]);
    op.set_input("update".into(), vec![Binding::Value(update)]);
    // The second cast becomes the update, so that it follows all its operands.
    editor.rewrite(after, op).ok()
}

/// The update with permuted axes.
fn turned_update(
    editor: &mut Editor<'_>,
    id: OpId,
    turn: &[usize],
    label: &str,
) -> Option<Binding> {
    let binding = editor.op(id)?.binding("update")?.clone();
    if turn.iter().copied().eq(0..turn.len()) {
        return Some(binding);
    }
    if let Some(constant) = editor.function().bound_constant(&binding) {
        let turned = Constant::of_recipe(&constant.recipe()?.permute(turn).ok()?);
        return Some(Binding::Value(editor.constant_before(id, turned, label)));
    }
    let axes: Vec<i32> = turn.iter().map(|&axis| axis as i32).collect();
    let transpose = Op::new(OpKind::Transpose)
        .with("x", binding)
        .with("perm", Binding::Literal(Constant::int32s(&axes)));
    let turned: ValueId = *editor.insert(id, transpose, label).ok()?.first()?;
    Some(Binding::Value(turned))
}

/// Flags of a parameter, one per axis; false if absent.
fn flags(editor: &Editor<'_>, id: OpId, name: &str, rank: usize) -> Option<Vec<bool>> {
    let Some(binding) = editor.op(id)?.binding(name) else { return Some(vec![false; rank]) };
    let bytes = editor.function().bound_constant(binding)?.elements()?.as_bytes();
    (bytes.len() == rank).then(|| bytes.iter().map(|&byte| byte != 0).collect())
}

fn bools(flags: &[bool]) -> Constant {
    let bytes: Vec<u8> = flags.iter().map(|&flag| u8::from(flag)).collect();
    Constant::bytes(DType::Bool, &[flags.len() as u64], bytes)
}
