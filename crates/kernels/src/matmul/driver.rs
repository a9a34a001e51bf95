//! The loops around the tile.
//!
//! A task computes some rows and some panels of the product. It processes the depth in blocks, so that the
//! active parts of the panel and of the rows stay in the cache. For each block it iterates over the panels,
//! and for each panel over the tiles.

#![expect(unsafe_code, reason = "pointers to rows and panels, whose extents callers check once")]

use std::ops::Range;

use super::epilogue::{Epilogue, finish};
use super::tile::{Finish, Tile, compute};
use super::weights::{Panels, Right};
use crate::Pool;
use crate::scratch::{PackedRows, Scratch, with_scratch};
use crate::shared::SharedPointer;

/// Maximum number of elements of a row that a tile processes at a time.
const BLOCK: usize = 512;

/// Maximum number of vertically adjacent tiles in a task.
const TASK_TILES: usize = 32;

/// Number of tasks for each thread.
const TASKS_PER_THREAD: usize = 8;

/// Minimum number of multiplications for a task.
const TASK_WORK: usize = 1 << 17;

/// The left matrix, whose rows consist of `taps` pieces of `depth` elements.
///
/// # Safety
/// The pointers that `point` writes must refer to `depth` elements until the copies are reset.
pub(super) unsafe trait Left: Sync {
    fn taps(&self) -> usize;
    fn depth(&self) -> usize;
    /// Upper bound on the number of elements that `point` copies for this number of rows.
    fn copied(&self, _rows: usize) -> usize {
        0
    }
    /// Writes the pointers to the pieces of some rows, tap by tap.
    fn point(&self, rows: Range<usize>, pointers: &mut [*const f32], copies: &mut PackedRows);
}

/// Rows in memory at a fixed stride.
pub(super) struct Dense {
    pub start: *const f32,
    pub stride: usize,
    pub depth: usize,
}

// SAFETY: the pointer is only read.
unsafe impl Sync for Dense {}

// SAFETY: the code that creates it guarantees the rows.
unsafe impl Left for Dense {
    fn taps(&self) -> usize {
        1
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn point(&self, rows: Range<usize>, pointers: &mut [*const f32], _copies: &mut PackedRows) {
        for (row, pointer) in rows.zip(pointers) {
            *pointer = self.start.wrapping_add(row * self.stride);
        }
    }
}

/// Destination of the results.
pub(super) struct Output {
    pub start: SharedPointer<f32>,
    pub stride: usize,
}

/// A part of the depth: some taps, or some elements of one tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    tap: usize,
    taps: usize,
    start: usize,
    depth: usize,
}

/// Divides the depth into blocks of similar size.
#[derive(Clone, Copy)]
struct Blocks {
    taps: usize,
    depth: usize,
    /// Number of taps in a block, if several fit.
    together: usize,
    /// Number of elements in a block, if a tap is divided.
    part: usize,
}

impl Blocks {
    fn new(taps: usize, depth: usize) -> Blocks {
        if depth > BLOCK {
            let part = depth.div_ceil(depth.div_ceil(BLOCK)).next_multiple_of(8);
            return Blocks { taps, depth, together: 1, part };
        }
        let count = (taps * depth).div_ceil(BLOCK).max(1);
        Blocks { taps, depth, together: taps.div_ceil(count).max(1), part: depth.max(1) }
    }

    fn count(&self) -> usize {
        // Even an empty sum is written, as zero.
        (self.taps.div_ceil(self.together) * self.depth.div_ceil(self.part)).max(1)
    }

    fn get(&self, index: usize) -> Block {
        let parts = self.depth.div_ceil(self.part).max(1);
        let tap = index / parts * self.together;
        let start = index % parts * self.part;
        Block {
            tap,
            taps: self.together.min(self.taps - tap),
            start,
            depth: self.part.min(self.depth - start),
        }
    }
}

/// Division of the product into tasks.
struct Grid {
    rows: usize,
    /// Number of tiles in vertical direction.
    tiles: usize,
    /// Number of parts into which the tiles are divided.
    down: usize,
    /// Number of panels in a task.
    across: usize,
}

impl Grid {
    fn new(threads: usize, rows: usize, work: usize, panels: &Panels) -> Grid {
        let tiles = rows.div_ceil(panels.shape.rows);
        let mut down = tiles.div_ceil(TASK_TILES);
        let mut across = panels.count();
        if threads > 1 {
            let wanted = (work / TASK_WORK).clamp(1, threads * TASKS_PER_THREAD);
            if down < wanted {
                let parts = wanted.div_ceil(down).min(panels.count());
                across = panels.count() / parts;
                let parts = panels.count().div_ceil(across);
                down = down.max(wanted.div_ceil(parts)).min(tiles);
            }
            if down > 1 {
                down = down.next_multiple_of(threads).min(tiles);
            }
        }
        Grid { rows, tiles, down, across }
    }

    /// The tiles of a part.
    fn part(&self, part: usize) -> Range<usize> {
        part * self.tiles / self.down..(part + 1) * self.tiles / self.down
    }

    /// The rows of a tile. Tiles have similar heights.
    fn tile(&self, tile: usize) -> Range<usize> {
        tile * self.rows / self.tiles..(tile + 1) * self.rows / self.tiles
    }
}

/// Computes the product and applies the epilogue. Without a pool it runs in the calling thread.
///
/// # Safety
/// The output must have `rows` rows with one element for each output of the weights, and no other thread may
/// access them during the call. The sizes of the epilogue must have been checked.
pub(super) unsafe fn run(
    pool: Option<&Pool>,
    rows: usize,
    left: &impl Left,
    weights: &impl Right,
    output: &Output,
    epilogue: &Epilogue,
) {
    assert_eq!(left.taps() * left.depth(), weights.inputs(), "the rows do not match the weights");
    let panels = Panels::new(weights.isa(), weights.outputs());
    if rows == 0 || panels.count() == 0 {
        return;
    }
    let work = rows.saturating_mul(panels.padded()).saturating_mul(weights.inputs());
    let grid = Grid::new(pool.map_or(1, Pool::threads), rows, work, &panels);
    let parts = panels.count().div_ceil(grid.across);
    let run = |task: usize| {
        let first = task % parts * grid.across;
        let some = first..(first + grid.across).min(panels.count());
        let tiles = grid.part(task / parts);
        // SAFETY: no two tasks have the same rows and panels, and the caller guarantees everything else.
        with_scratch(|scratch| unsafe {
            run_task(&grid, tiles, some, left, weights, output, epilogue, scratch);
        });
    };
    match pool {
        Some(pool) => pool.run(grid.down * parts, run),
        None => (0..grid.down * parts).for_each(run),
    }
}

/// # Safety
/// Same as for [`run`], limited to the rows and panels of the task.
#[expect(clippy::too_many_arguments, reason = "the parts of a task")]
unsafe fn run_task(
    grid: &Grid,
    tiles: Range<usize>,
    some_panels: Range<usize>,
    left: &impl Left,
    weights: &impl Right,
    output: &Output,
    epilogue: &Epilogue,
    scratch: &mut Scratch,
) {
    let isa = weights.isa();
    let panels = Panels::new(isa, weights.outputs());
    let lanes = panels.shape.lanes;
    let division = epilogue.divide();
    let taps = left.taps();
    let first_row = grid.tile(tiles.start).start;
    let last_row = grid.tile(tiles.end - 1).end;
    let mut pointers = std::mem::take(&mut scratch.pointers);
    let mut copies = std::mem::take(&mut scratch.copies);
    pointers.clear();
    pointers.resize((last_row - first_row) * taps, std::ptr::null());
    copies.reset(left.copied(last_row - first_row));
    for tile in tiles.clone() {
        let rows = grid.tile(tile);
        let range = (rows.start - first_row) * taps..(rows.end - first_row) * taps;
        left.point(rows, &mut pointers[range], &mut copies);
    }
    let blocks = Blocks::new(taps, left.depth());
    let inputs_of = |block: Block| {
        let start = block.tap * left.depth() + block.start;
        start..start + block.taps * block.depth
    };
    for index in 0..blocks.count() {
        let block = blocks.get(index);
        let is_last = index + 1 == blocks.count();
        let inputs = inputs_of(block);
        for panel in some_panels.clone() {
            // Prefetch the next panel during the computation of this one: at each step of a tile, as many
            // bytes as are needed to fetch the whole panel by the last tile.
            let (ahead, ahead_bytes) = if panel + 1 < some_panels.end {
                weights.ahead(panels.get(panel + 1), inputs.clone())
            } else if !is_last {
                let next = inputs_of(blocks.get(index + 1));
                weights.ahead(panels.get(some_panels.start), next)
            } else {
                (std::ptr::null(), 0)
            };
            let ahead_step = ahead_bytes.div_ceil((tiles.len() * inputs.len()).max(1));
            let panel = panels.get(panel);
            let width = panel.vectors * lanes;
            let columns = width.min(weights.outputs() - panel.start);
            let part = weights.part(panel, inputs.clone(), scratch);
            for (at_tile, tile) in tiles.clone().enumerate() {
                let ahead = ahead.wrapping_add(at_tile * inputs.len() * ahead_step);
                let rows = grid.tile(tile);
                let at = rows.start * output.stride + panel.start;
                // SAFETY: the tile is within the output and within the slices of the epilogue.
                unsafe {
                    let result = output.start.get().add(at);
                    let finishing = is_last.then(|| Finish {
                        bias: match epilogue.bias {
                            Some(bias) => bias.as_ptr().add(panel.start),
                            None => std::ptr::null(),
                        },
                        residual: match epilogue.residual.filter(|_| division.residual) {
                            Some(residual) => residual
                                .rows
                                .elements
                                .as_ptr()
                                .add(rows.start * residual.rows.stride + panel.start),
                            None => std::ptr::null(),
                        },
                        residual_stride: epilogue
                            .residual
                            .map_or(0, |residual| residual.rows.stride),
                        low: division.bounds.0,
                        high: division.bounds.1,
                    });
                    let pointers =
                        &pointers[(rows.start - first_row) * taps..][..rows.len() * taps];
                    let tile = Tile {
                        rows: pointers.as_ptr().add(block.tap * rows.len()),
                        taps: block.taps,
                        start: block.start,
                        depth: block.depth,
                        panel: part.as_ptr(),
                        output: result,
                        output_stride: output.stride,
                        last: columns - (panel.vectors - 1) * lanes,
                        accumulate: index > 0,
                        finish: finishing,
                        ahead,
                        ahead_step,
                    };
                    compute(isa, rows.len(), panel.vectors, &tile);
                    if is_last && division.rest {
                        for (index, row) in rows.enumerate() {
                            let start = result.add(index * output.stride);
                            let elements = std::slice::from_raw_parts_mut(start, columns);
                            finish(isa, epilogue, division, row, panel.start, elements);
                        }
                    }
                }
            }
        }
    }
    scratch.pointers = pointers;
    scratch.copies = copies;
}
