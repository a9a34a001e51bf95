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

/// The weights from a state to the gates of its next one, in the order in which vectors go over them.
///
/// For each vector of units they are in one run: by element of the state, then by gate. A step reads all of
/// them once, from the second cache where they fit.
pub struct RecurrentWeights {
    isa: Isa,
    gates: usize,
    units: usize,
    inputs: usize,
    panels: Vec<CacheLine>,
}

/// How many states are multiplied at a time: more would not fit the registers.
const ROWS: usize = 2;

impl RecurrentWeights {
    /// Packs weights as `[gates, units, inputs]`.
    ///
    /// # Panics
    /// Where the length is not that of the extents, or there are more than four gates.
    pub fn pack(isa: Isa, weights: &[f32], [gates, units, inputs]: [usize; 3]) -> RecurrentWeights {
        assert!((1..=4).contains(&gates), "a cell has one to four gates");
        assert_eq!(weights.len(), gates * units * inputs, "the weights have other extents");
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

    /// The instruction set that they are packed for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// How many gates there are.
    pub fn gates(&self) -> usize {
        self.gates
    }

    /// How many units each gate has.
    pub fn units(&self) -> usize {
        self.units
    }

    /// How many elements the state has that is multiplied.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// How many bytes they take.
    pub fn bytes(&self) -> usize {
        size_of_val(self.panels.as_slice())
    }

    /// Adds the products with some rows of states to sums as `[rows, gates, units]`, for some units.
    ///
    /// # Safety
    /// Nobody else may use those units of the sums meanwhile. The range starts at a multiple of
    /// [`MAX_LANES`].
    pub(super) unsafe fn add(
        &self,
        states: &[f32],
        rows: usize,
        units: Range<usize>,
        sums: &SharedMut<'_>,
    ) {
        assert_eq!(states.len(), rows * self.inputs, "the states have other extents");
        assert!(units.start.is_multiple_of(MAX_LANES) && units.end <= self.units, "units of these");
        // The range is checked.
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

/// One row goes over `B` panels at once, so that enough sums are under way; several rows, over one.
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
                // SAFETY: `pointer` has checked the range, which is this caller's own.
                unsafe {
                    V::load_partial(target, lanes).add(sum).store_partial(target, lanes);
                }
            }
        }
    }
}
