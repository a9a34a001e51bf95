//! Views, permutations, slices and splits.

use crate::decompose::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    to("aten.view_copy.default", &["aten.view.default", "aten._unsafe_view"]),
    to("aten.permute_copy", &["aten.permute"]),
    to("aten.transpose_copy", &["aten.transpose"]),
    to("aten.t_copy", &["aten.t"]),
    to("aten.expand_copy", &["aten.expand"]),
    to("aten.unsqueeze_copy", &["aten.unsqueeze"]),
    to("aten.squeeze_copy", &["aten.squeeze.dims", "aten.squeeze.dim"]),
    to("aten.select_copy", &["aten.select"]),
    to("aten.slice_copy", &["aten.slice"]),
    to("aten.narrow_copy.default", &["aten.narrow.default"]),
    by(unbound, &["aten.unbind", "aten.unbind_copy"]),
    to("aten.diagonal_copy.default", &["aten.diagonal.default"]),
    to("aten.unfold_copy", &["aten.unfold"]),
    to("aten.as_strided_copy", &["aten.as_strided"]),
    to("aten.view_as_real_copy", &["aten.view_as_real"]),
    by(
        viewed,
        &[
            "aten.atleast_{1,2,3}d.default",
            "aten.{flatten,unflatten,ravel,view_as}",
            "aten.{reshape,reshape_as,_reshape_alias}",
            "aten.squeeze{,_copy}.default",
        ],
    ),
    by(expanded, &["aten.expand_as", "aten.broadcast_to"]),
    by(broadcast_all, &["aten.broadcast_tensors"]),
    by(each_at_least, &["aten.atleast_{1,2,3}d.Sequence"]),
    by(turned, &["aten.mT", "aten.mH", "aten.adjoint"]),
    by(reversed, &["aten.numpy_T"]),
    by(moved, &["aten.movedim", "aten.moveaxis"]),
    by(|call| swapped(call, ["axis0", "axis1"]), &["aten.swapaxes"]),
    by(|call| swapped(call, ["dim0", "dim1"]), &["aten.swapdims"]),
    by(
        parts,
        &[
            "aten.{,unsafe_}chunk",
            "aten.{,unsafe_}split{,_with_sizes}",
            "aten.split{,_with_sizes}_copy",
            "aten.tensor_split.{sections,indices}",
            "aten.{h,v,d}split",
        ],
    ),
];

/// Reshapes to the result's sizes; the element order is unchanged.
fn viewed(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let sizes = call.result_sizes()?;
    if let Some(name) = ["shape", "size"].into_iter().find(|name| call.has(name))
        && sizes.iter().filter(|size| size.fixed().is_none()).count() > 1
        && let wanted @ Argument::List(_) = call.argument(name)?
    {
        // Uses the sizes that the model computes.
        return one(call.noted("aten.view_copy.default", given!(self = x, size = wanted))?);
    }
    one(call.view(&x, sizes)?)
}

fn expanded(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let sizes = call.result_sizes()?;
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
    all.iter().map(|tensor| call.expand(tensor, sizes.clone()).map(RewriteResult::Tensor)).collect()
}

/// `atleast_1d` to `atleast_3d` of several tensors.
fn each_at_least(call: &mut Call<'_>) -> Results {
    let axes = if call.name() == "atleast_1d" { 1 } else { 2 };
    let has_depth = call.name() == "atleast_3d";
    let all = call.tensors("tensors")?;
    let viewed = all.iter().map(|tensor| {
        let mut sizes = tensor.sizes.clone();
        while sizes.len() < axes {
            sizes.insert(0, Size::Fixed(1));
        }
        if has_depth && sizes.len() == axes {
            sizes.push(Size::Fixed(1));
        }
        call.view(tensor, sizes).map(RewriteResult::Tensor)
    });
    viewed.collect()
}

fn turned(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    if is_complex(x.dtype) && call.name() != "mT" {
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
    let from = call.positions("source", x.rank())?;
    let to = call.positions("destination", x.rank())?;
    let mut order: Vec<Option<usize>> = vec![None; x.rank()];
    for (from, to) in from.iter().zip(&to) {
        *order.at_mut(*to)? = Some(*from);
    }
    let mut rest = (0..x.rank()).filter(|at| !from.contains(at));
    let order: Option<Vec<usize>> =
        order.into_iter().map(|at| at.or_else(|| rest.next())).collect();
    let Some(order) = order else { refuse!("the dimensions must be different") };
    one(call.permute(&x, &order)?)
}

fn swapped(call: &mut Call<'_>, names: [&str; 2]) -> Results {
    let x = call.tensor("self")?;
    let [first, second] = names.map(|name| call.dimension(name, x.rank()));
    let (first, second) = (first?, second?);
    one(if x.rank() == 0 { x } else { call.transpose(&x, first, second)? })
}

/// Splits a dimension into parts with the sizes of the results.
fn parts(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let at = match call.name() {
        "hsplit" => usize::from(x.rank() > 1),
        "vsplit" => 0,
        "dsplit" => 2,
        _ => call.dimension("dim", x.rank())?,
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
    // Kernels that return lists do not resize their outputs.
    if x.sizes.iter().chain(&lengths).any(|size| size.fixed().is_none()) {
        return runs(call, &x, at, &lengths);
    }
    Ok(in_parts(call, &x, at, &lengths)?.into_iter().map(RewriteResult::Tensor).collect())
}

/// Splits a dimension into parts of these lengths.
pub(crate) fn in_parts(
    call: &mut Call<'_>,
    x: &Tensor,
    at: usize,
    lengths: &[Size],
) -> Result<Vec<Tensor>> {
    let types = lengths.iter().map(|length| Ok((x.dtype, x.with_size(at, length.clone())?)));
    let types = types.collect::<Result<_>>()?;
    let wanted = call.sizes_argument(lengths)?;
    let given = given!(self = x, split_sizes = wanted, dim = at);
    call.emit_list("aten.split_with_sizes_copy.default", given, types)
}

/// Slices out each part.
fn runs(call: &mut Call<'_>, x: &Tensor, at: usize, lengths: &[Size]) -> Results {
    let mut start = Size::Fixed(0);
    let mut parts = Vec::with_capacity(lengths.len());
    for length in lengths {
        let end = size::add(&start, length);
        let places = (call.size_argument(&start)?, call.size_argument(&end)?);
        let part = call.run(x, at, places.0, places.1, length.clone())?;
        parts.push(RewriteResult::Tensor(part));
        start = end;
    }
    Ok(parts)
}

fn unbound(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let at = call.dimension("dim", x.rank())?;
    let operator = "aten.unbind_copy.int";
    if call.is_native(operator) && x.sizes.iter().all(|size| size.fixed().is_some()) {
        return call.renamed(operator);
    }
    let places = 0..x.known(at, "the number of parts")?;
    places
        .map(|at_place| call.select(&x, at, Argument::Int(at_place)).map(RewriteResult::Tensor))
        .collect()
}
