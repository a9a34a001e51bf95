//! The innermost loop: a tile of the product stays in registers while a panel of weights and the tile's rows
//! are streamed.

#![expect(
    unsafe_code,
    reason = "pointers to rows and panels, whose extents the driver checks once"
)]

use coremill_simd::Isa;
use coremill_simd::vector::{Kernel, Vector, dispatch_unchecked, prefetch};

/// Maximum size of a tile that fits the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub rows: usize,
    /// Number of vectors in a row.
    pub vectors: usize,
    /// Number of elements in a vector.
    pub lanes: usize,
}

impl Shape {
    pub(super) const fn of(isa: Isa) -> Shape {
        match isa {
            Isa::Avx512 => Shape { rows: 8, vectors: 3, lanes: 16 },
            Isa::Avx2 => Shape { rows: 6, vectors: 2, lanes: 8 },
            Isa::Neon => Shape { rows: 8, vectors: 3, lanes: 4 },
            Isa::Portable => Shape { rows: 4, vectors: 1, lanes: 8 },
        }
    }
}

/// A tile to compute: the sum over taps and depth of rows times panel.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// Pointers to the rows of the left matrix, for each tap.
    pub rows: *const *const f32,
    pub taps: usize,
    /// Index of the first element of the rows; `depth` elements are used for each tap.
    pub start: usize,
    pub depth: usize,
    /// The panel: for each tap and depth, a row with the width of the tile.
    pub panel: *const f32,
    pub output: *mut f32,
    pub output_stride: usize,
    /// Number of elements in the last vector of a row that belong to the product.
    pub last: usize,
    /// Whether the output already contains a part of the sum.
    pub accumulate: bool,
    pub finish: Option<Finish>,
    /// Memory to prefetch, `ahead_bytes` at each depth; any address is allowed.
    pub ahead: *const u8,
    pub ahead_step: usize,
}

/// The part of the epilogue that is done in registers.
#[derive(Clone, Copy)]
pub(super) struct Finish {
    /// Pointer to the bias of the tile's first column, or null.
    pub bias: *const f32,
    /// Pointer to the residual of the tile's first element, or null.
    pub residual: *const f32,
    pub residual_stride: usize,
    pub low: f32,
    pub high: f32,
}

/// Rows and vectors of the largest tile. Only tiles up to this size are compiled.
const fn most<V: Vector>() -> (usize, usize) {
    let isa = match (V::LANES, V::FUSED) {
        (16, _) => Isa::Avx512,
        (4, _) => Isa::Neon,
        (_, true) => Isa::Avx2,
        (_, false) => Isa::Portable,
    };
    (Shape::of(isa).rows, Shape::of(isa).vectors)
}

/// Maximum number of rows and of vectors in a row of any tile.
const MAX_ROWS: usize = 8;
const MAX_VECTORS: usize = 3;

/// Repeats a block for each index below a count, with the index as a constant.
///
/// Sums that are only accessed with constant indices are in registers from the start. If loops access them, they
/// stay in memory until all these loops are unrolled; some pipelines of the compiler do that too late.
macro_rules! unrolled {
    ($index:ident in 0..$count:ident, $body:block) => {
        $crate::matmul::unrolled!($index, $count, $body, 0 1 2 3 4 5 6 7)
    };
    ($index:ident in 0..$count:ident of 3, $body:block) => {
        $crate::matmul::unrolled!($index, $count, $body, 0 1 2)
    };
    ($index:ident, $count:ident, $body:block, $($value:literal)*) => {
        $(
            if $value < $count {
                const $index: usize = $value;
                $body
            }
        )*
    };
}

pub(crate) use unrolled;

/// Sums of a tile. A smaller tile uses the first rows and vectors.
type Sums<V> = [[V; MAX_VECTORS]; MAX_ROWS];

/// Passed by reference: if it were copied as an argument, its fields would be read back before they are
/// written.
struct SizedTile<'t, const R: usize, const N: usize>(&'t Tile);

impl<const R: usize, const N: usize> Kernel for SizedTile<'_, R, N> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        if R > most::<V>().0 || N > most::<V>().1 {
            unreachable!("a tile is not larger than its shape");
        }
        let tile = self.0;
        let mut sums: Sums<V> = [[V::zero(); MAX_VECTORS]; MAX_ROWS];
        let mut panel = tile.panel;
        let mut ahead = tile.ahead;
        // The loop over the depth starts without a check: a path around the loop would meet its exit, and the
        // compiler would have the sums of both paths in registers, which are too few. They would be moved to
        // the stack in each step, unless the crate is divided into several units and optimized twice.
        let mut tap = 0;
        while tile.depth > 0 && tap < tile.taps {
            let mut rows = [std::ptr::null::<f32>(); MAX_ROWS];
            unrolled!(ROW in 0..R, {
                // SAFETY: there are `R` pointers for each tap, to rows with more than `start` elements.
                rows[ROW] = unsafe { (*tile.rows.add(tap * R + ROW)).add(tile.start) };
            });
            let mut at = 0;
            loop {
                prefetch(ahead);
                ahead = ahead.wrapping_add(tile.ahead_step);
                let mut weights = [V::zero(); MAX_VECTORS];
                unrolled!(INDEX in 0..N of 3, {
                    // SAFETY: the panel has `N` vectors for each tap and depth.
                    weights[INDEX] = unsafe { V::load(panel.add(INDEX * V::LANES)) };
                });
                unrolled!(ROW in 0..R, {
                    // SAFETY: rows have `depth` elements from `start`.
                    let element = V::splat(unsafe { *rows[ROW].add(at) });
                    unrolled!(INDEX in 0..N of 3, {
                        sums[ROW][INDEX] = weights[INDEX].mul_add(element, sums[ROW][INDEX]);
                    });
                });
                // SAFETY: at most one vector past the end of the panel.
                panel = unsafe { panel.add(N * V::LANES) };
                at += 1;
                if at == tile.depth {
                    break;
                }
            }
            tap += 1;
        }
        // SAFETY: the caller guarantees output, bias and residual.
        unsafe { write::<V, R, N>(tile, sums) };
    }
}

/// # Safety
/// The row must have the elements of `N` vectors, but only `last` elements of the last vector.
#[inline(always)]
unsafe fn load_row<V: Vector, const N: usize>(row: *const f32, last: usize) -> [V; MAX_VECTORS] {
    let mut vectors = [V::zero(); MAX_VECTORS];
    unrolled!(INDEX in 0..N of 3, {
        // SAFETY: the caller guarantees the elements.
        vectors[INDEX] = unsafe {
            let source = row.add(INDEX * V::LANES);
            if INDEX + 1 == N { V::load_partial(source, last) } else { V::load(source) }
        };
    });
    vectors
}

/// # Safety
/// Output, bias and residual must have the tile's elements.
#[inline(always)]
unsafe fn write<V: Vector, const R: usize, const N: usize>(tile: &Tile, mut sums: Sums<V>) {
    if tile.accumulate {
        unrolled!(ROW in 0..R, {
            // SAFETY: the caller guarantees the output.
            let before =
                unsafe { load_row::<V, N>(tile.output.add(ROW * tile.output_stride), tile.last) };
            unrolled!(INDEX in 0..N of 3, {
                sums[ROW][INDEX] = sums[ROW][INDEX].add(before[INDEX]);
            });
        });
    }
    if let Some(finish) = tile.finish {
        if !finish.bias.is_null() {
            // SAFETY: the caller guarantees the bias.
            let bias = unsafe { load_row::<V, N>(finish.bias, tile.last) };
            unrolled!(ROW in 0..R, {
                unrolled!(INDEX in 0..N of 3, {
                    sums[ROW][INDEX] = sums[ROW][INDEX].add(bias[INDEX]);
                });
            });
        }
        if !finish.residual.is_null() {
            unrolled!(ROW in 0..R, {
                // SAFETY: the caller guarantees the residual.
                let residual = unsafe {
                    load_row::<V, N>(finish.residual.add(ROW * finish.residual_stride), tile.last)
                };
                unrolled!(INDEX in 0..N of 3, {
                    sums[ROW][INDEX] = sums[ROW][INDEX].add(residual[INDEX]);
                });
            });
        }
        let (low, high) = (V::splat(finish.low), V::splat(finish.high));
        unrolled!(ROW in 0..R, {
            unrolled!(INDEX in 0..N of 3, {
                // `min` and `max` return the second operand if one is NaN.
                sums[ROW][INDEX] = high.min(low.max(sums[ROW][INDEX]));
            });
        });
    }
    unrolled!(ROW in 0..R, {
        unrolled!(INDEX in 0..N of 3, {
            // SAFETY: the caller guarantees the output.
            unsafe {
                let output = tile.output.add(ROW * tile.output_stride + INDEX * V::LANES);
                if INDEX + 1 == N {
                    sums[ROW][INDEX].store_partial(output, tile.last);
                } else {
                    sums[ROW][INDEX].store(output);
                }
            }
        });
    });
}

/// Computes a tile with this number of rows and vectors.
///
/// # Safety
/// The machine must support the instruction set. The size must be at most [`Shape::of`] and not zero. The
/// pointers must be valid as described in [`Tile`], and no other thread may access the tile's output during
/// the call.
pub(super) unsafe fn compute(isa: Isa, rows: usize, vectors: usize, tile: &Tile) {
    macro_rules! sizes {
        ($($rows:literal),* ; $vectors:literal) => {
            match rows {
                // SAFETY: the caller guarantees all preconditions.
                $($rows => unsafe { dispatch_unchecked(isa, SizedTile::<$rows, $vectors>(tile)) },)*
                _ => unreachable!("a tile has at most 8 rows"),
            }
        };
    }
    match vectors {
        1 => sizes!(1, 2, 3, 4, 5, 6, 7, 8; 1),
        2 => sizes!(1, 2, 3, 4, 5, 6, 7, 8; 2),
        3 => sizes!(1, 2, 3, 4, 5, 6, 7, 8; 3),
        _ => unreachable!("a tile has at most 3 vectors"),
    }
}
