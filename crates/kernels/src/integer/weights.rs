//! Packed weights of products. A panel contains, for each four inputs, four weights of each of its outputs.

use super::MAX_INPUTS;
use crate::memory::Memory;
use coremill_simd::Isa;
use coremill_simd::vector::DotIsa;

/// A matrix of 8-bit integers from inputs to outputs. Its rows consist of pieces, each padded with zeros to a
/// multiple of four.
#[derive(Debug)]
pub struct IntegerWeights {
    pub(super) isa: DotIsa,
    pub(super) lanes: usize,
    pub(super) pieces: usize,
    /// Number of inputs in a piece.
    pub(super) length: usize,
    pub(super) outputs: usize,
    panels: Memory,
    /// Initial sums of the outputs, padded to whole vectors.
    pub(super) start: Vec<i32>,
    /// Zero points of the weights of each output, padded to whole vectors; `None` if all are 0.
    pub(super) zeros: Option<Vec<i32>>,
    /// The zero of the left matrix times the number of inputs.
    pub(super) left_total: i32,
}

impl IntegerWeights {
    /// Packs `weight(output, input)`, with the inputs piece by piece. `zeros` contains the zero point of each
    /// output's weights. `left_zero` is the code of zero in the left matrix.
    ///
    /// # Panics
    /// Panics if there are more than [`MAX_INPUTS`] inputs, or if the numbers of zeros and outputs differ.
    pub fn pack(
        isa: Isa,
        [pieces, length, outputs]: [usize; 3],
        zeros: &[i32],
        left_zero: u8,
        weight: impl Fn(usize, usize) -> i8,
    ) -> IntegerWeights {
        let inputs = pieces * length;
        assert!(inputs <= MAX_INPUTS, "the sums of {inputs} inputs can overflow 32 bits");
        assert_eq!(zeros.len(), outputs, "each output needs a zero point");
        let isa = DotIsa::of(isa);
        let lanes = isa.lanes();
        let padded = outputs.next_multiple_of(lanes);
        let fours = pieces * length.div_ceil(4);
        let mut panels = Memory::zeroed((fours * 4 * padded).div_ceil(64));
        let (mut start, mut all_zeros) = (vec![0; padded], vec![0; padded]);
        let bytes = super::codes_mut(crate::memory::as_elements_mut(panels.as_mut_lines()));
        for output in 0..outputs {
            let (panel, column, width) = place(output, outputs, lanes);
            let panel = &mut bytes[panel * fours * 4..];
            let mut total = 0;
            for piece in 0..pieces {
                for at in 0..length {
                    let value = weight(output, piece * length + at);
                    let four = piece * length.div_ceil(4) + at / 4;
                    panel[(four * width + column) * 4 + at % 4] = value as u8;
                    total += i32::from(value);
                }
            }
            start[output] = -i32::from(left_zero) * total;
            all_zeros[output] = zeros[output];
        }
        let zeros = all_zeros.iter().any(|&zero| zero != 0).then_some(all_zeros);
        let left_total = i32::from(left_zero) * inputs as i32;
        IntegerWeights { isa, lanes, pieces, length, outputs, panels, start, zeros, left_total }
    }

    /// Number of outputs.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.panels.bytes()
    }

    /// Number of groups of four inputs.
    pub(super) fn fours(&self) -> usize {
        self.pieces * self.length.div_ceil(4)
    }

    /// Number of panels. Each has two vectors; the last one may have one.
    pub(super) fn panels(&self) -> usize {
        self.outputs.div_ceil(2 * self.lanes)
    }

    /// Pointer to the start of a panel.
    pub(super) fn panel(&self, index: usize) -> *const i8 {
        let start = index * 2 * self.lanes * self.fours() * 4;
        assert!(start < self.panels.bytes().max(1), "the panel is out of range");
        self.panels.as_bytes().wrapping_add(start).cast()
    }
}

/// The first output of an output's panel, the output's column in the panel, and the width of the panel.
fn place(output: usize, outputs: usize, lanes: usize) -> (usize, usize, usize) {
    let first = output / (2 * lanes) * 2 * lanes;
    let width = (outputs - first).next_multiple_of(lanes).min(2 * lanes);
    (first, output - first, width)
}
