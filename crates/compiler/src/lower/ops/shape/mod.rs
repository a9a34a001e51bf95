//! Tensors seen, cut, joined and filled otherwise: what moves elements and computes nothing with them.

mod diagonal;
mod expand;
mod join;
mod pad;
mod permute;
mod reshape;
mod slice;
mod window;
mod write;

pub(crate) use self::expand::{broadcast_sizes, expanded};
pub(crate) use self::reshape::to_sizes;
pub(crate) use self::slice::{Range, sliced, taken_at};
pub(crate) use self::write::{full, replaced};

use coremill_mil::ir::ValueId;

use crate::error::Refusal;
use crate::lower::call::{Call, Results};
use crate::lower::row::Row;
use crate::lower::value::Lowered;

pub(super) const ROWS: &[&[Row]] = &[
    diagonal::ROWS,
    expand::ROWS,
    join::ROWS,
    pad::ROWS,
    permute::ROWS,
    reshape::ROWS,
    slice::ROWS,
    window::ROWS,
    write::ROWS,
];

/// Gives what a function makes of a tensor.
pub(crate) fn mapped(
    call: &mut Call<'_, '_>,
    name: &str,
    mut map: impl FnMut(&mut Call<'_, '_>, ValueId) -> Result<ValueId, Refusal>,
) -> Results {
    let x = call.tensor(name)?.value;
    let y = map(call, x)?;
    call.give(y)
}

/// Gives the parts that a function makes of a tensor.
pub(super) fn mapped_to_all(
    call: &mut Call<'_, '_>,
    name: &str,
    mut map: impl FnMut(&mut Call<'_, '_>, ValueId) -> Result<Vec<ValueId>, Refusal>,
) -> Results {
    let tensor = call.tensor(name)?;
    let values = map(call, tensor.value)?;
    Ok(values.into_iter().map(|value| Lowered::tensor(value, tensor.dtype)).collect())
}
