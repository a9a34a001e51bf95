//! Palettization: lookup tables, and an index into a table for each element.
//!
//! ```text
//! w = const(val = …);                          w_palettized = constexpr_lut_to_dense(indices = …, lut = …);
//! y = linear(x = x, weight = w);    becomes    y = linear(x = x, weight = w_palettized);
//! ```

use std::io;

use coremill_kernels::codes::{Grid, narrow};
use coremill_simd::Isa;
use coremill_tensor::DType;
use half::f16;

use super::cluster::{Distribution, centroids};
use super::source::Source;
use crate::blocks::Blocks;
use crate::error::Refusal;
use crate::form::{Algorithm, BITS, Palette};
use crate::weight::Weight;
use crate::weighting::ElementImportance;
use coremill_mil::ir::Opset;

/// Maximum number of fp16 elements of a block that are sorted, if blocks are not contiguous. For
/// other blocks, each fp16 value is counted.
const SORTED_HALVES: usize = 1 << 12;

/// Maximum number of fp32 elements of a block that are sorted. In larger blocks, elements are
/// grouped by their leading bits.
const SORTED_SINGLES: usize = 1 << 20;

/// Maximum number of weighted elements of a block that are sorted. In larger blocks, elements are
/// grouped by their leading bits.
const SORTED_WEIGHTED: usize = 1 << 18;

/// Number of leading bits for grouping: the sign, the exponent and eleven bits of the fraction.
const KEY_BITS: u32 = 20;

/// Approximate memory limit for collecting blocks. More blocks need further passes over the weight.
const ROOM: usize = 64 << 20;

/// Size of the blocks that share a table, along each axis; 0 for the whole axis.
pub(super) fn sizes(palette: &Palette, weight: &Weight) -> Result<Vec<usize>, Refusal> {
    let mut sizes = vec![0; weight.shape.len()];
    if palette.group.is_none() && palette.vector == 1 && !palette.channel_scale {
        return Ok(sizes);
    }
    let output = output(palette, weight)?;
    if palette.vector > 1 {
        let extent = if output == 0 {
            // Each convolution of a group has a share of the output channels.
            weight.shape[output] / weight.groups
        } else {
            weight.shape[output]
        };
        if extent % palette.vector != 0 {
            return Err(Refusal::Kept(
                "its number of output channels is not a multiple of the vector size",
            ));
        }
    }
    if let Some(group) = palette.group {
        if !weight.shape[output].is_multiple_of(group) {
            return Err(Refusal::Kept(
                "its number of output channels is not a multiple of the group size",
            ));
        }
        sizes[output] = group;
    }
    Ok(sizes)
}

/// The axis of groups and vectors.
pub(super) fn output(palette: &Palette, weight: &Weight) -> Result<usize, Refusal> {
    match (palette.axis, weight.axes) {
        (Some(axis), _) if axis < weight.shape.len() => Ok(axis),
        (Some(_), _) => Err(Refusal::Kept("it has fewer axes than the option `group_axis`")),
        (None, Some((_, output))) => Ok(output),
        (None, None) => {
            Err(Refusal::Kept("operations that use it have their channels along different axes"))
        }
    }
}

/// The lookup tables of a weight.
pub(super) struct Tables {
    /// Bits per index.
    pub(super) bits: u32,
    /// Entries of all tables in the weight's type, table by table. Used entries are ascending.
    pub(super) entries: Vec<f32>,
    /// Number of used entries per table.
    pub(super) used: Vec<usize>,
    /// Uniform grid of each table. `None` if elements take the nearest entry.
    pub(super) grids: Option<Vec<Grid>>,
}

/// Computes the lookup tables of a weight, one per block, with scalar entries.
pub(super) fn tables(
    source: &Source,
    blocks: &Blocks,
    palette: &Palette,
    opset: Opset,
) -> Result<Tables, Refusal> {
    let length = palette.bits.map_or(256, |bits| 1usize << bits);
    let mut found: Vec<Vec<f32>> = Vec::with_capacity(blocks.count());
    let mut grids = Vec::new();
    let mut failed = None;
    let weighting = source.weighting.as_ref().filter(|_| palette.algorithm == Algorithm::KMeans);
    for_each_distribution(source, weighting, blocks, &mut |distribution| {
        let Some(distribution) = distribution else {
            failed = failed.take().or(Some(Refusal::NotFinite));
            return;
        };
        let entries = match palette.algorithm {
            Algorithm::KMeans => {
                let mut entries = centroids(&distribution, length);
                entries.iter_mut().for_each(|entry| *entry = source.round(*entry));
                entries
            }
            Algorithm::Unique => {
                if distribution.values.len() > length {
                    let reason = "it has more distinct values than a table can hold";
                    failed = failed.take().or(Some(Refusal::Kept(reason)));
                }
                distribution.values
            }
            Algorithm::Uniform => {
                let (first, last) = (distribution.values.first(), distribution.values.last());
                let (least, most) = (first.copied().unwrap_or(0.0), last.copied().unwrap_or(0.0));
                let extent = source.round(most - least);
                if !extent.is_finite() {
                    let reason = "the range of its elements is too large for its type";
                    failed = failed.take().or(Some(Refusal::Kept(reason)));
                }
                grids.push(Grid { least, extent });
                // Computed like coremltools: the step in the weight's type, the rest in double
                // precision.
                let step = f64::from(source.round(extent / (length - 1) as f32));
                let entry = |at: usize| at as f64 * step + f64::from(least);
                let entries = (0..length).map(entry);
                let round = |entry: f64| match source.is_half() {
                    true => f16::from_f64(entry).to_f32(),
                    false => entry as f32,
                };
                entries.map(round).collect()
            }
        };
        found.push(entries);
    })?;
    if let Some(refusal) = failed {
        return Err(refusal);
    }
    let most = found.iter().map(Vec::len).max().unwrap_or(0);
    let bits = palette.bits.unwrap_or_else(|| {
        let has = |bits: &u32| *bits != 3 || opset >= Opset::Ios18;
        let enough = |bits: &u32| 1usize << bits >= most;
        BITS.into_iter().filter(has).find(enough).unwrap_or(8)
    });
    let length = 1 << bits;
    let used = found.iter().map(Vec::len).collect();
    let mut entries = Vec::with_capacity(found.len() * length);
    for mut table in found {
        table.resize(length, 0.0);
        entries.extend(table);
    }
    let grids = (palette.algorithm == Algorithm::Uniform).then_some(grids);
    Ok(Tables { bits, entries, used, grids })
}

/// Collected elements of a block.
enum BlockElements {
    Numbers(Vec<f32>),
    Halves(Halves),
    /// Groups with equal leading bits: total weight and weighted sum. The weight of an unweighted
    /// element is 1.
    Keys(Vec<(f64, f64)>),
    /// Elements with weights.
    Weighted(Vec<(f32, f32)>),
}

/// Count of each fp16 value by its bits, and a bit set of the values that occur.
struct Halves {
    counts: Box<[u32; 1 << 16]>,
    there: Box<[u64; 1 << 10]>,
}

impl Halves {
    fn new() -> Halves {
        Halves { counts: Box::new([0; 1 << 16]), there: Box::new([0; 1 << 10]) }
    }

    fn add(&mut self, halves: &[u16]) {
        for &half in halves {
            let half = usize::from(half);
            self.counts[half] += 1;
            self.there[half / 64] |= 1 << (half % 64);
        }
    }

    /// Takes the collected values in order. With `sparse`, zeros are omitted.
    fn take(&mut self, sparse: bool) -> Option<Distribution> {
        const NEGATIVE: usize = 1 << 9;
        let mut distribution = Distribution::default();
        let mut finite = true;
        let mut push = |half: u16, count: &mut u32| {
            let number = f16::from_bits(half);
            finite &= number.is_finite();
            let count = f64::from(std::mem::take(count));
            if !sparse || number.to_f32() != 0.0 {
                distribution.push(number.to_f32(), count);
            }
        };
        for word in (NEGATIVE..2 * NEGATIVE).rev() {
            let mut bits = std::mem::take(&mut self.there[word]);
            while bits != 0 {
                let half = word * 64 + bits.ilog2() as usize;
                bits ^= 1 << (half % 64);
                push(half as u16, &mut self.counts[half]);
            }
        }
        for word in 0..NEGATIVE {
            let mut bits = std::mem::take(&mut self.there[word]);
            while bits != 0 {
                let half = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                push(half as u16, &mut self.counts[half]);
            }
        }
        finite.then_some(distribution)
    }
}

impl BlockElements {
    /// Memory for the elements of a block, and its size in bytes.
    fn of(source: &Source, weighted: bool, blocks: &Blocks) -> (BlockElements, usize) {
        let size = blocks.size();
        let keys = || (BlockElements::Keys(vec![(0.0, 0.0); 1 << KEY_BITS]), 16 << KEY_BITS);
        match source.is_half() {
            _ if weighted && size > SORTED_WEIGHTED => keys(),
            _ if weighted => (BlockElements::Weighted(Vec::with_capacity(size)), 8 * size),
            true if size > SORTED_HALVES || blocks.contiguous().is_some() => {
                (BlockElements::Halves(Halves::new()), (4 << 16) + (8 << 10))
            }
            false if size > SORTED_SINGLES => keys(),
            _ => (BlockElements::Numbers(Vec::with_capacity(size)), 4 * size),
        }
    }

    /// Adds elements with their weights, if weights are collected.
    fn add(&mut self, isa: Isa, numbers: &[f32], weights: &[f32], sparse: bool) {
        let is_there = |number: &&f32| !sparse || **number != 0.0;
        let pairs = || numbers.iter().zip(weights).filter(|(number, _)| is_there(number));
        match self {
            BlockElements::Numbers(all) => all.extend(numbers.iter().filter(is_there)),
            BlockElements::Halves(all) => {
                let mut halves = [0u16; 256];
                for numbers in numbers.chunks(halves.len()) {
                    let halves = &mut halves[..numbers.len()];
                    narrow(isa, numbers, halves);
                    all.add(halves);
                }
            }
            BlockElements::Keys(counts) if weights.is_empty() => {
                for number in numbers.iter().filter(is_there) {
                    let (count, sum) = &mut counts[key(*number)];
                    *count += 1.0;
                    *sum += f64::from(*number);
                }
            }
            BlockElements::Keys(counts) => {
                for (&number, &weight) in pairs() {
                    let (count, sum) = &mut counts[key(number)];
                    *count += f64::from(weight);
                    *sum += f64::from(number) * f64::from(weight);
                }
            }
            BlockElements::Weighted(all) => {
                all.extend(pairs().map(|(&number, &weight)| (number, weight)))
            }
        }
    }

    /// Takes the elements in order, and keeps the memory for the next block. `None` if some are not
    /// finite.
    fn take(&mut self, sparse: bool) -> Option<Distribution> {
        match self {
            BlockElements::Numbers(numbers) => {
                let distribution = numbers
                    .iter()
                    .all(|number| number.is_finite())
                    .then(|| Distribution::of(numbers));
                numbers.clear();
                distribution
            }
            BlockElements::Halves(halves) => halves.take(sparse),
            BlockElements::Keys(counts) => {
                let (mut distribution, mut finite) = (Distribution::default(), true);
                for (count, sum) in counts.iter_mut().map(std::mem::take) {
                    if count == 0.0 {
                        continue;
                    }
                    finite &= sum.is_finite();
                    distribution.push((sum / count) as f32, count);
                }
                finite.then_some(distribution)
            }
            BlockElements::Weighted(pairs) => {
                let finite = pairs.iter().all(|(number, _)| number.is_finite());
                pairs.sort_unstable_by(|(left, _), (right, _)| left.total_cmp(right));
                let mut distribution = Distribution::default();
                for (number, weight) in pairs.drain(..) {
                    distribution.push(number, weight.into());
                }
                finite.then_some(distribution)
            }
        }
    }
}

/// Leading bits of a number. Their order is the order of numbers.
fn key(number: f32) -> usize {
    let bits = number.to_bits();
    let ordered = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    (ordered >> (32 - KEY_BITS)) as usize
}

/// Calls `visit` with the distribution of each block in order, without pruned elements. The
/// distribution is `None` if some elements are not finite.
fn for_each_distribution(
    source: &Source,
    weighting: Option<&ElementImportance>,
    blocks: &Blocks,
    visit: &mut dyn FnMut(Option<Distribution>),
) -> io::Result<()> {
    let (isa, mut weights) = (Isa::detect(), Vec::new());
    debug_assert!(matches!(source.dtype, DType::Fp16 | DType::Fp32));
    let sparse = source.pruned.is_some();
    let new = || BlockElements::of(source, weighting.is_some(), blocks);
    let (_, bytes) = new();
    let at_once = match blocks.contiguous() {
        Some(_) => 1,
        None => (ROOM / bytes.max(1)).clamp(1, blocks.count().max(1)),
    };
    let mut collected: Vec<BlockElements> = (0..at_once).map(|_| new().0).collect();
    for first in (0..blocks.count()).step_by(at_once) {
        let last = blocks.count().min(first + at_once);
        let (start, end) = match blocks.contiguous() {
            Some(size) => (first * size, last * size),
            None => (0, source.count),
        };
        source.for_each_part(start, end - start, &mut |part| {
            let (mut rest, mut rest_of_weights) = (part.numbers, &[][..]);
            if let Some(weighting) = weighting {
                weighting.of_elements(part.at, part.numbers.len(), &mut weights);
                rest_of_weights = &weights;
            }
            blocks.for_each_run(part.at, part.numbers.len(), |run, block| {
                let (now, later) = rest.split_at(run);
                let (of_now, of_later) = rest_of_weights.split_at(run.min(rest_of_weights.len()));
                if let Some(collected) =
                    block.checked_sub(first).and_then(|at| collected.get_mut(at))
                {
                    collected.add(isa, now, of_now, sparse);
                }
                (rest, rest_of_weights) = (later, of_later);
            });
        })?;
        collected[..last - first].iter_mut().for_each(|collected| visit(collected.take(sparse)));
    }
    Ok(())
}
