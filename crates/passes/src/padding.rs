//! Merges padding into convolutions and pools.
//!
//! ```text
//! a = pad(x = x, pad = [0, 0, 0, 0, 1, 1, 2, 2], mode = "constant", constant_val = 0.0);
//! b = conv(x = a, weight = w, pad_type = "valid");
//!                              becomes    b = conv(x = x, weight = w, pad_type = "custom", pad = [1, 1, 2, 2]);
//! ```
//!
//! A `max_pool` absorbs padding with −∞. An `avg_pool` that includes its padding absorbs zeros.

use super::Editor;
use coremill_mil::ir::{Binding, Constant, Op, OpId};
use coremill_mil::ops::OpKind;

/// Runs the pass and returns the number of merged paddings.
pub(super) fn fuse_padding(editor: &mut Editor<'_>) -> usize {
    let ops = editor.ops();
    ops.into_iter().filter(|&id| fold(editor, id).is_some()).count()
}

fn fold(editor: &mut Editor<'_>, id: OpId) -> Option<()> {
    let kind = editor.op(id)?.kind()?;
    let filler = match kind {
        OpKind::Conv => 0.0,
        OpKind::AvgPool if editor.flag(id, "exclude_padding_from_average") != Some(true) => 0.0,
        OpKind::MaxPool => f64::NEG_INFINITY,
        _ => return None,
    };
    if kind != OpKind::Conv && editor.flag(id, "ceil_mode") == Some(true) {
        return None;
    }
    let padded = editor.argument(id, "x")?;
    let pad = editor.produced_by(padded, OpKind::Pad)?;
    let source = editor.argument(pad, "x")?;
    let constant = match editor.op(pad)?.binding("constant_val") {
        Some(_) => editor.number(pad, "constant_val")?,
        None => 0.0,
    };
    if editor.text(pad, "mode").is_some_and(|mode| mode != "constant") || constant != filler {
        return None;
    }
    let rank = editor.shape(source).len();
    let spatial = 2 * rank.checked_sub(2)?;
    let mut amounts = editor.ints(pad, "pad")?;
    // The amounts apply to the last axes.
    while amounts.len() < 2 * rank {
        amounts.insert(0, 0);
    }
    if amounts[..4].iter().any(|&amount| amount != 0) || amounts.iter().any(|&amount| amount < 0) {
        return None;
    }
    let own = match editor.text(id, "pad_type")? {
        "valid" => vec![0; spatial],
        "custom" => editor.ints(id, "pad")?,
        _ => return None,
    };
    if own.len() != spatial {
        return None;
    }
    let total = own.iter().zip(&amounts[4..]).map(|(own, amount)| i32::try_from(own + amount).ok());
    let total = total.collect::<Option<Vec<_>>>()?;
    let mut op = editor.op(id)?.clone();
    op.outputs.clear();
    let op: Op = op
        .with("x", Binding::Value(source))
        .with("pad_type", Binding::Literal(Constant::string("custom")))
        .with("pad", Binding::Literal(Constant::int32s(&total)));
    editor.rewrite(id, op).ok()
}
