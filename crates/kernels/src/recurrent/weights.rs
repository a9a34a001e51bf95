//! Products of one matrix with a state at each time step.

#![expect(
    unsafe_code,
    reason = "panels and states are read by pointers whose extents are checked at entry"
)]

use std::ops::Range;

use crate::memory::{CacheLine, LINE, as_elements, as_elements_mut};
use crate::shared::SharedMut;
use coremill_simd::Isa;
use coremill_simd::vector::{Kernel, MAX_LANES, Vector, dispatch};

/// The weights from a state to the gates of the next state, in the order in which vectors read them.
///
/// The weights of each vector of units are contiguous, ordered by element of the state, then by gate. A step
/// reads all weights once, from the L2 cache if they fit.
pub struct RecurrentWeights {
    isa: Isa,
    gates: usize,
    units: usize,
    inputs: usize,
    panels: Vec<CacheLine>,
}

/// Number of states that are multiplied at a time, limited by the registers.
const ROWS: usize = 2;

impl RecurrentWeights {
    /// Packs weights `[gates, units, inputs]`.
    ///
    /// # Panics
    /// Panics if the length does not match the sizes, or if there are more than four gates.
    pub fn pack(isa: Isa, weights: &[f32], [gates, units, inputs]: [usize; 3]) -> RecurrentWeights {
        assert!((1..=4).contains(&gates), "the number of gates must be from 1 to 4, got {gates}");
        assert_eq!(
            weights.len(),
            gates * units * inputs,
            "the number of weights does not match the sizes"
        );
        let lanes = dispatch(isa, Lanes);
        let count = units.div_ceil(lanes) * inputs * gates * lanes;
        let mut panels = vec![CacheLine::ZEROS; count.div_ceil(LINE)];
        let elements = as_elements_mut(&mut panels);
        for (row, weights) in weights.chunks_exact(inputs.max(1)).enumerate() {
            let (gate, unit) = (row / units, row % units);
            let panel = unit / lanes * inputs * gates * lanes;
            for (input, weight) in weights.iter().enumerate() {
                elements[panel + (input * gates + gate) * lanes + unit % lanes] = *weight;
            }
        }
        RecurrentWeights { isa, gates, units, inputs, panels }
    }

    /// The instruction set of the layout.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Number of gates.
    pub fn gates(&self) -> usize {
        self.gates
    }

    /// Number of units of each gate.
    pub fn units(&self) -> usize {
        self.units
    }

    /// Number of elements of the multiplied state.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(self.panels.as_slice())
    }

    /// Adds the products with some rows of states to sums `[rows, gates, units]`, for some units.
    ///
    /// # Safety
    /// No other thread may access these units of the sums during the call. The range must start at a multiple
    /// of [`MAX_LANES`].
    pub(super) unsafe fn add(
        &self,
        states: &[f32],
        rows: usize,
        units: Range<usize>,
        sums: &SharedMut<'_>,
    ) {
        assert_eq!(states.len(), rows * self.inputs, "the states' length does not match the sizes");
        assert!(
            units.start.is_multiple_of(MAX_LANES) && units.end <= self.units,
            "the units are out of range"
        );
        // Check the range.
        sums.pointer(0..rows * self.gates * self.units);
        dispatch(self.isa, Add { weights: self, states, rows, units, sums });
    }
}

struct Lanes;

impl Kernel for Lanes {
    type Output = usize;

    #[inline(always)]
    fn run<V: Vector>(self) -> usize {
        V::LANES
    }
}

struct Add<'a> {
    weights: &'a RecurrentWeights,
    states: &'a [f32],
    rows: usize,
    units: Range<usize>,
    sums: &'a SharedMut<'a>,
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        match self.weights.gates {
            1 => add::<V, 1, 4>(&self),
            2 => add::<V, 2, 4>(&self),
            3 => add::<V, 3, 2>(&self),
            _ => add::<V, 4, 2>(&self),
        }
    }
}

/// A single row uses `B` panels at once, for enough independent sums; several rows use one panel.
#[inline(always)]
fn add<V: Vector, const G: usize, const B: usize>(work: &Add<'_>) {
    let mut row = 0;
    while V::TUNED && row + ROWS <= work.rows {
        let mut unit = work.units.start;
        while unit < work.units.end {
            panels::<V, G, 1, ROWS>(work, row, unit);
            unit += V::LANES;
        }
        row += ROWS;
    }
    while row < work.rows {
        let mut unit = work.units.start;
        while V::TUNED && unit + B * V::LANES <= work.units.end {
            panels::<V, G, B, 1>(work, row, unit);
            unit += B * V::LANES;
        }
        while unit < work.units.end {
            panels::<V, G, 1, 1>(work, row, unit);
            unit += V::LANES;
        }
        row += 1;
    }
}

#[inline(always)]
fn panels<V: Vector, const G: usize, const B: usize, const R: usize>(
    work: &Add<'_>,
    row: usize,
    unit: usize,
) {
    let RecurrentWeights { gates, units, inputs, ref panels, .. } = *work.weights;
    let pitch = inputs * G * V::LANES;
    let panel = as_elements(panels)[unit / V::LANES * pitch..][..B * pitch].as_ptr();
    let states = work.states[row * inputs..(row + R) * inputs].as_ptr();
    let mut sums = [[[V::zero(); G]; B]; R];
    for input in 0..inputs {
        let mut weights = [[V::zero(); G]; B];
        for (block, weights) in weights.iter_mut().enumerate() {
            for (gate, weights) in weights.iter_mut().enumerate() {
                // SAFETY: the panels from this one on have `B * pitch` elements.
                *weights =
                    unsafe { V::load(panel.add(block * pitch + (input * G + gate) * V::LANES)) };
            }
        }
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the rows from this one on have `R * inputs` elements.
            let state = V::splat(unsafe { *states.add(row * inputs + input) });
            for (sums, weights) in sums.iter_mut().zip(&weights) {
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum = weight.mul_add(state, *sum);
                }
            }
        }
    }
    for (at, sums) in sums.into_iter().enumerate() {
        for (block, sums) in sums.into_iter().enumerate() {
            let unit = unit + block * V::LANES;
            let lanes = V::LANES.min(units - unit);
            for (gate, sum) in sums.into_iter().enumerate() {
                let start = ((row + at) * gates + gate) * units + unit;
                let target = work.sums.pointer(start..start + lanes);
                // SAFETY: `pointer` checked the range, which belongs to this caller.
                unsafe {
                    V::load_partial(target, lanes).add(sum).store_partial(target, lanes);
                }
            }
        }
    }
}
