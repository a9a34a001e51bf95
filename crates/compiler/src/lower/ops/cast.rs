//! Other element types, and copies.

use coremill_pt2::ScalarType;

use crate::lower::call::{Call, Results};
use crate::lower::is_float;
use crate::lower::row::{Row, all};
use crate::lower::value::Lowered;

pub(crate) const ROWS: &[Row] = &[
    all("aten.to", convert),
    all("aten._to_copy", convert),
    all("aten.float", convert),
    all("aten.lift_fresh_copy", convert),
    all("aten.lift_fresh", convert),
    all("aten.lift", convert),
    all("aten._conj_copy", convert),
    all("prims.convert_element_type", |call| converted(call, "a")),
    all("quantized_decomposed.convert_element_type", |call| converted(call, "input")),
    all("dim_order_ops._to_dim_order_copy", convert),
    all("dim_order_ops._clone_dim_order", convert),
    // Of what the program gives alone: there are no other complex numbers by now.
    all("aten.complex", |call| {
        let parts = [call.float_tensor("real")?, call.float_tensor("imag")?];
        Ok(vec![Lowered::Pair(parts)])
    }),
];

fn convert(call: &mut Call<'_, '_>) -> Results {
    converted(call, "self")
}

fn converted(call: &mut Call<'_, '_>, name: &str) -> Results {
    let x = call.tensor(name)?;
    let dtype = call.result_dtype()?;
    if is_float(dtype)
        && matches!(x.dtype, ScalarType::Int8 | ScalarType::UInt8)
        && call.is_factor()
        && let Some(stored) = call.stored_integers(x.value, x.dtype)?
    {
        return call.give(stored);
    }
    let z = call.converted(x.value, x.dtype, dtype)?;
    call.give(z)
}
