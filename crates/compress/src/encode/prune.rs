//! Selection of the elements to prune.

use std::io;

use coremill_tensor::DType;

use super::pruned::{Groups, PruneMask, norm};
use super::source::Source;
use crate::error::Refusal;
use crate::form::Prune;
use crate::weight::Weight;

/// Selects the elements of a weight to prune.
pub(super) fn select(
    prune: &Prune,
    weight: &Weight,
    source: &Source,
) -> Result<PruneMask, Refusal> {
    match *prune {
        Prune::Magnitude(share) => {
            let limit = quantile(source, share, |numbers| {
                numbers.iter_mut().for_each(|number| *number = number.abs());
            })?;
            Ok(PruneMask::Below(limit))
        }
        Prune::Blocks { share, size, along } => {
            let groups = Groups::new(weight, size, along)?;
            let half = source.is_half();
            // A limit below 0 prunes nothing, but makes the source return whole groups.
            let pruned = PruneMask::Blocks { limit: -1.0, half, groups: groups.clone() };
            let whole = Source { pruned: Some(pruned), ..source.clone() };
            let limit = quantile(&whole, share, |numbers| {
                groups.for_each(numbers, &mut |group, members| {
                    let norm = norm(group, members, half);
                    members.iter().for_each(|&at| group[at] = norm);
                });
            })?;
            Ok(PruneMask::Blocks { limit, half, groups })
        }
        Prune::Threshold { limit, least } => {
            let limit = limit as f32;
            let mut zeros = 0;
            source.for_each_part(0, source.count, &mut |part| {
                zeros += part.raw.iter().filter(|number| number.abs() <= limit).count();
            })?;
            if (zeros as f64) < least * source.count as f64 {
                return Err(Refusal::Kept("too few of its elements are below the threshold"));
            }
            Ok(PruneMask::Below(limit))
        }
        Prune::Ratio { zeros, of, along } => {
            let groups = Groups::new(weight, of, along)?;
            Ok(PruneMask::Ratio { zeros, groups })
        }
    }
}

/// The largest magnitude in the share of elements to prune. numpy's `percentile` interpolates
/// between this element and the next, which selects the same elements. `measure` converts elements
/// to magnitudes.
fn quantile(source: &Source, share: f64, measure: impl Fn(&mut [f32])) -> io::Result<f32> {
    if share >= 1.0 {
        return Ok(f32::INFINITY);
    }
    if share <= 0.0 {
        return Ok(0.0);
    }
    let position = share * 100.0 / 100.0 * (source.count - 1) as f64;
    let wanted = position.floor() as u64;
    let mut magnitudes = Vec::new();
    let mut for_each = |visit: &mut dyn FnMut(u32)| {
        source.for_each_part(0, source.count, &mut |part| {
            magnitudes.clear();
            magnitudes.extend_from_slice(part.raw);
            measure(&mut magnitudes);
            magnitudes.iter().for_each(|magnitude| visit(magnitude.to_bits()));
        })
    };
    // Count by the upper half of the bits, then within the bin by the lower half.
    let mut upper = vec![0u64; 1 << 16];
    for_each(&mut |bits| upper[(bits >> 16) as usize] += 1)?;
    let (high, before) = find(&upper, wanted);
    let mut lower = vec![0u64; 1 << 16];
    for_each(&mut |bits| {
        if (bits >> 16) as usize == high {
            lower[(bits & 0xffff) as usize] += 1;
        }
    })?;
    let (low, _) = find(&lower, wanted - before);
    debug_assert!(matches!(source.dtype, DType::Fp16 | DType::Fp32));
    Ok(f32::from_bits((high as u32) << 16 | low as u32))
}

/// The bin of the element with this rank, and the number of elements in earlier bins.
fn find(counts: &[u64], rank: u64) -> (usize, u64) {
    let mut before = 0;
    for (bin, &count) in counts.iter().enumerate() {
        if rank < before + count {
            return (bin, before);
        }
        before += count;
    }
    (counts.len() - 1, before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_matches_sorted_magnitudes() {
        let numbers: Vec<f32> = (0..1000).map(|at| (at * 7919 % 1000) as f32 - 500.0).collect();
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let source = Source {
            elements: bytes.into(),
            dtype: DType::Fp32,
            count: 1000,
            pruned: None,
            scales: None,
            weighting: None,
        };
        let mut magnitudes: Vec<f32> = numbers.iter().map(|number| number.abs()).collect();
        magnitudes.sort_by(f32::total_cmp);
        for share in [0.1, 0.5, 0.75, 0.999] {
            let expected = magnitudes[(share * 999.0f64).floor() as usize];
            let found = quantile(&source, share, |numbers| {
                numbers.iter_mut().for_each(|number| *number = number.abs());
            });
            assert_eq!(found.expect("memory can be read"), expected, "{share}");
        }
    }
}
