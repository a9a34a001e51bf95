//! Sums of products as Core ML computes them on the CPU: each partial sum is a half-precision number.
//!
//! The measurements (1×1 convolutions of 64 channels, M4 and M6) show one accumulator that goes through the channels
//! in order. Whether long sums are split into several is not known.

use coremill_simd::vector::Vector;
use half::f16;

use super::panel::{Arithmetic, PackedPanel, WIDTH};

/// The arithmetic of a panel.
pub(super) struct HalfSums;

impl Arithmetic for HalfSums {
    type Panel = ();

    #[inline(always)]
    fn pack(value: f32, _: bool) -> [f32; 2] {
        [value, 0.0]
    }

    #[inline(always)]
    fn survey(_: &PackedPanel<'_, WIDTH>) {}

    #[inline(always)]
    fn sums<V: Vector, const ROWS: usize>(
        left: &PackedPanel<'_, ROWS>,
        right: &PackedPanel<'_, WIDTH>,
        (): &(),
        bias: &[[f32; WIDTH]; ROWS],
    ) -> [[f32; WIDTH]; ROWS] {
        let mut results = [[0.0; WIDTH]; ROWS];
        for first in (0..WIDTH).step_by(V::LANES) {
            let mut accumulators = [V::zero(); ROWS];
            for (left, right) in left.elements.iter().zip(right.elements) {
                // SAFETY: the lanes from `first` on are within the panel, whose width is a multiple of theirs.
                #[expect(unsafe_code, reason = "vectors are loaded from panels")]
                let right = unsafe { V::load(right[first..].as_ptr()) };
                for (accumulator, left) in accumulators.iter_mut().zip(left) {
                    // The product of two halves is exact in `f32`.
                    *accumulator = V::splat(*left).mul_add(right, *accumulator).round_to_f16();
                }
            }
            for (results, accumulator) in results.iter_mut().zip(accumulators) {
                // SAFETY: as above.
                #[expect(unsafe_code, reason = "vectors are stored to arrays")]
                unsafe {
                    accumulator.store(results[first..].as_mut_ptr());
                }
            }
        }
        for (result, bias) in results.as_flattened_mut().iter_mut().zip(bias.as_flattened()) {
            *result = f16::from_f32(*result + bias).to_f32();
        }
        results
    }
}
