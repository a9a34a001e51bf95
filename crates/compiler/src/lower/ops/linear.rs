//! Products of matrices.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;

use crate::error::Refusal;
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results};
use crate::lower::table::{Row, all};

pub(crate) const ROWS: &[Row] = &[
    all("aten.linear", linear),
    all("aten.matmul", matmul),
    all("aten.mm", matmul),
    all("aten.bmm", matmul),
];

fn linear(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("input")?.value;
    let weight = call.tensor("weight")?.value;
    let bias = call.optional_tensor("bias")?.map(|bias| bias.value);
    let y = affine(call, x, weight, bias)?;
    call.give(y)
}

/// `x · weightᵀ + bias`.
pub(crate) fn affine(
    builder: &mut Builder,
    x: ValueId,
    weight: ValueId,
    bias: Option<ValueId>,
) -> Result<ValueId, Refusal> {
    let constant =
        builder.known(weight).is_some() && bias.is_none_or(|bias| builder.known(bias).is_some());
    if constant && builder.rank(weight) == 2 {
        let arguments = [("x", x.into()), ("weight", weight.into()), ("bias", bias.into())];
        return builder.emit(OpKind::Linear, arguments);
    }
    let product = builder.emit(
        OpKind::Matmul,
        [("x", x.into()), ("y", weight.into()), ("transpose_y", true.into())],
    )?;
    match bias {
        Some(bias) => builder.binary(OpKind::Add, product, bias),
        None => Ok(product),
    }
}

fn matmul(call: &mut Call<'_, '_>) -> Results {
    let names = if call.has("self") {
        ("self", if call.has("mat2") { "mat2" } else { "other" })
    } else {
        ("input", "mat2")
    };
    let x = call.tensor(names.0)?.value;
    let y = call.tensor(names.1)?.value;
    let product = call.emit(OpKind::Matmul, [("x", x.into()), ("y", y.into())])?;
    call.give(product)
}
