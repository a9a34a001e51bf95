//! Scaled dot-product attention, head by head, without storing the matrix of scores in memory.
//!
//! A task packs the keys and values of one head in panels. It then processes one tile of queries at a time:
//! their scores, the softmax, and the products with the values stay in the cache. A few queries, as in
//! token-by-token generation, use keys and values in place, without packing.

#![expect(unsafe_code, reason = "tiles take pointers, whose extents are checked once")]

use std::ops::Range;

use super::source::from_rows;
use super::tile::{Tile, compute};
use super::weights::Panels;
use crate::Pool;
use crate::scratch::{Scratch, with_scratch};
use crate::shared::SharedPointer;
use coremill_simd::Isa;
use coremill_simd::math::lanes;
use coremill_simd::vector::{Kernel, Vector, dispatch};

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
pub fn attend(
    pool: &Pool,
    isa: Isa,
    shape: AttentionShape,
    scale: f32,
    query: Heads,
    key: Heads,
    value: Heads,
    mask: Option<Mask>,
    output: HeadsMut,
) {
    let AttentionShape { batch, heads, group, queries, keys, depth, value_depth } = shape;
    if batch * heads * queries * value_depth == 0 {
        return;
    }
    assert!(isa.is_available(), "this machine has no {isa}");
    assert!(group > 0 && heads % group == 0, "groups divide the heads");
    let last = |extents: &[usize], strides: &[usize]| {
        extents.iter().zip(strides).try_fold(0usize, |sum, (&extent, &stride)| {
            sum.checked_add(stride.checked_mul(extent.saturating_sub(1))?)
        })
    };
    let fits = |length: usize, extents: &[usize], strides: &[usize], depth: usize| {
        let needed = last(extents, strides).and_then(|last| last.checked_add(depth));
        extents.contains(&0) || needed.is_some_and(|needed| needed <= length)
    };
    let shared_heads = heads / group;
    assert!(fits(query.elements.len(), &[batch, heads, queries], &query.strides, depth), "queries");
    assert!(fits(key.elements.len(), &[batch, shared_heads, keys], &key.strides, depth), "keys");
    assert!(
        fits(value.elements.len(), &[batch, shared_heads, keys], &value.strides, value_depth),
        "values"
    );
    if let Some(mask) = mask {
        let extents = [batch, heads, queries, keys];
        assert!(fits(mask.elements.len(), &extents, &mask.strides, 1), "the mask");
        assert!(mask.strides[3] <= 1, "a query's part of the mask lies together");
    }
    let (shape, key, value, mask) = without_hidden_keys(shape, key, value, mask);
    let extents = [batch, heads, queries];
    assert!(fits(output.elements.len(), &extents, &output.strides, value_depth), "results");
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
        let at = |heads: &Heads, head: usize| set * heads.strides[0] + head * heads.strides[1];
        let job = Job {
            shape,
            scale,
            query: &query.elements[at(&query, head)..],
            query_stride: query.strides[2],
            key: &key.elements[at(&key, head / group).min(key.elements.len())..],
            key_stride: key.strides[2],
            value: &value.elements[at(&value, head / group).min(value.elements.len())..],
            value_stride: value.strides[2],
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
fn without_hidden_keys<'a>(
    shape: AttentionShape,
    key: Heads<'a>,
    value: Heads<'a>,
    mask: Option<Mask<'a>>,
) -> (AttentionShape, Heads<'a>, Heads<'a>, Option<Mask<'a>>) {
    let Some(shown) = mask.and_then(|mask| shown_keys(&shape, &mask)) else {
        return (shape, key, value, mask);
    };
    let from = |heads: Heads<'a>| {
        let start = (shown.start * heads.strides[2]).min(heads.elements.len());
        Heads { elements: &heads.elements[start..], ..heads }
    };
    let mask = mask.map(|mask| Mask { elements: &mask.elements[shown.start..], ..mask });
    (AttentionShape { keys: shown.len(), ..shape }, from(key), from(value), mask)
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
struct Job<'a> {
    shape: AttentionShape,
    scale: f32,
    query: &'a [f32],
    query_stride: usize,
    key: &'a [f32],
    key_stride: usize,
    value: &'a [f32],
    value_stride: usize,
    /// The mask's elements for this head, and the strides of query and key.
    mask: Option<(&'a [f32], usize, usize)>,
    output: *mut f32,
    output_stride: usize,
}

impl Job<'_> {
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
                for (key, row) in some.clone().zip(rows.chunks_exact_mut(depth.max(1))) {
                    let start = key * self.key_stride;
                    row.copy_from_slice(&self.key[start..start + depth]);
                }
            });
        }
        for index in 0..value_panels.count() {
            let panel = value_panels.get(index);
            let width = panel.vectors * lanes;
            let count = width.min(value_depth - panel.start);
            let target = &mut packed_values[panel.start * keys..][..width * keys];
            for (key, row) in target.chunks_exact_mut(width).enumerate() {
                let start = key * self.value_stride + panel.start;
                row[..count].copy_from_slice(&self.value[start..start + count]);
                row[count..].fill(0.0);
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
struct Direct<'j, 'a> {
    job: &'j Job<'a>,
    scratch: &'j mut Scratch,
}

impl Kernel for Direct<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let queries = self.job.shape.queries;
        let mut first = 0;
        while first < queries {
            if V::TUNED && first + 2 <= queries {
                direct::<V, 2>(self.job, first, self.scratch);
                first += 2;
            } else {
                direct::<V, 1>(self.job, first, self.scratch);
                first += 1;
            }
        }
    }
}

#[inline(always)]
fn direct<V: Vector, const R: usize>(job: &Job, first: usize, scratch: &mut Scratch) {
    let AttentionShape { keys, depth, value_depth, .. } = job.shape;
    let scores = scratch.elements(R * keys);
    let queries: [&[f32]; R] =
        std::array::from_fn(|row| &job.query[(first + row) * job.query_stride..][..depth]);
    for key in 0..keys {
        let vector = &job.key[key * job.key_stride..][..depth];
        let mut sums = [V::zero(); R];
        let mut at = 0;
        while at < depth {
            let count = (depth - at).min(V::LANES);
            // SAFETY: `at + count` is at most `depth`, the length of all slices.
            unsafe {
                let load = |slice: &[f32]| {
                    let source = slice.as_ptr().add(at);
                    if count == V::LANES { V::load(source) } else { V::load_partial(source, count) }
                };
                let vector = load(vector);
                for (query, sum) in queries.iter().zip(&mut sums) {
                    *sum = load(query).mul_add(vector, *sum);
                }
            }
            at += count;
        }
        for (row, sum) in sums.into_iter().enumerate() {
            scores[row * keys + key] = sum.sum();
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
            let vector = &job.value[key * job.value_stride + start..][..width];
            for part in 0..TOGETHER {
                let at = part * V::LANES;
                if at >= width {
                    break;
                }
                let count = (width - at).min(V::LANES);
                // SAFETY: `at + count` is at most `width`, the length of the vector.
                let vector = unsafe {
                    let source = vector.as_ptr().add(at);
                    if count == V::LANES { V::load(source) } else { V::load_partial(source, count) }
                };
                for (row, sums) in sums.iter_mut().enumerate() {
                    sums[part] = vector.mul_add(V::splat(scores[row * keys + key]), sums[part]);
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
mod tests {
    use super::*;

    /// Deterministic distinct numbers.
    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 * 4.0 - 2.0
        };
        (0..count).map(|_| next()).collect()
    }

    fn expected(
        shape: AttentionShape,
        scale: f64,
        [query, key, value]: [&Heads; 3],
        mask: Option<&Mask>,
        [set, head, row]: [usize; 3],
    ) -> Vec<f64> {
        let vector = |heads: &Heads, head: usize, at: usize, depth: usize| {
            let start = set * heads.strides[0] + head * heads.strides[1] + at * heads.strides[2];
            heads.elements[start..start + depth].iter().map(|&x| f64::from(x)).collect::<Vec<_>>()
        };
        let query = vector(query, head, row, shape.depth);
        let mut weights: Vec<f64> = (0..shape.keys)
            .map(|at| {
                let key = vector(key, head / shape.group, at, shape.depth);
                let score: f64 = query.iter().zip(key).map(|(x, y)| x * y).sum();
                let added = mask.map_or(0.0, |mask| {
                    let [a, b, c, d] = mask.strides;
                    f64::from(mask.elements[set * a + head * b + row * c + at * d])
                });
                score * scale + added
            })
            .collect();
        let most = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        weights.iter_mut().for_each(|weight| *weight = (*weight - most).exp());
        let total: f64 = weights.iter().sum();
        let mut sums = vec![0.0; shape.value_depth];
        for (at, weight) in weights.iter().enumerate() {
            let value = vector(value, head / shape.group, at, shape.value_depth);
            sums.iter_mut().zip(value).for_each(|(sum, value)| *sum += weight / total * value);
        }
        sums
    }

    fn check(shape: AttentionShape, masked: bool, rows_first: bool) {
        let AttentionShape { batch, heads, group, queries, keys, depth, value_depth } = shape;
        // Heads interleaved in each row, or rows contiguous in each head.
        let strides = |heads: usize, rows: usize, depth: usize| {
            if rows_first {
                [heads * rows * depth, depth, heads * depth]
            } else {
                [heads * rows * depth, rows * depth, depth]
            }
        };
        let shared = heads / group;
        let query = numbers(batch * heads * queries * depth, 1);
        let key = numbers(batch * shared * keys * depth, 2);
        let value = numbers(batch * shared * keys * value_depth, 3);
        let query = Heads { elements: &query, strides: strides(heads, queries, depth) };
        let key = Heads { elements: &key, strides: strides(shared, keys, depth) };
        let value = Heads { elements: &value, strides: strides(shared, keys, value_depth) };
        let mut added = numbers(queries * keys, 4);
        if keys > 1 {
            added.iter_mut().skip(1).step_by(3).for_each(|x| *x = f32::NEG_INFINITY);
        }
        let mask = masked.then_some(Mask { elements: &added, strides: [0, 0, keys, 1] });
        let scale = 1.0 / (depth as f32).sqrt();
        for isa in Isa::available() {
            for threads in [1, 3] {
                let mut results = vec![7.0; batch * heads * queries * value_depth];
                let output = HeadsMut {
                    elements: &mut results,
                    strides: strides(heads, queries, value_depth),
                };
                let pool = Pool::new(threads);
                attend(&pool, isa, shape, scale, query, key, value, mask, output);
                let strides = strides(heads, queries, value_depth);
                for set in 0..batch {
                    for head in 0..heads {
                        for row in 0..queries {
                            let start = set * strides[0] + head * strides[1] + row * strides[2];
                            let found = &results[start..start + value_depth];
                            let place = [set, head, row];
                            let inputs = [&query, &key, &value];
                            let expected =
                                expected(shape, f64::from(scale), inputs, mask.as_ref(), place);
                            for (found, expected) in found.iter().zip(expected) {
                                let error = (f64::from(*found) - expected).abs();
                                assert!(error < 1e-5, "{isa} {shape:?}: {found} for {expected}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn attention_agrees_with_its_definition() {
        let sizes: &[(usize, usize, usize, usize)] = if cfg!(miri) {
            &[(1, 3, 4, 5), (6, 5, 3, 2)]
        } else {
            &[
                (1, 1, 1, 1),
                (1, 37, 8, 8),
                (2, 50, 64, 64),
                (3, 7, 5, 19),
                (4, 16, 33, 70),
                (5, 9, 3, 4),
                (17, 50, 64, 64),
                (33, 70, 40, 17),
                (130, 49, 16, 100),
            ]
        };
        for &(queries, keys, depth, value_depth) in sizes {
            let shape =
                AttentionShape { batch: 2, heads: 4, group: 2, queries, keys, depth, value_depth };
            check(shape, false, false);
            check(shape, true, true);
            check(AttentionShape { group: 1, batch: 1, heads: 1, ..shape }, true, false);
        }
    }

    #[test]
    fn a_query_that_may_see_nothing_gives_nan() {
        for queries in [1, 6] {
            let shape = AttentionShape {
                batch: 1,
                heads: 1,
                group: 1,
                queries,
                keys: 20,
                depth: 4,
                value_depth: 3,
            };
            let elements = numbers(20 * 4, 5);
            let heads = Heads { elements: &elements, strides: [0, 0, 4] };
            let hidden = [f32::NEG_INFINITY; 20];
            let mask = Mask { elements: &hidden, strides: [0, 0, 0, 1] };
            let mut results = vec![0.0; queries * 3];
            let output = HeadsMut { elements: &mut results, strides: [0, 0, 3] };
            let pool = Pool::new(1);
            attend(&pool, Isa::detect(), shape, 0.5, heads, heads, heads, Some(mask), output);
            assert!(results.iter().all(|result| result.is_nan()), "{results:?}");
        }
    }

    #[test]
    fn keys_that_the_mask_hides_from_all_queries_are_not_read() {
        for (queries, hidden) in [(1, -3e4), (3, f32::NEG_INFINITY), (9, -3e4)] {
            let (keys, depth, shown) = (41, 16, 5..29);
            let shape = AttentionShape {
                batch: 1,
                heads: 2,
                group: 2,
                queries,
                keys,
                depth,
                value_depth: depth,
            };
            let mut stored = numbers(keys * depth, 3);
            let query = numbers(2 * queries * depth, 4);
            // Each query sees its own part of the keys.
            let shows = |query: usize, key: usize| {
                let last = shown.end - (queries - 1 - query);
                (shown.start + query % 2..last).contains(&key)
            };
            let mask: Vec<f32> = (0..queries * keys)
                .map(|at| if shows(at / keys, at % keys) { 0.25 } else { hidden })
                .collect();
            let query = Heads { elements: &query, strides: [0, queries * depth, depth] };
            let mask = Mask { elements: &mask, strides: [0, 0, keys, 1] };
            let heads = Heads { elements: &stored, strides: [0, 0, depth] };
            let mut wanted = vec![];
            for head in 0..2 {
                for row in 0..queries {
                    let place = [0, head, row];
                    let inputs = [&query, &heads, &heads];
                    wanted.extend(expected(shape, 0.25, inputs, Some(&mask), place));
                }
            }
            stored[..shown.start * depth].fill(f32::NAN);
            stored[shown.end * depth..].fill(f32::INFINITY);
            let heads = Heads { elements: &stored, strides: [0, 0, depth] };
            for isa in Isa::available() {
                let mut results = vec![0.0; wanted.len()];
                let output =
                    HeadsMut { elements: &mut results, strides: [0, queries * depth, depth] };
                let pool = Pool::new(1);
                attend(&pool, isa, shape, 0.25, query, heads, heads, Some(mask), output);
                for (found, wanted) in results.iter().zip(&wanted) {
                    let error = (f64::from(*found) - wanted).abs();
                    assert!(error < 1e-5, "{isa} {queries}: {found} for {wanted}");
                }
            }
        }
    }

    #[test]
    fn a_query_without_keys_keeps_them_all() {
        // All scores are equally far below: the mask has no effect.
        let shape = AttentionShape {
            batch: 1,
            heads: 1,
            group: 1,
            queries: 2,
            keys: 9,
            depth: 4,
            value_depth: 4,
        };
        let mask: Vec<f32> =
            (0..18).map(|at| if at >= 9 && at < 12 { 0.0 } else { -3e4 }).collect();
        let mask = Mask { elements: &mask, strides: [0, 0, 9, 1] };
        let row = AttentionShape { queries: 1, ..shape };
        assert_eq!(shown_keys(&shape, &mask), None);
        assert_eq!(shown_keys(&row, &Mask { elements: &mask.elements[9..], ..mask }), Some(0..3));
    }

    #[test]
    #[should_panic(expected = "results overlap")]
    fn results_do_not_overlap() {
        let shape = AttentionShape {
            batch: 1,
            heads: 2,
            group: 1,
            queries: 2,
            keys: 2,
            depth: 2,
            value_depth: 2,
        };
        let elements = [0.0; 8];
        let heads = Heads { elements: &elements, strides: [8, 4, 2] };
        let mut results = [0.0; 8];
        let output = HeadsMut { elements: &mut results, strides: [8, 1, 2] };
        attend(&Pool::new(1), Isa::Portable, shape, 1.0, heads, heads, heads, None, output);
    }
}
