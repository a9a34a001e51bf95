//! Arithmetic of Apple's devices, from published measurements.
//!
//! | module | holds |
//! |---|---|
//! | [`number`] | how the Neural Engine reads and rounds half-precision numbers |
//! | [`fixed`] | its sums of products: fixed point with 16 fractional bits |
//! | [`half_sums`] | sums of products of Core ML on the CPU: half precision |
//! | [`table`] | the Neural Engine's functions: tables of 33 points with linear interpolation |
//!
//! The source of the rules is the study 751K/Apple-Neural-Engine-Microarchitecture-Study-M6 (M4 and M6, macOS 27.0.1,
//! October 2026); `docs/numerics.md` states them. All values are kept as `f32`, each of which a half-precision number
//! holds exactly.

mod bias;
pub mod fixed;
pub mod half_sums;
pub mod number;
mod panel;
pub mod table;

pub use bias::Bias;
use coremill_simd::Isa;

use crate::product::{Extents, StridedMatrix};
use crate::{Numerics, Pool};

/// Writes the product of two matrices plus a bias to a dense row-major matrix, in the arithmetic of a device.
///
/// # Panics
/// If `numerics` is not a device's, or a matrix has fewer elements than its extents.
pub fn multiply(
    numerics: Numerics,
    (pool, isa): (&Pool, Isa),
    product: &mut [f32],
    extents: Extents,
    factors: [StridedMatrix<'_>; 2],
    bias: Bias<'_>,
) {
    let Extents { rows, depth, columns } = extents;
    assert!(product.len() >= rows * columns, "the product has too few elements");
    let product = &mut product[..rows * columns];
    let [left, right] = factors;
    // Panels are of columns: a narrow product is computed transposed.
    if columns < panel::WIDTH / 2 && rows > columns {
        let extents = Extents { rows: columns, depth, columns: rows };
        let mut transposed = vec![0.0; product.len()];
        let factors = [right.transposed(), left.transposed()];
        by_tiles(numerics, (pool, isa), &mut transposed, extents, factors, bias.transposed());
        for (row, to) in product.chunks_exact_mut(columns.max(1)).enumerate() {
            for (column, to) in to.iter_mut().enumerate() {
                *to = transposed[column * rows + row];
            }
        }
        return;
    }
    by_tiles(numerics, (pool, isa), product, extents, factors, bias);
}

fn by_tiles(
    numerics: Numerics,
    machine: (&Pool, Isa),
    product: &mut [f32],
    extents: Extents,
    factors: [StridedMatrix<'_>; 2],
    bias: Bias<'_>,
) {
    match numerics {
        Numerics::Ane => panel::run::<fixed::FixedPoint>(machine, product, extents, factors, bias),
        Numerics::CoremlCpu => {
            panel::run::<half_sums::HalfSums>(machine, product, extents, factors, bias);
        }
        Numerics::Fast | Numerics::Rounded => {
            panic!("`{numerics}` is not the arithmetic of a device")
        }
    }
}

#[cfg(test)]
mod tests;
