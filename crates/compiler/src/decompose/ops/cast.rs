//! Casts, copies, and operators without effect at inference.

use crate::decompose::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    by(
        converted,
        &[
            "aten._to_copy",
            "aten.to",
            "aten.type_as",
            "aten._autocast_to_{full,reduced}_precision",
            "prims.convert_element_type",
            "dim_order_ops._to_dim_order_copy",
        ],
    ),
    by(
        same,
        &[
            "aten.{alias,contiguous,detach,positive}",
            "aten.lift{,_fresh}",
            "aten.resolve_{conj,neg}",
            "aten.{,feature_}{,alpha_}dropout",
            "aten.{_conj,conj,conj_physical,real}",
        ],
    ),
    by(
        copied,
        &["aten.clone", "aten.{alias,detach,lift_fresh}_copy", "dim_order_ops._clone_dim_order"],
    ),
    by(
        empty,
        &[
            "aten.empty.memory_format",
            "dim_order_ops._empty_dim_order",
            "aten.new_empty",
            "aten.empty_{like,strided,permuted}",
            "aten.new_empty_strided",
        ],
    ),
];

/// Casts to the type of the result.
fn converted(call: &mut Call<'_>) -> Results {
    one(call.typed(if call.has("self") { "self" } else { "a" })?)
}

/// Operators that are the identity on real numbers at inference.
fn same(call: &mut Call<'_>) -> Results {
    let name = if call.has("self") { "self" } else { "input" };
    let x = call.tensor(name)?;
    let operator = call.name();
    if matches!(operator, "conj" | "_conj" | "conj_physical" | "real") && is_complex(x.dtype) {
        refuse!("`aten.{operator}` of complex numbers has no kernel");
    }
    if call.bool("train")? && call.float("p")? != 0.0 {
        return Err(LoweringError::new("dropout is random in training mode")
            .hint("export the model after `eval()`"));
    }
    one(x)
}

fn copied(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let order: Vec<usize> = (0..x.rank()).collect();
    let given = given!(self = x, dim_order = order);
    one(call.like(&x, "dim_order_ops._clone_dim_order.default", given)?)
}

/// The contents are undefined.
fn empty(call: &mut Call<'_>) -> Results {
    let (dtype, sizes) = call.result_type()?;
    let wanted = call.sizes_argument(&sizes)?;
    let order: Vec<usize> = (0..sizes.len()).collect();
    let given = given!(size = wanted, dtype = dtype, dim_order = order);
    one(call.noted("dim_order_ops._empty_dim_order.default", given)?)
}
