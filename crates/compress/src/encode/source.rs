//! The elements of a weight as numbers, before encoding.

use std::io;

use coremill_kernels::codes::{round_to_half, widen};
use coremill_simd::Isa;
use coremill_tensor::{Buffer, DType};
use half::f16;

use super::pruned::PruneMask;
use crate::blocks::Blocks;
use crate::weight::Weight;
use crate::weighting::ElementImportance;

/// Number of elements per chunk. In fp16 this is the size in which mapped files are read in place.
pub(super) const CHUNK: usize = 1 << 15;

/// The elements of a weight, with the steps that precede encoding.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) elements: Buffer,
    pub(super) dtype: DType,
    pub(super) count: usize,
    /// Elements to prune.
    pub(super) pruned: Option<PruneMask>,
    /// Divisors of the elements.
    pub(super) scales: Option<(Blocks, Vec<f32>)>,
    /// Importance of elements, if known.
    pub(super) weighting: Option<ElementImportance>,
}

/// Consecutive elements.
pub(super) struct Part<'a> {
    /// Index of the first element.
    pub(super) at: usize,
    /// Original elements.
    pub(super) raw: &'a [f32],
    /// Elements after pruning and scaling.
    pub(super) numbers: &'a [f32],
}

impl Source {
    pub(super) fn of(weight: &Weight) -> Source {
        Source {
            elements: weight.elements.clone(),
            dtype: weight.dtype,
            count: weight.count(),
            pruned: None,
            scales: None,
            weighting: weight.weighting.clone(),
        }
    }

    pub(super) fn is_half(&self) -> bool {
        self.dtype == DType::Fp16
    }

    /// Returns true if all elements are finite.
    pub(super) fn is_finite(&self) -> io::Result<bool> {
        let mut finite = true;
        self.for_each_part(0, self.count, &mut |part| {
            finite &= part.raw.iter().all(|number| number.is_finite());
        })?;
        Ok(finite)
    }

    /// Rounds a number to the weight's type.
    pub(super) fn round(&self, number: f32) -> f32 {
        if self.is_half() { f16::from_f32(number).to_f32() } else { number }
    }

    /// Rounds numbers to the weight's type.
    pub(super) fn round_all(&self, numbers: &mut [f32]) {
        if self.is_half() {
            round_to_half(Isa::detect(), numbers);
        }
    }

    /// Appends a number in the weight's type.
    pub(super) fn push(&self, number: f32, bytes: &mut Vec<u8>) {
        if self.is_half() {
            bytes.extend(f16::from_f32(number).to_le_bytes());
        } else {
            bytes.extend(number.to_le_bytes());
        }
    }

    /// Calls `visit` with parts of the elements from `start` on, in order.
    pub(super) fn for_each_part(
        &self,
        start: usize,
        length: usize,
        visit: &mut dyn FnMut(Part<'_>),
    ) -> io::Result<()> {
        let width = if self.is_half() { 2 } else { 4 };
        let isa = Isa::detect();
        let granule = self.pruned.as_ref().map_or(1, PruneMask::granule);
        let step = CHUNK.next_multiple_of(granule);
        let end = start + length;
        let (mut raw, mut refined) = (Vec::new(), Vec::new());
        let mut at = start - start % granule;
        while at < end {
            // Pruning needs whole groups.
            let stop = (at + step).min(end.next_multiple_of(granule)).min(self.count);
            raw.resize(stop - at, 0.0);
            self.elements.with_window(at * width..stop * width, |bytes| {
                if width == 2 {
                    widen(isa, bytes.as_chunks().0, &mut raw);
                } else {
                    for (number, bytes) in raw.iter_mut().zip(bytes.as_chunks().0) {
                        *number = f32::from_le_bytes(*bytes);
                    }
                }
            })?;
            let wanted = start.max(at) - at..stop.min(end) - at;
            let numbers = if self.pruned.is_some() || self.scales.is_some() {
                refined.clear();
                refined.extend_from_slice(&raw);
                self.refine(at, &mut refined);
                &refined
            } else {
                &raw
            };
            visit(Part {
                at: at + wanted.start,
                raw: &raw[wanted.clone()],
                numbers: &numbers[wanted],
            });
            at = stop;
        }
        Ok(())
    }

    fn refine(&self, at: usize, numbers: &mut [f32]) {
        if let Some(pruned) = &self.pruned {
            pruned.apply(numbers);
        }
        if let Some((blocks, scales)) = &self.scales {
            let mut rest = &mut *numbers;
            blocks.for_each_run(at, rest.len(), |run, block| {
                let (now, later) = std::mem::take(&mut rest).split_at_mut(run);
                for number in now {
                    *number = self.round(*number / scales[block]);
                }
                rest = later;
            });
        }
    }
}
