//! Compressed constants as plain elements.

use std::io;
use std::sync::Arc;

use coremill_kernels::Numerics;
use coremill_mil::ir::{Function, ValueId};
use coremill_tensor::{Buffer, ByteSource, DType};
use half::f16;

use super::Weights;

/// Number of elements that are expanded at a time.
const CHUNK: usize = 1 << 14;

/// The elements of a chain of `constexpr_` operations, in the type of its result and rounded as on
/// a device. They are computed on each read. Returns `None` if the operations are not supported, or
/// if the result is not a float tensor.
pub fn expanded(function: &Function, value: ValueId) -> Option<Buffer> {
    let weights = Weights::of(function, value, Numerics::Rounded)?;
    let is_known = matches!(weights.dtype, DType::Fp16 | DType::Fp32);
    is_known.then(|| Buffer::deferred(Arc::new(ExpandedWeights(weights))))
}

struct ExpandedWeights(Weights);

impl ExpandedWeights {
    fn width(&self) -> usize {
        if self.0.dtype == DType::Fp16 { 2 } else { 4 }
    }
}

impl ByteSource for ExpandedWeights {
    fn length(&self) -> usize {
        self.0.rows() * self.0.columns() * self.width()
    }

    fn granule(&self) -> usize {
        self.width()
    }

    fn produce(&self, offset: usize, target: &mut [u8]) -> io::Result<()> {
        let width = self.width();
        let mut numbers = vec![0.0; CHUNK.min(target.len() / width)];
        let mut at = offset / width;
        for part in target.chunks_mut(CHUNK * width) {
            let numbers = &mut numbers[..part.len() / width];
            self.0.expand_elements(at..at + numbers.len(), numbers);
            for (bytes, &number) in part.chunks_mut(width).zip(&*numbers) {
                match width {
                    2 => bytes.copy_from_slice(&f16::from_f32(number).to_le_bytes()),
                    _ => bytes.copy_from_slice(&number.to_le_bytes()),
                }
            }
            at += numbers.len();
        }
        Ok(())
    }
}
