//! The same elements under other sizes, in another order, or fewer of them.

use coremill_pt2::{Argument, Size};

use crate::bounds::At;
use crate::decompose::call::{Call, Made, Results, Tensor, one, position};
use crate::decompose::row::{Row, by, to};
use crate::decompose::size;
use crate::error::refuse;

pub(crate) const ROWS: &[Row] = &[
    to("aten.view_copy.default", &["aten.view.default", "aten._unsafe_view.default"]),
    to("aten.permute_copy.default", &["aten.permute.default"]),
    to("aten.transpose_copy.int", &["aten.transpose.int"]),
    to("aten.t_copy.default", &["aten.t.default"]),
    to("aten.expand_copy.default", &["aten.expand.default"]),
    to("aten.unsqueeze_copy.default", &["aten.unsqueeze.default"]),
    to("aten.squeeze_copy.dims", &["aten.squeeze.dims"]),
    to("aten.squeeze_copy.dim", &["aten.squeeze.dim"]),
    to("aten.select_copy.int", &["aten.select.int"]),
    to("aten.slice_copy.Tensor", &["aten.slice.Tensor"]),
    to("aten.narrow_copy.default", &["aten.narrow.default"]),
    by(unbound, &["aten.unbind.int", "aten.unbind_copy.int"]),
    to("aten.diagonal_copy.default", &["aten.diagonal.default"]),
    to("aten.unfold_copy.default", &["aten.unfold.default"]),
    to("aten.as_strided_copy.default", &["aten.as_strided.default"]),
    to("aten.view_as_real_copy.default", &["aten.view_as_real.default"]),
    by(
        viewed,
        &[
            "aten.atleast_1d.default",
            "aten.atleast_2d.default",
            "aten.atleast_3d.default",
            "aten.flatten.using_ints",
            "aten.ravel.default",
            "aten.reshape.default",
            "aten.reshape_as.default",
            "aten._reshape_alias.default",
            "aten.squeeze.default",
            "aten.unflatten.int",
            "aten.view_as.default",
            "aten.squeeze_copy.default",
        ],
    ),
    by(expanded, &["aten.expand_as.default", "aten.broadcast_to.default"]),
    by(broadcast_all, &["aten.broadcast_tensors.default"]),
    by(turned, &["aten.mT.default", "aten.mH.default", "aten.adjoint.default"]),
    by(reversed, &["aten.numpy_T.default"]),
    by(
        moved,
        &["aten.movedim.intlist", "aten.movedim.int", "aten.moveaxis.intlist", "aten.moveaxis.int"],
    ),
    by(swapped, &["aten.swapaxes.default", "aten.swapdims.default"]),
    by(
        in_parts,
        &[
            "aten.chunk.default",
            "aten.split.Tensor",
            "aten.unsafe_split.Tensor",
            "aten.split_copy.Tensor",
            "aten.split_with_sizes.default",
            "aten.unsafe_split_with_sizes.default",
            "aten.split_with_sizes_copy.default",
            "aten.split.sizes",
            "aten.tensor_split.sections",
            "aten.tensor_split.indices",
            "aten.hsplit.int",
            "aten.hsplit.array",
            "aten.vsplit.int",
            "aten.vsplit.array",
            "aten.dsplit.int",
            "aten.dsplit.array",
            "aten.unsafe_chunk.default",
        ],
    ),
];

/// The elements keep their order; the result's sizes tell the rest.
fn viewed(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let sizes = call.result(0)?.sizes.clone();
    let given = ["shape", "size"].into_iter().find(|name| call.has(name));
    if let Some(name) = given
        && sizes.iter().filter(|size| size.fixed().is_none()).count() > 1
        && matches!(call.argument(name)?, Argument::List(_))
    {
        // As the model computes them.
        let wanted = call.argument(name)?.clone();
        let given = [("self", x.argument()), ("size", wanted)];
        return one(call.emit("aten.view_copy.default", &given, x.dtype, sizes)?);
    }
    one(call.view(&x, sizes)?)
}

fn expanded(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let sizes = call.result(0)?.sizes.clone();
    one(call.expand(&x, sizes)?)
}

fn broadcast_all(call: &mut Call<'_>) -> Results {
    let all = call.tensors("tensors")?;
    let mut sizes = Vec::new();
    for tensor in &all {
        let Some(both) = size::broadcast(&sizes, &tensor.sizes) else {
            refuse!("the tensors do not broadcast");
        };
        sizes = both;
    }
    let mut results = Vec::with_capacity(all.len());
    for tensor in &all {
        results.push(Made::Tensor(call.expand(tensor, sizes.clone())?));
    }
    Ok(results)
}

fn turned(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    if crate::decompose::dtype::is_complex(x.dtype) && !call.node.target.is("aten", "mT", "default")
    {
        refuse!("conjugates of complex numbers have no kernel");
    }
    one(call.turned(&x)?)
}

fn reversed(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let order: Vec<_> = (0..x.rank()).rev().collect();
    one(call.permute(&x, &order)?)
}

fn moved(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let positions = |name: &str| -> Result<Vec<usize>, crate::error::Refusal> {
        call.ints(name)?.into_iter().map(|one| position(one, x.rank())).collect()
    };
    let (from, to) = (positions("source")?, positions("destination")?);
    let mut order: Vec<Option<usize>> = vec![None; x.rank()];
    for (from, to) in from.iter().zip(&to) {
        *order.at_mut(*to)? = Some(*from);
    }
    let mut rest = (0..x.rank()).filter(|at| !from.contains(at));
    let order: Option<Vec<usize>> =
        order.into_iter().map(|at| at.or_else(|| rest.next())).collect();
    let Some(order) = order else { refuse!("the dimensions are not different ones") };
    one(call.permute(&x, &order)?)
}

fn swapped(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let names = if call.has("axis0") { ["axis0", "axis1"] } else { ["dim0", "dim1"] };
    let first = x.dimension(call.int(names[0])?)?;
    let second = x.dimension(call.int(names[1])?)?;
    one(if x.rank() == 0 { x } else { call.transpose(&x, first, second)? })
}

/// Parts of a dimension one after the other, whose sizes the results tell.
fn in_parts(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let name = call.node.target.to_string();
    let at = match name.split('.').nth(1) {
        Some("hsplit") => usize::from(x.rank() > 1),
        Some("vsplit") => 0,
        Some("dsplit") => 2,
        _ => x.dimension(call.int("dim")?)?,
    };
    let count = call.node.results().count();
    let mut lengths = Vec::with_capacity(count);
    for index in 0..count {
        let sizes = &call.result(index)?.sizes;
        let Some(length) = sizes.get(at).filter(|_| at < x.rank()) else {
            refuse!("dimension {at} is out of range for a part of rank {}", sizes.len());
        };
        lengths.push(length.clone());
    }
    // Kernels that give lists do not resize what they give.
    if x.sizes.iter().chain(&lengths).any(|size| size.fixed().is_none()) {
        return runs(call, &x, at, &lengths);
    }
    let mut types = Vec::with_capacity(lengths.len());
    for length in &lengths {
        let mut sizes = x.sizes.clone();
        *sizes.at_mut(at)? = length.clone();
        types.push((x.dtype, sizes));
    }
    let wanted = call.sizes_argument(&lengths)?;
    let given =
        [("self", x.argument()), ("split_sizes", wanted), ("dim", Argument::Int(at as i64))];
    let parts = call.emit_list("aten.split_with_sizes_copy.default", &given, types)?;
    Ok(parts.into_iter().map(Made::Tensor).collect())
}

/// Each part for itself.
fn runs(call: &mut Call<'_>, x: &Tensor, at: usize, lengths: &[Size]) -> Results {
    let mut start = Size::Fixed(0);
    let mut parts = Vec::with_capacity(lengths.len());
    for length in lengths {
        let end = size::add(&start, length);
        let mut sizes = x.sizes.clone();
        *sizes.at_mut(at)? = length.clone();
        let given = [
            ("self", x.argument()),
            ("dim", Argument::Int(at as i64)),
            ("start", call.size_argument(&start)?),
            ("end", call.size_argument(&end)?),
        ];
        let part = call.emit("aten.slice_copy.Tensor", &given, x.dtype, sizes)?;
        parts.push(Made::Tensor(part));
        start = end;
    }
    Ok(parts)
}

fn unbound(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let at = x.dimension(call.int("dim")?)?;
    let operator = "aten.unbind_copy.int";
    if call.is_native(operator) && x.sizes.iter().all(|size| size.fixed().is_some()) {
        return call.renamed(operator);
    }
    let Some(count) = x.extent(at)?.fixed() else {
        refuse!("the number of parts is unknown at compile time");
    };
    let mut parts = Vec::new();
    for index in 0..count {
        parts.push(Made::Tensor(call.select(&x, at, Argument::Int(index))?));
    }
    Ok(parts)
}
