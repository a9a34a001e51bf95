//! `f32` vectors with the width of the machine. Kernels are written once with the trait [`Vector`], and
//! [`dispatch`] compiles them for each instruction set.
//!
//! The types that implement [`Vector`] are private to this module. A kernel can use them only as the type
//! parameter of [`Kernel::run`], which is called by `dispatch` after it has checked that the machine supports
//! the instruction set. Therefore the methods are safe to call.
//!
//! Inner loops contain no calls of library functions with closures over vectors, such as `array::map`. Only
//! the kernel is compiled for the instruction set, and a call that is not inlined into it costs more than its instructions.

#![expect(unsafe_code, reason = "vector instructions, and pointers that the caller guarantees")]

/// Defines methods of a vector that consist of a few instructions.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
macro_rules! methods {
    ($($name:ident $(<const $n:ident>)? ($first:ident $(: $first_type:ty)? $(, $argument:ident: $type:ty)*)
        -> $output:ty = $body:expr;)*) => {
        $(
            #[inline(always)]
            fn $name $(<const $n: u32>)? ($first $(: $first_type)? $(, $argument: $type)*) -> $output {
                // SAFETY: vectors are created only if the instructions are supported, see the module
                // documentation.
                unsafe { $body }
            }
        )*
    };
}

/// Defines methods of a vector that access memory; the caller guarantees the elements.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
macro_rules! memory {
    ($($name:ident($($argument:ident $(: $type:ty)?),*) $(-> $output:ty)? = $body:expr;)*) => {
        $(
            #[inline(always)]
            unsafe fn $name($($argument $(: $type)?),*) $(-> $output)? {
                // SAFETY: the caller guarantees the elements, and vectors are created only if the
                // instructions are supported, see the module documentation.
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

pub use dots::{Bits, DotIsa, DotKernel, Int8Dot, WordDot, dispatch_dots, interleaved, load_sums};
pub use unpack::{FIELDS_BYTES, Fields, Unpack};

use crate::Isa;

/// Maximum number of lanes of a [`Vector`].
pub const MAX_LANES: usize = 16;

/// A vector of [`LANES`](Self::LANES) `f32` elements, with masks and 32-bit integers of the same number of
/// lanes.
///
/// Functions that kernels call with vectors must be `#[inline(always)]`: a function that is not inlined is
/// compiled without the instruction set and is very slow. Closures cannot have the attribute and are not
/// inlined, so pass implementations of a trait instead of closures.
pub trait Vector: Unpack {
    const LANES: usize;
    /// Whether `mul_add` rounds once.
    const FUSED: bool;
    /// Whether kernels are compiled for several tile sizes. The portable vector uses one size, because each
    /// size takes long to compile.
    const TUNED: bool;
    type Mask: Copy;
    type Bits: Copy;

    fn splat(value: f32) -> Self;

    /// # Safety
    /// `LANES` elements must be readable at `source`.
    unsafe fn load(source: *const f32) -> Self;
    /// Loads `count` lanes and sets the others to zero.
    ///
    /// # Safety
    /// `count` must be at most `LANES`, and `count` elements must be readable at `source`.
    unsafe fn load_partial(source: *const f32, count: usize) -> Self;
    /// # Safety
    /// `LANES` elements must be writable at `target`.
    unsafe fn store(self, target: *mut f32);
    /// # Safety
    /// `count` must be at most `LANES`, and `count` elements must be writable at `target`.
    unsafe fn store_partial(self, target: *mut f32, count: usize);
    /// Loads half-precision numbers from their bits.
    ///
    /// # Safety
    /// `LANES` elements must be readable at `source`.
    unsafe fn load_f16(source: *const u16) -> Self;
    /// Rounds to half precision, to nearest with ties to even, and stores the bits.
    ///
    /// # Safety
    /// `LANES` elements must be writable at `target`.
    unsafe fn store_f16(self, target: *mut u16);
    /// Loads 16-bit integers as numbers.
    ///
    /// # Safety
    /// `LANES` elements must be readable at `source`.
    unsafe fn load_words(source: *const i16) -> Self;

    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `self * factor + addend`.
    fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// `addend - self * factor`.
    fn neg_mul_add(self, factor: Self, addend: Self) -> Self;
    /// `self < other ? self : other`; the result is `other` if an operand is NaN.
    fn min(self, other: Self) -> Self;
    /// `self > other ? self : other`; the result is `other` if an operand is NaN.
    fn max(self, other: Self) -> Self;
    fn sqrt(self) -> Self;
    /// Rounds to nearest, with ties to even.
    fn round(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn trunc(self) -> Self;
    /// `self * 2^exponent`, rounded once, for an integer exponent from −252 to 254.
    fn scale(self, exponent: Self) -> Self;
    /// Rounds to half precision and back.
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
    /// Rounds to the nearest integers; the numbers must be in range.
    fn to_int(self) -> Self::Bits;
    fn from_int(bits: Self::Bits) -> Self;
    fn bits(value: u32) -> Self::Bits;
    fn bits_add(left: Self::Bits, right: Self::Bits) -> Self::Bits;
    fn bits_sub(left: Self::Bits, right: Self::Bits) -> Self::Bits;
    fn bits_and(left: Self::Bits, right: Self::Bits) -> Self::Bits;
    fn bits_or(left: Self::Bits, right: Self::Bits) -> Self::Bits;
    fn bits_xor(left: Self::Bits, right: Self::Bits) -> Self::Bits;
    fn bits_left<const N: u32>(bits: Self::Bits) -> Self::Bits;
    /// Arithmetic right shift.
    fn bits_right_signed<const N: u32>(bits: Self::Bits) -> Self::Bits;
    fn bits_equal(left: Self::Bits, right: Self::Bits) -> Self::Mask;

    /// The lanes of both vectors in turn: `self[0]`, `other[0]`, `self[1]` and so on. The first half of these
    /// lanes is the first result.
    fn interleave(self, other: Self) -> (Self, Self);

    fn sum(self) -> f32;
    /// The maximum of all lanes; unspecified if a lane is NaN.
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

    /// `self`, which must not be negative, with the sign of `sign`.
    #[inline(always)]
    fn with_sign_of(self, sign: Self) -> Self {
        let sign = Self::bits_and(sign.to_bits(), Self::bits(0x8000_0000));
        Self::from_bits(Self::bits_or(self.to_bits(), sign))
    }

    #[inline(always)]
    fn is_nan(self) -> Self::Mask {
        Self::not(self.equal(self))
    }

    /// Like [`max`](Self::max), but NaN if an operand is NaN.
    #[inline(always)]
    fn max_nan(self, other: Self) -> Self {
        Self::select(self.is_nan(), self, self.max(other))
    }

    /// Like [`min`](Self::min), but NaN if an operand is NaN.
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

/// Prefetches a cache line; any address is allowed.
#[inline(always)]
pub fn prefetch(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: prefetching does not access memory, whatever the address is.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Prefetches a cache line to the second level, which can wait for more lines at once than the first. Any address is allowed.
#[inline(always)]
pub fn prefetch_far(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: prefetching does not access memory, whatever the address is.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Transposes a square of vectors in the first `LANES` elements: lane `i` of vector `j` becomes lane `j` of
/// vector `i`.
#[inline(always)]
pub fn transpose<V: Vector>(square: &mut [V; MAX_LANES]) {
    // The bits of a vector's index and of a lane's index form a number. Each round rotates it by one bit, so
    // that both indices have changed places after as many rounds as an index has bits.
    let half = V::LANES / 2;
    let mut reached = 1;
    while reached < V::LANES {
        let before = *square;
        for at in 0..half {
            let (first, second) = before[at].interleave(before[at + half]);
            (square[2 * at], square[2 * at + 1]) = (first, second);
        }
        reached *= 2;
    }
}

/// Work that is compiled for each instruction set.
///
/// The compiled versions are methods of the trait. The compiler therefore places them next to the
/// implementing type and compiles the modules of kernels in parallel. No version is inlined into its caller:
/// constants of several loops would compete for registers, and the callers have other instruction sets.
pub trait Kernel: Sized {
    type Output;
    /// Implementations must be `#[inline(always)]`.
    fn run<V: Vector>(self) -> Self::Output;

    #[inline(never)]
    fn run_portable(self) -> Self::Output {
        self.run::<Portable>()
    }

    /// # Safety
    /// The machine must support the instruction set.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn run_avx2(self) -> Self::Output {
        self.run::<x86::F32x8>()
    }

    /// # Safety
    /// The machine must support the instruction set.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn run_avx512(self) -> Self::Output {
        self.run::<x86::F32x16>()
    }

    #[cfg(all(target_arch = "aarch64", not(miri)))]
    #[inline(never)]
    fn run_neon(self) -> Self::Output {
        self.run::<neon::F32x4>()
    }
}

#[cfg(not(all(target_arch = "aarch64", not(miri))))]
/// Rounds to half precision using only arithmetic.
#[inline(always)]
fn round_to_f16(value: f32) -> f32 {
    let magnitude = f32::from_bits(value.to_bits() & 0x7fff_ffff);
    // Half-precision numbers below 2^-14 are multiples of 2^-24, and so are floats from 0.5 to 1.
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
/// Panics if the machine does not support it.
#[inline]
pub fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    assert!(isa.is_available(), "this machine does not support {isa}");
    // SAFETY: the machine supports the instruction set.
    unsafe { dispatch_unchecked(isa, kernel) }
}

/// Like [`dispatch`] without the check, for very short work.
///
/// # Safety
/// The machine must support the instruction set.
#[inline]
pub unsafe fn dispatch_unchecked<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match isa {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the machine supports the instruction set.
        Isa::Avx512 => unsafe { kernel.run_avx512() },
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the machine supports the instruction set.
        Isa::Avx2 => unsafe { kernel.run_avx2() },
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        Isa::Neon => kernel.run_neon(),
        _ => kernel.run_portable(),
    }
}

#[cfg(test)]
mod tests;
