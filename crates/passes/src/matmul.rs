//! Rewrites matrix products to the form that is fastest on the device.
//!
//! ```text
//! a = transpose(x = k, perm = [0, 1, 3, 2]);               b = matmul(x = q, y = k, transpose_y = true);
//! b = matmul(x = q, y = a);                      becomes
//! c = matmul(x = x, y = w), w a constant matrix            c = linear(x = x, weight = wᵀ);
//! ```

use super::Editor;
use super::noop_elimination::order_of;
use coremill_mil::ir::{Binding, Constant, Op, OpId};
use coremill_mil::ops::OpKind;

/// Runs the pass and returns the number of changed products.
pub(super) fn canonicalize_matmul(editor: &mut Editor<'_>) -> usize {
    let mut changed = 0;
    for id in editor.ops() {
        if editor.op_of(id, OpKind::Matmul).is_none() {
            continue;
        }
        while absorb(editor, id, "x", "transpose_x").is_some()
            || absorb(editor, id, "y", "transpose_y").is_some()
        {
            changed += 1;
        }
        changed += usize::from(linear(editor, id).is_some());
    }
    changed
}

/// Merges a transpose of the last two axes into the product.
fn absorb(editor: &mut Editor<'_>, id: OpId, name: &'static str, flag: &'static str) -> Option<()> {
    let transpose = editor.produced_by(editor.argument(id, name)?, OpKind::Transpose)?;
    let order = order_of(editor, transpose)?;
    let rank = order.len();
    let swapped = rank >= 2
        && order[..rank - 2].iter().enumerate().all(|(at, &from)| at == from)
        && order[rank - 2..] == [rank - 1, rank - 2];
    if !swapped {
        return None;
    }
    let source = editor.argument(transpose, "x")?;
    let before = match editor.op(id)?.binding(flag) {
        Some(_) => editor.flag(id, flag)?,
        None => false,
    };
    let mut op = editor.op(id)?.clone();
    op.outputs.clear();
    let op =
        op.with(name, Binding::Value(source)).with(flag, Binding::Literal(Constant::bool(!before)));
    editor.rewrite(id, op).ok()
}

/// Turns a product with a constant matrix into a `linear`.
fn linear(editor: &mut Editor<'_>, id: OpId) -> Option<()> {
    let op = editor.op(id)?;
    let flag = |name: &str| match op.binding(name) {
        Some(_) => editor.flag(id, name),
        None => Some(false),
    };
    let (transpose_x, transpose_y) = (flag("transpose_x")?, flag("transpose_y")?);
    let x = editor.argument(id, "x")?;
    if transpose_x || editor.constant(x).is_some() || editor.shape(x).len() < 2 {
        return None;
    }
    let y = op.binding("y")?.clone();
    let weight = editor.function().bound_constant(&y)?;
    weight.tensor_type().filter(|ty| ty.dtype.is_float() && ty.rank() == 2)?;
    let weight = if transpose_y {
        y
    } else {
        let turned = Constant::of_recipe(&weight.recipe()?.permute(&[1, 0]).ok()?);
        let label = format!("{}_weight", editor.name(op.outputs[0]));
        Binding::Value(editor.constant_before(id, turned, &label))
    };
    let op = Op::new(OpKind::Linear).with("x", Binding::Value(x)).with("weight", weight);
    editor.rewrite(id, op).ok()
}
