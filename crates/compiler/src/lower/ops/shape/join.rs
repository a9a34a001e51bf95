//! Concatenation and stacking.

use crate::lower::prelude::*;

pub(super) const ROWS: &[Row] = &[tensor("aten.cat", concatenate), tensor("aten.stack", stack)];

/// The call's tensors, cast to the result type.
fn parts(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>> {
    let core = core_dtype(call.result_dtype()?)?;
    let tensors = call.tensors("tensors")?.into_iter();
    tensors.map(|tensor| call.cast(tensor.value, core)).collect()
}

fn concatenate(call: &mut Call<'_, '_>) -> ValueResult {
    let mut values = parts(call)?;
    // As in torch, empty vectors can be concatenated with tensors of any rank.
    values.retain(|&value| !call.extents(value).contains(&Some(0)));
    let Some(&first) = values.first() else {
        refuse!("joins tensors without elements, which Core ML does not support");
    };
    let axis = call.axis("dim", call.rank(first))?;
    call.concat(&values, axis)
}

fn stack(call: &mut Call<'_, '_>) -> ValueResult {
    let values = parts(call)?;
    let Some(&first) = values.first() else { refuse!("requires at least one tensor to stack") };
    let axis = position(call.known_int("dim")?, call.rank(first) + 1)?;
    call.stack(&values, axis as i32)
}
