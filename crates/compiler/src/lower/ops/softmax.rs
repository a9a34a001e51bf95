//! Softmax and its logarithm.

use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    tensor("aten.softmax", |call| along(call, softmax)).only(&["int"]),
    tensor("aten.{special,}_softmax", |call| along(call, softmax)),
    tensor("aten.log_softmax", |call| along(call, log_softmax)).only(&["int"]),
    tensor("aten.{special,}_log_softmax", |call| along(call, log_softmax)),
];

fn along(
    call: &mut Call<'_, '_>,
    f: impl Fn(&mut Builder, ValueId, usize) -> ValueResult,
) -> ValueResult {
    let x = call.float_tensor("self")?;
    let rank = call.rank(x);
    let axis = call.axis("dim", rank)?;
    let lines = call.with_axes(x)?;
    let y = f(call, lines, axis)?;
    if rank == 0 { call.squeeze(y, &[0]) } else { Ok(y) }
}

fn softmax(builder: &mut Builder, x: ValueId, axis: usize) -> ValueResult {
    emit!(builder, OpKind::Softmax, x, axis)
}

fn log_softmax(builder: &mut Builder, x: ValueId, axis: usize) -> ValueResult {
    let total = builder.reduced(OpKind::ReduceLogSumExp, x, &[axis], true)?;
    builder.binary(OpKind::Sub, x, total)
}
