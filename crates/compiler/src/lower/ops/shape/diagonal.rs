//! Diagonals of matrices.
//!
//! With rows one after the other, the elements of a diagonal are one more than a row apart.

use coremill_mil::ir::{Constant, ValueId};
use coremill_tensor::DType;

use super::mapped;
use super::pad::padded_with;
use super::reshape::{put_back, to_sizes};
use super::slice::{Range, sliced};
use super::write::{both, full, replaced};
use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results, normalized};
use crate::lower::row::{Row, all, some};
use crate::lower::value::Int;

pub(super) const ROWS: &[Row] = &[
    some("aten.diagonal", &["default"], diagonal),
    all("aten.diagonal_copy", diagonal),
    all("aten.diag", diag),
    all("aten.diag_embed", diag_embed),
    all("aten.diagonal_scatter", diagonal_scatter),
];

/// Where a diagonal of a matrix lies among its elements in a row.
struct Diagonal {
    begin: i64,
    count: i64,
    step: i64,
}

impl Diagonal {
    /// The diagonal so many columns to the right of the main one.
    fn of(rows: i64, columns: i64, offset: i64) -> Result<Diagonal, Refusal> {
        let (down, right) = ((-offset).max(0), offset.max(0));
        let count = (rows - down).min(columns - right);
        if count < 1 {
            refuse!(
                "takes diagonal {offset} of {rows} × {columns} elements, which has none; Core ML has \
                 no tensors without elements"
            );
        }
        Ok(Diagonal { begin: down * columns + right, count, step: columns + 1 })
    }

    fn range(&self) -> Range {
        let end = self.begin + (self.count - 1) * self.step + 1;
        Range { begin: Int::Known(self.begin), end: Some(Int::Known(end)), step: self.step }
    }
}

/// The tensor with two axes moved to its end and made one, how it was ordered, and where the diagonal is.
fn in_rows(
    builder: &mut Builder,
    x: ValueId,
    offset: i64,
    axes: [i64; 2],
) -> Result<(ValueId, Vec<usize>, Diagonal), Refusal> {
    let rank = builder.rank(x);
    let (first, second) = (normalized(axes[0], rank)?, normalized(axes[1], rank)?);
    let extents = builder.extents(x);
    let (Some(Some(rows)), Some(Some(columns))) = (extents.get(first), extents.get(second)) else {
        refuse!("takes the diagonal of a matrix whose sizes are not known before the program runs");
    };
    let diagonal = Diagonal::of(*rows as i64, *columns as i64, offset)?;
    let mut order: Vec<_> = (0..rank).filter(|&axis| axis != first && axis != second).collect();
    let mut sizes = Vec::with_capacity(rank - 1);
    for &axis in &order {
        sizes.push(builder.dim(x, axis)?);
    }
    sizes.push(Int::Known((rows * columns) as i64));
    order.extend([first, second]);
    let x = builder.transpose(x, &order)?;
    Ok((to_sizes(builder, x, &sizes)?, order, diagonal))
}

fn diagonal(call: &mut Call<'_, '_>) -> Results {
    let offset = call.known_int("offset")?;
    let axes = [call.known_int("dim1")?, call.known_int("dim2")?];
    mapped(call, "self", |call, x| taken(call, x, offset, axes))
}

fn taken(
    builder: &mut Builder,
    x: ValueId,
    offset: i64,
    axes: [i64; 2],
) -> Result<ValueId, Refusal> {
    let (rows, _, diagonal) = in_rows(builder, x, offset, axes)?;
    let last = builder.rank(rows) - 1;
    sliced(builder, rows, last, diagonal.range())
}

fn diag(call: &mut Call<'_, '_>) -> Results {
    let offset = call.known_int("diagonal")?;
    mapped(call, "self", |call, x| match call.rank(x) {
        1 => embedded(call, x, offset),
        _ => taken(call, x, offset, [0, 1]),
    })
}

fn diag_embed(call: &mut Call<'_, '_>) -> Results {
    let offset = call.known_int("offset")?;
    mapped(call, "self", |call, x| {
        let rank = call.rank(x) + 1;
        let first = normalized(call.known_int("dim1")?, rank)?;
        let second = normalized(call.known_int("dim2")?, rank)?;
        let matrices = embedded(call, x, offset)?;
        let mut order: Vec<usize> = Vec::with_capacity(rank);
        let mut rest = 0..rank - 2;
        for axis in 0..rank {
            order.push(match axis {
                axis if axis == first => rank - 2,
                axis if axis == second => rank - 1,
                _ => rest.next().unwrap_or(0),
            });
        }
        call.transpose(matrices, &order)
    })
}

/// Matrices of zeros with the last axis on their diagonal.
fn embedded(builder: &mut Builder, x: ValueId, offset: i64) -> Result<ValueId, Refusal> {
    let last = builder.rank(x) - 1;
    let Some(count) = builder.extents(x)[last] else {
        refuse!("makes a matrix of a diagonal whose length is not known before the program runs");
    };
    let extent = count as i64 + offset.abs();
    let (down, right) = ((-offset).max(0), offset.max(0));
    // Each row holds its element everywhere, and keeps it on the diagonal only.
    let rows = padded_with(builder, x, &[(last, Int::Known(down), Int::Known(right))], 0.0)?;
    let rows = builder.expand_dims(rows, &[last as i32 + 1])?;
    let kept: Vec<u8> = (0..extent)
        .flat_map(|row| (0..extent).map(move |column| u8::from(column - row == offset)))
        .collect();
    let kept = Constant::bytes(DType::Bool, &[extent as u64; 2], kept);
    let kept = builder.constant(kept);
    let dtype = builder.dtype(x);
    // What is chosen from has the shape of the result: Core ML repeats the condition to it, and not it to the
    // condition.
    let zero = full(builder, &[Int::Known(extent); 2], dtype, 0.0)?;
    builder.select(kept, rows, zero)
}

fn diagonal_scatter(call: &mut Call<'_, '_>) -> Results {
    let (x, update) = both(call)?;
    let offset = call.known_int("offset")?;
    let axes = [call.known_int("dim1")?, call.known_int("dim2")?];
    let (rows, order, diagonal) = in_rows(call, x, offset, axes)?;
    let last = call.rank(rows) - 1;
    let written = replaced(call, rows, update, last, diagonal.range())?;
    let y = put_back(call, written, x, &order)?;
    call.give(y)
}
