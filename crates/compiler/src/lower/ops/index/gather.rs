//! Elements picked by indices along one axis.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;

use super::{as_numbers, gathered, wrapped};
use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results};
use crate::lower::ops::shape::{Range, broadcast_sizes, expanded, mapped, sliced, to_sizes};
use crate::lower::row::{Row, all};
use crate::lower::value::Int;

pub(super) const ROWS: &[Row] = &[
    all("aten.gather", gather),
    all("aten.take", take),
    all("aten.take_along_dim", take_along),
    all("aten.index_select", index_select),
];

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
            if !call.is_extent(&call.shape(x)[other].clone(), wanted) && wanted.known().is_some() {
                x = sliced(call, x, other, Range::to(wanted))?;
            }
        }
        gathered_along(call, x, indices, axis)
    })
}

fn take(call: &mut Call<'_, '_>) -> Results {
    let indices = call.tensor("index")?.value;
    mapped(call, "self", |call, x| {
        let flat = to_sizes(call, x, &[Int::Known(-1)])?;
        let extent = call.dim(flat, 0)?;
        let indices = wrapped(call, indices, extent)?;
        gathered(call, flat, indices, 0)
    })
}

fn take_along(call: &mut Call<'_, '_>) -> Results {
    let indices = call.tensor("indices")?.value;
    mapped(call, "self", |call, x| {
        if !call.has("dim") {
            let x = to_sizes(call, x, &[Int::Known(-1)])?;
            let indices = to_sizes(call, indices, &[Int::Known(-1)])?;
            return gathered(call, x, indices, 0);
        }
        let axis = call.axis("dim", call.rank(x))?;
        if call.rank(indices) != call.rank(x) {
            refuse!("takes indices of rank {} for rank {}", call.rank(indices), call.rank(x));
        }
        let sizes = broadcast_sizes(call, &[x, indices])?;
        let (mut of_x, mut of_indices) = (sizes.clone(), sizes);
        (of_x[axis], of_indices[axis]) = (Int::Known(-1), Int::Known(-1));
        let x = expanded(call, x, &of_x)?;
        let indices = expanded(call, indices, &of_indices)?;
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
