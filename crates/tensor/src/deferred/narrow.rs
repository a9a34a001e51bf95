use coremill_simd::vector::{Kernel, MAX_LANES, Vector, prefetch};

/// Prefetch distance in bytes; the hardware does not prefetch across a page boundary.
const AHEAD: usize = 1024;

/// Rounds single precision to half precision, the most frequent conversion of weights, in one pass over the
/// source.
pub(super) struct Narrow<'a> {
    pub(super) source: &'a [[u8; 4]],
    pub(super) target: &'a mut [[u8; 2]],
    /// Factor for each number before rounding; 1 leaves numbers unchanged.
    pub(super) factor: f32,
    /// The limit to which numbers are clamped, and whether infinities are kept.
    pub(super) clamp: Option<(f32, bool)>,
}

impl Kernel for Narrow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Narrow { source, target, factor, clamp } = self;
        match clamp {
            None => narrow::<V, false>(source, target, factor, f32::INFINITY, true),
            Some((limit, keep)) => narrow::<V, true>(source, target, factor, limit, keep),
        }
    }
}

#[inline(always)]
fn narrow<V: Vector, const CLAMPED: bool>(
    source: &[[u8; 4]],
    target: &mut [[u8; 2]],
    factor: f32,
    limit: f32,
    keep_infinities: bool,
) {
    let (sources, source_rest) = source.split_at(source.len() / V::LANES * V::LANES);
    let (targets, target_rest) = target.split_at_mut(sources.len());
    let chunks = sources.chunks_exact(V::LANES).zip(targets.chunks_exact_mut(V::LANES));
    for (source, target) in chunks {
        prefetch(source.as_ptr().cast::<u8>().wrapping_add(AHEAD));
        narrow_some::<V, CLAMPED>(source, target, factor, limit, keep_infinities);
    }
    narrow_some::<V, CLAMPED>(source_rest, target_rest, factor, limit, keep_infinities);
}

/// Rounds at most one vector of numbers.
#[inline(always)]
fn narrow_some<V: Vector, const CLAMPED: bool>(
    source: &[[u8; 4]],
    target: &mut [[u8; 2]],
    factor: f32,
    limit: f32,
    keep_infinities: bool,
) {
    let mut numbers = [0f32; MAX_LANES];
    for (number, bytes) in numbers.iter_mut().zip(source) {
        *number = f32::from_le_bytes(*bytes);
    }
    let mut halves = [0u16; MAX_LANES];
    // SAFETY: the arrays have at least as many elements as a vector has lanes.
    #[expect(unsafe_code, reason = "vectors are loaded from and stored to memory")]
    unsafe {
        let numbers = V::load(numbers.as_ptr()).mul(V::splat(factor));
        let numbers = if CLAMPED { clamped(numbers, limit, keep_infinities) } else { numbers };
        numbers.store_f16(halves.as_mut_ptr());
    }
    for (bytes, half) in target.iter_mut().zip(halves) {
        *bytes = half.to_le_bytes();
    }
}

/// Clamps numbers to ±`limit`; infinities are optionally kept.
#[inline(always)]
pub(super) fn clamped<V: Vector>(numbers: V, limit: f32, keep_infinities: bool) -> V {
    // `min` and `max` return the second operand if one is NaN.
    let limited = V::splat(-limit).max(V::splat(limit).min(numbers));
    if keep_infinities {
        let infinite = numbers.abs().equal(V::splat(f32::INFINITY));
        V::select(infinite, numbers, limited)
    } else {
        limited
    }
}
