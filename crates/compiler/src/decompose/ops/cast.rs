//! Element types, copies, and what does nothing here.

use coremill_pt2::{Argument, ScalarType};

use crate::decompose::call::{Call, Results, one};
use crate::decompose::row::{Row, by};
use crate::decompose::words::list;
use crate::error::{Refusal, refuse};

pub(crate) const ROWS: &[Row] = &[
    by(
        converted,
        &[
            "aten._to_copy.default",
            "aten.to.dtype",
            "aten.to.dtype_layout",
            "aten.to.device",
            "aten.to.other",
            "aten.to.prim_Device",
            "aten.to.prim_dtype",
            "aten.to.prim_other",
            "aten.type_as.default",
            "aten._autocast_to_full_precision.default",
            "aten._autocast_to_reduced_precision.default",
            "prims.convert_element_type.default",
            "dim_order_ops._to_dim_order_copy.default",
        ],
    ),
    by(
        same,
        &[
            "aten.alias.default",
            "aten.contiguous.default",
            "aten.detach.default",
            "aten.lift.default",
            "aten.lift_fresh.default",
            "aten.resolve_conj.default",
            "aten.resolve_neg.default",
            "aten.positive.default",
            "aten.dropout.default",
            "aten.feature_dropout.default",
            "aten.alpha_dropout.default",
            "aten.feature_alpha_dropout.default",
            "aten._conj.default",
            "aten.real.default",
            "aten.conj.default",
            "aten.conj_physical.default",
        ],
    ),
    by(
        copied,
        &[
            "aten.clone.default",
            "aten.alias_copy.default",
            "aten.detach_copy.default",
            "aten.lift_fresh_copy.default",
            "dim_order_ops._clone_dim_order.default",
        ],
    ),
    by(
        empty,
        &[
            "aten.empty.memory_format",
            "dim_order_ops._empty_dim_order.default",
            "aten.new_empty.default",
            "aten.empty_like.default",
            "aten.empty_strided.default",
            "aten.new_empty_strided.default",
            "aten.empty_permuted.default",
        ],
    ),
];

/// The result's type tells which.
fn converted(call: &mut Call<'_>) -> Results {
    let first = if call.has("self") { "self" } else { "a" };
    let x = call.tensor(first)?;
    let dtype = call.result(0)?.dtype;
    one(call.cast(&x, dtype)?)
}

/// What does nothing to real numbers where no gradients are kept.
fn same(call: &mut Call<'_>) -> Results {
    let name = if call.has("self") { "self" } else { "input" };
    let x = call.tensor(name)?;
    let conjugates = ["conj", "_conj", "conj_physical", "real"];
    let operator = call.node.target.to_string();
    let changes = conjugates.iter().any(|name| operator == format!("aten.{name}.default"));
    if changes && crate::decompose::dtype::is_complex(x.dtype) {
        refuse!("`{operator}` of complex numbers has no kernel");
    }
    if call.bool("train")? && call.float("p")? != 0.0 {
        return Err(Refusal::new("dropout drops at random while training")
            .hint("export the model after `eval()`"));
    }
    one(x)
}

fn copied(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let given = [("self", x.argument()), ("dim_order", list(0..x.rank() as i64))];
    let operator = "dim_order_ops._clone_dim_order.default";
    one(call.emit(operator, &given, x.dtype, x.sizes.clone())?)
}

/// Nobody knows what is in it.
fn empty(call: &mut Call<'_>) -> Results {
    let noted = call.result(0)?;
    let (dtype, sizes): (ScalarType, _) = (noted.dtype, noted.sizes.clone());
    let wanted = call.sizes_argument(&sizes)?;
    let given = [
        ("size", wanted),
        ("dtype", Argument::ScalarType(dtype)),
        ("dim_order", list(0..sizes.len() as i64)),
    ];
    one(call.emit("dim_order_ops._empty_dim_order.default", &given, dtype, sizes)?)
}
