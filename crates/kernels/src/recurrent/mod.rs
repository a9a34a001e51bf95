//! Recurrent layers: LSTM, GRU and simple RNN.
//!
//! Callers multiply the inputs of all time steps by their weights at once and add the biases. These kernels
//! compute the remaining product with the state in each step, and the gates.

#[cfg(test)]
mod tests;
mod weights;

use std::ops::Range;

pub use weights::RecurrentWeights;

use crate::Pool;
use crate::shared::SharedMut;
use crate::{Activation, activate};
use coremill_simd::vector::MAX_LANES;

/// Equations of a step. `x` is the projected input, `h` the state, `W` its weights.
#[derive(Clone, Copy)]
pub enum Cell<'a> {
    /// Gates in the order input, forget, output, candidate.
    ///
    /// With `c` the cell state: `i = recurrent(x_i + W_i h + p_i c)`, `f = recurrent(x_f + W_f h + p_f c)`,
    /// `z = cell(x_z + W_z h)`, `c = clip(f c + i z)`, `o = recurrent(x_o + W_o h + p_o c)`, `h = o ·
    /// output(c)`.
    Lstm {
        /// Weights of all four gates.
        weights: &'a RecurrentWeights,
        /// Activation of the input, forget and output gates.
        recurrent: Activation,
        /// Activation of the candidate.
        cell: Activation,
        /// Activation of the cell state.
        output: Activation,
        /// Weights from the cell state to the input, forget and output gates.
        peephole: Option<[&'a [f32]; 3]>,
        /// Maximum magnitude of the cell state.
        clip: Option<f32>,
    },
    /// Gates in the order reset, update, candidate.
    ///
    /// `r = recurrent(x_r + W_r h)`, `z = recurrent(x_z + W_z h)`, and `o = output(x_o + W_o (r h))`, or `o =
    /// output(x_o + r (W_o h + b))` with the bias `reset_after`; `h = (1 - z) o + z h`.
    Gru {
        /// Weights of the reset and update gates.
        gates: &'a RecurrentWeights,
        /// Weights of the candidate.
        candidate: &'a RecurrentWeights,
        /// Activation of the gates.
        recurrent: Activation,
        /// Activation of the candidate.
        output: Activation,
        /// The bias of the candidate's product, if the reset gate is applied after the product.
        reset_after: Option<&'a [f32]>,
    },
    /// One gate: `h = output(x + W h)`.
    Plain {
        /// The weights.
        weights: &'a RecurrentWeights,
        /// The activation.
        output: Activation,
    },
}

/// One pass over the time steps.
pub struct Direction<'a> {
    /// The cell.
    pub cell: Cell<'a>,
    /// The projected inputs: `[steps, batch, gates, units]`.
    pub inputs: &'a [f32],
    /// Whether the steps run from the last to the first.
    pub reverse: bool,
    /// The initial state, replaced by the final state: `[batch, units]`.
    pub state: &'a mut [f32],
    /// The initial cell state of an LSTM, replaced by the final one: `[batch, units]`. Empty for other cells.
    pub memory: &'a mut [f32],
}

impl Cell<'_> {
    fn units(&self) -> usize {
        match self {
            Cell::Lstm { weights, .. } | Cell::Plain { weights, .. } => weights.units(),
            Cell::Gru { gates, .. } => gates.units(),
        }
    }

    /// Number of gates in the projected inputs.
    fn gates(&self) -> usize {
        match self {
            Cell::Lstm { .. } => 4,
            Cell::Gru { .. } => 3,
            Cell::Plain { .. } => 1,
        }
    }

    fn check(&self) {
        let units = self.units();
        let fits = |weights: &RecurrentWeights, gates: usize| {
            weights.gates() == gates && weights.units() == units && weights.inputs() == units
        };
        let weights_fit = match self {
            Cell::Lstm { weights, peephole, .. } => {
                let peephole = peephole.is_none_or(|all| all.iter().all(|one| one.len() == units));
                fits(weights, 4) && peephole
            }
            Cell::Gru { gates, candidate, reset_after, .. } => {
                let bias = reset_after.is_none_or(|bias| bias.len() == units);
                fits(gates, 2) && fits(candidate, 1) && bias && gates.isa() == candidate.isa()
            }
            Cell::Plain { weights, .. } => fits(weights, 1),
        };
        assert!(weights_fit, "the weights do not match the numbers of gates and units");
    }
}

/// Runs one direction, or two side by side, over `steps` steps of a batch of sequences.
///
/// If there is an output, all states are written to it: `[steps, batch, directions, units]`. A reversed
/// direction writes its first step last.
///
/// # Panics
/// Panics if a length does not match the sizes.
pub fn run_recurrent(
    pool: &Pool,
    steps: usize,
    batch: usize,
    directions: &mut [Direction<'_>],
    output: Option<&mut [f32]>,
) {
    let count = directions.len();
    let Some(units) = directions.first().map(|direction| direction.cell.units()) else { return };
    for direction in directions.iter() {
        direction.cell.check();
        assert_eq!(
            direction.cell.units(),
            units,
            "the directions must have equal numbers of units"
        );
        let gates = direction.cell.gates();
        assert_eq!(
            direction.inputs.len(),
            steps * batch * gates * units,
            "the inputs' length does not match the sizes"
        );
        assert_eq!(
            direction.state.len(),
            batch * units,
            "a state's length does not match the sizes"
        );
        let memory = if gates == 4 { batch * units } else { 0 };
        assert_eq!(direction.memory.len(), memory, "a memory's length does not match the sizes");
    }
    if let Some(output) = &output {
        assert_eq!(
            output.len(),
            steps * batch * count * units,
            "the output's length does not match the sizes"
        );
    }
    if units == 0 || batch == 0 {
        return;
    }
    let output = output.map(SharedMut::new);
    let place = |index: usize| {
        output.as_ref().map(|elements| Place { elements, start: index * units, row: count * units })
    };
    if let [direction] = directions {
        return run(pool, steps, batch, direction, place(0));
    }
    // Each direction is an independent task.
    let directions: Vec<_> = directions.iter_mut().map(std::sync::Mutex::new).collect();
    pool.run(count, |index| {
        let mut direction = directions[index].lock().expect("each is locked once");
        run(&ALONE, steps, batch, &mut direction, place(index));
    });
}

/// A pool of only the calling thread.
static ALONE: std::sync::LazyLock<Pool> = std::sync::LazyLock::new(|| Pool::new(1));

/// Destination of the states of a direction.
#[derive(Clone, Copy)]
struct Place<'a> {
    elements: &'a SharedMut<'a>,
    start: usize,
    row: usize,
}

/// Minimum number of multiplications in a product for which synchronizing two threads at each step pays off.
const WORTH_SHARING: usize = 1 << 17;

fn run(
    pool: &Pool,
    steps: usize,
    batch: usize,
    direction: &mut Direction<'_>,
    place: Option<Place<'_>>,
) {
    let cell = direction.cell;
    let (units, gates) = (cell.units(), cell.gates());
    let step_inputs = batch * gates * units;
    let mut sums = vec![0.0; step_inputs];
    let mut products = vec![0.0; batch * units];
    let mut next = vec![0.0; batch * units];
    // Parts of whole vectors, one for each thread if that pays off.
    let threads = if batch * gates * units * units < WORTH_SHARING { 1 } else { pool.threads() };
    let part = units.div_ceil(threads).next_multiple_of(MAX_LANES);
    let parts = units.div_ceil(part);
    let units_of = |index: usize| index * part..((index + 1) * part).min(units);
    for step in 0..steps {
        let time = if direction.reverse { steps - 1 - step } else { step };
        let inputs = &direction.inputs[time * step_inputs..(time + 1) * step_inputs];
        sums.copy_from_slice(inputs);
        let work = Step {
            batch,
            units,
            state: direction.state,
            sums: SharedMut::new(&mut sums),
            products: SharedMut::new(&mut products),
            next: SharedMut::new(&mut next),
            memory: SharedMut::new(direction.memory),
        };
        // SAFETY: for all calls below: tasks have their own units, and units of other tasks are read only
        // after the previous call wrote them.
        #[expect(unsafe_code, reason = "each task has its own units")]
        match cell {
            Cell::Gru { reset_after: None, .. } => {
                pool.run(parts, |index| unsafe { work.reset(cell, units_of(index)) });
                pool.run(parts, |index| unsafe { work.update(cell, units_of(index)) });
            }
            _ => pool.run(parts, |index| unsafe { work.update(cell, units_of(index)) }),
        }
        direction.state.copy_from_slice(&next);
        if let Some(place) = place {
            for (row, state) in next.chunks_exact(units).enumerate() {
                let start = (time * batch + row) * place.row + place.start;
                // SAFETY: each direction has its own columns.
                #[expect(unsafe_code, reason = "directions write to disjoint parts of the output")]
                let target = unsafe { place.elements.part(start..start + units) };
                target.copy_from_slice(state);
            }
        }
    }
}

/// One time step.
struct Step<'a> {
    batch: usize,
    units: usize,
    state: &'a [f32],
    /// The projected inputs, to which products are added: `[batch, gates, units]`.
    sums: SharedMut<'a>,
    /// `[batch, units]` for the candidate of a GRU: its input state, or its product.
    products: SharedMut<'a>,
    next: SharedMut<'a>,
    memory: SharedMut<'a>,
}

#[expect(unsafe_code, reason = "each task has its own units")]
impl Step<'_> {
    /// The units of a gate in the sums.
    ///
    /// # Safety
    /// No other code may access them while the result is in use.
    #[expect(clippy::mut_from_ref, reason = "each task has its own units")]
    unsafe fn gate(
        &self,
        row: usize,
        gates: usize,
        gate: usize,
        units: &Range<usize>,
    ) -> &mut [f32] {
        let start = (row * gates + gate) * self.units;
        // SAFETY: guaranteed by the caller.
        unsafe { self.sums.part(start + units.start..start + units.end) }
    }

    /// Range of some units in a row.
    fn row(&self, row: usize, units: &Range<usize>) -> Range<usize> {
        row * self.units + units.start..row * self.units + units.end
    }

    /// Computes the part of a GRU before its candidate, if the reset gate is applied first.
    ///
    /// # Safety
    /// Each unit must belong to exactly one task.
    unsafe fn reset(&self, cell: Cell<'_>, units: Range<usize>) {
        let Cell::Gru { gates, recurrent, .. } = cell else { return };
        // SAFETY: guaranteed by the caller, for all calls below.
        unsafe { self.gru_gates(gates, recurrent, &units) };
        for row in 0..self.batch {
            // SAFETY: as above.
            let (reset, product) = unsafe {
                (self.gate(row, 3, 0, &units), self.products.part(self.row(row, &units)))
            };
            let state = &self.state[self.row(row, &units)];
            for ((product, reset), state) in product.iter_mut().zip(reset).zip(state) {
                *product = *reset * state;
            }
        }
    }

    /// Computes the reset and update gates.
    ///
    /// # Safety
    /// Each unit must belong to exactly one task.
    unsafe fn gru_gates(
        &self,
        gates: &RecurrentWeights,
        recurrent: Activation,
        units: &Range<usize>,
    ) {
        for row in 0..self.batch {
            let start = row * 3 * self.units;
            // Two of the three gates. Rows are processed one by one, because the third gate separates them.
            let row_sums = self.sums.narrowed(start..start + 2 * self.units);
            let state = &self.state[row * self.units..(row + 1) * self.units];
            // SAFETY: guaranteed by the caller.
            unsafe {
                gates.add(state, 1, units.clone(), &row_sums);
                for gate in [0, 1] {
                    activate(gates.isa(), recurrent, self.gate(row, 3, gate, units));
                }
            }
        }
    }

    /// Computes the next state.
    ///
    /// # Safety
    /// Each unit must belong to exactly one task. If [`reset`](Self::reset) is used, it must have finished
    /// for all units.
    unsafe fn update(&self, cell: Cell<'_>, units: Range<usize>) {
        match cell {
            // SAFETY: guaranteed by the caller.
            Cell::Lstm { .. } => unsafe { self.lstm(cell, &units) },
            // SAFETY: guaranteed by the caller.
            Cell::Gru { .. } => unsafe { self.gru(cell, &units) },
            Cell::Plain { weights, output } => {
                // SAFETY: guaranteed by the caller.
                unsafe { weights.add(self.state, self.batch, units.clone(), &self.sums) };
                for row in 0..self.batch {
                    // SAFETY: guaranteed by the caller.
                    let (sum, next) = unsafe {
                        (self.gate(row, 1, 0, &units), self.next.part(self.row(row, &units)))
                    };
                    next.copy_from_slice(sum);
                    activate(weights.isa(), output, next);
                }
            }
        }
    }

    /// # Safety
    /// Same as for [`update`](Self::update).
    unsafe fn lstm(&self, cell: Cell<'_>, units: &Range<usize>) {
        let Cell::Lstm { weights, recurrent, cell, output, peephole, clip } = cell else { return };
        let isa = weights.isa();
        // SAFETY: guaranteed by the caller, for all calls below; gates are disjoint.
        unsafe { weights.add(self.state, self.batch, units.clone(), &self.sums) };
        for row in 0..self.batch {
            // SAFETY: as above.
            let ([input, forget, out, candidate], memory, next) = unsafe {
                (
                    [0, 1, 2, 3].map(|gate| self.gate(row, 4, gate, units)),
                    self.memory.part(self.row(row, units)),
                    self.next.part(self.row(row, units)),
                )
            };
            if let Some([input_weights, forget_weights, _]) = peephole {
                add_products(input, &input_weights[units.clone()], memory);
                add_products(forget, &forget_weights[units.clone()], memory);
            }
            activate(isa, recurrent, input);
            activate(isa, recurrent, forget);
            activate(isa, cell, candidate);
            let gates = forget.iter().zip(input.iter().zip(candidate.iter()));
            for (memory, (forget, (input, candidate))) in memory.iter_mut().zip(gates) {
                *memory = forget * *memory + input * candidate;
            }
            if let Some(most) = clip {
                // NaN is preserved.
                activate(isa, Activation::Clamp { low: -most, high: most }, memory);
            }
            if let Some([_, _, out_weights]) = peephole {
                add_products(out, &out_weights[units.clone()], memory);
            }
            activate(isa, recurrent, out);
            next.copy_from_slice(memory);
            activate(isa, output, next);
            for (next, out) in next.iter_mut().zip(out) {
                *next *= *out;
            }
        }
    }

    /// # Safety
    /// Same as for [`update`](Self::update).
    unsafe fn gru(&self, cell: Cell<'_>, units: &Range<usize>) {
        let Cell::Gru { gates, candidate, recurrent, output, reset_after } = cell else { return };
        if reset_after.is_some() {
            // SAFETY: guaranteed by the caller.
            unsafe { self.gru_gates(gates, recurrent, units) };
        }
        for row in 0..self.batch {
            let whole = row * self.units..(row + 1) * self.units;
            match reset_after {
                Some(bias) => {
                    let state = &self.state[whole.clone()];
                    let products = self.products.narrowed(whole);
                    // SAFETY: guaranteed by the caller.
                    unsafe {
                        let product = self.products.part(self.row(row, units));
                        product.copy_from_slice(&bias[units.clone()]);
                        candidate.add(state, 1, units.clone(), &products);
                    }
                }
                None => {
                    let start = (row * 3 + 2) * self.units;
                    let sums = self.sums.narrowed(start..start + self.units);
                    // SAFETY: guaranteed by the caller; the products of `reset` are not written at this time.
                    unsafe {
                        let state = self.products.read(whole);
                        candidate.add(state, 1, units.clone(), &sums);
                    }
                }
            }
            // SAFETY: guaranteed by the caller; gates are disjoint.
            let ([reset, update, sum], next) = unsafe {
                let gates = [0, 1, 2].map(|gate| self.gate(row, 3, gate, units));
                (gates, self.next.part(self.row(row, units)))
            };
            if reset_after.is_some() {
                // SAFETY: as above.
                let product = unsafe { self.products.part(self.row(row, units)) };
                add_products(sum, reset, product);
            }
            activate(candidate.isa(), output, sum);
            let state = &self.state[self.row(row, units)];
            let gates = update.iter().zip(sum.iter().zip(state));
            for (next, (update, (candidate, state))) in next.iter_mut().zip(gates) {
                *next = (1.0 - update) * candidate + update * state;
            }
        }
    }
}

fn add_products(sums: &mut [f32], left: &[f32], right: &[f32]) {
    for ((sum, left), right) in sums.iter_mut().zip(left).zip(right) {
        *sum += left * right;
    }
}
