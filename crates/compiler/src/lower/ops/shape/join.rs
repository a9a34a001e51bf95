//! Tensors put together.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;

use super::pad::padded_with;
use super::reshape::filled_up;
use crate::error::{Refusal, refuse};
use crate::lower::builder::{Arg, Builder};
use crate::lower::call::{Call, Results, normalized};
use crate::lower::dtype::core_dtype;
use crate::lower::row::{Row, all};
use crate::lower::value::Int;

pub(super) const ROWS: &[Row] = &[
    all("aten.cat", concatenate),
    all("aten.concat", concatenate),
    all("aten.concatenate", concatenate),
    all("aten.stack", stack),
    all("aten.hstack", |call| stack_along(call, 1)),
    all("aten.vstack", |call| stack_along(call, 2)),
    all("aten.row_stack", |call| stack_along(call, 2)),
    all("aten.dstack", |call| stack_along(call, 3)),
    all("aten.column_stack", stack_columns),
    all("aten.block_diag", block_diagonal),
];

/// Tensors one after the other along an axis.
pub(crate) fn joined(
    builder: &mut Builder,
    parts: &[ValueId],
    axis: usize,
) -> Result<ValueId, Refusal> {
    if let [only] = parts {
        return Ok(*only);
    }
    builder.emit(
        OpKind::Concat,
        [
            ("values", Arg::from(parts)),
            ("axis", (axis as i32).into()),
            ("interleave", false.into()),
        ],
    )
}

/// Gives what a function makes of the call's tensors, in the type of the result.
fn put_together(
    call: &mut Call<'_, '_>,
    together: impl Fn(&mut Call<'_, '_>, Vec<ValueId>) -> Result<ValueId, Refusal>,
) -> Results {
    let core = core_dtype(call.result_dtype()?)?;
    let mut values = Vec::new();
    for tensor in call.tensors("tensors")? {
        values.push(call.cast(tensor.value, core)?);
    }
    if values.is_empty() {
        refuse!("`tensors` is empty");
    }
    let y = together(call, values)?;
    call.give(y)
}

fn concatenate(call: &mut Call<'_, '_>) -> Results {
    put_together(call, |call, mut values| {
        // Vectors without elements go with tensors of any rank, as torch has always had it.
        let empty = |call: &Call<'_, '_>, value: ValueId| call.extents(value).contains(&Some(0));
        values.retain(|&value| !empty(call, value));
        let Some(&first) = values.first() else {
            refuse!("joins tensors without elements, which Core ML has none of");
        };
        let axis = call.axis("dim", call.rank(first))?;
        joined(call, &values, axis)
    })
}

fn stack(call: &mut Call<'_, '_>) -> Results {
    put_together(call, |call, values| {
        let Some(&first) = values.first() else { refuse!("stacks no tensors") };
        let axis = normalized(call.known_int("dim")?, call.rank(first) + 1)? as i32;
        if let [only] = values[..] {
            return call.expand_dims(only, &[axis]);
        }
        call.emit(OpKind::Stack, [("values", Arg::from(&values[..])), ("axis", axis.into())])
    })
}

/// Joins along the first axis, the second or the third, tensors of a lower rank filled up as `atleast_1d` and
/// the like do.
fn stack_along(call: &mut Call<'_, '_>, rank: usize) -> Results {
    put_together(call, |call, values| {
        let mut filled = Vec::with_capacity(values.len());
        for value in values {
            filled.push(filled_up(call, value, rank)?);
        }
        let axis = match (rank, call.rank(filled[0])) {
            (1, 1) | (2, _) => 0,
            (1, _) => 1,
            _ => 2,
        };
        joined(call, &filled, axis)
    })
}

fn stack_columns(call: &mut Call<'_, '_>) -> Results {
    put_together(call, |call, values| {
        let mut columns = Vec::with_capacity(values.len());
        for value in values {
            columns.push(match call.rank(value) {
                0 => call.expand_dims(value, &[0, 1])?,
                1 => call.expand_dims(value, &[1])?,
                _ => value,
            });
        }
        joined(call, &columns, 1)
    })
}

/// Matrices along the diagonal of one that is zero elsewhere.
fn block_diagonal(call: &mut Call<'_, '_>) -> Results {
    put_together(call, |call, values| {
        let mut blocks = Vec::with_capacity(values.len());
        let mut width = Int::Known(0);
        for value in values {
            let block = match call.rank(value) {
                0 => call.expand_dims(value, &[0, 1])?,
                1 => call.expand_dims(value, &[0])?,
                _ => value,
            };
            let columns = call.dim(block, 1)?;
            width = call.add_ints(width, columns)?;
            blocks.push((block, columns));
        }
        let mut before = Int::Known(0);
        let mut rows = Vec::with_capacity(blocks.len());
        for (block, columns) in blocks {
            let end = call.add_ints(before, columns)?;
            let after = call.sub_ints(width, end)?;
            rows.push(padded_with(call, block, &[(1, before, after)], 0.0)?);
            before = end;
        }
        joined(call, &rows, 0)
    })
}
