//! Vector palettization: elements along the output channels share an index.

use std::io;
use std::sync::Arc;

use coremill_kernels::codes::pack;
use coremill_tensor::{ByteSource, DType, Fingerprint};

use super::source::Source;
use crate::blocks::Blocks;
use crate::error::Refusal;
use crate::form::{Algorithm, BITS, Palette};

/// Maximum number of vectors of a block, at equal distances, from which tables are computed.
const SAMPLE: usize = 1 << 15;

/// Maximum number of k-means iterations.
const MAX_STEPS: usize = 40;

/// Maximum number of vectors for repeated k-means. The best result of several initializations is
/// used.
const FEW: usize = 1 << 12;

/// Number of initializations.
const TRIES: usize = 16;

/// Number of codes that are computed at a time.
const CODES: usize = 1 << 14;

/// Layout of vectors in a weight: `[outer, groups of vectors, elements of a vector, inner]`.
#[derive(Clone, Debug)]
pub(super) struct VectorLayout {
    /// Number of elements per vector.
    pub(super) size: usize,
    /// Stride of a vector's elements.
    pub(super) inner: usize,
}

/// A weight encoded with vector lookup tables.
pub(super) struct Vectors {
    pub(super) source: Source,
    pub(super) lay: VectorLayout,
    /// Blocks of the indices.
    pub(super) blocks: Blocks,
    /// Entries of all tables, table by table.
    pub(super) entries: Vec<f32>,
    /// Number of used entries per table.
    pub(super) used: Vec<usize>,
    /// Number of entries per table.
    pub(super) length: usize,
    pub(super) dtype: DType,
    pub(super) recipe: String,
}

/// Calls `visit` with the index of the first vector and the elements of consecutive vectors, from
/// `start` on.
fn for_each_vectors(
    source: &Source,
    lay: &VectorLayout,
    start: usize,
    length: usize,
    visit: &mut dyn FnMut(usize, &[f32]),
) -> io::Result<()> {
    let VectorLayout { size, inner } = *lay;
    let (slab, mut vectors) = (size * inner, Vec::new());
    let mut numbers = Vec::new();
    let mut at = start;
    while at < start + length {
        let rows = (CODES / inner).max(1);
        let first = at / inner;
        let last = (start + length).div_ceil(inner).min(first + rows);
        numbers.clear();
        source.for_each_part(first * slab, (last - first) * slab, &mut |part| {
            numbers.extend_from_slice(part.numbers);
        })?;
        let end = (last * inner).min(start + length);
        vectors.clear();
        for place in at..end {
            let (row, column) = (place / inner - first, place % inner);
            let of = &numbers[row * slab..];
            vectors.extend((0..size).map(|element| of[element * inner + column]));
        }
        visit(at, &vectors);
        at = end;
    }
    Ok(())
}

/// Computes lookup tables for blocks of the indices. Returns entries, used entries and bits per
/// index.
pub(super) fn tables(
    source: &Source,
    lay: &VectorLayout,
    blocks: &Blocks,
    palette: &Palette,
) -> Result<(Vec<f32>, Vec<usize>, u32), Refusal> {
    let count = source.count / lay.size;
    let every = blocks.size().div_ceil(SAMPLE).max(1);
    let wants_all = palette.algorithm == Algorithm::Unique;
    let mut samples: Vec<Vec<f32>> = vec![Vec::new(); blocks.count()];
    let mut seen = vec![0usize; blocks.count()];
    let (mut finite, mut failed) = (true, None);
    let most = palette.bits.map_or(256, |bits| 1usize << bits);
    for_each_vectors(source, lay, 0, count, &mut |at, vectors| {
        finite &= vectors.iter().all(|number| number.is_finite());
        let mut rest = vectors;
        blocks.for_each_run(at, vectors.len() / lay.size, |run, block| {
            let (now, later) = rest.split_at(run * lay.size);
            for vector in now.chunks(lay.size) {
                if wants_all {
                    let sample = &mut samples[block];
                    if !sample.chunks(lay.size).any(|held| held == vector) {
                        sample.extend_from_slice(vector);
                    }
                    if sample.len() > most * lay.size {
                        sample.truncate(lay.size);
                        failed = Some("it has more distinct vectors than a table can hold");
                    }
                } else if seen[block].is_multiple_of(every) {
                    samples[block].extend_from_slice(vector);
                }
                seen[block] += 1;
            }
            rest = later;
        });
    })?;
    if !finite {
        return Err(Refusal::NotFinite);
    }
    if let Some(reason) = failed {
        return Err(Refusal::Kept(reason));
    }
    let found: Vec<Vec<f32>> = samples
        .into_iter()
        .map(|sample| {
            let mut table = match wants_all {
                true => sample,
                false => centres(&sample, lay.size, most),
            };
            table.iter_mut().for_each(|number| *number = source.round(*number));
            table
        })
        .collect();
    let used: Vec<usize> = found.iter().map(|table| table.len() / lay.size).collect();
    let largest = used.iter().copied().max().unwrap_or(0);
    let bits = palette
        .bits
        .unwrap_or_else(|| BITS.into_iter().find(|bits| 1 << bits >= largest).unwrap_or(8));
    let mut entries = Vec::new();
    for mut table in found {
        table.resize((1 << bits) * lay.size, 0.0);
        entries.extend(table);
    }
    Ok((entries, used, bits))
}

fn distance(left: &[f32], right: &[f32]) -> f32 {
    left.iter().zip(right).map(|(left, right)| (left - right) * (left - right)).sum()
}

fn nearest(vector: &[f32], table: &[f32]) -> (usize, f32) {
    let mut best = (0, f32::INFINITY);
    for (at, entry) in table.chunks(vector.len()).enumerate() {
        let found = distance(vector, entry);
        if found < best.1 {
            best = (at, found);
        }
    }
    best
}

/// k-means centers of vectors, initialized with k-means++.
fn centres(sample: &[f32], size: usize, count: usize) -> Vec<f32> {
    let vectors: Vec<&[f32]> = sample.chunks(size).collect();
    if vectors.len() <= count {
        return sample.to_vec();
    }
    let tries = if vectors.len() <= FEW { TRIES } else { 1 };
    // Fixed seeds make the result deterministic.
    let seeds = (0..tries).map(|at| 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(at as u64 * 2 + 1));
    let found = seeds.map(|seed| centres_from(&vectors, size, count, seed));
    let best = found.min_by(|(left, _), (right, _)| left.total_cmp(right));
    best.map(|(_, table)| table).unwrap_or_default()
}

/// k-means from one initialization. Returns the sum of squared differences and the centers.
fn centres_from(vectors: &[&[f32]], size: usize, count: usize, mut state: u64) -> (f64, Vec<f32>) {
    let mut uniform = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let first = (uniform() * vectors.len() as f64) as usize;
    let mut table = vectors[first.min(vectors.len() - 1)].to_vec();
    let mut far: Vec<f64> = vectors.iter().map(|vector| distance(vector, &table).into()).collect();
    for _ in 1..count {
        let total: f64 = far.iter().sum();
        // Use the candidate that reduces the distances most.
        let mut best: Option<(f64, usize)> = None;
        for _ in 0..4 {
            let mut wanted = uniform() * total;
            let found = far.iter().position(|share| {
                wanted -= share;
                wanted <= 0.0
            });
            let found = found.unwrap_or(vectors.len() - 1);
            let left: f64 = vectors
                .iter()
                .zip(&far)
                .map(|(vector, far)| far.min(distance(vector, vectors[found]).into()))
                .sum();
            if best.is_none_or(|(least, _)| left < least) {
                best = Some((left, found));
            }
        }
        let (_, chosen) = best.unwrap_or((0.0, 0));
        for (far, vector) in far.iter_mut().zip(vectors) {
            *far = far.min(distance(vector, vectors[chosen]).into());
        }
        table.extend_from_slice(vectors[chosen]);
    }
    let mut before = f64::INFINITY;
    for _ in 0..MAX_STEPS {
        let mut sums = vec![0.0f64; count * size];
        let mut counts = vec![0u64; count];
        let mut error = 0.0;
        for vector in vectors {
            let (at, far) = nearest(vector, &table);
            counts[at] += 1;
            error += f64::from(far);
            for (sum, &number) in sums[at * size..].iter_mut().zip(*vector) {
                *sum += f64::from(number);
            }
        }
        for (at, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            for element in at * size..(at + 1) * size {
                table[element] = (sums[element] / count as f64) as f32;
            }
        }
        if error >= before * (1.0 - 1e-5) {
            break;
        }
        before = error;
    }
    (before, table)
}

impl Vectors {
    fn count(&self) -> usize {
        self.source.count / self.lay.size
    }

    fn codes(&self, at: usize, vectors: &[f32], codes: &mut Vec<u8>) {
        let (size, table) = (self.lay.size, self.length * self.lay.size);
        let mut rest = vectors;
        self.blocks.for_each_run(at, vectors.len() / size, |run, block| {
            let (now, later) = rest.split_at(run * size);
            let of = &self.entries[block * table..][..self.used[block] * size];
            codes.extend(now.chunks(size).map(|vector| nearest(vector, of).0 as u8));
            rest = later;
        });
    }

    /// Signal power and noise power.
    pub(super) fn quality(&self) -> io::Result<(f64, f64)> {
        let (size, table) = (self.lay.size, self.length * self.lay.size);
        let (mut signal, mut noise) = (0.0, 0.0);
        let looked_at = self.count().min(SAMPLE);
        for_each_vectors(&self.source, &self.lay, 0, looked_at, &mut |at, vectors| {
            let mut rest = vectors;
            self.blocks.for_each_run(at, vectors.len() / size, |run, block| {
                let (now, later) = rest.split_at(run * size);
                let of = &self.entries[block * table..][..self.used[block] * size];
                for vector in now.chunks(size) {
                    noise += f64::from(nearest(vector, of).1);
                    signal += vector.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
                }
                rest = later;
            });
        })?;
        Ok((signal, noise))
    }
}

/// The indices of all vectors.
pub(super) struct PaletteIndices(pub(super) Arc<Vectors>);

impl ByteSource for PaletteIndices {
    fn length(&self) -> usize {
        (self.0.count() * self.0.dtype.bits().unwrap_or(8) as usize).div_ceil(8)
    }

    fn granule(&self) -> usize {
        self.0.dtype.bits().unwrap_or(8) as usize
    }

    fn produce(&self, offset: usize, target: &mut [u8]) -> io::Result<()> {
        let Vectors { source, lay, dtype, .. } = &*self.0;
        let bits = dtype.bits().unwrap_or(8) as usize;
        let start = offset * 8 / bits;
        let length = (target.len() * 8 / bits).min(self.0.count() - start);
        let mut codes = Vec::with_capacity(length);
        for_each_vectors(source, lay, start, length, &mut |at, vectors| {
            self.0.codes(at, vectors, &mut codes);
        })?;
        pack(bits as u32, &codes, target);
        Ok(())
    }

    fn identity(&self) -> Option<Fingerprint> {
        let what = format!("vectors {}", self.0.recipe);
        Some(Fingerprint::new(&what).with_part(&self.0.source.elements.identity()))
    }
}
