use half::{bf16, f16};

use crate::Isa;
use crate::vector::{Kernel, MAX_LANES, Vector, dispatch};

/// Converts half precision to single precision.
///
/// # Panics
/// Panics if the lengths differ.
pub fn f16_to_f32(isa: Isa, source: &[f16], target: &mut [f32]) {
    assert_eq!(source.len(), target.len(), "source and target differ in length");
    dispatch(isa, Widen { source, target });
}

/// Rounds to half precision, to nearest with ties to even. Numbers out of range become infinite.
///
/// # Panics
/// Panics if the lengths differ.
pub fn f32_to_f16(isa: Isa, source: &[f32], target: &mut [f16]) {
    assert_eq!(source.len(), target.len(), "source and target differ in length");
    dispatch(isa, Narrow { source, target });
}

/// Rounds numbers to half precision and back, like storing and loading them in half precision.
pub fn round_to_fp16(isa: Isa, elements: &mut [f32]) {
    dispatch(isa, Round { elements });
}

/// Converts bfloat16 to single precision.
///
/// # Panics
/// Panics if the lengths differ.
pub fn bf16_to_f32(isa: Isa, source: &[bf16], target: &mut [f32]) {
    assert_eq!(source.len(), target.len(), "source and target differ in length");
    dispatch(isa, WidenBrain { source, target });
}

/// Rounds to bfloat16, to nearest with ties to even.
///
/// # Panics
/// Panics if the lengths differ.
pub fn f32_to_bf16(isa: Isa, source: &[f32], target: &mut [bf16]) {
    assert_eq!(source.len(), target.len(), "source and target differ in length");
    dispatch(isa, NarrowBrain { source, target });
}

/// Rounds numbers like [`f32_to_bf16`], and keeps them in single precision.
pub fn round_to_bf16(isa: Isa, elements: &mut [f32]) {
    dispatch(isa, RoundBrain { elements });
}

struct Widen<'a> {
    source: &'a [f16],
    target: &'a mut [f32],
}

impl Kernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let (sources, source_rest) = self.source.split_at(self.source.len() / V::LANES * V::LANES);
        let (targets, target_rest) = self.target.split_at_mut(sources.len());
        let chunks = sources.chunks_exact(V::LANES).zip(targets.chunks_exact_mut(V::LANES));
        for (source, target) in chunks {
            // SAFETY: both chunks have `LANES` elements, and `f16` consists only of its bits.
            unsafe { V::load_f16(source.as_ptr().cast()).store(target.as_mut_ptr()) };
        }
        let mut rest = [f16::ZERO; MAX_LANES];
        rest[..source_rest.len()].copy_from_slice(source_rest);
        // SAFETY: the array has at least as many elements as a vector has lanes, and `target_rest` has this
        // many elements.
        unsafe {
            let wide = V::load_f16(rest.as_ptr().cast());
            wide.store_partial(target_rest.as_mut_ptr(), target_rest.len());
        }
    }
}

struct Narrow<'a> {
    source: &'a [f32],
    target: &'a mut [f16],
}

impl Kernel for Narrow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let (sources, source_rest) = self.source.split_at(self.source.len() / V::LANES * V::LANES);
        let (targets, target_rest) = self.target.split_at_mut(sources.len());
        let chunks = sources.chunks_exact(V::LANES).zip(targets.chunks_exact_mut(V::LANES));
        for (source, target) in chunks {
            // SAFETY: both chunks have `LANES` elements, and `f16` consists only of its bits.
            unsafe { V::load(source.as_ptr()).store_f16(target.as_mut_ptr().cast()) };
        }
        let mut rest = [f16::ZERO; MAX_LANES];
        // SAFETY: the array has at least as many elements as a vector has lanes, and `source_rest` has this
        // many elements.
        unsafe {
            let wide = V::load_partial(source_rest.as_ptr(), source_rest.len());
            wide.store_f16(rest.as_mut_ptr().cast());
        }
        target_rest.copy_from_slice(&rest[..target_rest.len()]);
    }
}

struct Round<'a> {
    elements: &'a mut [f32],
}

impl Kernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let mut chunks = self.elements.chunks_exact_mut(V::LANES);
        for chunk in &mut chunks {
            // SAFETY: the chunk has `LANES` elements.
            unsafe { V::load(chunk.as_ptr()).round_to_f16().store(chunk.as_mut_ptr()) };
        }
        let rest = chunks.into_remainder();
        // SAFETY: the rest has this many elements, fewer than `LANES`.
        unsafe {
            let rounded = V::load_partial(rest.as_ptr(), rest.len()).round_to_f16();
            rounded.store_partial(rest.as_mut_ptr(), rest.len());
        }
    }
}

/// Branchless, so that loops over it vectorize.
#[inline(always)]
fn round_bits(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1))) & 0xffff_0000;
    // Rounding could carry bits of a NaN into the exponent.
    let quiet = (bits | 0x0040_0000) & 0xffff_0000;
    if value.is_nan() { quiet } else { rounded }
}

struct WidenBrain<'a> {
    source: &'a [bf16],
    target: &'a mut [f32],
}

impl Kernel for WidenBrain<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        for (source, target) in self.source.iter().zip(self.target) {
            *target = f32::from_bits(u32::from(source.to_bits()) << 16);
        }
    }
}

struct NarrowBrain<'a> {
    source: &'a [f32],
    target: &'a mut [bf16],
}

impl Kernel for NarrowBrain<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        for (source, target) in self.source.iter().zip(self.target) {
            *target = bf16::from_bits((round_bits(*source) >> 16) as u16);
        }
    }
}

struct RoundBrain<'a> {
    elements: &'a mut [f32],
}

impl Kernel for RoundBrain<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        for element in self.elements {
            *element = f32::from_bits(round_bits(*element));
        }
    }
}
