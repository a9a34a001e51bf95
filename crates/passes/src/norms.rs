//! Recognizes decomposed layer norms.
//!
//! ```text
//! m = reduce_mean(x = x, axes = A, keep_dims = true);
//! d = sub(x = x, y = m);
//! v = reduce_mean(x = d · d, axes = A, keep_dims = true);          y = layer_norm(x = x, axes = A, epsilon = ε,
//! y = d · rsqrt(v + ε), or d / sqrt(v + ε);               becomes                 gamma = γ, beta = β);
//! y = y · γ;  y = y + β;
//! ```

use super::Editor;
use coremill_mil::ir::{Binding, Constant, Op, OpId, ValueId};
use coremill_mil::ops::OpKind;

/// Runs the pass and returns the number of changed norms.
pub(super) fn fuse_norms(editor: &mut Editor<'_>) -> usize {
    let mut changed = 0;
    for id in editor.ops() {
        let done = match editor.op(id).and_then(Op::kind) {
            Some(OpKind::Mul | OpKind::RealDiv) => {
                written_out(editor, id).or_else(|| gamma(editor, id))
            }
            Some(OpKind::Add) => beta(editor, id),
            _ => None,
        };
        changed += usize::from(done.is_some());
    }
    changed
}

/// Operand and axes of a `reduce_mean` that keeps its dimensions.
fn mean(editor: &Editor<'_>, value: ValueId) -> Option<(ValueId, Vec<i32>)> {
    let id = editor.produced_by(value, OpKind::ReduceMean)?;
    let x = editor.argument(id, "x")?;
    if !editor.flag(id, "keep_dims")? {
        return None;
    }
    let axes = axes_from_end(editor, id, editor.shape(x).len())?;
    Some((x, axes))
}

/// Whether ascending axes, counted from the end, are the last ones.
fn are_last(axes: &[i32]) -> bool {
    axes.iter().copied().eq(-(axes.len() as i32)..0)
}

/// Axes of an operation counted from the end, in ascending order.
fn axes_from_end(editor: &Editor<'_>, id: OpId, rank: usize) -> Option<Vec<i32>> {
    let count = |axis: i64| (if axis < 0 { axis } else { axis - rank as i64 }) as i32;
    let mut axes: Vec<i32> = editor.ints(id, "axes")?.into_iter().map(count).collect();
    axes.sort_unstable();
    Some(axes)
}

/// The operand of a square.
fn squared(editor: &Editor<'_>, value: ValueId) -> Option<ValueId> {
    let id = editor.producer(value)?;
    let x = editor.argument(id, "x")?;
    match editor.op(id)?.kind()? {
        OpKind::Square => Some(x),
        OpKind::Mul => (editor.argument(id, "y")? == x).then_some(x),
        OpKind::Pow => (editor.number(id, "y")? == 2.0).then_some(x),
        _ => None,
    }
}

fn written_out(editor: &mut Editor<'_>, id: OpId) -> Option<()> {
    let divides = editor.op(id)?.kind()? == OpKind::RealDiv;
    let (left, right) = (editor.argument(id, "x")?, editor.argument(id, "y")?);
    let pairs: &[(ValueId, ValueId)] =
        if divides { &[(left, right)] } else { &[(left, right), (right, left)] };
    for &(difference, root) in pairs {
        let Some((variance, epsilon)) = root_of(editor, root, divides) else { continue };
        let Some((square, axes)) = mean(editor, variance) else { continue };
        let Some(sub) = editor.produced_by(difference, OpKind::Sub) else { continue };
        if squared(editor, square) != Some(difference) {
            continue;
        }
        let x = editor.argument(sub, "x")?;
        let Some((of, mean_axes)) = editor.argument(sub, "y").and_then(|m| mean(editor, m)) else {
            continue;
        };
        // Norms over other axes than the last are fast without an operation of their own.
        if of != x || mean_axes != axes || !are_last(&axes) {
            continue;
        }
        let op = Op::new(OpKind::LayerNorm)
            .with("x", Binding::Value(x))
            .with("axes", Binding::Literal(Constant::int32s(&axes)))
            .with("epsilon", Binding::Literal(Constant::fp32(epsilon as f32)));
        return editor.rewrite(id, op).ok();
    }
    None
}

/// A root-mean-square norm.
pub(super) struct RootMeanSquare {
    pub(super) x: ValueId,
    pub(super) squares: ValueId,
    /// The axes, counted from the end.
    pub(super) axes: Vec<i32>,
    pub(super) epsilon: f64,
}

/// Matches `x · rsqrt(mean(x²) + ε)` or `x / sqrt(mean(x²) + ε)`.
pub(super) fn root_mean_square(editor: &Editor<'_>, id: OpId) -> Option<RootMeanSquare> {
    let divides = editor.op(id)?.kind()? == OpKind::RealDiv;
    let (left, right) = (editor.argument(id, "x")?, editor.argument(id, "y")?);
    let pairs: &[(ValueId, ValueId)] =
        if divides { &[(left, right)] } else { &[(left, right), (right, left)] };
    pairs.iter().find_map(|&(x, root)| {
        let (variance, epsilon) = root_of(editor, root, divides)?;
        let (squares, axes) = mean(editor, variance)?;
        let found = squared(editor, squares)? == x;
        found.then_some(RootMeanSquare { x, squares, axes, epsilon })
    })
}

/// Variance and epsilon under a root or an inverse root.
fn root_of(editor: &Editor<'_>, root: ValueId, divides: bool) -> Option<(ValueId, f64)> {
    let id = editor.producer(root)?;
    let inside = editor.argument(id, "x")?;
    let mut epsilon = 0.0;
    match editor.op(id)?.kind()? {
        OpKind::Sqrt if divides => {}
        OpKind::Rsqrt if !divides => {
            epsilon = editor.number(id, "epsilon").unwrap_or(1e-12);
        }
        OpKind::Pow if editor.number(id, "y")? == (if divides { 0.5 } else { -0.5 }) => {}
        _ => return None,
    }
    let Some(sum) = editor.produced_by(inside, OpKind::Add) else {
        return (epsilon > 0.0).then_some((inside, epsilon));
    };
    match (editor.argument(sum, "x"), editor.number(sum, "y")) {
        (Some(variance), Some(number)) => Some((variance, epsilon + number)),
        _ => Some((editor.argument(sum, "y")?, epsilon + editor.number(sum, "x")?)),
    }
}

/// Merges a product with a constant into a norm without gamma.
fn gamma(editor: &mut Editor<'_>, id: OpId) -> Option<()> {
    take_in(editor, id, "gamma")
}

/// Merges a sum with a constant into a norm without beta.
fn beta(editor: &mut Editor<'_>, id: OpId) -> Option<()> {
    take_in(editor, id, "beta")
}

fn take_in(editor: &mut Editor<'_>, id: OpId, name: &'static str) -> Option<()> {
    if editor.op(id)?.kind()? == OpKind::RealDiv {
        return None;
    }
    for (value, other) in [("x", "y"), ("y", "x")] {
        let Some(normed) = editor.argument(id, value) else { continue };
        let Some(norm) = editor.produced_by(normed, OpKind::LayerNorm) else { continue };
        if editor.sole_user(normed) != Some(id) || editor.op(norm)?.binding(name).is_some() {
            continue;
        }
        // A gamma after a beta would also scale the beta.
        if name == "gamma" && editor.op(norm)?.binding("beta").is_some() {
            continue;
        }
        let factor = editor.op(id)?.binding(other)?.clone();
        let shape = editor.function().bound_constant(&factor)?.tensor_type()?.known_shape()?;
        let dims = editor.shape(normed);
        let axes = axes_from_end(editor, norm, dims.len())?;
        // The factor is broadcast along the last axes, gamma and beta along those of the norm.
        if !are_last(&axes) {
            continue;
        }
        let wanted: Vec<_> =
            dims[dims.len().checked_sub(axes.len())?..].iter().map(|dim| dim.known()).collect();
        if shape.iter().map(|&extent| Some(extent)).collect::<Vec<_>>() != wanted {
            continue;
        }
        let mut op = editor.op(norm)?.clone();
        op.outputs.clear();
        return editor.rewrite(id, op.with(name, factor)).ok();
    }
    None
}
