//! Inverses, determinants and powers of small matrices.
//!
//! Core ML has nothing for them. The elimination of Gauss and Jordan is written out, a few operations for each
//! column, with the largest element of a column brought to its place before it is divided by.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::linear::product;
use super::shape::{expanded, to_sizes};
use crate::bounds::{At, back};
use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results};
use crate::lower::row::{Row, all, some};
use crate::lower::value::{Int, Lowered};

pub(crate) const ROWS: &[Row] = &[
    all("aten.inverse", only_inverse),
    all("aten.linalg_inv", only_inverse),
    some("aten.linalg_inv_ex", &["default"], inverse_and_info),
    all("aten.det", determinant),
    all("aten.linalg_det", determinant),
    some("aten._linalg_det", &["default"], determinant),
    some("aten.linalg_solve", &["default"], solution),
    all("aten.linalg_matrix_power", power),
    all("aten.matrix_power", power),
];

/// The elimination works on as many axes at most.
const MAX_RANK: usize = 4;

/// Larger matrices would make programs of thousands of operations.
const MAX_EXTENT: i64 = 32;

/// What elimination gives.
struct Eliminated {
    /// The inverse times what stood beside the matrix.
    beside: ValueId,
    /// One for each matrix.
    determinant: ValueId,
}

/// The extent of square matrices.
fn square_extent(builder: &Builder, x: ValueId, name: &str) -> Result<i64, Refusal> {
    let extents = builder.extents(x);
    match extents.as_slice() {
        [.., Some(rows), Some(columns)] if rows == columns => {
            let extent = *rows as i64;
            if extent > MAX_EXTENT {
                refuse!("`{name}` has {extent} rows; accepted are {MAX_EXTENT} at most");
            }
            Ok(extent)
        }
        _ => refuse!("`{name}` is lowered for square matrices of fixed size"),
    }
}

fn identity(builder: &mut Builder, extent: i64) -> ValueId {
    let elements: Vec<f32> =
        (0..extent * extent).map(|at| f32::from(u8::from(at % (extent + 1) == 0))).collect();
    builder.float_constant(&[extent as u64; 2], &elements)
}

/// A row of zeros but for a one.
fn unit(builder: &mut Builder, extent: i64, at: i64) -> ValueId {
    let elements: Vec<f32> = (0..extent).map(|place| f32::from(u8::from(place == at))).collect();
    builder.float_constant(&[1, extent as u64], &elements)
}

/// Brings a matrix to the identity, and what stands beside it along.
fn eliminate(
    builder: &mut Builder,
    x: ValueId,
    beside: ValueId,
    extent: i64,
) -> Result<Eliminated, Refusal> {
    let rank = builder.rank(x);
    if rank > MAX_RANK {
        // Batches of batches are one.
        let dims = builder.dims(x)?;
        let mut beside_dims = builder.dims(beside)?;
        let columns = *beside_dims.at(back(rank, 1)?)?;
        let side = Int::Known(extent);
        let flat = builder.reshape(x, &[Int::Known(-1), side, side])?;
        for (beside, own) in beside_dims.iter_mut().zip(dims.part(..back(rank, 2)?)?) {
            *beside = *own;
        }
        let beside = expanded(builder, beside, &beside_dims)?;
        let beside = builder.reshape(beside, &[Int::Known(-1), side, columns])?;
        let eliminated = eliminate(builder, flat, beside, extent)?;
        return Ok(Eliminated {
            beside: to_sizes(builder, eliminated.beside, &beside_dims)?,
            determinant: to_sizes(builder, eliminated.determinant, dims.part(..back(rank, 2)?)?)?,
        });
    }
    let (rows, columns) = (back(rank, 2)?, back(rank, 1)?);
    let mut work = builder.concat(&[x, beside], columns)?;
    let mut determinant = None;
    let numbers: Vec<i32> = (0..extent as i32).collect();
    for at in 0..extent {
        // The largest of the column from this row on.
        let column = builder.slice(work, columns, at, Some(at + 1))?;
        let sizes = builder.unary(OpKind::Abs, column)?;
        let allowed: Vec<f32> = (0..extent).map(|row| if row < at { -1.0 } else { 0.0 }).collect();
        let allowed = builder.float_constant(&[extent as u64, 1], &allowed);
        let later: Vec<f32> = (0..extent).map(|row| if row < at { 0.0 } else { 1.0 }).collect();
        let later = builder.float_constant(&[extent as u64, 1], &later);
        let sizes = builder.binary(OpKind::Mul, sizes, later)?;
        let sizes = builder.binary(OpKind::Add, sizes, allowed)?;
        let largest = builder.emit(
            OpKind::ReduceArgmax,
            [("x", sizes.into()), ("axis", (rows as i32).into()), ("keep_dims", true.into())],
        )?;
        let numbers = builder.int_constant(&[1, extent as u64], &numbers);
        let is_largest = builder.binary(OpKind::Equal, largest, numbers)?;
        let is_largest = builder.cast(is_largest, DType::Fp32)?;
        let pivot = builder.emit(OpKind::Matmul, [("x", is_largest.into()), ("y", work.into())])?;
        let own = builder.slice(work, rows, at, Some(at + 1))?;
        let value = builder.slice(pivot, columns, at, Some(at + 1))?;
        // The row that was largest takes this one's place: x + (a - b)ᵀ (row - pivot).
        let here = unit(builder, extent, at);
        let exchange = builder.binary(OpKind::Sub, is_largest, here)?;
        let difference = builder.binary(OpKind::Sub, own, pivot)?;
        let moved = builder.emit(
            OpKind::Matmul,
            [("x", exchange.into()), ("y", difference.into()), ("transpose_x", true.into())],
        )?;
        let exchanged = builder.binary(OpKind::Add, work, moved)?;
        // Each other row less as much of the pivot's as clears the column; the pivot's divided.
        let scaled = builder.binary(OpKind::RealDiv, pivot, value)?;
        let column = builder.slice(exchanged, columns, at, Some(at + 1))?;
        let here = unit(builder, extent, at);
        let here = builder.transpose(here, &[1, 0])?;
        let factors = builder.binary(OpKind::Sub, column, here)?;
        let products = builder.binary(OpKind::Mul, factors, scaled)?;
        work = builder.binary(OpKind::Sub, exchanged, products)?;

        // An exchange of two rows turns the sign: 1 where there was none, else -1.
        let kept = builder.slice(is_largest, columns, at, Some(at + 1))?;
        let twice = builder.scaled(kept, 2.0)?;
        let sign = builder.binary(OpKind::Sub, twice, 1.0f32)?;
        let factor = builder.binary(OpKind::Mul, value, sign)?;
        determinant = Some(match determinant {
            Some(determinant) => builder.binary(OpKind::Mul, determinant, factor)?,
            None => factor,
        });
    }
    let Some(determinant) = determinant else { refuse!("the matrices have no elements") };
    let determinant = builder.squeeze(determinant, &[rows as i32, columns as i32])?;
    Ok(Eliminated { beside: builder.slice(work, columns, extent, None)?, determinant })
}

/// The inverses of matrices.
fn inverse(builder: &mut Builder, x: ValueId, name: &str) -> Result<ValueId, Refusal> {
    let extent = square_extent(builder, x, name)?;
    let identity = identity(builder, extent);
    let beside = alongside(builder, x, identity)?;
    Ok(eliminate(builder, x, beside, extent)?.beside)
}

/// A matrix for each item of a batch.
fn alongside(builder: &mut Builder, x: ValueId, matrix: ValueId) -> Result<ValueId, Refusal> {
    if builder.rank(x) == builder.rank(matrix) {
        return Ok(matrix);
    }
    // Nothing times the batch, plus the matrix.
    let nothing = builder.scaled(x, 0.0)?;
    let nothing =
        builder.reduced(OpKind::ReduceSum, nothing, &[back(builder.rank(x), 1)?], true)?;
    builder.binary(OpKind::Add, nothing, matrix)
}

fn only_inverse(call: &mut Call<'_, '_>) -> Results {
    let name = if call.has("A") { "A" } else { "self" };
    let x = call.tensor(name)?.value;
    let y = inverse(call, x, name)?;
    call.give(y)
}

fn inverse_and_info(call: &mut Call<'_, '_>) -> Results {
    if call.is_used(1) {
        refuse!("whether the inverse exists is used, which is not lowered");
    }
    only_inverse(call)
}

fn determinant(call: &mut Call<'_, '_>) -> Results {
    let name = if call.has("A") { "A" } else { "self" };
    let x = call.tensor(name)?.value;
    if (1..call.node.outputs.len()).any(|index| call.is_used(index)) {
        refuse!("the factors of the matrix are used, which are not lowered");
    }
    let extent = square_extent(call, x, name)?;
    let rank = call.rank(x);
    let column = call.slice(x, back(rank, 1)?, 0, Some(1))?;
    let eliminated = eliminate(call, x, column, extent)?;
    call.give(eliminated.determinant)
}

fn solution(call: &mut Call<'_, '_>) -> Results {
    if call.has("left") && !call.flag("left")? {
        refuse!("`left` is False; accepted is True");
    }
    let (x, right) = (call.tensor("A")?.value, call.tensor("B")?.value);
    let extent = square_extent(call, x, "A")?;
    let vector = call.rank(right) + 1 == call.rank(x);
    let beside = if vector { call.expand_dims(right, &[-1])? } else { right };
    if call.rank(beside) != call.rank(x) {
        refuse!("`A` has rank {} and `B` {}", call.rank(x), call.rank(right));
    }
    let y = eliminate(call, x, beside, extent)?.beside;
    let y = if vector { call.squeeze(y, &[-1])? } else { y };
    call.give(y)
}

/// A power of matrices, by squares.
fn power(call: &mut Call<'_, '_>) -> Results {
    let name = if call.has("A") { "A" } else { "self" };
    let mut square = call.tensor(name)?.value;
    let mut exponent = call.known_int("n")?;
    if exponent == 0 {
        let extent = square_extent(call, square, name)?;
        let identity = identity(call, extent);
        let y = alongside(call, square, identity)?;
        return Ok(vec![Lowered::tensor(y, call.result_dtype()?)]);
    }
    if exponent < 0 {
        square = inverse(call, square, name)?;
        exponent = exponent.saturating_neg();
    }
    let mut power = None;
    loop {
        if exponent % 2 == 1 {
            power = Some(match power {
                Some(power) => product(call, power, square, false, false)?,
                None => square,
            });
        }
        exponent /= 2;
        if exponent == 0 {
            break;
        }
        square = product(call, square, square, false, false)?;
    }
    call.give(power.unwrap_or(square))
}
