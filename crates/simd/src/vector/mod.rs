//! Vectors of `f32` of whatever width the machine has: kernels are written once over [`Vector`] and
//! compiled for each instruction set by [`dispatch`].
//!
//! The types that implement [`Vector`] are private to this module, so a kernel can only meet them as the
//! parameter of its [`Kernel::run`], below `dispatch`, which has checked that the machine has the
//! instructions. This is what makes the methods safe to call.

#![expect(unsafe_code, reason = "vector instructions, and pointers that callers vouch for")]

/// Methods of a vector that are some instructions.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
macro_rules! methods {
    ($($name:ident $(<const $n:ident>)? ($first:ident $(: $first_type:ty)? $(, $argument:ident: $type:ty)*)
        -> $output:ty = $body:expr;)*) => {
        $(
            #[inline(always)]
            fn $name $(<const $n: u32>)? ($first $(: $first_type)? $(, $argument: $type)*) -> $output {
                // SAFETY: vectors are only made where the instructions are, as `super` says.
                unsafe { $body }
            }
        )*
    };
}

/// Methods of a vector that use memory, whose callers vouch for the elements.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
macro_rules! memory {
    ($($name:ident($($argument:ident $(: $type:ty)?),*) $(-> $output:ty)? = $body:expr;)*) => {
        $(
            #[inline(always)]
            unsafe fn $name($($argument $(: $type)?),*) $(-> $output)? {
                // SAFETY: the caller vouches for the elements, and vectors are only made where the
                // instructions are, as `super` says.
                unsafe { $body }
            }
        )*
    };
}

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
mod array;
mod dots;
#[cfg(all(target_arch = "aarch64", not(miri)))]
mod neon;
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod pair;
mod unpack;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86;

pub use dots::{Bits, DotIsa, DotKernel, Int8Dot, dispatch_dots, interleaved, load_sums};
pub use unpack::{FIELDS_BYTES, Fields, Unpack};

use crate::Isa;

/// The most lanes that a [`Vector`] has.
pub const MAX_LANES: usize = 16;

/// A vector of [`LANES`](Self::LANES) `f32`, with masks and 32-bit integers of as many lanes.
///
/// Kernels must mark what they call with vectors `#[inline(always)]`: a function that stays outside
/// the one compiled for the instruction set does without it and is very slow. Closures cannot be marked
/// and do stay outside; what takes a function of vectors takes an implementation of a trait.
pub trait Vector: Unpack {
    const LANES: usize;
    /// Whether `mul_add` rounds once.
    const FUSED: bool;
    /// Whether kernels have versions for several sizes of tiles. The portable vector does with one, as
    /// versions take long to compile.
    const TUNED: bool;
    type Mask: Copy;
    type Bits: Copy;

    fn splat(value: f32) -> Self;

    /// # Safety
    /// `LANES` elements must be readable at `source`.
    unsafe fn load(source: *const f32) -> Self;
    /// Loads `count` lanes and fills the others with zeros.
    ///
    /// # Safety
    /// `count` is at most `LANES`, and as many elements must be readable at `source`.
    unsafe fn load_partial(source: *const f32, count: usize) -> Self;
    /// # Safety
    /// `LANES` elements must be writable at `target`.
    unsafe fn store(self, target: *mut f32);
    /// # Safety
    /// `count` is at most `LANES`, and as many elements must be writable at `target`.
    unsafe fn store_partial(self, target: *mut f32, count: usize);
    /// Loads bits of half-precision numbers.
    ///
    /// # Safety
    /// `LANES` elements must be readable at `source`.
    unsafe fn load_f16(source: *const u16) -> Self;
    /// Rounds to the nearest half-precision numbers, to even ones in ties, and stores their bits.
    ///
    /// # Safety
    /// `LANES` elements must be writable at `target`.
    unsafe fn store_f16(self, target: *mut u16);

    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `self * factor + addend`.
    fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// `addend - self * factor`.
    fn neg_mul_add(self, factor: Self, addend: Self) -> Self;
    /// `self < other ? self : other`: `other` where one is NaN.
    fn min(self, other: Self) -> Self;
    /// `self > other ? self : other`: `other` where one is NaN.
    fn max(self, other: Self) -> Self;
    fn sqrt(self) -> Self;
    /// The nearest integer, the even one in ties.
    fn round(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn trunc(self) -> Self;
    /// `self * 2^exponent`, rounded once, for an integral exponent from −252 to 254.
    fn scale(self, exponent: Self) -> Self;
    /// Rounded to half precision and back.
    fn round_to_f16(self) -> Self;

    fn less(self, other: Self) -> Self::Mask;
    fn less_equal(self, other: Self) -> Self::Mask;
    fn equal(self, other: Self) -> Self::Mask;
    fn both(left: Self::Mask, right: Self::Mask) -> Self::Mask;
    fn either(left: Self::Mask, right: Self::Mask) -> Self::Mask;
    fn not(mask: Self::Mask) -> Self::Mask;
    fn any(mask: Self::Mask) -> bool;
    fn select(mask: Self::Mask, yes: Self, no: Self) -> Self;

    fn to_bits(self) -> Self::Bits;
    fn from_bits(bits: Self::Bits) -> Self;
    /// The nearest integers of numbers that fit.
    fn to_int(self) -> Self::Bits;
    fn from_int(bits: Self::Bits) -> Self;
    fn bits(value: u32) -> Self::Bits;
    fn bits_add(left: Self::Bits, right: Self::Bits) -> Self::Bits;
    fn bits_sub(left: Self::Bits, right: Self::Bits) -> Self::Bits;
    fn bits_and(left: Self::Bits, right: Self::Bits) -> Self::Bits;
    fn bits_or(left: Self::Bits, right: Self::Bits) -> Self::Bits;
    fn bits_xor(left: Self::Bits, right: Self::Bits) -> Self::Bits;
    fn bits_left<const N: u32>(bits: Self::Bits) -> Self::Bits;
    /// Shifts in copies of the sign.
    fn bits_right_signed<const N: u32>(bits: Self::Bits) -> Self::Bits;
    fn bits_equal(left: Self::Bits, right: Self::Bits) -> Self::Mask;

    fn sum(self) -> f32;
    /// The largest lane; which one where some are NaN is open.
    fn maximum(self) -> f32;

    #[inline(always)]
    fn zero() -> Self {
        Self::splat(0.0)
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Self::from_bits(Self::bits_and(self.to_bits(), Self::bits(0x7fff_ffff)))
    }

    #[inline(always)]
    fn neg(self) -> Self {
        Self::from_bits(Self::bits_xor(self.to_bits(), Self::bits(0x8000_0000)))
    }

    /// `self`, which is not negative, with the sign of `sign`.
    #[inline(always)]
    fn with_sign_of(self, sign: Self) -> Self {
        let sign = Self::bits_and(sign.to_bits(), Self::bits(0x8000_0000));
        Self::from_bits(Self::bits_or(self.to_bits(), sign))
    }

    #[inline(always)]
    fn is_nan(self) -> Self::Mask {
        Self::not(self.equal(self))
    }

    /// Like [`max`](Self::max), but NaN where one is.
    #[inline(always)]
    fn max_nan(self, other: Self) -> Self {
        Self::select(self.is_nan(), self, self.max(other))
    }

    /// Like [`min`](Self::min), but NaN where one is.
    #[inline(always)]
    fn min_nan(self, other: Self) -> Self {
        Self::select(self.is_nan(), self, self.min(other))
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
type Portable = pair::Pair<x86::F32x4>;
#[cfg(all(target_arch = "aarch64", not(miri)))]
type Portable = pair::Pair<neon::F32x4>;
#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
type Portable = array::F32x8;

/// Asks for a cache line that will be needed; any address will do.
#[inline(always)]
pub fn prefetch(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: prefetching does nothing to memory, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Work that is compiled for each instruction set.
///
/// The compiled versions are methods of the trait, since the compiler then puts them beside the type that
/// implements it, and compiles the modules of kernels in parallel.
pub trait Kernel: Sized {
    type Output;
    /// Implementations are `#[inline(always)]`.
    fn run<V: Vector>(self) -> Self::Output;

    #[inline(never)]
    fn run_portable(self) -> Self::Output {
        self.run::<Portable>()
    }

    /// # Safety
    /// The machine must have the instructions.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn run_avx2(self) -> Self::Output {
        self.run::<x86::F32x8>()
    }

    /// # Safety
    /// The machine must have the instructions.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn run_avx512(self) -> Self::Output {
        self.run::<x86::F32x16>()
    }
}

#[cfg(not(all(target_arch = "aarch64", not(miri))))]
/// Rounds as half precision does, by arithmetic alone.
#[inline(always)]
fn round_to_f16(value: f32) -> f32 {
    let magnitude = f32::from_bits(value.to_bits() & 0x7fff_ffff);
    // Halves below 2^-14 are multiples of 2^-24, as are the floats from 0.5 to 1.
    let small = (magnitude + 0.5) - 0.5;
    let bits = magnitude.to_bits();
    let large = f32::from_bits((bits + 0xfff + (bits >> 13 & 1)) & !0x1fff);
    let large = if magnitude < 65520.0 { large } else { f32::INFINITY };
    let rounded = if magnitude < 6.103_515_6e-5 { small } else { large };
    let signed = f32::from_bits(rounded.to_bits() | value.to_bits() & 0x8000_0000);
    if value.is_nan() { value } else { signed }
}

/// Runs the kernel with vectors of the instruction set.
///
/// # Panics
/// Where the machine does not have it.
#[inline]
pub fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    assert!(isa.is_available(), "this machine has no {isa}");
    // SAFETY: the machine has the instructions.
    unsafe { dispatch_unchecked(isa, kernel) }
}

/// Like [`dispatch`], for work so short that the check would be felt.
///
/// # Safety
/// The machine must have the instruction set.
#[inline]
pub unsafe fn dispatch_unchecked<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match isa {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the machine has the instructions.
        Isa::Avx512 => unsafe { kernel.run_avx512() },
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the machine has the instructions.
        Isa::Avx2 => unsafe { kernel.run_avx2() },
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        Isa::Neon => kernel.run::<neon::F32x4>(),
        _ => kernel.run_portable(),
    }
}

#[cfg(test)]
mod tests;
