//! Convolutions as matrix products. A row of the left matrix contains the elements under the kernel's window.
//! It is never copied; tiles find its pieces through an indirection table.

use std::ops::Range;

use super::driver::{self, Dense, Left, Output};
use super::{Epilogue, Matrix, MatrixMut, PackedWeights, Residual};
use crate::Pool;
use crate::scratch::PackedRows;
use crate::shared::SharedPointer;

/// Maximum number of channels for which the taps in a row of the window form one piece.
const FEW_CHANNELS: usize = 16;

/// Sizes of a convolution over up to three dimensions.
///
/// The input is channels last: `[images, depth, height, width, channels]`. With fewer dimensions, the first
/// sizes are 1, with stride and dilation 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Number of images in the batch.
    pub images: usize,
    /// Size of an image.
    pub input: [usize; 3],
    /// Size of the result.
    pub output: [usize; 3],
    /// Size of the kernel.
    pub kernel: [usize; 3],
    /// Step of the window.
    pub stride: [usize; 3],
    /// Distance between adjacent elements of the window.
    pub dilation: [usize; 3],
    /// Number of zeros before the input. The number of zeros after it follows from the size of the result.
    pub padding: [usize; 3],
    /// Number of channels of a group.
    pub channels: usize,
    /// Number of groups; their channels are adjacent.
    pub groups: usize,
    /// Distance in elements between adjacent pixels.
    pub pixel_stride: usize,
}

impl Window {
    fn pixels(&self) -> usize {
        self.input.iter().product()
    }

    fn results(&self) -> usize {
        self.output.iter().product()
    }

    fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Whether each result depends only on the input pixel at the same position.
    fn is_pointwise(&self) -> bool {
        self.taps() == 1
            && self.stride == [1; 3]
            && self.padding == [0; 3]
            && self.input == self.output
    }

    /// Whether the pixels under a row of the window are contiguous in memory.
    fn is_joined(&self) -> bool {
        self.channels <= FEW_CHANNELS
            && self.pixel_stride == self.channels
            && self.kernel[2] > 1
            && self.dilation[2] == 1
    }
}

/// Locations of the pieces of each row of the left matrix, for a [`Window`]. A table is built once and used
/// for any number of runs.
#[derive(Clone, Debug)]
pub struct IndirectionTable {
    window: Window,
    /// Number of pieces in a row; `depth` is the number of elements of each.
    taps: usize,
    depth: usize,
    /// One entry for each result of an image and each tap; empty for pointwise convolutions.
    entries: Vec<u32>,
    edges: Vec<Edge>,
    /// Zeros, read instead of pieces outside the input.
    zeros: Vec<f32>,
}

/// A piece that is partly outside the input.
#[derive(Clone, Copy, Debug)]
struct Edge {
    zeros: u32,
    start: u32,
    count: u32,
}

/// Entry of a piece outside the input.
const OUTSIDE: u32 = u32::MAX;

/// Bit that marks the entry of an edge; the other bits are its index.
const EDGE: u32 = 1 << 31;

impl IndirectionTable {
    /// Builds the table of a window.
    ///
    /// # Panics
    /// Panics if an image has 2³¹ elements or more, or if the groups have more channels than a pixel.
    pub fn new(window: Window) -> IndirectionTable {
        let channels = window.channels.checked_mul(window.groups);
        assert!(
            channels.is_some_and(|all| all <= window.pixel_stride),
            "the groups have more channels than a pixel"
        );
        let elements = window.pixels().checked_mul(window.pixel_stride);
        assert!(
            elements.is_some_and(|all| all < EDGE as usize),
            "an image must have fewer than 2^31 elements"
        );
        let joined = window.is_joined();
        let [.., width] = window.kernel;
        let (taps, depth) = match joined {
            true => (window.taps() / width, width * window.channels),
            false => (window.taps(), window.channels),
        };
        let mut table = IndirectionTable {
            taps,
            depth,
            entries: Vec::new(),
            edges: Vec::new(),
            zeros: vec![0.0; depth],
            window,
        };
        if !table.window.is_pointwise() {
            table.find();
        }
        table
    }

    /// The window of the table.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val::<[u32]>(&self.entries)
            + size_of_val::<[Edge]>(&self.edges)
            + size_of_val::<[f32]>(&self.zeros)
    }

    fn find(&mut self) {
        let Window {
            input, output, kernel, stride, dilation, padding, channels, pixel_stride, ..
        } = self.window.clone();
        let joined = self.window.is_joined();
        let place = |axis: usize, result: usize, tap: usize| {
            (result * stride[axis] + tap * dilation[axis]) as isize - padding[axis] as isize
        };
        let inside = |axis: usize, result: usize, tap: usize| {
            usize::try_from(place(axis, result, tap)).ok().filter(|at| *at < input[axis])
        };
        self.entries.reserve_exact(self.window.results() * self.taps);
        for [z, y, x] in indices(output) {
            for [tap_z, tap_y, tap_x] in
                indices([kernel[0], kernel[1], if joined { 1 } else { kernel[2] }])
            {
                let (Some(z), Some(y)) = (inside(0, z, tap_z), inside(1, y, tap_y)) else {
                    self.entries.push(OUTSIDE);
                    continue;
                };
                let line = (z * input[1] + y) * input[2];
                if !joined {
                    let pixel = inside(2, x, tap_x).map(|x| ((line + x) * pixel_stride) as u32);
                    self.entries.push(pixel.unwrap_or(OUTSIDE));
                    continue;
                }
                let first = place(2, x, 0);
                let before = first.min(0).unsigned_abs().min(kernel[2]);
                let start = first.max(0) as usize;
                let count = (kernel[2] - before).min(input[2].saturating_sub(start));
                self.entries.push(if count == 0 {
                    OUTSIDE
                } else if count == kernel[2] {
                    ((line + start) * channels) as u32
                } else {
                    self.edges.push(Edge {
                        zeros: (before * channels) as u32,
                        start: ((line + start) * channels) as u32,
                        count: (count * channels) as u32,
                    });
                    EDGE | (self.edges.len() - 1) as u32
                });
            }
        }
    }
}

/// All indices of a box, in row-major order.
fn indices(extents: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    let [depth, height, width] = extents;
    (0..depth).flat_map(move |z| (0..height).flat_map(move |y| (0..width).map(move |x| [z, y, x])))
}

/// The left matrix of one group.
struct Indirect<'a> {
    table: &'a IndirectionTable,
    input: &'a [f32],
}

// SAFETY: `convolve` checked that the input has all pixels, and entries refer to pieces inside the input.
#[expect(unsafe_code, reason = "the driver reads through the pointers")]
unsafe impl Left for Indirect<'_> {
    fn taps(&self) -> usize {
        self.table.taps
    }

    fn depth(&self) -> usize {
        self.table.depth
    }

    fn copied(&self, rows: usize) -> usize {
        match self.table.edges.is_empty() {
            true => 0,
            false => rows * self.table.taps * self.table.depth,
        }
    }

    fn point(&self, rows: Range<usize>, pointers: &mut [*const f32], copies: &mut PackedRows) {
        let IndirectionTable { window, taps, depth, entries, edges, zeros } = self.table;
        let results = window.results();
        let image_elements = window.pixels() * window.pixel_stride;
        let count = rows.len();
        for (index, row) in rows.enumerate() {
            let image = &self.input[row / results * image_elements..];
            let entries = &entries[row % results * taps..][..*taps];
            for (tap, entry) in entries.iter().enumerate() {
                pointers[tap * count + index] = match *entry {
                    OUTSIDE => zeros.as_ptr(),
                    entry if entry & EDGE == 0 => image[entry as usize..].as_ptr(),
                    entry => {
                        let edge = edges[(entry & !EDGE) as usize];
                        let copy = copies.take(*depth);
                        let (before, rest) = copy.split_at_mut(edge.zeros as usize);
                        let (inside, after) = rest.split_at_mut(edge.count as usize);
                        before.fill(0.0);
                        inside.copy_from_slice(&image[edge.start as usize..][..inside.len()]);
                        after.fill(0.0);
                        copy.as_ptr()
                    }
                };
            }
        }
    }
}

/// Convolves images, channels last, with the weights of each group.
///
/// The inputs of the weights are the kernel's taps times the group's channels, tap by tap, which is the order
/// of [`Order::ChannelsFirst`](super::Order::ChannelsFirst). The result has a row for each pixel, with the
/// outputs of all groups concatenated. Bias and residual have the same layout.
///
/// # Panics
/// Panics if input, weights, result or epilogue do not match the window.
pub fn convolve(
    pool: &Pool,
    table: &IndirectionTable,
    input: &[f32],
    weights: &[PackedWeights],
    output: MatrixMut,
    epilogue: &Epilogue,
) {
    let window = &table.window;
    let rows = window.images * window.results();
    let columns = weights.iter().map(PackedWeights::outputs).sum();
    assert_eq!(weights.len(), window.groups, "each group needs weights");
    let pixels = Matrix { elements: input, stride: window.pixel_stride };
    pixels.check(window.images * window.pixels(), window.groups * window.channels);
    output.check(rows, columns);
    epilogue.check(rows, columns);
    if rows == 0 {
        return;
    }
    let mut column = 0;
    for (group, weights) in weights.iter().enumerate() {
        let input = &input[(group * window.channels).min(input.len())..];
        let epilogue = Epilogue {
            bias: epilogue.bias.map(|bias| &bias[column..]),
            residual: epilogue.residual.map(|residual| Residual {
                rows: Matrix { elements: &residual.rows.elements[column..], ..residual.rows },
                ..residual
            }),
            ..*epilogue
        };
        let start = output.elements[column..].as_mut_ptr();
        let target = Output { start: SharedPointer(start), stride: output.stride };
        // SAFETY: all sizes were checked, and the output is borrowed mutably.
        #[expect(unsafe_code, reason = "the driver takes pointers; the extents are checked here")]
        unsafe {
            if window.is_pointwise() {
                let (start, stride) = (input.as_ptr(), window.pixel_stride);
                let left = Dense { start, stride, depth: window.channels };
                driver::run(Some(pool), rows, &left, weights, &target, &epilogue);
            } else {
                driver::run(
                    Some(pool),
                    rows,
                    &Indirect { table, input },
                    weights,
                    &target,
                    &epilogue,
                );
            }
        }
        column += weights.outputs();
    }
}

#[cfg(test)]
mod tests;
