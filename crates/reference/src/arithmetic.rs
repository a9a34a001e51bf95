//! Products and functions in the arithmetic of a run.
//!
//! Reference kernels define operations in fp32. For a device, they follow its measured rules:
//!
//! | numerics | fp16 products | other fp16 operations |
//! |---|---|---|
//! | fast, rounded | fp32 | fp32; rounded results, if the run rounds |
//! | ane | [`fixed`](coremill_kernels::device::fixed) point | operands read and results rounded as the Neural Engine does, some functions by [tables](coremill_kernels::device::table) |
//! | coreml-cpu | [half-precision sums](coremill_kernels::device::half_sums) | as rounded |
//!
//! Operations that no Neural Engine has a path for run rounded, as do those in fp32: Core ML leaves them to the CPU.

use coremill_kernels::Numerics;
use coremill_kernels::device::number;
use coremill_kernels::device::table::Function;
use coremill_kernels::device::{self, Bias};
use coremill_kernels::product::{Extents, StridedMatrix, gemm_reference};
use coremill_tensor::DType;

use crate::array::round_floats;
use crate::cpu::CpuContext;

/// Arithmetic and threads of a call.
#[derive(Clone, Copy, Default)]
pub struct Arithmetic<'a> {
    /// The arithmetic.
    pub numerics: Numerics,
    /// The run's threads; `None` while plans are made.
    pub machine: Option<&'a CpuContext>,
}

impl<'a> Arithmetic<'a> {
    /// Writes the product of two matrices plus a bias to a dense one; the result is of the type.
    pub fn multiply(
        self,
        dtype: DType,
        product: &mut [f32],
        extents: Extents,
        factors: [StridedMatrix<'_>; 2],
        bias: Bias<'_>,
    ) {
        if let (true, Some(machine)) = (self.is_device(dtype), self.machine) {
            let on = (&machine.pool, machine.isa);
            return device::multiply(self.numerics, on, product, extents, factors, bias);
        }
        let columns = extents.columns;
        product.fill(0.0);
        gemm_reference(product, extents, factors[0], factors[1]);
        for (row, to) in product.chunks_exact_mut(columns.max(1)).enumerate() {
            match bias {
                Bias::None => break,
                Bias::OfRows(bias) => to.iter_mut().for_each(|to| *to += bias[row]),
                Bias::OfColumns(bias) => to.iter_mut().zip(bias).for_each(|(to, b)| *to += b),
            }
        }
    }

    /// Whether sums of products of a type follow a device's rules.
    pub fn is_device(self, dtype: DType) -> bool {
        self.numerics.is_device() && self.machine.is_some() && dtype == DType::Fp16
    }

    /// Whether results of a type are computed as on the Neural Engine.
    pub fn is_ane(self, dtype: DType) -> bool {
        self.numerics == Numerics::Ane && self.is_device(dtype)
    }

    /// Rounds intermediate numbers of an operation if the device rounds them.
    pub fn round_inside(self, dtype: DType, floats: &mut [f32]) {
        if self.is_device(dtype) {
            self.round(dtype, floats);
        }
    }

    /// e to the power of a number that is not positive, for `softmax`.
    pub fn exp(self, dtype: DType, x: f32) -> f32 {
        if self.is_ane(dtype) { number::round_away(Function::Exp.of(x)) } else { x.exp() }
    }

    /// Rounds numbers to a type, as the device does.
    pub fn round(self, dtype: DType, floats: &mut [f32]) {
        match (self.numerics, dtype) {
            (Numerics::Ane, DType::Fp16) => {
                number::round_all_away(floats);
            }
            _ => round_floats(dtype, floats),
        }
    }
}
