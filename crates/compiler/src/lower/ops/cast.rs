//! Casts and copies.

use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    tensor("aten.{to,_to_copy,float,lift,lift_fresh,lift_fresh_copy,_conj_copy}", convert),
    tensor("prims.convert_element_type", |call| converted(call, "a")),
    tensor("quantized_decomposed.convert_element_type", |call| converted(call, "input")),
    tensor("dim_order_ops.{_to_dim_order_copy,_clone_dim_order}", convert),
    // Only created for complex outputs of the program; all other complex numbers are already removed.
    number("aten.complex", |call| {
        Ok(LoweredValue::Pair([call.float_tensor("real")?, call.float_tensor("imag")?]))
    }),
];

fn convert(call: &mut Call<'_, '_>) -> ValueResult {
    converted(call, "self")
}

fn converted(call: &mut Call<'_, '_>, name: &str) -> ValueResult {
    let x = call.tensor(name)?;
    let dtype = call.result_dtype()?;
    if is_float(dtype)
        && matches!(x.dtype, ScalarType::Int8 | ScalarType::UInt8)
        && call.is_factor()
        && let Some(stored) = call.stored_integers(x.value, x.dtype)?
    {
        return Ok(stored);
    }
    call.converted(x.value, x.dtype, dtype)
}
