//! Matrix products, including linear layers and convolutions.
//!
//! The right matrix is packed once for the instruction set ([`PackedWeights`]), or at each use if it is not
//! constant ([`multiply_batch`]). The left matrix is used in place, row by row. An [`Epilogue`] is applied to
//! results while they are in registers or in the cache.
//!
//! | module | contents |
//! |---|---|
//! | `tile` | the innermost loop, in registers |
//! | `attention` | products of queries, keys and values |
//! | `convolution` | the left matrix of a convolution |
//! | `dynamic` | right matrices that are not constant |
//! | `driver` | the loops around the tile, and their distribution over threads |
//! | `weights` | the right matrix in panels |
//! | `source` | sources of panels |
//! | `epilogue` | elementwise functions applied to results |

mod attention;
mod convolution;
mod driver;
mod dynamic;
pub(crate) mod epilogue;
pub(crate) mod source;
mod tile;
mod weights;

pub use attention::{AttentionShape, Heads, HeadsMut, Mask, WordHeads, WordVectors, attend};
pub use convolution::{IndirectionTable, Window, convolve};
pub use dynamic::{Batch, BatchMut, BatchShape, multiply_batch};
pub(crate) use epilogue::{Division, finish};
pub use epilogue::{Epilogue, Residual, Rounding};
pub use source::{DenseSource, Order};
pub(crate) use tile::unrolled;
pub use weights::{PackedWeights, PanelSource, Precision};

use crate::Pool;
use crate::shared::SharedPointer;

/// Rows of elements at a fixed stride.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// The elements, from the first one on.
    pub elements: &'a [f32],
    /// Distance between the starts of adjacent rows.
    pub stride: usize,
}

/// Rows of elements to write. Elements between rows are not changed.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    /// The elements, from the first one on.
    pub elements: &'a mut [f32],
    /// Distance between the starts of adjacent rows.
    pub stride: usize,
}

impl Matrix<'_> {
    pub(crate) fn check(&self, rows: usize, columns: usize) {
        check(self.elements.len(), self.stride, rows, columns);
    }
}

impl MatrixMut<'_> {
    pub(crate) fn check(&self, rows: usize, columns: usize) {
        assert!(rows <= 1 || self.stride >= columns, "the rows of a result overlap");
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
        "{rows} rows of {columns} elements with stride {stride} do not fit {length} elements"
    );
}

/// Multiplies rows by weights.
///
/// # Panics
/// Panics if a matrix has too few rows, or if the epilogue does not match the result.
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
    // SAFETY: all sizes were checked, and the output is borrowed mutably.
    #[expect(unsafe_code, reason = "the driver takes pointers; the extents are checked here")]
    unsafe {
        driver::run(Some(pool), rows, &left, weights, &output, epilogue);
    }
}

#[cfg(test)]
pub(crate) mod tests;
