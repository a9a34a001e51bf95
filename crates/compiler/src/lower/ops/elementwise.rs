//! Sums, products and the like, element by element.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_pt2::ScalarType;

use crate::error::{Refusal, refuse};
use crate::lower::call::{Call, Results};
use crate::lower::table::{Row, some};
use crate::lower::value::Tensor;

pub(crate) const ROWS: &[Row] = &[
    some("aten.add", &["Tensor"], |call| arithmetic(call, OpKind::Add)),
    some("aten.sub", &["Tensor"], |call| arithmetic(call, OpKind::Sub)),
    some("aten.mul", &["Tensor"], |call| arithmetic(call, OpKind::Mul)),
];

fn arithmetic(call: &mut Call<'_, '_>, kind: OpKind) -> Results {
    let (x, y) = (call.tensor("self")?, call.tensor("other")?);
    if call.has("alpha") && call.number("alpha")?.known() != Some(1.0) {
        refuse!("`alpha` is not lowered yet");
    }
    let dtype = call.result_dtype()?;
    let (x, y) = together(call, x, y, dtype)?;
    let z = call.binary(kind, x, y)?;
    call.give(z)
}

/// Both tensors in the type that they meet in.
fn together(
    call: &mut Call<'_, '_>,
    x: Tensor,
    y: Tensor,
    dtype: ScalarType,
) -> Result<(ValueId, ValueId), Refusal> {
    Ok((call.cast_to(x.value, dtype)?, call.cast_to(y.value, dtype)?))
}
