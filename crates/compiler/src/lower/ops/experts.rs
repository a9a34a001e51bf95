//! Products of rows with the matrices of the groups that they belong to, as mixtures of experts have them.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::linear::product;
use crate::error::{Refusal, refuse};
use crate::lower::builder::{Arg, Builder};
use crate::lower::call::{Call, Results};
use crate::lower::table::{Row, all};
use crate::lower::value::{Int, Lowered};

pub(crate) const ROWS: &[Row] =
    &[all("transformers.grouped_mm_fallback", of_transformers), all("aten._grouped_mm", of_torch)];

/// The operator of a library, whose schema is not at hand: rows, matrices and ends in this order.
fn of_transformers(call: &mut Call<'_, '_>) -> Results {
    let mut tensors = Vec::with_capacity(3);
    for argument in call.node.all_arguments() {
        match call.lowered(argument)? {
            Lowered::Tensor(tensor) => tensors.push(tensor.value),
            _ => refuse!("an argument is not a tensor"),
        }
    }
    match tensors.as_slice() {
        &[rows, matrices, ends] => grouped(call, rows, matrices, ends),
        other => refuse!("there are {} arguments; accepted are three", other.len()),
    }
}

fn of_torch(call: &mut Call<'_, '_>) -> Results {
    let rows = call.tensor("self")?.value;
    let matrices = call.tensor("mat2")?.value;
    let Some(ends) = call.optional_tensor("offs")? else {
        refuse!("`offs` is None; accepted are the ends of the groups");
    };
    if call.has("bias") {
        refuse!("`bias` is given, which is not lowered");
    }
    grouped(call, rows, matrices, ends.value)
}

/// Rows that are sorted by group, and where each group ends.
///
/// A row stands at its group's place in a long row of zeros; its product with all matrices one below the
/// other is that with the one of its group.
fn grouped(call: &mut Call<'_, '_>, x: ValueId, weight: ValueId, ends: ValueId) -> Results {
    if call.rank(x) != 2 || call.rank(weight) != 3 {
        refuse!(
            "the tensors have rank {} and {}; accepted are rows of rank 2 and matrices of rank 3",
            call.rank(x),
            call.rank(weight)
        );
    }
    let [groups, depth, columns] = [0, 1, 2].map(|axis| call.extents(weight)[axis]);
    let (Some(groups), Some(depth), Some(columns)) = (groups, depth, columns) else {
        refuse!("the sizes of the matrices are not known before the program runs");
    };
    let belongs = membership(call, x, ends)?;
    let row = call.expand_dims(x, &[1])?;
    let belongs = call.expand_dims(belongs, &[2])?;
    let placed = call.binary(OpKind::Mul, row, belongs)?;
    let long = call.reshape(placed, &[-1, (groups * depth) as i64].map(Int::Known))?;
    let tall = call.reshape(weight, &[(groups * depth) as i64, columns as i64].map(Int::Known))?;
    let y = product(call, long, tall, false, false)?;
    call.give(y)
}

/// A row of zeros for each row of a tensor, but for a one at its group; rows after the last group have none.
fn membership(builder: &mut Builder, x: ValueId, ends: ValueId) -> Result<ValueId, Refusal> {
    let ends = builder.cast(ends, DType::Int32)?;
    let rows = builder.dim(x, 0)?;
    let end = builder.int_value(rows)?;
    let places = builder
        .emit(OpKind::Range1d, [("end", end.into()), ("start", 0.into()), ("step", 1.into())])?;
    let places = builder.expand_dims(places, &[1])?;
    let zero = builder.int_constant(&[1], &[0]);
    let but_last = builder.emit(
        OpKind::SliceByIndex,
        [
            ("x", ends.into()),
            ("begin", [0].into()),
            ("end", [-1].into()),
            ("begin_mask", Arg::bools(&[true])),
        ],
    );
    // The first group starts at zero, each other one where the one before ends.
    let starts = match builder.extents(ends)[0] {
        Some(1) => zero,
        _ => builder.concat(&[zero, but_last?], 0)?,
    };
    let before_end = builder.binary(OpKind::Less, places, ends)?;
    let after_start = builder.binary(OpKind::GreaterEqual, places, starts)?;
    let belongs = builder.binary(OpKind::LogicalAnd, before_end, after_start)?;
    builder.cast(belongs, DType::Fp32)
}
