//! Chains of elementwise functions over several tensors at once, with broadcasting.

mod compute;
mod program;
#[cfg(test)]
mod tests;

pub use program::{Binary, MapProgram, MapValue, Step};

use std::ops::Range;

use self::compute::View;
use crate::Pool;
use crate::scratch::{Scratch, with_scratch};
use crate::shared::SharedMut;
use coremill_simd::Isa;

/// How many elements go through the program together: few enough that the values in between stay in the
/// first cache.
const TILE: usize = 1024;

/// Inner axes from this length on are tiled by themselves; shorter ones, several rows to a tile.
const LONG: usize = 512;

/// A tensor that a [`MapProgram`] reads.
#[derive(Clone, Copy, Debug)]
pub struct MapInput<'a> {
    /// The elements.
    pub elements: &'a [f32],
    /// How far apart neighbours along each axis of the results are in them: 0 along axes that the tensor
    /// is broadcast over.
    pub strides: &'a [usize],
}

/// The strides of a dense tensor of `from` that is broadcast to `to`, by the rules of numpy; none where it
/// cannot be.
pub fn broadcast_strides(from: &[usize], to: &[usize]) -> Option<Vec<usize>> {
    let new = to.len().checked_sub(from.len())?;
    let mut strides = vec![0; to.len()];
    let mut step = 1;
    for axis in (0..from.len()).rev() {
        match from[axis] {
            1 => {}
            length if length == to[new + axis] => strides[new + axis] = step,
            _ => return None,
        }
        step *= from[axis];
    }
    Some(strides)
}

/// Runs the program for each element of a space of that shape, and stores its outputs as dense tensors of
/// that shape.
///
/// # Panics
/// Where inputs or outputs are not as many or as long as the program and the shape say.
pub fn map(
    isa: Isa,
    pool: &Pool,
    program: &MapProgram,
    shape: &[usize],
    inputs: &[MapInput<'_>],
    outputs: &mut [&mut [f32]],
) {
    let total: usize = shape.iter().product();
    assert!(inputs.len() >= program.inputs(), "the program has more inputs");
    assert_eq!(outputs.len(), program.outputs.len(), "the program has other outputs");
    for output in outputs.iter() {
        assert_eq!(output.len(), total, "an output has another length than the shape");
    }
    for input in inputs {
        assert_eq!(input.strides.len(), shape.len(), "an input has strides for another rank");
        let last = shape.iter().zip(input.strides).try_fold(0usize, |last, (&length, &stride)| {
            last.checked_add(length.saturating_sub(1).checked_mul(stride)?)
        });
        let fits = last.is_some_and(|last| last < input.elements.len());
        assert!(total == 0 || fits, "an input has too few elements for its strides");
    }
    if total == 0 {
        return;
    }
    let space = Space::new(shape, inputs);
    let (tiles, tile_count) = program.tiles();
    let outputs: Vec<_> = outputs.iter_mut().map(|output| SharedMut::new(output)).collect();
    let run =
        Run { isa, program, space: &space, inputs, outputs: &outputs, tiles: &tiles, tile_count };
    // A thread is worth waking for some ten microseconds of work.
    let grain = (16_384 / (space.tile_length() * program.steps.len()).max(1)).max(1);
    pool.run_ranges(space.tiles(), grain, |range| {
        with_scratch(|scratch| run.tiles(range, scratch))
    });
}

/// The space with its axes merged where all inputs allow it.
struct Space {
    lengths: Vec<usize>,
    /// By input and axis.
    strides: Vec<Vec<usize>>,
    /// The last length.
    inner: usize,
    /// The product of the lengths before.
    rows: usize,
}

impl Space {
    fn new(shape: &[usize], inputs: &[MapInput<'_>]) -> Space {
        let mut lengths: Vec<usize> = vec![];
        let mut strides: Vec<Vec<usize>> = vec![vec![]; inputs.len()];
        for (axis, &length) in shape.iter().enumerate() {
            if length == 1 {
                continue;
            }
            let merges = !lengths.is_empty()
                && inputs.iter().zip(&strides).all(|(input, strides)| {
                    strides.last() == Some(&(input.strides[axis] * length))
                });
            if merges {
                *lengths.last_mut().expect("there is an axis") *= length;
            } else {
                lengths.push(length);
            }
            for (input, strides) in inputs.iter().zip(&mut strides) {
                if merges {
                    strides.pop();
                }
                strides.push(input.strides[axis]);
            }
        }
        if lengths.is_empty() {
            lengths.push(1);
            strides.iter_mut().for_each(|strides| strides.push(0));
        }
        let inner = lengths[lengths.len() - 1];
        let rows = lengths[..lengths.len() - 1].iter().product();
        Space { lengths, strides, inner, rows }
    }

    /// Whether tiles are pieces of one row.
    fn is_long(&self) -> bool {
        self.inner >= LONG
    }

    fn rows_per_tile(&self) -> usize {
        (TILE / self.inner).clamp(1, self.rows)
    }

    /// The most elements that a tile has.
    fn tile_length(&self) -> usize {
        if self.is_long() { TILE.min(self.inner) } else { self.rows_per_tile() * self.inner }
    }

    fn tiles(&self) -> usize {
        if self.is_long() {
            self.rows * self.inner.div_ceil(TILE)
        } else {
            self.rows.div_ceil(self.rows_per_tile())
        }
    }

    /// The first row of the tile, where it starts in that row, and how many elements it has.
    fn tile(&self, tile: usize) -> (usize, usize, usize) {
        if self.is_long() {
            let pieces = self.inner.div_ceil(TILE);
            let start = tile % pieces * TILE;
            (tile / pieces, start, TILE.min(self.inner - start))
        } else {
            let first = tile * self.rows_per_tile();
            (first, 0, self.rows_per_tile().min(self.rows - first) * self.inner)
        }
    }

    /// Where the row starts in the input.
    fn row_offset(&self, input: usize, mut row: usize) -> usize {
        let strides = &self.strides[input];
        let mut offset = 0;
        for axis in (0..self.lengths.len() - 1).rev() {
            offset += row % self.lengths[axis] * strides[axis];
            row /= self.lengths[axis];
        }
        offset
    }

    fn access(&self, input: usize) -> Access {
        let strides = &self.strides[input];
        let mut step = 1;
        let dense = (0..strides.len()).rev().all(|axis| {
            let dense = strides[axis] == step;
            step *= self.lengths[axis];
            dense
        });
        let (&inner, outer) = strides.split_last().expect("there is an axis");
        let uniform = inner == 0 && (self.is_long() || outer.iter().all(|&stride| stride == 0));
        if dense {
            Access::Dense
        } else if uniform {
            Access::Uniform
        } else if inner == 1 && self.is_long() {
            Access::Row
        } else if !self.is_long() && outer.iter().all(|&stride| stride == 0) {
            Access::Repeated
        } else {
            Access::Gathered
        }
    }
}

/// How a tile comes by an input's elements.
#[derive(Clone, Copy, PartialEq)]
enum Access {
    /// They lie where the results lie.
    Dense,
    /// They lie together, as the tile is within one row.
    Row,
    /// There is one in the tile.
    Uniform,
    /// They are gathered once, as they are the same for each row.
    Repeated,
    /// They are gathered for each tile.
    Gathered,
}

struct Run<'a> {
    isa: Isa,
    program: &'a MapProgram,
    space: &'a Space,
    inputs: &'a [MapInput<'a>],
    outputs: &'a [SharedMut<'a>],
    tiles: &'a [Option<usize>],
    tile_count: usize,
}

impl Run<'_> {
    fn tiles(&self, range: Range<usize>, scratch: &mut Scratch) {
        let Run { isa, program, space, inputs, outputs, tiles, tile_count } = *self;
        let most = space.tile_length();
        let accesses: Vec<_> = (0..inputs.len()).map(|input| space.access(input)).collect();
        // Each tile of scratch starts at a cache line of its own.
        let pitch = most.next_multiple_of(16);
        let elements = scratch.elements((tile_count + inputs.len()) * pitch);
        let (gathered, scratch) = elements.split_at_mut(inputs.len() * pitch);
        let (gathered, scratch) = (SharedMut::new(gathered), SharedMut::new(scratch));
        for (input, access) in accesses.iter().enumerate() {
            if *access == Access::Repeated {
                // SAFETY: nobody else has this input's place.
                #[expect(unsafe_code, reason = "views point to scratch from step to step")]
                let target = unsafe { gathered.part(input * pitch..input * pitch + most) };
                gather(space, inputs[input].elements, input, 0, 0, target);
            }
        }
        let mut views: Vec<View> = vec![View::new([].as_ptr()); program.steps.len()];
        for tile in range {
            let (row, start, length) = space.tile(tile);
            let first = row * space.inner + start;
            for (at, step) in program.steps.iter().enumerate() {
                views[at] = match step {
                    Step::Constant(value) => View::uniform(value, *value),
                    Step::Input(input) => {
                        let elements = inputs[*input].elements;
                        let place = *input * pitch..*input * pitch + length;
                        View::new(match accesses[*input] {
                            Access::Dense => elements[first..first + length].as_ptr(),
                            Access::Row => {
                                let offset = space.row_offset(*input, row) + start;
                                elements[offset..offset + length].as_ptr()
                            }
                            Access::Uniform => {
                                let element = &elements[space.row_offset(*input, row)];
                                views[at] = View::uniform(element, *element);
                                continue;
                            }
                            Access::Repeated => gathered.pointer(place),
                            Access::Gathered => {
                                // SAFETY: nobody else has this input's place, and views of it
                                // are not read meanwhile.
                                #[expect(unsafe_code, reason = "views point to scratch")]
                                let target = unsafe { gathered.part(place.clone()) };
                                gather(space, elements, *input, row, start, target);
                                gathered.pointer(place)
                            }
                        })
                    }
                    _ => {
                        let operands = step.operands();
                        let uniform = operands
                            .into_iter()
                            .flatten()
                            .all(|operand| views[operand.index()].value().is_some());
                        let length = if uniform { 1 } else { length };
                        let output = program.outputs.iter().position(|output| output.index() == at);
                        let target = match output {
                            // Straight to where it belongs, from where later steps may read it.
                            Some(output) => outputs[output].pointer(first..first + length),
                            None => {
                                let tile = tiles[at].expect("a step that computes has a tile");
                                scratch.pointer(tile * pitch..tile * pitch + length)
                            }
                        };
                        // SAFETY: the views of operands come from the arms above and have the tile's
                        // elements, which ranges of slices have checked; tiles of scratch that are
                        // live at once are apart, and nobody else writes these elements of outputs.
                        #[expect(unsafe_code, reason = "results may take the place of operands")]
                        unsafe {
                            compute::compute(isa, step, &views, target, length);
                            if uniform { View::uniform(target, *target) } else { View::new(target) }
                        }
                    }
                };
            }
            for (output, value) in program.outputs.iter().enumerate() {
                let view = views[value.index()];
                let target = outputs[output].pointer(first..first + length);
                // SAFETY: as above; the source is the target or apart from it.
                #[expect(unsafe_code, reason = "a value may be stored more than once")]
                unsafe {
                    if let Some(value) = view.value() {
                        compute::fill(value, target, length);
                    } else if view.elements() != target {
                        std::ptr::copy_nonoverlapping(view.elements(), target, length);
                    }
                }
            }
        }
    }
}

/// Copies the elements of a tile together.
fn gather(
    space: &Space,
    elements: &[f32],
    input: usize,
    row: usize,
    start: usize,
    target: &mut [f32],
) {
    let stride = space.strides[input][space.lengths.len() - 1];
    for (at, target) in target.chunks_mut(space.inner).enumerate() {
        let offset = space.row_offset(input, row + at) + start * stride;
        match stride {
            0 => target.fill(elements[offset]),
            1 => target.copy_from_slice(&elements[offset..][..target.len()]),
            _ => {
                let source = elements[offset..].iter().step_by(stride);
                target.iter_mut().zip(source).for_each(|(to, from)| *to = *from);
            }
        }
    }
}
