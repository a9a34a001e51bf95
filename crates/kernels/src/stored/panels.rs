//! Stored weights as a source of panels.

#![expect(unsafe_code, reason = "elements are decoded from data whose extents were checked")]

use std::ops::Range;

use super::decode::Decoder;
use super::format::QuantizedMatrix;
use super::numbers::{Numbers, UseDecoder, with_decoder};
use crate::matmul::source::from_rows;
use crate::matmul::{Order, PanelSource};
use crate::scratch::with_scratch;
use coremill_simd::Isa;
use coremill_simd::vector::{Kernel, Vector, dispatch};

/// Stored weights that are expanded panel by panel.
#[derive(Clone, Debug)]
pub struct StoredPanels {
    isa: Isa,
    weights: QuantizedMatrix,
    order: Order,
}

impl StoredPanels {
    /// Weights whose rows are the outputs, or the inputs with [`Order::InputsFirst`].
    pub fn new(isa: Isa, weights: QuantizedMatrix, order: Order) -> StoredPanels {
        if let Order::ChannelsFirst { taps } = order {
            assert!(
                taps > 0 && weights.columns().is_multiple_of(taps),
                "the inputs are the taps' channels"
            );
        }
        StoredPanels { isa, weights, order }
    }

    /// Expands some columns of some rows.
    fn expand(&self, rows: Range<usize>, columns: Range<usize>, target: &mut [f32]) {
        with_scratch(|scratch| {
            let scratch = scratch.elements(Numbers::scratch(&self.weights, rows.len()));
            let numbers = Numbers::read(self.isa, &self.weights, rows.clone(), scratch);
            let inputs = self.weights.columns();
            let block = inputs / self.weights.across().max(1);
            let expansion =
                Expansion { isa: self.isa, rows, columns, inputs, block, numbers, target };
            with_decoder(&self.weights, expansion);
        });
    }
}

impl PanelSource for StoredPanels {
    fn fill(&self, inputs: Range<usize>, outputs: Range<usize>, width: usize, panel: &mut [f32]) {
        assert!(outputs.len() <= width && panel.len() == inputs.len() * width, "the panel fits");
        let (rows, columns) = match self.order {
            Order::InputsFirst => (&inputs, &outputs),
            _ => (&outputs, &inputs),
        };
        assert!(rows.end <= self.weights.rows() && columns.end <= self.weights.columns());
        match self.order {
            Order::InputsFirst => {
                for (row, target) in inputs.zip(panel.chunks_exact_mut(width)) {
                    let (some, rest) = target.split_at_mut(outputs.len());
                    self.expand(row..row + 1, outputs.clone(), some);
                    rest.fill(0.0);
                }
            }
            Order::OutputsFirst => {
                from_rows(self.isa, inputs.len(), outputs.len(), width, panel, |target| {
                    self.expand(outputs.clone(), inputs.clone(), target);
                });
            }
            Order::ChannelsFirst { taps } => {
                let all = self.weights.columns();
                let channels = all / taps;
                let mut row = vec![0.0; all];
                from_rows(self.isa, inputs.len(), outputs.len(), width, panel, |rows| {
                    let targets = rows.chunks_exact_mut(inputs.len().max(1));
                    for (output, target) in outputs.clone().zip(targets) {
                        self.expand(output..output + 1, 0..all, &mut row);
                        for (input, element) in inputs.clone().zip(target) {
                            *element = row[input % channels * taps + input / channels];
                        }
                    }
                });
            }
        }
    }
}

struct Expansion<'a> {
    isa: Isa,
    rows: Range<usize>,
    columns: Range<usize>,
    inputs: usize,
    block: usize,
    numbers: Numbers<'a>,
    target: &'a mut [f32],
}

impl UseDecoder for Expansion<'_> {
    fn run<D: Decoder>(self, decoder: D) {
        dispatch(self.isa, WithDecoder { expansion: self, decoder });
    }
}

struct WithDecoder<'a, D> {
    expansion: Expansion<'a>,
    decoder: D,
}

impl<D: Decoder> Kernel for WithDecoder<'_, D> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let WithDecoder { expansion, decoder } = self;
        let Expansion { rows, columns, inputs, block, numbers, target, .. } = expansion;
        assert_eq!(target.len(), rows.len() * columns.len());
        for (row, target) in rows.zip(target.chunks_exact_mut(columns.len().max(1))) {
            let first = row * inputs;
            let row_numbers = numbers.row(row);
            // SAFETY: the row is in the matrix.
            let start = unsafe { decoder.row(first) };
            let readable = decoder.readable().saturating_sub(first);
            let mut at = columns.start;
            while at < columns.end {
                let end = (at / block + 1).saturating_mul(block).min(columns.end);
                let numbers = row_numbers.get(at / block);
                let shift = row_numbers.shifts.get(at / block).copied().unwrap_or(0.0);
                // SAFETY: the palette belongs to the format.
                let prepared = unsafe { decoder.block::<V>(numbers) };
                let (scale, shift_lanes) = (V::splat(numbers.scale), V::splat(shift));
                while at + V::LANES <= end && at < readable {
                    // SAFETY: the elements are in the row and readable, and the target has the same number of
                    // elements.
                    unsafe {
                        let weights = decoder.vector::<V>(start, at, prepared);
                        let weights = weights.mul(scale).add(shift_lanes);
                        weights.store(target.as_mut_ptr().add(at - columns.start));
                    }
                    at += V::LANES;
                }
                while at < end {
                    // SAFETY: the element is in the row.
                    let weight = unsafe { decoder.single(first + at, numbers) };
                    target[at - columns.start] = weight * numbers.scale + shift;
                    at += 1;
                }
            }
        }
    }
}
