//! Fused chains of elementwise functions on several tensors, with broadcasting.

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

/// Number of elements in a tile, small enough that intermediate values stay in the L1 cache.
const TILE: usize = 1024;

/// Inner axes of at least this length are tiled individually; tiles of shorter axes contain several rows.
const LONG: usize = 512;

/// Input tensor of a [`MapProgram`].
#[derive(Clone, Copy, Debug)]
pub struct MapInput<'a> {
    /// The elements.
    pub elements: &'a [f32],
    /// Distance between adjacent elements along each axis of the result; 0 along broadcast axes.
    pub strides: &'a [usize],
}

/// The strides of a dense tensor of shape `from` that is broadcast to `to` by numpy's rules; `None` if the
/// shapes are not compatible.
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

/// Runs the program for each element of a shape and stores its outputs as dense tensors of that shape.
///
/// # Panics
/// Panics if the number or length of inputs or outputs does not match the program and the shape.
pub fn map(
    isa: Isa,
    pool: &Pool,
    program: &MapProgram,
    shape: &[usize],
    inputs: &[MapInput<'_>],
    outputs: &mut [&mut [f32]],
) {
    let total: usize = shape.iter().product();
    assert!(
        inputs.len() >= program.inputs(),
        "the program requires {} inputs, got {}",
        program.inputs(),
        inputs.len()
    );
    assert_eq!(
        outputs.len(),
        program.outputs.len(),
        "the number of outputs does not match the program"
    );
    for output in outputs.iter() {
        assert_eq!(output.len(), total, "an output's length does not match the shape");
    }
    for input in inputs {
        assert_eq!(
            input.strides.len(),
            shape.len(),
            "the number of an input's strides must equal the rank"
        );
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
    // Waking a thread pays off from about ten microseconds of work.
    let grain = (16_384 / (space.tile_length() * program.steps.len()).max(1)).max(1);
    pool.run_ranges(space.tiles(), grain, |range| {
        with_scratch(|scratch| run.tiles(range, scratch))
    });
}

/// The shape with adjacent axes merged if all inputs allow it.
struct Space {
    lengths: Vec<usize>,
    /// By input and axis.
    strides: Vec<Vec<usize>>,
    /// The last size.
    inner: usize,
    /// The product of the other sizes.
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

    /// Whether tiles are parts of one row.
    fn is_long(&self) -> bool {
        self.inner >= LONG
    }

    fn rows_per_tile(&self) -> usize {
        (TILE / self.inner).clamp(1, self.rows)
    }

    /// Maximum number of elements in a tile.
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

    /// The first row of a tile, its start in that row, and its number of elements.
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

    /// Offset of a row in an input.
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

/// Access of a tile to the elements of an input.
#[derive(Clone, Copy, PartialEq)]
enum Access {
    /// Directly; the layout equals the layout of the results.
    Dense,
    /// Directly, because the tile is within one contiguous row.
    Row,
    /// A single element for the whole tile.
    Uniform,
    /// Gathered once, because all rows have the same elements.
    Repeated,
    /// Gathered for each tile.
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
        // Each scratch tile starts on a cache line.
        let pitch = most.next_multiple_of(16);
        let elements = scratch.elements((tile_count + inputs.len()) * pitch);
        let (gathered, scratch) = elements.split_at_mut(inputs.len() * pitch);
        let (gathered, scratch) = (SharedMut::new(gathered), SharedMut::new(scratch));
        for (input, access) in accesses.iter().enumerate() {
            if *access == Access::Repeated {
                // SAFETY: no other code accesses the scratch tile of this input.
                #[expect(unsafe_code, reason = "views point to scratch memory across steps")]
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
                                // SAFETY: no other code accesses the scratch tile of this input, and views of
                                // it are not read at this time.
                                #[expect(unsafe_code, reason = "views point to scratch memory")]
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
                            // Write directly to the output; later steps may read it there.
                            Some(output) => outputs[output].pointer(first..first + length),
                            None => {
                                let tile = tiles[at].expect("a step that computes has a tile");
                                scratch.pointer(tile * pitch..tile * pitch + length)
                            }
                        };
                        // SAFETY: the views of operands come from the arms above and have the tile's
                        // elements, as checked by slicing. Scratch tiles that are live at the same time are
                        // disjoint, and no other task writes these elements of the outputs.
                        #[expect(unsafe_code, reason = "results may overwrite operands")]
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
                // SAFETY: as above; the source is the target or does not overlap it.
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

/// Gathers the elements of a tile into contiguous memory.
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
