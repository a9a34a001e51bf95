//! Activations.

use coremill_mil::ops::OpKind;

use crate::lower::call::{Call, Results};
use crate::lower::table::{Row, all};

pub(crate) const ROWS: &[Row] = &[
    all("aten.relu", |call| unary(call, OpKind::Relu)),
    all("aten.sigmoid", |call| unary(call, OpKind::Sigmoid)),
    all("aten.tanh", |call| unary(call, OpKind::Tanh)),
    all("aten.hardtanh", clamp),
    all("aten.softmax", softmax),
    all("aten.dropout", identity),
];

fn unary(call: &mut Call<'_, '_>, kind: OpKind) -> Results {
    let x = call.tensor("self")?.value;
    let y = call.unary(kind, x)?;
    call.give(y)
}

fn clamp(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let (low, high) = (call.float("min_val")? as f32, call.float("max_val")? as f32);
    let y = if (low, high) == (0.0, 6.0) {
        call.unary(OpKind::Relu6, x)?
    } else {
        call.emit(OpKind::Clip, [("x", x.into()), ("alpha", low.into()), ("beta", high.into())])?
    };
    call.give(y)
}

fn softmax(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let axis = call.axis("dim", call.rank(x))? as i32;
    let y = call.emit(OpKind::Softmax, [("x", x.into()), ("axis", axis.into())])?;
    call.give(y)
}

fn identity(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("input")?.value;
    call.give(x)
}
