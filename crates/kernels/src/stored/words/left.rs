//! Left rows as 16-bit integers.

#![expect(unsafe_code, reason = "vectors are read from slices whose extents are checked")]

use super::{BLOCK, FEW};
use crate::Pool;
use crate::matmul::Matrix;
use crate::shared::SharedPointer;
use coremill_simd::Isa;
use coremill_simd::vector::{Kernel, Vector, dispatch};

/// Order of the integers of a row.
#[derive(Clone, Copy)]
pub(super) enum Order {
    /// Words: the two words of each pair of [`Codes::words`](super::codes::Codes::words), lane by lane.
    Pairs,
    /// Bytes, in the order of [`Codes::bytes`](super::codes::Codes::bytes) with this number of lanes: for each step the higher
    /// bytes, then the lower ones. Both are signed.
    Planes(usize),
}

/// Order of a row's integers, and size of its parts.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub inputs: usize,
    /// Number of elements of a lane.
    pub each: usize,
    pub order: Order,
    /// Number of elements for which a row has a scale, 16 or 32.
    pub part: usize,
}

/// Rows as integers with scales.
#[derive(Clone, Copy)]
pub(super) struct Left<'a> {
    pub layout: Layout,
    words: &'a [f32],
    scales: &'a [f32],
    totals: &'a [f32],
    sums: &'a [f32],
}

impl Layout {
    /// Number of elements of a step.
    #[inline(always)]
    pub(super) fn step(&self) -> usize {
        match self.order {
            Order::Pairs => self.each,
            Order::Planes(lanes) => self.each * lanes,
        }
    }

    /// Number of words of a row. Words after the last element are zero.
    #[inline(always)]
    pub(super) fn words(&self) -> usize {
        self.inputs.next_multiple_of(self.step())
    }

    /// Number of scales of a row. Scales after the last element are zero.
    #[inline(always)]
    pub(super) fn scales(&self) -> usize {
        self.words().next_multiple_of(BLOCK) / self.part
    }

    #[inline(always)]
    fn blocks(&self) -> usize {
        self.inputs / BLOCK
    }

    /// Number of elements of scratch memory for a row.
    pub(super) fn scratch(&self) -> usize {
        self.words() / 2 + 2 * self.scales() + self.blocks()
    }
}

impl<'a> Left<'a> {
    /// Converts rows; `scratch` has the memory for them.
    pub(super) fn new(
        pool: &Pool,
        isa: Isa,
        rows: usize,
        left: Matrix,
        layout: Layout,
        scratch: &'a mut [f32],
    ) -> Left<'a> {
        let (words, rest) = scratch.split_at_mut(rows * layout.words() / 2);
        let (scales, rest) = rest.split_at_mut(rows * layout.scales());
        let (totals, sums) = rest.split_at_mut(rows * layout.scales());
        let sums = &mut sums[..rows * layout.blocks()];
        let pointers = [&mut *words, &mut *scales, &mut *totals, &mut *sums];
        let pointers = pointers.map(|it| SharedPointer(it.as_mut_ptr()));
        let convert = |row: usize| {
            let part = |index: usize, count: usize| {
                // SAFETY: the memory has this many elements for each row, and each row is converted once.
                unsafe {
                    std::slice::from_raw_parts_mut(pointers[index].get().add(row * count), count)
                }
            };
            let words = part(0, layout.words() / 2).as_mut_ptr().cast::<i16>();
            let kernel = Convert {
                source: &left.elements[row * left.stride..][..layout.inputs],
                layout,
                // SAFETY: a float has the memory of two words, and all bits are valid.
                words: unsafe { std::slice::from_raw_parts_mut(words, layout.words()) },
                scales: part(1, layout.scales()),
                totals: part(2, layout.scales()),
                sums: part(3, layout.blocks()),
            };
            dispatch(isa, kernel);
        };
        if rows <= FEW {
            (0..rows).for_each(convert);
        } else {
            pool.run(rows, convert);
        }
        Left { layout, words, scales, totals, sums }
    }

    #[inline(always)]
    pub(super) fn words(&self, row: usize) -> *const i16 {
        self.words[row * self.layout.words() / 2..].as_ptr().cast()
    }

    #[inline(always)]
    pub(super) fn scales(&self, row: usize) -> &'a [f32] {
        &self.scales[row * self.layout.scales()..][..self.layout.scales()]
    }

    /// Sums of the integers of the parts of a row.
    #[inline(always)]
    pub(super) fn totals(&self, row: usize) -> &'a [f32] {
        &self.totals[row * self.layout.scales()..][..self.layout.scales()]
    }

    /// Sums of the elements of the blocks of a row.
    #[inline(always)]
    pub(super) fn sums(&self, row: usize) -> &'a [f32] {
        &self.sums[row * self.layout.blocks()..][..self.layout.blocks()]
    }
}

/// Converts a row.
struct Convert<'a> {
    source: &'a [f32],
    layout: Layout,
    words: &'a mut [i16],
    scales: &'a mut [f32],
    totals: &'a mut [f32],
    sums: &'a mut [f32],
}

/// Largest integer. Its higher byte is at most 127 if the lower byte is signed.
const MOST: f32 = (127 * 256 + 127) as f32;

/// Blocks whose largest magnitude is below this are zero.
const LEAST: f32 = 1e-30;

impl Kernel for Convert<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Convert { source, layout, words, scales, totals, sums } = self;
        let Layout { inputs, each, part, .. } = layout;
        words[inputs - inputs % layout.step()..].fill(0);
        scales[inputs / part..].fill(0.0);
        totals[inputs / part..].fill(0.0);
        let blocks = source.chunks_exact(BLOCK).zip(scales.chunks_exact_mut(BLOCK / part));
        let blocks = blocks.zip(totals.chunks_exact_mut(BLOCK / part));
        for (index, (((block, scales), totals), sum)) in blocks.zip(sums).enumerate() {
            let mut most = V::zero();
            for part in block.chunks_exact(V::LANES) {
                // SAFETY: the part has the elements of a vector.
                most = unsafe { V::load(part.as_ptr()) }.abs().max_nan(most);
            }
            let most = if V::any(most.is_nan()) { f32::NAN } else { most.maximum() };
            let (scale, inverse) = match most {
                LEAST..f32::INFINITY => (most / MOST, MOST / most),
                // Infinity and NaN make the products of the block NaN.
                _ => (if most < LEAST { 0.0 } else { f32::NAN }, 0.0),
            };
            let mut integers = [0i32; BLOCK];
            let parts = block.chunks_exact(V::LANES).zip(integers.chunks_exact_mut(V::LANES));
            for (from, to) in parts.filter(|_| inverse != 0.0) {
                // SAFETY: both have the elements of a vector; storing floats only moves bits.
                unsafe {
                    let scaled = V::load(from.as_ptr()).mul(V::splat(inverse));
                    V::from_bits(scaled.to_int()).store(to.as_mut_ptr().cast());
                }
            }
            scales.fill(scale);
            *sum = 0.0;
            for (integers, total) in integers.chunks_exact(part).zip(totals) {
                *total = integers.iter().sum::<i32>() as f32;
                *sum += *total * scale;
            }
            let bytes = words.as_mut_ptr().cast::<u8>();
            // SAFETY: a word is two bytes.
            let bytes = unsafe { std::slice::from_raw_parts_mut(bytes, 2 * words.len()) };
            match (layout.order, each) {
                (Order::Pairs, 8) => place_pairs::<8>(&integers, index, words),
                (Order::Pairs, _) => place_pairs::<4>(&integers, index, words),
                (Order::Planes(lanes), 8) => place_planes::<8>(&integers, index, lanes, bytes),
                (Order::Planes(lanes), _) => place_planes::<4>(&integers, index, lanes, bytes),
            }
        }
    }
}

/// Writes the integers of a block in pairs.
#[inline(always)]
fn place_pairs<const EACH: usize>(integers: &[i32; BLOCK], block: usize, words: &mut [i16]) {
    let words = &mut words[block * BLOCK..][..BLOCK];
    let lanes = integers.as_chunks::<EACH>().0.iter().zip(words.as_chunks_mut::<EACH>().0);
    for (integers, words) in lanes {
        for at in 0..EACH / 2 {
            words[2 * at] = integers[at] as i16;
            words[2 * at + 1] = integers[at + EACH / 2] as i16;
        }
    }
}

/// Writes the integers of a block in planes of bytes.
#[inline(always)]
fn place_planes<const EACH: usize>(
    integers: &[i32; BLOCK],
    block: usize,
    lanes: usize,
    bytes: &mut [u8],
) {
    /// Number of adjacent lanes of a block, in every order, that are written at once.
    const TOGETHER: usize = 4;
    let vectors = EACH / 4;
    let mut planes = [[[0; BLOCK]; 2]; 2];
    for vector in 0..vectors {
        for at in 0..BLOCK / vectors {
            let integer = integers[at * vectors + vector];
            planes[0][vector][at] = ((integer + 128) >> 8) as u8;
            planes[1][vector][at] = integer as u8;
        }
    }
    for part in 0..BLOCK / EACH / TOGETHER {
        let index = block * (BLOCK / EACH) + part * TOGETHER;
        // The number of lanes is a power of two.
        let (step, lane) = (index >> lanes.trailing_zeros(), index & (lanes - 1));
        let target = &mut bytes[step * 2 * EACH * lanes..][..2 * EACH * lanes];
        for (half, planes) in planes.iter().enumerate() {
            for (vector, plane) in planes[..vectors].iter().enumerate() {
                let start = ((half * vectors + vector) * lanes + lane) * 4;
                let plane = &plane[part * 4 * TOGETHER..][..4 * TOGETHER];
                target[start..start + 4 * TOGETHER].copy_from_slice(plane);
            }
        }
    }
}
