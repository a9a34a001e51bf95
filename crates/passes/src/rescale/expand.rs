//! Decomposes operations whose values leave the range into forms that can be rescaled.
//!
//! ```text
//! x · rsqrt(mean(x²) + ε)     becomes     the first half of layer_norm(concat(x, −x), epsilon = ε)
//! silu(x), gelu(x)            becomes     x · sigmoid(x), x · (0.5 + 0.5 · erf(x / √2))
//! ```
//!
//! The concatenation has a mean of 0, and its variance is the mean square.

use std::f32::consts::FRAC_1_SQRT_2;

use coremill_tensor::DType;

use super::Sizes;
use crate::Editor;
use crate::norms::root_mean_square;
use coremill_mil::ir::{Binding, Constant, Op, OpId, ValueId};
use coremill_mil::ops::OpKind;

/// Runs the pass and returns the names of the decomposed norms.
pub(super) fn expand(editor: &mut Editor<'_>, sizes: &Sizes<'_>) -> Vec<String> {
    let mut norms = Vec::new();
    for id in editor.ops() {
        let Some((kind, output)) =
            editor.op(id).and_then(|op| Some((op.kind()?, *op.outputs.first()?)))
        else {
            continue;
        };
        match kind {
            OpKind::Mul | OpKind::RealDiv if norm(editor, id, sizes).is_some() => {
                norms.push(editor.name(output).to_owned());
            }
            OpKind::Silu if sizes.are_out(editor, output) => {
                let _ = silu(editor, id);
            }
            OpKind::Gelu
                if sizes.are_out(editor, output)
                    && editor.text(id, "mode").is_none_or(|mode| mode == "EXACT") =>
            {
                let _ = gelu(editor, id);
            }
            _ => {}
        }
    }
    norms
}

fn norm(editor: &mut Editor<'_>, id: OpId, sizes: &Sizes<'_>) -> Option<()> {
    let norm = root_mean_square(editor, id)?;
    let x = norm.x;
    if !sizes.are_out(editor, norm.squares) && !sizes.are_out(editor, x) {
        return None;
    }
    let shape = editor.shape(x).to_vec();
    let rank = shape.len();
    let width = shape.last()?.known()?;
    if norm.axes != [-1] {
        return None;
    }
    let label = editor.name(editor.op(id)?.outputs[0]).to_owned();
    let minus = Binding::Literal(Constant::fp32(-1.0));
    let opposite = binary(OpKind::Mul, Binding::Value(x), minus);
    let opposite = editor.insert(id, opposite, &format!("{label}_opposite")).ok()?[0];
    let both = Op::new(OpKind::Concat)
        .with_list("values", vec![Binding::Value(x), Binding::Value(opposite)])
        .with("axis", Binding::Literal(Constant::int32(-1)))
        .with("interleave", Binding::Literal(Constant::bool(false)));
    let both = editor.insert(id, both, &format!("{label}_both")).ok()?[0];
    let normal = Op::new(OpKind::LayerNorm)
        .with("x", Binding::Value(both))
        .with("axes", Binding::Literal(Constant::int32s(&[-1])))
        .with("epsilon", Binding::Literal(Constant::fp32(norm.epsilon as f32)));
    let normal = editor.insert(id, normal, &format!("{label}_normal")).ok()?[0];
    // All elements of the other axes, and the first half of the last.
    let begin = vec![0; rank];
    let mut end = vec![0; rank];
    end[rank - 1] = i32::try_from(width).ok()?;
    let mut all = vec![1u8; rank];
    all[rank - 1] = 0;
    let all = Constant::bytes(DType::Bool, &[rank as u64], all);
    let half = Op::new(OpKind::SliceByIndex)
        .with("x", Binding::Value(normal))
        .with("begin", Binding::Literal(Constant::int32s(&begin)))
        .with("end", Binding::Literal(Constant::int32s(&end)))
        .with("end_mask", Binding::Literal(all));
    editor.rewrite(id, half).ok()
}

fn silu(editor: &mut Editor<'_>, id: OpId) -> Option<()> {
    let (x, label) = operand(editor, id)?;
    let gate = Op::new(OpKind::Sigmoid).with("x", Binding::Value(x));
    let gate = editor.insert(id, gate, &format!("{label}_gate")).ok()?[0];
    let product = binary(OpKind::Mul, Binding::Value(x), Binding::Value(gate));
    editor.rewrite(id, product).ok()
}

fn gelu(editor: &mut Editor<'_>, id: OpId) -> Option<()> {
    let (x, label) = operand(editor, id)?;
    let number = |number: f32| Binding::Literal(Constant::fp32(number));
    let mut insert = |op: Op| Some(editor.insert(id, op, &format!("{label}_gate")).ok()?[0]);
    let inner = insert(binary(OpKind::Mul, Binding::Value(x), number(FRAC_1_SQRT_2)))?;
    let erf = insert(Op::new(OpKind::Erf).with("x", Binding::Value(inner)))?;
    let half = insert(binary(OpKind::Mul, Binding::Value(erf), number(0.5)))?;
    let gate = insert(binary(OpKind::Add, Binding::Value(half), number(0.5)))?;
    let product = binary(OpKind::Mul, Binding::Value(x), Binding::Value(gate));
    editor.rewrite(id, product).ok()
}

fn operand(editor: &Editor<'_>, id: OpId) -> Option<(ValueId, String)> {
    let label = editor.name(*editor.op(id)?.outputs.first()?).to_owned();
    Some((editor.argument(id, "x")?, label))
}

fn binary(kind: OpKind, x: Binding, y: Binding) -> Op {
    Op::new(kind).with("x", x).with("y", y)
}
