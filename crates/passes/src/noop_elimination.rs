//! Removes operations without effect, and merges operations that undo or repeat each other.
//!
//! ```text
//! a = reshape(x = x, shape = [2, 12]);             b = reshape(x = x, shape = [4, 6]);
//! b = reshape(x = a, shape = [4, 6]);     becomes
//! c = cast(x = cast(x = h, "fp32"), "fp16")        h
//! t = transpose(x = transpose(x = x, p), q)        transpose(x = x, p[q]), or x
//! d = add(x = x, y = 0.0)                          x
//! ```

use coremill_tensor::DType;
use half::f16;

use super::Editor;
use coremill_mil::infer::{KnownElements, MAX_FOLDED_ELEMENTS, Scalar};
use coremill_mil::ir::{Binding, Constant, Dim, Op, OpId, ValueId};
use coremill_mil::ops::OpKind;

/// Runs the pass and returns the number of changed operations.
pub(super) fn noop_elimination(editor: &mut Editor<'_>) -> usize {
    let mut changed = 0;
    for id in editor.ops() {
        let Some(kind) = editor.op(id).and_then(Op::kind) else { continue };
        let done = match kind {
            OpKind::Cast => cast(editor, id),
            OpKind::Identity => argument_stands(editor, id, "x"),
            OpKind::Reshape | OpKind::Squeeze | OpKind::ExpandDims => reshape(editor, id),
            OpKind::Transpose => transpose(editor, id),
            OpKind::Tile if repeats_needlessly(editor, id) => argument_stands_smaller(editor, id),
            OpKind::SliceByIndex | OpKind::SliceBySize | OpKind::Pad | OpKind::Tile => {
                same_shape(editor, id) && only_moves(editor, id) && argument_stands(editor, id, "x")
            }
            OpKind::Concat => concat(editor, id),
            OpKind::Add => neutral(editor, id, 0.0, true),
            OpKind::Sub => neutral(editor, id, 0.0, false),
            OpKind::Mul => neutral(editor, id, 1.0, true),
            OpKind::RealDiv | OpKind::Pow => neutral(editor, id, 1.0, false),
            OpKind::Relu => {
                let x = editor.argument(id, "x");
                let twice = x.is_some_and(|x| {
                    editor.produced_by(x, OpKind::Relu).is_some()
                        || editor.produced_by(x, OpKind::Relu6).is_some()
                });
                twice && argument_stands(editor, id, "x")
            }
            _ => false,
        };
        changed += usize::from(done);
    }
    changed
}

/// Replaces the operation's result by an argument.
fn argument_stands(editor: &mut Editor<'_>, id: OpId, name: &str) -> bool {
    let Some(x) = editor.argument(id, name) else { return false };
    let Some(&[y]) = editor.op(id).map(|op| op.outputs.as_slice()) else { return false };
    if !editor.can_replace(y, x) {
        return false;
    }
    editor.replace(y, x);
    true
}

fn output(editor: &Editor<'_>, id: OpId) -> ValueId {
    editor.function().op(id).outputs[0]
}

fn cast(editor: &mut Editor<'_>, id: OpId) -> bool {
    let Some(x) = editor.argument(id, "x") else { return false };
    let y = output(editor, id);
    let (Some(from), Some(to)) = (editor.dtype(x), editor.dtype(y)) else { return false };
    if from == to {
        return argument_stands(editor, id, "x");
    }
    let Some(inner) = editor.produced_by(x, OpKind::Cast) else { return false };
    let Some(source) = editor.argument(inner, "x") else { return false };
    let Some(before) = editor.dtype(source) else { return false };
    if !holds(before, from, to) {
        return false;
    }
    let Some(dtype) = editor.function().op(id).binding("dtype").cloned() else { return false };
    let op = Op::new(OpKind::Cast).with("x", Binding::Value(source)).with("dtype", dtype);
    if before == to && editor.can_replace(y, source) {
        editor.replace(y, source);
        return true;
    }
    editor.rewrite(id, op).is_ok()
}

/// Whether a cast via `middle` is equivalent to a direct cast to `to`.
pub(super) fn holds(from: DType, middle: DType, to: DType) -> bool {
    use DType::*;
    match (from, middle) {
        (Bool, _) => true,
        (Fp16, Fp32) => true,
        (Int8 | UInt8 | Int16 | UInt16, Int32) => true,
        (Int8 | UInt8, Int16 | Fp32 | Fp16) => true,
        (Int16 | UInt16, Fp32) => true,
        // Large integers are rounded once either way.
        (Int32, Fp32) => to == Fp16,
        _ => false,
    }
}

/// Shape argument of a `reshape` to this shape: static sizes, and at most one −1.
pub(super) fn requested(shape: &[Dim]) -> Option<Vec<i32>> {
    let unknown = shape.iter().filter(|dim| dim.known().is_none()).count();
    if unknown > 1 || shape.iter().any(|dim| dim.known() == Some(0)) || shape.is_empty() {
        return None;
    }
    shape.iter().map(|dim| dim.known().map_or(Some(-1), |extent| extent.try_into().ok())).collect()
}

fn reshape(editor: &mut Editor<'_>, id: OpId) -> bool {
    let Some(x) = editor.argument(id, "x") else { return false };
    let y = output(editor, id);
    if editor.shape(x) == editor.shape(y) && editor.shape(x).iter().all(|dim| *dim != Dim::Unknown)
    {
        return argument_stands(editor, id, "x");
    }
    let Some(inner) = editor.producer(x).filter(|&inner| {
        let kind = editor.function().op(inner).kind();
        matches!(kind, Some(OpKind::Reshape | OpKind::Squeeze | OpKind::ExpandDims))
    }) else {
        return false;
    };
    let Some(source) = editor.argument(inner, "x") else { return false };
    if editor.shape(source) == editor.shape(y)
        && editor.shape(y).iter().all(|dim| *dim != Dim::Unknown)
        && editor.can_replace(y, source)
    {
        editor.replace(y, source);
        return true;
    }
    // If the first operation has other users, merging does not remove it.
    if editor.sole_user(x) != Some(id) {
        return false;
    }
    let shape = match requested(editor.shape(y)) {
        Some(shape) => Binding::Literal(Constant::int32s(&shape)),
        None => match editor.function().op(id).binding("shape") {
            // A 0 copies a size of the operation's input, which would change.
            Some(shape) if !editor.ints(id, "shape").is_some_and(|all| all.contains(&0)) => {
                shape.clone()
            }
            _ => return false,
        },
    };
    let op = Op::new(OpKind::Reshape).with("x", Binding::Value(source)).with("shape", shape);
    editor.rewrite(id, op).is_ok()
}

fn transpose(editor: &mut Editor<'_>, id: OpId) -> bool {
    let Some(x) = editor.argument(id, "x") else { return false };
    let Some(order) = order_of(editor, id) else { return false };
    if order.iter().enumerate().all(|(at, &from)| at == from) {
        return argument_stands(editor, id, "x");
    }
    let Some(inner) = editor.produced_by(x, OpKind::Transpose) else { return false };
    let (Some(source), Some(first)) = (editor.argument(inner, "x"), order_of(editor, inner)) else {
        return false;
    };
    let both: Vec<i32> = order.iter().map(|&at| first[at] as i32).collect();
    let y = output(editor, id);
    if both.iter().enumerate().all(|(at, &from)| at as i32 == from) {
        if !editor.can_replace(y, source) {
            return false;
        }
        editor.replace(y, source);
        return true;
    }
    let op = Op::new(OpKind::Transpose)
        .with("x", Binding::Value(source))
        .with("perm", Binding::Literal(Constant::int32s(&both)));
    editor.rewrite(id, op).is_ok()
}

/// Axis order of a `transpose`, as indices from the front.
pub(super) fn order_of(editor: &Editor<'_>, id: OpId) -> Option<Vec<usize>> {
    let order = editor.ints(id, "perm")?;
    let rank = order.len() as i64;
    order.into_iter().map(|at| usize::try_from(if at < 0 { at + rank } else { at }).ok()).collect()
}

fn same_shape(editor: &Editor<'_>, id: OpId) -> bool {
    let Some(x) = editor.argument(id, "x") else { return false };
    let (before, after) = (editor.shape(x), editor.shape(output(editor, id)));
    before == after && before.iter().all(|dim| *dim != Dim::Unknown)
}

/// Whether an operation that preserves the shape also preserves the position of every element.
fn only_moves(editor: &Editor<'_>, id: OpId) -> bool {
    let op = editor.function().op(id);
    let all = |name: &str, wanted: i64| {
        op.binding(name).is_none()
            || editor.ints(id, name).is_some_and(|ints| ints.iter().all(|&int| int == wanted))
    };
    match op.kind() {
        Some(OpKind::SliceByIndex) => all("stride", 1),
        Some(OpKind::SliceBySize) => all("begin", 0),
        Some(OpKind::Pad) => all("pad", 0),
        Some(OpKind::Tile) => all("reps", 1),
        _ => false,
    }
}

/// Whether all users of a tensor repeated along unit axes would broadcast it themselves.
fn repeats_needlessly(editor: &Editor<'_>, id: OpId) -> bool {
    let y = output(editor, id);
    let Some(x) = editor.argument(id, "x") else { return false };
    let (before, after) = (editor.shape(x), editor.shape(y));
    let only_ones = before.len() == after.len()
        && before.iter().zip(after).all(|(before, after)| {
            before == after && *after != Dim::Unknown || before.known() == Some(1)
        });
    only_ones
        && !editor.is_output(y)
        && editor.uses(y).ops.iter().all(|&user| {
            let Some(op) = editor.op(user) else { return false };
            let other = match (editor.argument(user, "x"), editor.argument(user, "y")) {
                (Some(one), Some(other)) if one == y => other,
                (Some(other), Some(one)) if one == y => other,
                _ => return false,
            };
            // The full shape must come from the other operand alone.
            let reaches =
                editor.shape(other) == after && after.iter().all(|dim| *dim != Dim::Unknown);
            op.kind().is_some_and(repeats) && other != y && reaches
        })
}

/// Whether an operation broadcasts its operands.
fn repeats(kind: OpKind) -> bool {
    use OpKind::*;
    matches!(
        kind,
        Add | Sub
            | Mul
            | RealDiv
            | FloorDiv
            | Mod
            | Pow
            | Maximum
            | Minimum
            | Equal
            | NotEqual
            | Less
            | LessEqual
            | Greater
            | GreaterEqual
            | LogicalAnd
            | LogicalOr
            | LogicalXor
    )
}

/// Replaces a repeated tensor by the original, for users that broadcast.
fn argument_stands_smaller(editor: &mut Editor<'_>, id: OpId) -> bool {
    let (Some(x), y) = (editor.argument(id, "x"), output(editor, id)) else { return false };
    editor.replace(y, x);
    true
}

fn concat(editor: &mut Editor<'_>, id: OpId) -> bool {
    let op = editor.function().op(id);
    let [Binding::Value(only)] = *op.bindings("values") else { return false };
    let y = op.outputs[0];
    // Scalars are concatenated to a vector.
    if editor.shape(only).len() != editor.shape(y).len() || !editor.can_replace(y, only) {
        return false;
    }
    editor.replace(y, only);
    true
}

/// Removes an operation with a neutral operand. The other operand replaces the result if it has the same shape.
fn neutral(editor: &mut Editor<'_>, id: OpId, wanted: f64, either: bool) -> bool {
    let y = output(editor, id);
    for (name, other) in [("y", "x"), ("x", "y")] {
        if name == "x" && !either {
            continue;
        }
        let Some(kept) = editor.argument(id, other) else { continue };
        let same = editor.shape(kept) == editor.shape(y)
            && editor.shape(y).iter().all(|dim| *dim != Dim::Unknown);
        if same && is_all(editor, id, name, wanted) {
            return argument_stands(editor, id, other);
        }
    }
    false
}

/// Whether all elements of an argument equal a number.
fn is_all(editor: &Editor<'_>, id: OpId, name: &str, wanted: f64) -> bool {
    let Some(binding) = editor.function().op(id).binding(name) else { return false };
    let is_wanted = |float: f64| float == wanted && !float.is_sign_negative();
    let Some(constant) = editor.function().bound_constant(binding) else {
        let Binding::Value(value) = binding else { return false };
        return editor.analysis().folded(*value).is_some_and(|folded| {
            let all = |element: &Scalar| element.float().is_some_and(is_wanted);
            !folded.elements.is_empty() && folded.elements.iter().all(all)
        });
    };
    let Some(ty) = constant.tensor_type() else { return false };
    if ty.element_count().is_none_or(|count| count == 0 || count > MAX_FOLDED_ELEMENTS) {
        return false;
    }
    let Some(elements) = constant.elements() else { return false };
    let all = |bytes: &[u8]| match ty.dtype {
        DType::Fp32 => every::<4>(bytes, |raw| is_wanted(f32::from_le_bytes(raw).into())),
        DType::Fp16 => every::<2>(bytes, |raw| is_wanted(f16::from_le_bytes(raw).into())),
        _ => KnownElements::from_constant(constant).is_some_and(|folded| {
            folded.elements.iter().all(|element| element.float().is_some_and(is_wanted))
        }),
    };
    let elements = elements.unwatched();
    elements.with_window(0..elements.len(), all).unwrap_or(false)
}

fn every<const WIDTH: usize>(bytes: &[u8], holds: impl Fn([u8; WIDTH]) -> bool) -> bool {
    bytes.as_chunks::<WIDTH>().0.iter().all(|&raw| holds(raw))
}
