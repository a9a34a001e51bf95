//! Elements picked by indices along one axis.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;

use super::{as_numbers, gathered};
use crate::bounds::At;
use crate::error::Refusal;
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results};
use crate::lower::ops::shape::{Range, mapped, sliced};
use crate::lower::row::{Row, all};

pub(super) const ROWS: &[Row] =
    &[all("aten.gather", gather), all("aten.index_select", index_select)];

/// The elements at indices that stand beside the tensor along an axis.
pub(super) fn gathered_along(
    builder: &mut Builder,
    x: ValueId,
    indices: ValueId,
    axis: usize,
) -> Result<ValueId, Refusal> {
    as_numbers(builder, x, |builder, x| {
        builder.emit(
            OpKind::GatherAlongAxis,
            [("x", x.into()), ("indices", indices.into()), ("axis", (axis as i32).into())],
        )
    })
}

fn gather(call: &mut Call<'_, '_>) -> Results {
    let indices = call.tensor("index")?.value;
    mapped(call, "self", |call, x| {
        if call.rank(x) == 0 {
            return Ok(x);
        }
        let axis = call.axis("dim", call.rank(x))?;
        // What lies beyond the indices along the other axes is not looked at.
        let mut x = x;
        for other in (0..call.rank(x)).filter(|&other| other != axis) {
            let wanted = call.dim(indices, other)?;
            if !call.is_extent(&call.shape(x).at(other)?.clone(), wanted)
                && wanted.known().is_some()
            {
                x = sliced(call, x, other, Range::to(wanted))?;
            }
        }
        gathered_along(call, x, indices, axis)
    })
}

fn index_select(call: &mut Call<'_, '_>) -> Results {
    let indices = call.tensor("index")?.value;
    mapped(call, "self", |call, x| {
        if call.rank(x) == 0 {
            return Ok(x);
        }
        let axis = call.axis("dim", call.rank(x))?;
        let indices =
            if call.rank(indices) == 0 { call.expand_dims(indices, &[0])? } else { indices };
        gathered(call, x, indices, axis)
    })
}
