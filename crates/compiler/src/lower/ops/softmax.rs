//! Softmax and its logarithm.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use crate::error::Refusal;
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results};
use crate::lower::row::{Row, all, some};

pub(crate) const ROWS: &[Row] = &[
    some("aten.softmax", &["int"], |call| along(call, softmax)),
    all("aten.special_softmax", |call| along(call, softmax)),
    all("aten._softmax", |call| along(call, softmax)),
    some("aten.log_softmax", &["int"], |call| along(call, log_softmax)),
    all("aten.special_log_softmax", |call| along(call, log_softmax)),
    all("aten._log_softmax", |call| along(call, log_softmax)),
];

fn along(
    call: &mut Call<'_, '_>,
    f: impl Fn(&mut Builder, ValueId, i32) -> Result<ValueId, Refusal>,
) -> Results {
    let x = call.tensor("self")?.value;
    let x = call.cast(x, DType::Fp32)?;
    let rank = call.rank(x);
    let axis = call.axis("dim", rank)? as i32;
    let y = if rank == 0 {
        let x = call.expand_dims(x, &[0])?;
        let y = f(call, x, 0)?;
        call.squeeze(y, &[0])?
    } else {
        f(call, x, axis)?
    };
    call.give(y)
}

fn softmax(builder: &mut Builder, x: ValueId, axis: i32) -> Result<ValueId, Refusal> {
    builder.emit(OpKind::Softmax, [("x", x.into()), ("axis", axis.into())])
}

fn log_softmax(builder: &mut Builder, x: ValueId, axis: i32) -> Result<ValueId, Refusal> {
    let total = builder.emit(
        OpKind::ReduceLogSumExp,
        [("x", x.into()), ("axes", [axis].into()), ("keep_dims", true.into())],
    )?;
    builder.binary(OpKind::Sub, x, total)
}
