//! Diagonals of matrices.
//!
//! With rows one after the other, the elements of a diagonal are one more than a row apart.

use coremill_mil::ir::ValueId;

use super::mapped;
use super::reshape::to_sizes;
use super::slice::{Range, sliced};
use crate::bounds::back;
use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results, normalized};
use crate::lower::row::{Row, all};
use crate::lower::value::Int;

pub(super) const ROWS: &[Row] = &[all("aten.diagonal_copy", diagonal)];

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
    let mut sizes = Vec::with_capacity(back(rank, 1)?);
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
    let last = back(builder.rank(rows), 1)?;
    sliced(builder, rows, last, diagonal.range())
}
