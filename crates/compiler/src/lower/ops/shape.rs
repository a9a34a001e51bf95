//! Other dimensions, the same elements.

use coremill_pt2::ScalarType;

use crate::lower::call::{Call, Results, normalized};
use crate::lower::table::{Row, all};
use crate::lower::value::{Int, Lowered};

pub(crate) const ROWS: &[Row] = &[
    all("aten.view", reshape),
    all("aten.reshape", reshape),
    all("aten.flatten", flatten),
    all("aten.transpose", transpose),
    all("aten.unsqueeze", unsqueeze),
    all("aten.sym_size", size),
];

fn reshape(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let sizes = call.int_list(if call.has("shape") { "shape" } else { "size" })?;
    let y = call.reshape(x, &sizes)?;
    call.give(y)
}

fn flatten(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let rank = call.rank(x);
    let (start, end) = (call.axis("start_dim", rank)?, call.axis("end_dim", rank)?);
    let mut sizes = Vec::new();
    for axis in (0..start).chain(end + 1..rank) {
        sizes.push(call.dim(x, axis)?);
    }
    sizes.insert(start.min(sizes.len()), Int::Known(-1));
    let y = call.reshape(x, &sizes)?;
    call.give(y)
}

fn transpose(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let rank = call.rank(x);
    let (a, b) = (call.axis("dim0", rank)?, call.axis("dim1", rank)?);
    let mut order: Vec<_> = (0..rank).collect();
    order.swap(a.min(rank.saturating_sub(1)), b.min(rank.saturating_sub(1)));
    let y = if rank == 0 { x } else { call.transpose(x, &order)? };
    call.give(y)
}

fn unsqueeze(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let at = normalized(call.known_int("dim")?, call.rank(x) + 1)? as i32;
    let y = call.expand_dims(x, &[at])?;
    call.give(y)
}

fn size(call: &mut Call<'_, '_>) -> Results {
    let x = call.any_tensor("self")?.value;
    let axis = call.axis("dim", call.rank(x))?;
    let _ = ScalarType::Int64;
    Ok(vec![Lowered::Int(call.dim(x, axis)?)])
}
