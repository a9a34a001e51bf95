//! Inverses, determinants and powers of small matrices.
//!
//! Core ML has no such operations. Gauss-Jordan elimination is unrolled to a few operations per column, with partial
//! pivoting.

use super::linear::product;
use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    tensor("aten.{inverse,linalg_inv}", only_inverse),
    tensor("aten.linalg_inv_ex", inverse_and_info).only(&["default"]),
    tensor("aten.{,linalg_}det", determinant),
    tensor("aten._linalg_det", determinant).only(&["default"]),
    tensor("aten.linalg_solve", solution).only(&["default"]),
    tensor("aten.{,linalg_}matrix_power", power),
];

/// Maximum rank of the elimination.
const MAX_RANK: usize = 4;

/// Larger matrices would unroll to thousands of operations.
const MAX_EXTENT: i64 = 32;

/// Result of an elimination.
struct EliminationResult {
    /// The inverse times the augmented columns.
    beside: ValueId,
    /// Determinant of each matrix.
    determinant: ValueId,
}

/// Static size of square matrices.
fn square_extent(builder: &Builder, x: ValueId, name: &str) -> Result<i64> {
    let extents = builder.extents(x);
    match extents.as_slice() {
        [.., Some(rows), Some(columns)] if rows == columns => {
            let extent = *rows as i64;
            if extent > MAX_EXTENT {
                refuse!("`{name}` must have at most {MAX_EXTENT} rows, got {extent}");
            }
            Ok(extent)
        }
        _ => refuse!("`{name}` must be a square matrix of fixed size"),
    }
}

/// A matrix with elements computed by `at`.
fn matrix(builder: &mut Builder, sizes: [i64; 2], at: impl Fn(i64, i64) -> f32) -> ValueId {
    let [rows, columns] = sizes;
    let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
    let elements: Vec<f32> = places.map(|(row, column)| at(row, column)).collect();
    builder.float_constant(&sizes.map(|extent| extent as u64), &elements)
}

fn identity(builder: &mut Builder, extent: i64) -> ValueId {
    matrix(builder, [extent; 2], |row, column| f32::from(u8::from(row == column)))
}

/// A unit row vector.
fn unit(builder: &mut Builder, extent: i64, at: i64) -> ValueId {
    matrix(builder, [1, extent], |_, column| f32::from(u8::from(column == at)))
}

/// Reduces a matrix to the identity, and applies the row operations to the augmented columns.
fn eliminate(
    builder: &mut Builder,
    x: ValueId,
    beside: ValueId,
    extent: i64,
) -> Result<EliminationResult> {
    let rank = builder.rank(x);
    if rank > MAX_RANK {
        // Merges batch axes.
        let dims = builder.dims(x)?;
        let mut beside_dims = builder.dims(beside)?;
        let columns = *beside_dims.at(axis_from_end(rank, 1)?)?;
        let side = Int::Known(extent);
        let flat = builder.reshape(x, &[Int::Known(-1), side, side])?;
        for (beside, own) in beside_dims.iter_mut().zip(dims.part(..axis_from_end(rank, 2)?)?) {
            *beside = *own;
        }
        let beside = builder.expanded(beside, &beside_dims)?;
        let beside = builder.reshape(beside, &[Int::Known(-1), side, columns])?;
        let eliminated = eliminate(builder, flat, beside, extent)?;
        return Ok(EliminationResult {
            beside: builder.with_sizes(eliminated.beside, &beside_dims)?,
            determinant: builder
                .with_sizes(eliminated.determinant, dims.part(..axis_from_end(rank, 2)?)?)?,
        });
    }
    let (rows, columns) = (axis_from_end(rank, 2)?, axis_from_end(rank, 1)?);
    let mut work = builder.concat(&[x, beside], columns)?;
    let mut determinant = None;
    let numbers: Vec<i32> = (0..extent as i32).collect();
    for at in 0..extent {
        // The largest element of the column from this row on.
        let column = builder.slice(work, columns, at, Some(at + 1))?;
        let allowed = matrix(builder, [extent, 1], |row, _| if row < at { -1.0 } else { 0.0 });
        let later = matrix(builder, [extent, 1], |row, _| if row < at { 0.0 } else { 1.0 });
        let sizes = calc!(builder, "abs(column) * later + allowed", column, later, allowed)?;
        let largest =
            emit!(builder, OpKind::ReduceArgmax, x = sizes, axis = rows as i32, keep_dims = true)?;
        let numbers = builder.int_constant(&[1, extent as u64], &numbers);
        let is_largest = calc!(builder, "float(largest == numbers)", largest, numbers)?;
        let pivot = emit!(builder, OpKind::Matmul, x = is_largest, y = work)?;
        let own = builder.slice(work, rows, at, Some(at + 1))?;
        let value = builder.slice(pivot, columns, at, Some(at + 1))?;
        // Swaps the pivot row with this row: x + (a - b)ᵀ (row - pivot).
        let here = unit(builder, extent, at);
        let exchange = builder.binary(OpKind::Sub, is_largest, here)?;
        let difference = builder.binary(OpKind::Sub, own, pivot)?;
        let moved =
            emit!(builder, OpKind::Matmul, x = exchange, y = difference, transpose_x = true)?;
        let exchanged = builder.binary(OpKind::Add, work, moved)?;
        // Divides the pivot row, and subtracts multiples of it from the other rows to clear the column.
        let scaled = builder.binary(OpKind::RealDiv, pivot, value)?;
        let column = builder.slice(exchanged, columns, at, Some(at + 1))?;
        let here = unit(builder, extent, at);
        let here = builder.transpose(here, &[1, 0])?;
        let formula = "exchanged - (column - here) * scaled";
        work = calc!(builder, formula, exchanged, column, here, scaled)?;

        // A row swap negates the determinant: 1 without a swap, else -1.
        let kept = builder.slice(is_largest, columns, at, Some(at + 1))?;
        let factor = calc!(builder, "value * (kept * 2.0 - 1.0)", value, kept)?;
        determinant = Some(match determinant {
            Some(determinant) => builder.binary(OpKind::Mul, determinant, factor)?,
            None => factor,
        });
    }
    let Some(determinant) = determinant else { refuse!("the matrices have no elements") };
    let determinant = builder.squeeze(determinant, &[rows as i32, columns as i32])?;
    Ok(EliminationResult { beside: builder.slice(work, columns, extent, None)?, determinant })
}

/// Inverts matrices.
fn inverse(builder: &mut Builder, x: ValueId, name: &str) -> ValueResult {
    let extent = square_extent(builder, x, name)?;
    let identity = identity(builder, extent);
    let beside = alongside(builder, x, identity)?;
    Ok(eliminate(builder, x, beside, extent)?.beside)
}

/// Broadcasts a matrix over the batch.
fn alongside(builder: &mut Builder, x: ValueId, matrix: ValueId) -> ValueResult {
    if builder.rank(x) == builder.rank(matrix) {
        return Ok(matrix);
    }
    // Zero times the batch, plus the matrix.
    let nothing = builder.scaled(x, 0.0)?;
    let nothing =
        builder.reduced(OpKind::ReduceSum, nothing, &[axis_from_end(builder.rank(x), 1)?], true)?;
    builder.binary(OpKind::Add, nothing, matrix)
}

/// The input matrices and the name of their argument.
fn operand(call: &mut Call<'_, '_>) -> Result<(ValueId, &'static str)> {
    let name = if call.has("A") { "A" } else { "self" };
    Ok((call.value(name)?, name))
}

fn only_inverse(call: &mut Call<'_, '_>) -> ValueResult {
    let (x, name) = operand(call)?;
    inverse(call, x, name)
}

fn inverse_and_info(call: &mut Call<'_, '_>) -> ValueResult {
    if call.is_used(1) {
        refuse!("the result that reports whether the inverse exists is not supported");
    }
    only_inverse(call)
}

fn determinant(call: &mut Call<'_, '_>) -> ValueResult {
    let (x, name) = operand(call)?;
    if (1..call.node.outputs.len()).any(|index| call.is_used(index)) {
        refuse!("the results that hold the factors of the matrix are not supported");
    }
    let extent = square_extent(call, x, name)?;
    let rank = call.rank(x);
    let column = call.slice(x, axis_from_end(rank, 1)?, 0, Some(1))?;
    let eliminated = eliminate(call, x, column, extent)?;
    Ok(eliminated.determinant)
}

fn solution(call: &mut Call<'_, '_>) -> ValueResult {
    if call.has("left") && !call.flag("left")? {
        refuse!("`left` must be True, got False");
    }
    let (x, right) = (call.value("A")?, call.value("B")?);
    let extent = square_extent(call, x, "A")?;
    let vector = call.rank(right) + 1 == call.rank(x);
    let beside = if vector { call.expand_dims(right, &[-1])? } else { right };
    if call.rank(beside) != call.rank(x) {
        refuse!("`A` has rank {} and `B` {}", call.rank(x), call.rank(right));
    }
    let y = eliminate(call, x, beside, extent)?.beside;
    if vector { call.squeeze(y, &[-1]) } else { Ok(y) }
}

/// Integer matrix power by repeated squaring.
fn power(call: &mut Call<'_, '_>) -> ValueResult {
    let (mut square, name) = operand(call)?;
    let mut exponent = call.known_int("n")?;
    if exponent == 0 {
        let extent = square_extent(call, square, name)?;
        let identity = identity(call, extent);
        return alongside(call, square, identity);
    }
    if exponent < 0 {
        square = inverse(call, square, name)?;
        exponent = exponent.saturating_neg();
    }
    let mut power = None;
    loop {
        if exponent % 2 == 1 {
            power = Some(match power {
                Some(power) => product(call, power, square, false)?,
                None => square,
            });
        }
        exponent /= 2;
        if exponent == 0 {
            break;
        }
        square = product(call, square, square, false)?;
    }
    Ok(power.unwrap_or(square))
}
