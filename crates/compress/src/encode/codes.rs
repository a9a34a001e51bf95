//! Data of compressed weights, computed when read: codes, masks and elements that are not pruned.

use std::io;
use std::sync::Arc;

use coremill_kernels::codes::{Affine, Grid, affine, bucketize, grid, pack, restore};
use coremill_simd::Isa;
use coremill_tensor::{Buffer, ByteSource, DType, Fingerprint};
use half::f16;

use super::source::{CHUNK, Source};
use crate::blocks::Blocks;

/// Assignment of codes to elements.
pub(super) enum CodeAssignment {
    /// No codes; the elements are stored.
    Floats,
    /// Linear quantization with a scale and a zero point per block.
    Affine { blocks: Blocks, steps: QuantParams, range: (f32, f32) },
    /// Lookup tables, one per block.
    Tables { blocks: Blocks, tables: Lookup },
}

/// The scale and zero point of each block. Small blocks need many, so they stay in their stored
/// form; `scales` shares the constant's buffer.
pub(super) struct QuantParams {
    pub(super) scales: Buffer,
    /// Whether scales are stored as fp16.
    pub(super) is_half: bool,
    pub(super) zero_points: ZeroPoints,
}

/// Zero points.
pub(super) enum ZeroPoints {
    /// The same for all blocks.
    One(i16),
    /// One per block.
    Each(Vec<i16>),
}

impl QuantParams {
    fn of(&self, block: usize) -> Affine {
        let bytes = self.scales.as_bytes();
        let scale = match self.is_half {
            true => f16::from_le_bytes(bytes.as_chunks().0[block]).to_f32(),
            false => f32::from_le_bytes(bytes.as_chunks().0[block]),
        };
        let zero_point = match &self.zero_points {
            ZeroPoints::One(zero) => *zero,
            ZeroPoints::Each(zeros) => zeros[block],
        };
        Affine { scale, zero_point: zero_point.into() }
    }
}

/// Lookup tables, and the search for an element's index.
pub(super) struct Lookup {
    /// Number of entries per table.
    pub(super) length: usize,
    /// Entries of all tables, table by table.
    pub(super) entries: Vec<f32>,
    pub(super) find: IndexLookup,
    /// Index of each entry by its rank in its table; `None` if entries are ascending.
    pub(super) order: Option<Vec<u8>>,
}

/// Search for an element's index.
pub(super) enum IndexLookup {
    /// By the midpoints between adjacent entries. Unused midpoints are infinite.
    Nearest(Vec<f32>),
    /// By a uniform grid.
    Grid(Vec<Grid>),
}

/// A weight with the assignment of codes.
pub(super) struct Coder {
    pub(super) source: Source,
    pub(super) coding: CodeAssignment,
    /// Type of the codes.
    pub(super) dtype: DType,
    /// Identifies the encoding of the source.
    pub(super) recipe: String,
}

impl Lookup {
    /// Creates tables whose first `used` entries are valid and ascending. Elements are assigned to
    /// the nearest entry.
    pub(super) fn nearest(length: usize, entries: Vec<f32>, used: &[usize]) -> Lookup {
        let between = |(table, &used): (&[f32], &usize)| {
            let pairs: Vec<f32> =
                table[..used].windows(2).map(|pair| f32::midpoint(pair[0], pair[1])).collect();
            let missing = length - 1 - pairs.len();
            pairs.into_iter().chain(std::iter::repeat_n(f32::INFINITY, missing))
        };
        let limits = entries.chunks(length).zip(used).flat_map(between).collect();
        Lookup { length, entries, find: IndexLookup::Nearest(limits), order: None }
    }

    /// Creates tables with entries in any order. Elements are assigned to the nearest entry, to the first
    /// of equal ones.
    pub(super) fn unordered(length: usize, entries: Vec<f32>) -> Lookup {
        let (mut ascending, mut order, mut used) = (Vec::new(), Vec::new(), Vec::new());
        for table in entries.chunks(length) {
            let mut ranked: Vec<usize> = (0..length).collect();
            ranked.sort_by(|&left, &right| table[left].total_cmp(&table[right]));
            ranked.dedup_by(|next, held| table[*next] == table[*held]);
            used.push(ranked.len());
            ranked.resize(length, 0);
            ascending.extend(ranked.iter().map(|&index| table[index]));
            order.extend(ranked.iter().map(|&index| index as u8));
        }
        let Lookup { find, .. } = Lookup::nearest(length, ascending, &used);
        Lookup { length, entries, find, order: Some(order) }
    }

    /// Replaces the ranks of entries by their indices.
    fn reorder(&self, blocks: &Blocks, at: usize, codes: &mut [u8]) {
        let Some(order) = &self.order else { return };
        let mut rest = codes;
        blocks.for_each_run(at, rest.len(), |run, block| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(run);
            let order = &order[block * self.length..][..self.length];
            now.iter_mut().for_each(|code| *code = order[usize::from(*code)]);
            rest = later;
        });
    }
}

impl Coder {
    pub(super) fn bits(&self) -> u32 {
        self.dtype.bits().unwrap_or(8)
    }

    /// Appends the codes of consecutive elements.
    pub(super) fn encode(&self, at: usize, numbers: &[f32], codes: &mut Vec<u8>) {
        let isa = Isa::detect();
        let start = codes.len();
        codes.resize(start + numbers.len(), 0);
        let to = &mut codes[start..];
        match &self.coding {
            CodeAssignment::Floats => {}
            CodeAssignment::Affine { blocks, steps, range } => {
                let mut runs = Vec::new();
                let mut add = |run, block: usize| runs.push((run, steps.of(block)));
                blocks.for_each_run(at, numbers.len(), &mut add);
                affine(isa, numbers, &runs, *range, self.source.is_half(), to);
            }
            CodeAssignment::Tables { blocks, tables } => match (&tables.find, tables.length) {
                (IndexLookup::Nearest(limits), length) => {
                    let mut runs = Vec::new();
                    let mut add = |run, block: usize| runs.push((run, block * (length - 1)));
                    blocks.for_each_run(at, numbers.len(), &mut add);
                    bucketize(isa, numbers, &runs, limits, length - 1, to);
                    tables.reorder(blocks, at, to);
                }
                (IndexLookup::Grid(grids), length) => {
                    let mut runs = Vec::new();
                    let mut add = |run, block: usize| runs.push((run, grids[block]));
                    blocks.for_each_run(at, numbers.len(), &mut add);
                    grid(isa, numbers, &runs, (length - 1) as f32, self.source.is_half(), to);
                }
            },
        }
    }

    /// Decodes the codes of consecutive elements.
    pub(super) fn decode(&self, at: usize, numbers: &[f32], codes: &[u8], to: &mut Vec<f32>) {
        let isa = Isa::detect();
        match &self.coding {
            CodeAssignment::Floats => {
                to.clear();
                to.extend_from_slice(numbers);
            }
            CodeAssignment::Affine { blocks, steps, .. } => {
                let mut runs = Vec::new();
                let mut add = |run, block: usize| runs.push((run, steps.of(block)));
                blocks.for_each_run(at, codes.len(), &mut add);
                to.resize(codes.len(), 0.0);
                restore(isa, codes, &runs, self.dtype.is_signed_integer(), to);
                self.source.round_all(to);
            }
            CodeAssignment::Tables { blocks, tables } => {
                to.clear();
                let mut rest = codes;
                blocks.for_each_run(at, codes.len(), |run, block| {
                    let (now, later) = rest.split_at(run);
                    let table = &tables.entries[block * tables.length..][..tables.length];
                    to.extend(now.iter().map(|&code| table[usize::from(code)]));
                    rest = later;
                })
            }
        }
        if self.source.pruned.is_some() {
            for (to, &number) in to.iter_mut().zip(numbers) {
                *to = if number == 0.0 { 0.0 } else { *to };
            }
        }
        if let Some((blocks, scales)) = &self.source.scales {
            let mut rest = &mut to[..];
            blocks.for_each_run(at, codes.len(), |run, block| {
                let (now, later) = std::mem::take(&mut rest).split_at_mut(run);
                now.iter_mut().for_each(|to| *to *= scales[block]);
                rest = later;
            });
            self.source.round_all(to);
        }
    }

    fn identity(&self, what: &str) -> Fingerprint {
        let what = format!("{what} {}", self.recipe);
        Fingerprint::new(&what).with_part(&self.source.elements.identity())
    }
}

/// The codes of all elements.
pub(super) struct Dense(pub(super) Arc<Coder>);

impl ByteSource for Dense {
    fn length(&self) -> usize {
        (self.0.source.count * self.0.bits() as usize).div_ceil(8)
    }

    /// Eight codes are a whole number of bytes.
    fn granule(&self) -> usize {
        self.0.bits() as usize
    }

    fn produce(&self, offset: usize, target: &mut [u8]) -> io::Result<()> {
        let bits = self.0.bits() as usize;
        let start = offset * 8 / bits;
        let length = (target.len() * 8 / bits).min(self.0.source.count - start);
        let mut codes = Vec::with_capacity(length);
        self.0.source.for_each_part(start, length, &mut |part| {
            self.0.encode(part.at, part.numbers, &mut codes);
        })?;
        pack(bits as u32, &codes, target);
        Ok(())
    }

    fn identity(&self) -> Option<Fingerprint> {
        Some(self.0.identity("codes"))
    }
}

/// Number of nonzero elements before each part of a weight; the last entry is the total.
pub(super) struct NonzeroPrefixSums {
    before: Vec<usize>,
}

impl NonzeroPrefixSums {
    pub(super) fn of(source: &Source) -> io::Result<NonzeroPrefixSums> {
        let mut before = vec![0; source.count.div_ceil(CHUNK) + 1];
        source.for_each_part(0, source.count, &mut |part| {
            for (at, number) in part.numbers.iter().enumerate() {
                before[(part.at + at) / CHUNK + 1] += usize::from(*number != 0.0);
            }
        })?;
        for at in 1..before.len() {
            before[at] += before[at - 1];
        }
        Ok(NonzeroPrefixSums { before })
    }

    pub(super) fn total(&self) -> usize {
        self.before.last().copied().unwrap_or_default()
    }
}

/// A bit per element: 1 if it is nonzero.
pub(super) struct Mask(pub(super) Arc<Coder>);

impl ByteSource for Mask {
    fn length(&self) -> usize {
        self.0.source.count.div_ceil(8)
    }

    fn produce(&self, offset: usize, target: &mut [u8]) -> io::Result<()> {
        let start = offset * 8;
        let length = (target.len() * 8).min(self.0.source.count - start);
        let mut bits = Vec::with_capacity(length);
        self.0.source.for_each_part(start, length, &mut |part| {
            bits.extend(part.numbers.iter().map(|number| u8::from(*number != 0.0)));
        })?;
        pack(1, &bits, target);
        Ok(())
    }

    fn identity(&self) -> Option<Fingerprint> {
        Some(self.0.identity("mask"))
    }
}

/// The codes of nonzero elements, or the elements themselves if there are no codes.
pub(super) struct Sparse(pub(super) Arc<Coder>, pub(super) Arc<NonzeroPrefixSums>);

impl Sparse {
    fn element_bits(&self) -> usize {
        match self.0.coding {
            CodeAssignment::Floats if self.0.source.is_half() => 16,
            CodeAssignment::Floats => 32,
            CodeAssignment::Affine { .. } | CodeAssignment::Tables { .. } => self.0.bits() as usize,
        }
    }
}

impl ByteSource for Sparse {
    fn length(&self) -> usize {
        (self.1.total() * self.element_bits()).div_ceil(8)
    }

    fn granule(&self) -> usize {
        match self.element_bits() {
            bits @ 16.. => bits / 8,
            bits => bits,
        }
    }

    fn produce(&self, offset: usize, target: &mut [u8]) -> io::Result<()> {
        let (coder, NonzeroPrefixSums { before }) = (&self.0, &*self.1);
        let bits = self.element_bits();
        let first = offset * 8 / bits;
        let end = (first + target.len() * 8 / bits).min(self.1.total());
        // The last part that starts at or before the first requested element.
        let part = before.partition_point(|&rank| rank <= first).saturating_sub(1);
        let mut rank = before[part];
        let (mut codes, mut bytes, mut all) = (Vec::new(), Vec::new(), Vec::new());
        let mut at = part * CHUNK;
        while rank < end && at < coder.source.count {
            let length = CHUNK.min(coder.source.count - at);
            coder.source.for_each_part(at, length, &mut |part| {
                all.clear();
                if bits < 16 {
                    coder.encode(part.at, part.numbers, &mut all);
                }
                for (at, &number) in part.numbers.iter().enumerate() {
                    if number == 0.0 {
                        continue;
                    }
                    if (first..end).contains(&rank) {
                        if bits < 16 {
                            codes.push(all[at]);
                        } else {
                            coder.source.push(number, &mut bytes);
                        }
                    }
                    rank += 1;
                }
            })?;
            at += length;
        }
        if bits < 16 {
            pack(bits as u32, &codes, target);
        } else {
            target.copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn identity(&self) -> Option<Fingerprint> {
        Some(self.0.identity("sparse codes"))
    }
}
