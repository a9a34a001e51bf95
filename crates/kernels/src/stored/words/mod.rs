//! Products with stored integers in 16-bit arithmetic.
//!
//! Each 32 adjacent elements of a left row become signed 16-bit integers with a common scale. Products with the integers of
//! the weights and their sums over a block are exact; the sums are scaled in `f32`. The error of an element is at most 2⁻¹⁶ of
//! the largest one of its block, while half precision has 2⁻¹¹ of the element itself.

mod codes;
mod few;
mod left;
mod many;
mod row;

use super::format::QuantizedMatrix;
use crate::Pool;
use crate::matmul::{Epilogue, Matrix, MatrixMut};
use codes::Form;
use coremill_simd::Isa;
use coremill_simd::vector::MAX_LANES;

/// Number of elements of a left row with a common scale.
const BLOCK: usize = 32;

/// Maximum number of rows for which the weights are read row by row. For more rows, panels of weights are unpacked.
const FEW: usize = 4;

/// Maximum number of bytes of a step, the integers that are read at once.
const MAX_STEP: usize = 4 * MAX_LANES;

/// The bytes of a step from `start` on. If the data ends before, they are copied to `copy`, which has zeros after them.
#[inline(always)]
fn step_of<'a>(
    data: &'a [u8],
    start: usize,
    size: usize,
    copy: &'a mut [u8; MAX_STEP],
) -> &'a [u8] {
    if let Some(bytes) = data.get(start..start + size) {
        return bytes;
    }
    let rest = &data[start..];
    copy[..rest.len()].copy_from_slice(rest);
    &copy[..size]
}

impl QuantizedMatrix {
    /// Whether [`multiply_words`] supports the weights.
    pub fn has_words(&self) -> bool {
        Form::of(self).is_some()
    }
}

/// Multiplies rows by the transpose of stored integers, in 16-bit arithmetic. Each row of the weights results in one column.
///
/// # Panics
/// Panics if the weights are not supported, if a matrix has too few rows, or if the epilogue does not match the result.
pub fn multiply_words(
    pool: &Pool,
    isa: Isa,
    rows: usize,
    left: Matrix,
    weights: &QuantizedMatrix,
    output: MatrixMut,
    epilogue: &Epilogue,
) {
    let form = Form::of(weights);
    let Some(form) = form else {
        panic!("the weights must be stored as integers of 4, 6 or 8 bits")
    };
    let (outputs, inputs) = (weights.rows(), weights.columns());
    left.check(rows, inputs);
    output.check(rows, outputs);
    epilogue.check(rows, outputs);
    if rows == 0 || outputs == 0 || inputs == 0 {
        return;
    }
    let multiply = if rows <= FEW { few::multiply } else { many::multiply };
    multiply(pool, isa, rows, left, weights, form, output, epilogue);
}
