//! Rows of tables.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_pt2::ScalarType;
use coremill_tensor::DType;

use super::{gathered, summed};
use crate::error::{Refusal, refuse};
use crate::lower::call::{Call, Results};
use crate::lower::ops::shape::{Range, full, sliced};
use crate::lower::row::{Row, all, some};
use crate::lower::value::{Int, Lowered};

pub(super) const ROWS: &[Row] = &[
    all("aten.embedding", embedding),
    some("aten.embedding_bag", &["default", "padding_idx"], embedding_bag),
    some("aten._embedding_bag", &["default"], embedding_bag),
    some("aten._embedding_bag_forward_only", &["default"], embedding_bag),
];

/// What `padding_idx` names has no gradient, which is all that is special about it.
fn embedding(call: &mut Call<'_, '_>) -> Results {
    let table = call.tensor("weight")?.value;
    let indices = call.tensor("indices")?.value;
    let y = gathered(call, table, indices, 0)?;
    call.give(y)
}

/// Rows of a table summed, averaged or maximised in bags, each of which ends where the next begins.
fn embedding_bag(call: &mut Call<'_, '_>) -> Results {
    let table = call.tensor("weight")?.value;
    let indices = call.tensor("indices")?.value;
    let offsets = call.tensor("offsets")?.value;
    let scales = call.optional_tensor("per_sample_weights")?.map(|tensor| tensor.value);
    let offsets = if call.flag("include_last_offset")? {
        sliced(call, offsets, 0, Range::to(Int::Known(-1)))?
    } else {
        offsets
    };
    let padding = if call.has("padding_idx") { call.known_int("padding_idx")? } else { -1 };
    let members = members(call, indices, offsets, padding)?;
    let mut rows = gathered(call, table, indices, 0)?;
    if let Some(scales) = scales {
        let scales = call.expand_dims(scales, &[1])?;
        rows = call.binary(OpKind::Mul, rows, scales)?;
    }
    let y = match call.known_int("mode")? {
        mode @ (0 | 1) => {
            let weights = call.cast(members, DType::Fp32)?;
            let sums = call.emit(OpKind::Matmul, [("x", weights.into()), ("y", rows.into())])?;
            if mode == 0 {
                sums
            } else {
                let counts = call.emit(
                    OpKind::ReduceSum,
                    [("x", weights.into()), ("axes", [1].into()), ("keep_dims", true.into())],
                )?;
                let counts = call.binary(OpKind::Maximum, counts, 1.0f32)?;
                call.binary(OpKind::RealDiv, sums, counts)?
            }
        }
        2 => largest(call, rows, members)?,
        mode => refuse!("combines rows in mode {mode}, which is not known"),
    };
    // The other results are what the backward pass needs.
    Ok(vec![
        Lowered::tensor(y, ScalarType::Float32),
        Lowered::Nothing,
        Lowered::Nothing,
        Lowered::Nothing,
    ])
}

/// Which indices are in which bag: a row of `bool`s for each.
fn members(
    call: &mut Call<'_, '_>,
    indices: ValueId,
    offsets: ValueId,
    padding: i64,
) -> Result<ValueId, Refusal> {
    let (count, bags) = (call.dim(indices, 0)?, call.dim(offsets, 0)?);
    let places = range(call, count)?;
    let columns = call.expand_dims(places, &[0])?;
    let begins = call.expand_dims(offsets, &[1])?;
    let begun = call.binary(OpKind::GreaterEqual, columns, begins)?;
    let begun = call.cast(begun, DType::Int32)?;
    // As many bags have begun as offsets are not beyond the place; the last of them is the one.
    let bag = summed(call, begun, 0)?;
    let bag = call.binary(OpKind::Sub, bag, 1)?;
    let bag = call.expand_dims(bag, &[0])?;
    let numbers = range(call, bags)?;
    let numbers = call.expand_dims(numbers, &[1])?;
    let members = call.binary(OpKind::Equal, numbers, bag)?;
    if padding < 0 {
        return Ok(members);
    }
    let real = call.binary(OpKind::NotEqual, indices, padding as i32)?;
    let real = call.expand_dims(real, &[0])?;
    call.binary(OpKind::LogicalAnd, members, real)
}

fn range(call: &mut Call<'_, '_>, count: Int) -> Result<ValueId, Refusal> {
    let end = call.int_value(count)?;
    call.emit(OpKind::Range1d, [("end", end.into()), ("start", 0.into()), ("step", 1.into())])
}

/// The largest of each column of the rows in each bag; zero in a bag that is empty.
fn largest(call: &mut Call<'_, '_>, rows: ValueId, members: ValueId) -> Result<ValueId, Refusal> {
    let inside = call.expand_dims(members, &[2])?;
    let rows = call.expand_dims(rows, &[0])?;
    // What is chosen from has the shape of the result: Core ML repeats the condition to it, and not it to the
    // condition.
    let bags = call.dim(members, 0)?;
    let one = Int::Known(1);
    let nothing = full(call, &[bags, one, one], DType::Fp32, f64::NEG_INFINITY)?;
    let rows = call.select(inside, rows, nothing)?;
    let largest = call.emit(
        OpKind::ReduceMax,
        [("x", rows.into()), ("axes", [1].into()), ("keep_dims", false.into())],
    )?;
    let counts = call.cast(members, DType::Int32)?;
    let counts = summed(call, counts, 1)?;
    let empty = call.binary(OpKind::Equal, counts, 0)?;
    let empty = call.expand_dims(empty, &[1])?;
    let zero = full(call, &[], DType::Fp32, 0.0)?;
    call.select(empty, zero, largest)
}
