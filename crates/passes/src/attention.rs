//! Recognizes decomposed attention, for targets from iOS 18 on.
//!
//! ```text
//! a = matmul(x = q, y = k, transpose_y = true);
//! b = mul(x = a, y = 1/√d);
//! c = add(x = b, y = mask);                      becomes    e = scaled_dot_product_attention(query = q, key = k,
//! d = softmax(x = c, axis = -1);                                 value = v, attn_mask = mask);
//! e = matmul(x = d, y = v);
//! ```
//!
//! For a scale other than 1/√d, the query is multiplied by the ratio.

use super::Editor;
use coremill_mil::ir::{Binding, Constant, Dim, Op, OpId, Opset, ValueId};
use coremill_mil::ops::OpKind;

/// Relative tolerance for the scale 1/√d.
const TOLERANCE: f64 = 1e-3;

/// Runs the pass and returns the number of recognized attentions.
pub(super) fn fuse_attention(editor: &mut Editor<'_>) -> usize {
    if editor.opset() < Opset::Ios18 {
        return 0;
    }
    let ops = editor.ops();
    ops.into_iter().filter(|&id| recognise(editor, id).is_some()).count()
}

fn recognise(editor: &mut Editor<'_>, id: OpId) -> Option<()> {
    editor.op_of(id, OpKind::Matmul)?;
    let plain = |editor: &Editor<'_>, id: OpId, name: &str| match editor.op(id)?.binding(name) {
        Some(_) => editor.flag(id, name),
        None => Some(false),
    };
    if plain(editor, id, "transpose_x")? || plain(editor, id, "transpose_y")? {
        return None;
    }
    let (weights, value) = (editor.argument(id, "x")?, editor.argument(id, "y")?);
    let softmax = alone(editor, weights, id, OpKind::Softmax)?;
    let mut scores = editor.argument(softmax, "x")?;
    let rank = editor.shape(scores).len();
    let axis = editor.ints(softmax, "axis").unwrap_or_else(|| vec![-1]);
    if rank < 3 || (axis != [-1] && axis != [rank as i64 - 1]) {
        return None;
    }
    let mut user = softmax;
    let mut mask = None;
    if let Some(add) = alone(editor, scores, user, OpKind::Add) {
        let (left, right) = (editor.argument(add, "x"), editor.argument(add, "y"));
        let computed = |value: Option<ValueId>| {
            value.filter(|&value| scaled_product(editor, value, add).is_some())
        };
        let (product, other) = match (computed(left), computed(right)) {
            (Some(product), _) => (product, right?),
            (None, Some(product)) => (product, left?),
            (None, None) => return None,
        };
        (scores, mask, user) = (product, Some(other), add);
    }
    let (product, scale) = scaled_product(editor, scores, user)?;
    if plain(editor, product, "transpose_x")? || !plain(editor, product, "transpose_y")? {
        return None;
    }
    let (mut query, key) = (editor.argument(product, "x")?, editor.argument(product, "y")?);
    let shapes = [query, key, value].map(|value| editor.shape(value).to_vec());
    let depth = shapes[0].last()?.known()?;
    // The operation broadcasts only the mask.
    let batch = |shape: &[Dim]| shape[..shape.len().saturating_sub(2)].to_vec();
    let same = shapes.iter().all(|shape| {
        shape.len() == rank && batch(shape) == batch(&shapes[0]) && !shape.contains(&Dim::Unknown)
    });
    if !same || mask.is_some_and(|mask| !fits(editor.shape(mask), &shapes[0], &shapes[1])) {
        return None;
    }
    let own = 1.0 / (depth as f64).sqrt();
    if (scale - own).abs() > TOLERANCE * own {
        let factor = Constant::fp32((scale / own) as f32);
        let op = Op::new(OpKind::Mul)
            .with("x", Binding::Value(query))
            .with("y", Binding::Literal(factor));
        let label = format!("{}_query", editor.name(editor.op(id)?.outputs[0]));
        query = editor.insert(product, op, &label).ok()?[0];
    }
    let mut op = Op::new(OpKind::ScaledDotProductAttention)
        .with("query", Binding::Value(query))
        .with("key", Binding::Value(key))
        .with("value", Binding::Value(value));
    if let Some(mask) = mask {
        op = op.with("attn_mask", Binding::Value(mask));
    }
    editor.rewrite(id, op).ok()
}

/// Whether the operation accepts the mask for every size. `add` broadcasts more, for example the mask's last axis
/// and the scores.
fn fits(mask: &[Dim], query: &[Dim], key: &[Dim]) -> bool {
    let ([outer @ .., last], [.., length, _]) = (mask, key) else { return false };
    let Some(missing) = query.len().checked_sub(mask.len()) else { return false };
    let mut aligned = outer.iter().zip(&query[missing..]);
    last == length && aligned.all(|(found, own)| *found == Dim::Known(1) || found == own)
}

/// The operation of kind `kind` that produces a value, if `user` is its only user.
fn alone(editor: &Editor<'_>, value: ValueId, user: OpId, kind: OpKind) -> Option<OpId> {
    (editor.sole_user(value) == Some(user)).then(|| editor.produced_by(value, kind))?
}

/// The matrix product that produces a value, and the scale applied to it.
fn scaled_product(editor: &Editor<'_>, value: ValueId, user: OpId) -> Option<(OpId, f64)> {
    if let Some(product) = alone(editor, value, user, OpKind::Matmul) {
        return Some((product, 1.0));
    }
    let (id, scale) = if let Some(mul) = alone(editor, value, user, OpKind::Mul) {
        (mul, editor.number(mul, "y")?)
    } else {
        let div = alone(editor, value, user, OpKind::RealDiv)?;
        (div, 1.0 / editor.number(div, "y")?)
    };
    let product = alone(editor, editor.argument(id, "x")?, id, OpKind::Matmul)?;
    Some((product, scale))
}
