use coremill_simd::vector::{Kernel, MAX_LANES, Vector, prefetch};

/// Bytes from what is read to what is asked for: hardware does not look beyond the end of a page.
const AHEAD: usize = 1024;

/// Rounds single precision to half: what most weights go through, in one pass over bytes where they lie.
pub(super) struct Narrow<'a> {
    pub(super) source: &'a [[u8; 4]],
    pub(super) target: &'a mut [[u8; 2]],
    /// What each number is multiplied by first; 1 changes none.
    pub(super) factor: f32,
    /// The largest number that there may be, and whether infinities are kept.
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

/// Rounds at most as many numbers as a vector has lanes.
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
    // SAFETY: no vector has more lanes than the arrays.
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

/// Numbers brought to a limit if they are beyond; infinities only if they are not to be kept.
#[inline(always)]
pub(super) fn clamped<V: Vector>(numbers: V, limit: f32, keep_infinities: bool) -> V {
    // The second operand comes out where one is NaN.
    let limited = V::splat(-limit).max(V::splat(limit).min(numbers));
    if keep_infinities {
        let infinite = numbers.abs().equal(V::splat(f32::INFINITY));
        V::select(infinite, numbers, limited)
    } else {
        limited
    }
}
