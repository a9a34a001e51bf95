//! Vectors as arrays, for machines without SIMD; the compiler optimizes them.

use super::unpack::unpack_by_element;
use super::{Vector, round_to_f16};

const LANES: usize = 8;

#[derive(Clone, Copy)]
#[repr(align(32))]
pub(super) struct F32x8([f32; LANES]);

#[derive(Clone, Copy)]
#[repr(align(32))]
pub(super) struct U32x8([u32; LANES]);

unpack_by_element!(F32x8);

#[inline(always)]
fn map(a: F32x8, f: impl Fn(f32) -> f32) -> F32x8 {
    let mut out = a;
    for lane in 0..LANES {
        out.0[lane] = f(a.0[lane]);
    }
    out
}

#[inline(always)]
fn zip(a: F32x8, b: F32x8, f: impl Fn(f32, f32) -> f32) -> F32x8 {
    let mut out = a;
    for lane in 0..LANES {
        out.0[lane] = f(a.0[lane], b.0[lane]);
    }
    out
}

#[inline(always)]
fn compare(a: F32x8, b: F32x8, f: impl Fn(f32, f32) -> bool) -> U32x8 {
    let mut out = U32x8([0; LANES]);
    for lane in 0..LANES {
        out.0[lane] = if f(a.0[lane], b.0[lane]) { u32::MAX } else { 0 };
    }
    out
}

#[inline(always)]
fn zip_bits(a: U32x8, b: U32x8, f: impl Fn(u32, u32) -> u32) -> U32x8 {
    let mut out = a;
    for lane in 0..LANES {
        out.0[lane] = f(a.0[lane], b.0[lane]);
    }
    out
}

#[inline(always)]
fn map_bits(a: U32x8, f: impl Fn(u32) -> u32) -> U32x8 {
    zip_bits(a, a, |bits, _| f(bits))
}

/// 1.5 · 2^23: adding it shifts out the bits of a fraction.
const SHIFTER: f32 = 12_582_912.0;

/// Rounds like the processor's instruction, which the baseline of the target lacks.
#[inline(always)]
fn round(value: f32) -> f32 {
    let magnitude = f32::from_bits(value.to_bits() & 0x7fff_ffff);
    let rounded = (magnitude + 8_388_608.0) - 8_388_608.0;
    let rounded = if magnitude < 8_388_608.0 { rounded } else { magnitude };
    f32::from_bits(rounded.to_bits() | value.to_bits() & 0x8000_0000)
}

impl Vector for F32x8 {
    const LANES: usize = LANES;
    const FUSED: bool = false;
    const TUNED: bool = true;
    type Mask = U32x8;
    type Bits = U32x8;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        F32x8([value; LANES])
    }
    #[inline(always)]
    unsafe fn load(source: *const f32) -> Self {
        // SAFETY: the caller guarantees `LANES` elements.
        F32x8(unsafe { source.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn load_partial(source: *const f32, count: usize) -> Self {
        let mut out = Self::zero();
        for lane in 0..count.min(LANES) {
            // SAFETY: the caller guarantees `count` elements.
            out.0[lane] = unsafe { *source.add(lane) };
        }
        out
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut f32) {
        // SAFETY: the caller guarantees `LANES` elements.
        unsafe { target.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn store_partial(self, target: *mut f32, count: usize) {
        for lane in 0..count.min(LANES) {
            // SAFETY: the caller guarantees `count` elements.
            unsafe { *target.add(lane) = self.0[lane] };
        }
    }
    #[inline(always)]
    unsafe fn load_f16(source: *const u16) -> Self {
        let mut out = Self::zero();
        for lane in 0..LANES {
            // SAFETY: the caller guarantees `LANES` elements.
            out.0[lane] = half::f16::from_bits(unsafe { *source.add(lane) }).to_f32_const();
        }
        out
    }
    #[inline(always)]
    unsafe fn store_f16(self, target: *mut u16) {
        for lane in 0..LANES {
            // SAFETY: the caller guarantees `LANES` elements.
            unsafe { *target.add(lane) = half::f16::from_f32_const(self.0[lane]).to_bits() };
        }
    }
    #[inline(always)]
    unsafe fn load_words(source: *const i16) -> Self {
        let mut out = Self::zero();
        for lane in 0..LANES {
            // SAFETY: the caller guarantees `LANES` elements.
            out.0[lane] = f32::from(unsafe { *source.add(lane) });
        }
        out
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        zip(self, other, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        zip(self, other, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        zip(self, other, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        zip(self, other, |a, b| a / b)
    }
    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        self.mul(factor).add(addend)
    }
    #[inline(always)]
    fn neg_mul_add(self, factor: Self, addend: Self) -> Self {
        addend.sub(self.mul(factor))
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        zip(self, other, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        zip(self, other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        map(self, f32::sqrt)
    }
    #[inline(always)]
    fn round(self) -> Self {
        map(self, round)
    }
    #[inline(always)]
    fn floor(self) -> Self {
        map(self, |a| {
            let rounded = round(a);
            let below = rounded - if rounded > a { 1.0 } else { 0.0 };
            f32::from_bits(below.to_bits() | a.to_bits() & 0x8000_0000)
        })
    }
    #[inline(always)]
    fn ceil(self) -> Self {
        self.neg().floor().neg()
    }
    #[inline(always)]
    fn trunc(self) -> Self {
        self.abs().floor().with_sign_of(self)
    }
    #[inline(always)]
    fn scale(self, exponent: Self) -> Self {
        zip(self, exponent, |a, n| {
            // Scale in two steps, so that each factor is a normal number. The first step is exact: it leaves
            // the range of normal numbers only if the second step continues in the same direction.
            let n = n as i32;
            let half = n >> 1;
            let power = |n: i32| f32::from_bits(((n + 127) as u32) << 23);
            a * power(half) * power(n - half)
        })
    }
    #[inline(always)]
    fn round_to_f16(self) -> Self {
        map(self, round_to_f16)
    }

    #[inline(always)]
    fn less(self, other: Self) -> U32x8 {
        compare(self, other, |a, b| a < b)
    }
    #[inline(always)]
    fn less_equal(self, other: Self) -> U32x8 {
        compare(self, other, |a, b| a <= b)
    }
    #[inline(always)]
    fn equal(self, other: Self) -> U32x8 {
        compare(self, other, |a, b| a == b)
    }
    #[inline(always)]
    fn both(left: U32x8, right: U32x8) -> U32x8 {
        Self::bits_and(left, right)
    }
    #[inline(always)]
    fn either(left: U32x8, right: U32x8) -> U32x8 {
        Self::bits_or(left, right)
    }
    #[inline(always)]
    fn not(mask: U32x8) -> U32x8 {
        map_bits(mask, |bits| !bits)
    }
    #[inline(always)]
    fn any(mask: U32x8) -> bool {
        mask.0.iter().fold(0, |any, &bits| any | bits) != 0
    }
    #[inline(always)]
    fn select(mask: U32x8, yes: Self, no: Self) -> Self {
        let mut out = no;
        for lane in 0..LANES {
            let bits = yes.0[lane].to_bits() & mask.0[lane] | no.0[lane].to_bits() & !mask.0[lane];
            out.0[lane] = f32::from_bits(bits);
        }
        out
    }

    #[inline(always)]
    fn to_bits(self) -> U32x8 {
        U32x8(self.0.map(f32::to_bits))
    }
    #[inline(always)]
    fn from_bits(bits: U32x8) -> Self {
        F32x8(bits.0.map(f32::from_bits))
    }
    #[inline(always)]
    fn to_int(self) -> U32x8 {
        // Below 2^22, the lowest bits of the sum are the integer.
        let shifted = self.add(Self::splat(SHIFTER)).to_bits();
        map_bits(shifted, |bits| bits.wrapping_sub(SHIFTER.to_bits()))
    }
    #[inline(always)]
    fn from_int(bits: U32x8) -> Self {
        F32x8(bits.0.map(|bits| bits as i32 as f32))
    }
    #[inline(always)]
    fn bits(value: u32) -> U32x8 {
        U32x8([value; LANES])
    }
    #[inline(always)]
    fn bits_add(left: U32x8, right: U32x8) -> U32x8 {
        zip_bits(left, right, u32::wrapping_add)
    }
    #[inline(always)]
    fn bits_sub(left: U32x8, right: U32x8) -> U32x8 {
        zip_bits(left, right, u32::wrapping_sub)
    }
    #[inline(always)]
    fn bits_and(left: U32x8, right: U32x8) -> U32x8 {
        zip_bits(left, right, |a, b| a & b)
    }
    #[inline(always)]
    fn bits_or(left: U32x8, right: U32x8) -> U32x8 {
        zip_bits(left, right, |a, b| a | b)
    }
    #[inline(always)]
    fn bits_xor(left: U32x8, right: U32x8) -> U32x8 {
        zip_bits(left, right, |a, b| a ^ b)
    }
    #[inline(always)]
    fn bits_left<const N: u32>(bits: U32x8) -> U32x8 {
        map_bits(bits, |bits| bits << N)
    }
    #[inline(always)]
    fn bits_right_signed<const N: u32>(bits: U32x8) -> U32x8 {
        map_bits(bits, |bits| (bits as i32 >> N) as u32)
    }
    #[inline(always)]
    fn bits_equal(left: U32x8, right: U32x8) -> U32x8 {
        zip_bits(left, right, |a, b| if a == b { u32::MAX } else { 0 })
    }

    #[inline(always)]
    fn interleave(self, other: Self) -> (Self, Self) {
        let (mut first, mut second) = (self, other);
        for lane in 0..LANES {
            let from = if lane % 2 == 0 { &self } else { &other };
            first.0[lane] = from.0[lane / 2];
            second.0[lane] = from.0[(LANES + lane) / 2];
        }
        (first, second)
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        let [a, b, c, d, e, f, g, h] = self.0;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }
    #[inline(always)]
    fn maximum(self) -> f32 {
        self.0.iter().fold(f32::NEG_INFINITY, |most, &lane| if lane > most { lane } else { most })
    }
}
