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
use crate::lower::table::Row;
use crate::lower::value::{Lowered, Tensor};

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

/// Gives what a function makes of a tensor; of both parts if it is complex.
pub(crate) fn mapped(
    call: &mut Call<'_, '_>,
    name: &str,
    mut map: impl FnMut(&mut Call<'_, '_>, ValueId) -> Result<ValueId, Refusal>,
) -> Results {
    let tensor = call.any_tensor(name)?;
    let value = map(call, tensor.value)?;
    let imaginary = match tensor.imaginary {
        Some(imaginary) => Some(map(call, imaginary)?),
        None => None,
    };
    Ok(vec![Lowered::Tensor(Tensor { value, imaginary, dtype: call.result_dtype()? })])
}

/// Gives the parts that a function makes of a tensor; of both parts of each if it is complex.
pub(super) fn mapped_to_all(
    call: &mut Call<'_, '_>,
    name: &str,
    mut map: impl FnMut(&mut Call<'_, '_>, ValueId) -> Result<Vec<ValueId>, Refusal>,
) -> Results {
    let tensor = call.any_tensor(name)?;
    let values = map(call, tensor.value)?;
    let imaginary = match tensor.imaginary {
        Some(imaginary) => map(call, imaginary)?.into_iter().map(Some).collect(),
        None => vec![None; values.len()],
    };
    let parts = values.into_iter().zip(imaginary);
    Ok(parts
        .map(|(value, imaginary)| Lowered::Tensor(Tensor { value, imaginary, dtype: tensor.dtype }))
        .collect())
}
