//! Matrix diagonals.
//!
//! In a flattened matrix, the elements of a diagonal are one row plus one element apart.

use crate::lower::prelude::*;

pub(super) const ROWS: &[Row] = &[tensor("aten.diagonal", diagonal)];

/// Range of the diagonal at `offset` in a flattened matrix. Positive offsets are right of the main diagonal.
fn range(rows: i64, columns: i64, offset: i64) -> Result<Range, crate::error::LoweringError> {
    let (down, right) = ((-offset).max(0), offset.max(0));
    let count = (rows - down).min(columns - right);
    if count < 1 {
        refuse!(
            "diagonal {offset} of {rows} × {columns} elements is empty; Core ML has \
             no tensors without elements"
        );
    }
    let (begin, step) = (down * columns + right, columns + 1);
    let end = begin + (count - 1) * step + 1;
    Ok(Range { begin: Int::Known(begin), end: Some(Int::Known(end)), step })
}

fn diagonal(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    let rank = call.rank(x);
    let (first, second) = (call.axis("dim1", rank)?, call.axis("dim2", rank)?);
    let extents = call.extents(x);
    let (Some(Some(rows)), Some(Some(columns))) = (extents.get(first), extents.get(second)) else {
        refuse!("the diagonal requires a matrix whose sizes are known before the program runs");
    };
    let range = range(*rows as i64, *columns as i64, call.known_int("offset")?)?;
    // Moves the two axes to the end and merges them.
    let mut order: Vec<_> = (0..rank).filter(|&axis| axis != first && axis != second).collect();
    let dims = call.dims(x)?;
    let mut sizes = Vec::with_capacity(rank);
    for &axis in &order {
        sizes.push(*dims.at(axis)?);
    }
    sizes.push(Int::Known((rows * columns) as i64));
    order.extend([first, second]);
    let x = call.transpose(x, &order)?;
    let lines = call.with_sizes(x, &sizes)?;
    call.sliced(lines, axis_from_end(sizes.len(), 1)?, range)
}
