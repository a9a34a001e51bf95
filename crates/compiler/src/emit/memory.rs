//! Memory plan of the tensors that a method computes.
//!
//! All tensors share one arena. Tensors whose lifetimes do not overlap may share memory. The largest tensors are
//! placed first, each at the lowest offset that is free throughout its lifetime.

/// Alignment of offsets in bytes.
const ALIGNMENT: u64 = 16;

/// A tensor that needs memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allocation {
    /// Size in bytes for the largest shape.
    pub(super) bytes: u64,
    /// First instruction that writes to it.
    pub(super) first: usize,
    /// Last instruction that uses it.
    pub(super) last: usize,
}

/// Returns an offset per claim and the arena size; `None` if the size overflows.
pub(super) fn place(claims: &[Allocation]) -> Option<(Vec<u64>, u64)> {
    let mut order: Vec<usize> = (0..claims.len()).collect();
    // Ties keep program order.
    order.sort_by_key(|&at| (std::cmp::Reverse(claims[at].bytes), at));
    let mut offsets = vec![0; claims.len()];
    let mut total = 0u64;
    let mut placed: Vec<(u64, u64, usize)> = Vec::new();
    for at in order {
        let claim = &claims[at];
        let size = claim.bytes.max(1).checked_next_multiple_of(ALIGNMENT)?;
        let mut offset = 0u64;
        // `placed` is sorted by start offset.
        for &(start, end, other) in &placed {
            let other = &claims[other];
            let overlaps = claim.first <= other.last && other.first <= claim.last;
            if !overlaps {
                continue;
            }
            if offset.checked_add(size)? <= start {
                break;
            }
            offset = offset.max(end);
        }
        let end = offset.checked_add(size)?;
        let position = placed.partition_point(|&(start, ..)| start <= offset);
        placed.insert(position, (offset, end, at));
        offsets[at] = offset;
        total = total.max(end);
    }
    Some((offsets, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(bytes: u64, first: usize, last: usize) -> Allocation {
        Allocation { bytes, first, last }
    }

    #[test]
    fn simultaneously_live_tensors_do_not_overlap() {
        let mut seed = 7u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..50 {
            let claims: Vec<_> = (0..40)
                .map(|_| {
                    let first = random(30) as usize;
                    claim(random(1000), first, first + random(10) as usize)
                })
                .collect();
            let (offsets, total) = place(&claims).expect("the size does not overflow");
            for (a, x) in claims.iter().enumerate() {
                assert_eq!(offsets[a] % ALIGNMENT, 0);
                assert!(offsets[a] + x.bytes <= total);
                for (b, y) in claims.iter().enumerate().skip(a + 1) {
                    let alive = x.first <= y.last && y.first <= x.last;
                    let apart =
                        offsets[a] + x.bytes <= offsets[b] || offsets[b] + y.bytes <= offsets[a];
                    assert!(!alive || apart, "{x:?} at {} and {y:?} at {}", offsets[a], offsets[b]);
                }
            }
        }
    }

    #[test]
    fn reuses_memory_of_dead_tensors() {
        let claims = [claim(100, 0, 1), claim(100, 1, 2), claim(100, 2, 3), claim(16, 3, 4)];
        let (offsets, total) = place(&claims).expect("the size does not overflow");
        assert_eq!((offsets, total), (vec![0, 112, 0, 112], 224));
        assert_eq!(place(&[claim(u64::MAX, 0, 1)]), None);
    }
}
