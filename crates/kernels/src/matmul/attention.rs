//! Scaled dot-product attention, head by head, without storing the matrix of scores in memory.
//!
//! A task packs the keys and values of one head in panels. It then processes one tile of queries at a time:
//! their scores, the softmax, and the products with the values stay in the cache. A few queries, as in
//! token-by-token generation, use keys and values in place, without packing.

#![expect(unsafe_code, reason = "tiles take pointers, whose extents are checked once")]

mod vectors;

use std::ops::Range;

use super::source::from_rows;
use super::tile::{Tile, compute};
use super::weights::Panels;
use crate::Pool;
use crate::scratch::{Scratch, with_scratch};
use crate::shared::SharedPointer;
use coremill_simd::Isa;
use coremill_simd::math::lanes;
use coremill_simd::vector::{Kernel, MAX_LANES, Vector, dispatch};
use vectors::{HeadVectors, Vectors, fits};

pub use vectors::{WordHeads, WordVectors};

/// Sizes of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Number of independent sets of heads.
    pub batch: usize,
    /// Number of query heads in each set.
    pub heads: usize,
    /// Number of query heads that share a head of keys and values.
    pub group: usize,
    /// Number of queries of a head.
    pub queries: usize,
    /// Number of keys (and values) of a head.
    pub keys: usize,
    /// Number of elements of a query and of a key.
    pub depth: usize,
    /// Number of elements of a value and of a result.
    pub value_depth: usize,
}

/// Vectors of all heads; the elements of one vector are contiguous.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    /// The elements, from the first vector on.
    pub elements: &'a [f32],
    /// Strides of set, head and vector.
    pub strides: [usize; 3],
}

/// The results of all heads.
#[derive(Debug)]
pub struct HeadsMut<'a> {
    /// The elements, from the first vector on.
    pub elements: &'a mut [f32],
    /// Strides of set, head and vector.
    pub strides: [usize; 3],
}

/// The mask, which is added to scores.
#[derive(Clone, Copy, Debug)]
pub struct Mask<'a> {
    /// The elements, from the first one on.
    pub elements: &'a [f32],
    /// Strides of set, head, query and key; 0 along broadcast axes.
    pub strides: [usize; 4],
}

/// Maximum number of queries that use keys and values in place.
const FEW: usize = 4;

/// Difference of two elements of a mask beyond which the key with the smaller one has a weight of zero: a weight is 0
/// in `f32` if its score is 104 below the largest, and scores without the mask differ by less than the rest.
const HIDDEN: f32 = 1e4;

/// For each query, the sum of the values weighted by the softmax of the scaled products with the keys. If all
/// scores are minus infinity, the result is NaN.
///
/// Keys that the mask hides from all queries at the start and at the end are not read: the cost of attention to a
/// cache grows with the number of its filled positions.
///
/// # Panics
/// Panics if sizes do not match, or if vectors of the result overlap.
#[expect(clippy::too_many_arguments, reason = "an attention has three inputs and a mask")]
pub fn attend<S: Vectors>(
    pool: &Pool,
    isa: Isa,
    shape: AttentionShape,
    scale: f32,
    query: Heads,
    key: S,
    value: S,
    mask: Option<Mask>,
    output: HeadsMut,
) {
    let AttentionShape { batch, heads, group, queries, keys, depth, value_depth } = shape;
    if batch * heads * queries * value_depth == 0 {
        return;
    }
    assert!(isa.is_available(), "this machine does not support {isa}");
    assert!(
        group > 0 && heads % group == 0,
        "{heads} heads are not a multiple of the group size {group}"
    );
    assert!(query.fits([batch, heads, queries], depth), "the queries do not match the shape");
    assert!(key.fits([batch, heads / group, keys], depth), "the keys do not match the shape");
    assert!(
        value.fits([batch, heads / group, keys], value_depth),
        "the values do not match the shape"
    );
    if let Some(mask) = mask {
        let extents = [batch, heads, queries, keys];
        assert!(
            fits(mask.elements.len(), &extents, &mask.strides, 1),
            "the mask does not match the shape"
        );
        assert!(mask.strides[3] <= 1, "the mask of a query must be contiguous");
    }
    let (shape, key, value, mask) = without_hidden_keys(shape, key, value, mask);
    let extents = [batch, heads, queries];
    assert!(
        fits(output.elements.len(), &extents, &output.strides, value_depth),
        "the results do not match the shape"
    );
    assert!(are_apart(&extents, &output.strides, value_depth), "results overlap");

    let chunks = match queries {
        0..=FEW => 1,
        _ => (pool.threads() * 2).div_ceil(batch * heads).min(queries.div_ceil(64)),
    };
    let step = queries.div_ceil(chunks).next_multiple_of(8);
    let chunks = queries.div_ceil(step);
    let output_start = SharedPointer(output.elements.as_mut_ptr());
    let strides = output.strides;
    pool.run(batch * heads * chunks, |task| {
        let (set, head) = (task / chunks / heads, task / chunks % heads);
        let first = task % chunks * step;
        let rows = first..(first + step).min(queries);
        let job = Job {
            shape,
            scale,
            query: &query.elements[set * query.strides[0] + head * query.strides[1]..],
            query_stride: query.strides[2],
            key: key.head(set, head / group),
            value: value.head(set, head / group),
            mask: mask.map(|mask| {
                let start = set * mask.strides[0] + head * mask.strides[1];
                (&mask.elements[start.min(mask.elements.len())..], mask.strides[2], mask.strides[3])
            }),
            output: output_start.get().wrapping_add(set * strides[0] + head * strides[1]),
            output_stride: strides[2],
        };
        with_scratch(|scratch| {
            if queries <= FEW {
                dispatch(isa, Direct { job: &job, scratch });
            } else {
                job.in_tiles(isa, rows, scratch);
            }
        });
    });
}

/// Leaves out the keys before the first and after the last key that the mask shows to a query.
fn without_hidden_keys<'a, S: Vectors>(
    shape: AttentionShape,
    key: S,
    value: S,
    mask: Option<Mask<'a>>,
) -> (AttentionShape, S, S, Option<Mask<'a>>) {
    let Some(shown) = mask.and_then(|mask| shown_keys(&shape, &mask)) else {
        return (shape, key, value, mask);
    };
    let (key, value) = (key.from(shown.start), value.from(shown.start));
    let mask = mask.map(|mask| Mask { elements: &mask.elements[shown.start..], ..mask });
    (AttentionShape { keys: shown.len(), ..shape }, key, value, mask)
}

/// Range from the first to the last key that the mask shows to any query. `None` if it covers all keys, or if a query
/// has no key.
fn shown_keys(shape: &AttentionShape, mask: &Mask) -> Option<Range<usize>> {
    let AttentionShape { batch, heads, queries, keys, .. } = *shape;
    if mask.strides[3] != 1 || keys == 0 {
        return None;
    }
    // The rows of broadcast axes are equal.
    let count = |axis: usize, extent: usize| if mask.strides[axis] == 0 { 1 } else { extent };
    let (mut start, mut end) = (keys, 0);
    for set in 0..count(0, batch) {
        for head in 0..count(1, heads) {
            for query in 0..count(2, queries) {
                let [a, b, c, _] = mask.strides;
                let row = &mask.elements[set * a + head * b + query * c..][..keys];
                let most = row.chunks(16).map(largest).fold(f32::NEG_INFINITY, f32::max);
                if most == f32::NEG_INFINITY {
                    return None;
                }
                let threshold = most - HIDDEN;
                let hides = |element: &f32| *element <= threshold;
                let first = row[..start].iter().position(|element| !hides(element));
                start = first.unwrap_or(start);
                let last = row[end..].iter().rposition(|element| !hides(element));
                end = last.map_or(end, |last| end + last + 1);
                if start == 0 && end == keys {
                    return None;
                }
            }
        }
    }
    (start < end).then_some(start..end)
}

/// The largest number; NaN is ignored.
fn largest(numbers: &[f32]) -> f32 {
    numbers
        .iter()
        .fold(f32::NEG_INFINITY, |most, &number| if number > most { number } else { most })
}

/// Whether vectors with these strides do not overlap.
pub(super) fn are_apart(extents: &[usize; 3], strides: &[usize; 3], depth: usize) -> bool {
    let mut axes: Vec<(usize, usize)> =
        strides.iter().copied().zip(extents.iter().copied()).filter(|axis| axis.1 > 1).collect();
    axes.sort_unstable();
    let mut reach = depth;
    axes.iter().all(|&(stride, extent)| {
        let apart = stride >= reach;
        reach = stride.saturating_mul(extent - 1).saturating_add(reach);
        apart
    })
}

/// The work for one head.
struct Job<'a, S> {
    shape: AttentionShape,
    scale: f32,
    query: &'a [f32],
    query_stride: usize,
    key: S,
    value: S,
    /// The mask's elements for this head, and the strides of query and key.
    mask: Option<(&'a [f32], usize, usize)>,
    output: *mut f32,
    output_stride: usize,
}

impl<S: HeadVectors> Job<'_, S> {
    fn in_tiles(&self, isa: Isa, rows: Range<usize>, scratch: &mut Scratch) {
        let AttentionShape { keys, depth, value_depth, .. } = self.shape;
        let key_panels = Panels::new(isa, keys);
        let value_panels = Panels::new(isa, value_depth);
        let lanes = key_panels.shape.lanes;
        let tile_rows = key_panels.shape.rows;
        let padded = key_panels.padded();
        let all =
            scratch.elements(padded * depth + value_panels.padded() * keys + tile_rows * padded);
        let (packed_keys, rest) = all.split_at_mut(padded * depth);
        let (packed_values, scores) = rest.split_at_mut(value_panels.padded() * keys);

        for index in 0..key_panels.count() {
            let panel = key_panels.get(index);
            let width = panel.vectors * lanes;
            let some = panel.start..(panel.start + width).min(keys);
            let target = &mut packed_keys[panel.start * depth..][..width * depth];
            from_rows(isa, depth, some.len(), width, target, |rows| {
                self.key.copy(isa, some.clone(), 0..depth, rows, depth.max(1));
            });
        }
        for index in 0..value_panels.count() {
            let panel = value_panels.get(index);
            let width = panel.vectors * lanes;
            let count = width.min(value_depth - panel.start);
            let target = &mut packed_values[panel.start * keys..][..width * keys];
            let elements = panel.start..panel.start + count;
            self.value.copy(isa, 0..keys, elements, target, width);
            if count < width {
                target.chunks_exact_mut(width).for_each(|row| row[count..].fill(0.0));
            }
        }

        let mut pointers = [std::ptr::null::<f32>(); 16];
        for first in rows.clone().step_by(tile_rows) {
            let count = tile_rows.min(rows.end - first);
            for (row, pointer) in pointers[..count].iter_mut().enumerate() {
                *pointer = self.query[(first + row) * self.query_stride..].as_ptr();
            }
            for index in 0..key_panels.count() {
                let panel = key_panels.get(index);
                let tile = Tile {
                    rows: pointers.as_ptr(),
                    taps: 1,
                    start: 0,
                    depth,
                    panel: packed_keys[panel.start * depth..].as_ptr(),
                    output: scores[panel.start..].as_mut_ptr(),
                    output_stride: padded,
                    last: lanes,
                    accumulate: false,
                    finish: None,
                    ahead: std::ptr::null(),
                    ahead_step: 0,
                };
                // SAFETY: the rows have `depth` elements, the panel has as many rows of its width, and each
                // row of scores is as long as the panels are wide.
                unsafe { compute(isa, count, panel.vectors, &tile) };
            }
            // Use chunks, because indexing would invalidate the pointers to earlier rows.
            for (row, scores) in scores.chunks_exact_mut(padded.max(1)).enumerate().take(count) {
                let scores = &mut scores[..keys];
                dispatch(
                    isa,
                    Softmax { scores, scale: self.scale, mask: self.mask_of(first + row) },
                );
                pointers[row] = scores.as_ptr();
            }
            for index in 0..value_panels.count() {
                let panel = value_panels.get(index);
                let width = (panel.vectors * lanes).min(value_depth - panel.start);
                let tile = Tile {
                    rows: pointers.as_ptr(),
                    taps: 1,
                    start: 0,
                    depth: keys,
                    panel: packed_values[panel.start * keys..].as_ptr(),
                    output: self.output.wrapping_add(first * self.output_stride + panel.start),
                    output_stride: self.output_stride,
                    last: width - (panel.vectors - 1) * lanes,
                    accumulate: false,
                    finish: None,
                    ahead: std::ptr::null(),
                    ahead_step: 0,
                };
                // SAFETY: each row of scores has `keys` elements, the panel has as many rows of its width,
                // and the results of these queries belong to this task and have the same length.
                unsafe { compute(isa, count, panel.vectors, &tile) };
            }
        }
    }

    /// The mask of a query: one element for each score, or one for all.
    fn mask_of(&self, query: usize) -> Option<Addend<'_>> {
        let (elements, query_stride, key_stride) = self.mask?;
        let elements = &elements[query * query_stride..];
        Some(match key_stride {
            0 => Addend::Same(elements.first().copied().unwrap_or(0.0)),
            _ => Addend::Each(&elements[..self.shape.keys]),
        })
    }
}

#[derive(Clone, Copy)]
enum Addend<'a> {
    Same(f32),
    Each(&'a [f32]),
}

/// Scales scores, adds the mask, and converts them to weights with a sum of one.
struct Softmax<'a> {
    scores: &'a mut [f32],
    scale: f32,
    mask: Option<Addend<'a>>,
}

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        softmax::<V>(self.scores, self.scale, self.mask);
    }
}

#[inline(always)]
fn softmax<V: Vector>(scores: &mut [f32], scale: f32, mask: Option<Addend>) {
    let (each, same) = match mask {
        Some(Addend::Each(elements)) => (Some(elements), 0.0),
        Some(Addend::Same(element)) => (None, element),
        None => (None, 0.0),
    };
    let length = scores.len();
    assert!(each.is_none_or(|each| each.len() == length), "the mask has an element for each score");
    let whole = length - length % V::LANES;
    let start = scores.as_mut_ptr();
    let scale_all = V::splat(scale);
    let mut largest = V::splat(f32::NEG_INFINITY);
    // SAFETY: here and below, whole vectors end at `whole`, and the remaining elements follow.
    unsafe {
        for at in (0..whole).step_by(V::LANES) {
            let added = each.map_or(V::splat(same), |each| V::load(each.as_ptr().add(at)));
            let score = V::load(start.add(at)).mul_add(scale_all, added);
            score.store(start.add(at));
            largest = largest.max(score);
        }
    }
    let mut most = largest.maximum();
    for (at, score) in scores.iter_mut().enumerate().skip(whole) {
        *score = *score * scale + each.map_or(same, |each| each[at]);
        most = most.max(*score);
    }
    // The loop over all scores invalidated the earlier pointer.
    let start = scores.as_mut_ptr();
    let most_all = V::splat(most);
    let mut sums = V::zero();
    let mut total = 0.0;
    // SAFETY: as above.
    unsafe {
        for at in (0..whole).step_by(V::LANES) {
            let weight = lanes::exp(V::load(start.add(at)).sub(most_all));
            weight.store(start.add(at));
            sums = sums.add(weight);
        }
        if whole < length {
            let rest = length - whole;
            let weight = lanes::exp(V::load_partial(start.add(whole), rest).sub(most_all));
            weight.store_partial(start.add(whole), rest);
            total += scores[whole..].iter().sum::<f32>();
        }
    }
    total += sums.sum();
    let factor = V::splat(1.0 / total);
    // SAFETY: as above.
    unsafe {
        for at in (0..whole).step_by(V::LANES) {
            V::load(start.add(at)).mul(factor).store(start.add(at));
        }
        if whole < length {
            let rest = length - whole;
            V::load_partial(start.add(whole), rest)
                .mul(factor)
                .store_partial(start.add(whole), rest);
        }
    }
}

/// A few queries, which use keys and values in place.
struct Direct<'j, 'a, S> {
    job: &'j Job<'a, S>,
    scratch: &'j mut Scratch,
}

impl<S: HeadVectors> Kernel for Direct<'_, '_, S> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let queries = self.job.shape.queries;
        // Keys and values are loaded once for several queries, whose sums are in registers.
        let most = match V::LANES {
            _ if !V::TUNED => 1,
            MAX_LANES => FEW,
            _ => 2,
        };
        let mut first = 0;
        while first < queries {
            let count = (queries - first).min(most);
            match count {
                4 => direct::<V, S, 4>(self.job, first, self.scratch),
                3 => direct::<V, S, 3>(self.job, first, self.scratch),
                2 => direct::<V, S, 2>(self.job, first, self.scratch),
                _ => direct::<V, S, 1>(self.job, first, self.scratch),
            }
            first += count;
        }
    }
}

#[inline(always)]
fn direct<V: Vector, S: HeadVectors, const R: usize>(
    job: &Job<'_, S>,
    first: usize,
    scratch: &mut Scratch,
) {
    let AttentionShape { keys, depth, value_depth, .. } = job.shape;
    let scores = scratch.elements(R * keys);
    let queries: [&[f32]; R] =
        std::array::from_fn(|row| &job.query[(first + row) * job.query_stride..][..depth]);
    for key in 0..keys {
        let mut sums = [V::zero(); R];
        let mut at = 0;
        while at < depth {
            let count = (depth - at).min(V::LANES);
            // SAFETY: `at + count` is at most `depth`, the length of queries and keys.
            unsafe {
                let vector = job.key.load::<V>(key, at, count);
                for (query, sum) in queries.iter().zip(&mut sums) {
                    let source = query.as_ptr().add(at);
                    let query = match count == V::LANES {
                        true => V::load(source),
                        false => V::load_partial(source, count),
                    };
                    *sum = query.mul_add(vector, *sum);
                }
            }
            at += count;
        }
        for (row, sum) in sums.into_iter().enumerate() {
            let score = &mut scores[row * keys + key];
            *score = if S::SCALED { sum.sum() * job.key.scale(key) } else { sum.sum() };
        }
    }
    for row in 0..R {
        softmax::<V>(&mut scores[row * keys..][..keys], job.scale, job.mask_of(first + row));
    }
    const TOGETHER: usize = 4;
    let mut start = 0;
    while start < value_depth {
        let width = (value_depth - start).min(TOGETHER * V::LANES);
        let mut sums = [[V::zero(); TOGETHER]; R];
        for key in 0..keys {
            let scale = job.value.scale(key);
            // A closure would not be inlined.
            let mut weights = [V::zero(); R];
            for (row, to) in weights.iter_mut().enumerate() {
                let weight = scores[row * keys + key];
                *to = V::splat(if S::SCALED { weight * scale } else { weight });
            }
            for part in 0..TOGETHER {
                let at = part * V::LANES;
                if at >= width {
                    break;
                }
                let count = (width - at).min(V::LANES);
                // SAFETY: `at + count` is at most `width`, the rest of the value from `start` on.
                let vector = unsafe { job.value.load::<V>(key, start + at, count) };
                for (weight, sums) in weights.iter().zip(&mut sums) {
                    sums[part] = vector.mul_add(*weight, sums[part]);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (part, sum) in sums.iter().enumerate() {
                let at = part * V::LANES;
                if at >= width {
                    break;
                }
                // SAFETY: the results of a query have `value_depth` elements and belong to this task.
                unsafe {
                    let row = first + row;
                    let target = job.output.add(row * job.output_stride + start + at);
                    sum.store_partial(target, (width - at).min(V::LANES));
                }
            }
        }
        start += width;
    }
}

#[cfg(test)]
mod tests;
