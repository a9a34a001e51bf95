//! Products of matrices, and what is a product in disguise: linear layers and convolutions.
//!
//! The right matrix is packed once for the instruction set ([`PackedWeights`]), or at each use
//! where it is not constant
//! ([`multiply_batch`]). The left one is used where it lies, row by row. Results
//! pass through an [`Epilogue`] while they are in registers or in the cache.
//!
//! | module | holds |
//! |---|---|
//! | `tile` | the innermost loop, in registers |
//! | `attention` | products of queries, keys and values |
//! | `convolution` | the left matrix that a convolution sees |
//! | `dynamic` | right matrices that are not constant |
//! | `driver` | the loops around it, and how they are shared over threads |
//! | `weights` | the right matrix in panels |
//! | `source` | where panels come from |
//! | `epilogue` | what is done with results |

mod attention;
mod convolution;
mod driver;
mod dynamic;
pub(crate) mod epilogue;
pub(crate) mod source;
mod tile;
mod weights;

pub use attention::{AttentionShape, Heads, HeadsMut, Mask, attend};
pub use convolution::{IndirectionTable, Window, convolve};
pub use dynamic::{Batch, BatchMut, BatchShape, multiply_batch};
pub(crate) use epilogue::{Division, finish};
pub use epilogue::{Epilogue, Residual, Rounding};
pub use source::{DenseSource, Order};
pub use weights::{PackedWeights, PanelSource, Precision};

use crate::Pool;
use crate::shared::SharedPointer;

/// Rows of elements, each a stride behind the one before.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// The elements, from the first one.
    pub elements: &'a [f32],
    /// The elements from the start of a row to that of the next.
    pub stride: usize,
}

/// Rows of elements that are written. What lies between two rows is left alone.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    /// The elements, from the first one.
    pub elements: &'a mut [f32],
    /// The elements from the start of a row to that of the next.
    pub stride: usize,
}

impl Matrix<'_> {
    pub(crate) fn check(&self, rows: usize, columns: usize) {
        check(self.elements.len(), self.stride, rows, columns);
    }
}

impl MatrixMut<'_> {
    pub(crate) fn check(&self, rows: usize, columns: usize) {
        assert!(rows <= 1 || self.stride >= columns, "rows of a result do not overlap");
        check(self.elements.len(), self.stride, rows, columns);
    }
}

fn check(length: usize, stride: usize, rows: usize, columns: usize) {
    let needed = match rows {
        0 => Some(0),
        _ => stride.checked_mul(rows - 1).and_then(|start| start.checked_add(columns)),
    };
    assert!(
        needed.is_some_and(|needed| needed <= length),
        "{rows} rows of {columns} elements, each {stride} behind the other, do not fit {length}"
    );
}

/// Multiplies rows by weights.
///
/// # Panics
/// Where a matrix does not hold as many rows, or the epilogue does not fit the result.
pub fn multiply(
    pool: &Pool,
    rows: usize,
    left: Matrix,
    weights: &PackedWeights,
    output: MatrixMut,
    epilogue: &Epilogue,
) {
    left.check(rows, weights.inputs());
    output.check(rows, weights.outputs());
    epilogue.check(rows, weights.outputs());
    let left = driver::Dense {
        start: left.elements.as_ptr(),
        stride: left.stride,
        depth: weights.inputs(),
    };
    let output = driver::Output {
        start: SharedPointer(output.elements.as_mut_ptr()),
        stride: output.stride,
    };
    // SAFETY: all extents have been checked, and the output is borrowed for writing.
    #[expect(unsafe_code, reason = "the driver takes pointers whose extents are checked here")]
    unsafe {
        driver::run(Some(pool), rows, &left, weights, &output, epilogue);
    }
}

#[cfg(test)]
pub(crate) mod tests;
