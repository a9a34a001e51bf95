//! Exact dot products of 8-bit integers: for each lane, four unsigned integers of the left operand times four
//! signed integers of the right operand.

mod words;

use super::Vector;
use crate::Isa;

pub use words::WordDot;

/// Vectors of 32-bit sums with the same number of lanes as [`Floats`](Self::Floats), to which products of
/// bytes are added.
///
/// Like the methods of [`Vector`], the methods are safe to call, because values of the types are created only
/// inside [`dispatch_dots`].
pub trait Int8Dot: WordDot {
    /// Four bytes, the same for all lanes.
    type Left: Copy;
    /// Four bytes for each lane.
    type Right: Copy;
    /// Number of rows of the largest tile; tiles are two vectors wide.
    const ROWS: usize;

    /// # Safety
    /// Four bytes must be readable.
    unsafe fn left(source: *const u8) -> Self::Left;
    /// # Safety
    /// Four bytes for each lane must be readable.
    unsafe fn right(source: *const i8) -> Self::Right;
    /// Four unsigned bytes of each lane.
    fn left_of(bits: Bits<Self>) -> Self::Left;
    /// Adds the products of each lane to `sums`.
    fn dot(sums: Bits<Self>, left: Self::Left, right: Self::Right) -> Bits<Self>;
    /// The low halves of products of integers.
    fn multiply(left: Bits<Self>, right: Bits<Self>) -> Bits<Self>;
    /// # Safety
    /// `count` must be at most the number of lanes, and `count` bytes must be writable.
    unsafe fn store_bytes(codes: Bits<Self>, target: *mut u8, count: usize);
    /// # Safety
    /// `count` must be at most the number of lanes, and `count` bytes must be readable.
    unsafe fn load_bytes(source: *const u8, count: usize) -> Bits<Self>;
    /// Interleaves the bytes of four rows: each lane has one byte of each row, in the order of
    /// [`interleaved`].
    ///
    /// # Safety
    /// `count` must be at most four times the number of lanes, and `count` bytes must be readable in each
    /// row.
    unsafe fn interleave(rows: [*const u8; 4], count: usize) -> [Self::Left; 4];
    /// Stores codes in the order of [`interleaved`].
    ///
    /// # Safety
    /// `count` must be at most four times the number of lanes, and `count` bytes must be writable.
    unsafe fn store_interleaved(codes: [Bits<Self>; 4], target: *mut u8, count: usize);
}

/// Index in a row of the byte in a lane of one of four vectors.
pub const fn interleaved(vector: usize, lane: usize) -> usize {
    lane / 4 * 16 + vector * 4 + lane % 4
}

/// The sums.
pub type Bits<D> = <<D as WordDot>::Floats as Vector>::Bits;

/// Work that is compiled for each implementation of [`Int8Dot`].
pub trait DotKernel: Sized {
    type Output;
    /// Implementations must be `#[inline(always)]`.
    fn run<D: Int8Dot>(self) -> Self::Output;

    #[inline(never)]
    fn run_portable(self) -> Self::Output {
        self.run::<Plain>()
    }

    /// # Safety
    /// The machine must support the instruction set.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn run_avx2(self) -> Self::Output {
        self.run::<x86::Pairs>()
    }

    /// # Safety
    /// The machine must support the instruction set.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    unsafe fn run_avx_vnni(self) -> Self::Output {
        self.run::<x86::Vnni256>()
    }

    /// # Safety
    /// The machine must support the instruction set.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn run_avx512_vnni(self) -> Self::Output {
        self.run::<x86::Vnni512>()
    }

    /// # Safety
    /// The machine must support the instruction set.
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn run_neon(self) -> Self::Output {
        self.run::<neon::SignedBytes>()
    }
}

/// Instruction set for integer dot products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DotIsa {
    Portable,
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    Neon,
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx2,
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    AvxVnni,
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx512Vnni,
}

impl DotIsa {
    /// The best variant for an instruction set that this machine supports.
    ///
    /// # Panics
    /// Panics if the machine does not support the instruction set.
    pub fn of(isa: Isa) -> DotIsa {
        assert!(isa.is_available(), "this machine does not support {isa}");
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        return match isa {
            Isa::Avx512 if is_x86_feature_detected!("avx512vnni") => DotIsa::Avx512Vnni,
            Isa::Avx512 | Isa::Avx2 if is_x86_feature_detected!("avxvnni") => DotIsa::AvxVnni,
            Isa::Avx512 | Isa::Avx2 => DotIsa::Avx2,
            Isa::Portable | Isa::Neon => DotIsa::Portable,
        };
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        return match isa {
            Isa::Neon if std::arch::is_aarch64_feature_detected!("dotprod") => DotIsa::Neon,
            _ => DotIsa::Portable,
        };
        #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
        return DotIsa::Portable;
    }

    /// Number of lanes in a vector of sums.
    pub fn lanes(self) -> usize {
        struct Lanes;

        impl DotKernel for Lanes {
            type Output = usize;

            #[inline(always)]
            fn run<D: Int8Dot>(self) -> usize {
                D::Floats::LANES
            }
        }

        // SAFETY: support of the machine was checked when the value was created.
        unsafe { dispatch_dots(self, Lanes) }
    }
}

/// Runs the kernel with an implementation of [`Int8Dot`].
///
/// # Safety
/// The machine must support it.
#[inline]
pub unsafe fn dispatch_dots<K: DotKernel>(isa: DotIsa, kernel: K) -> K::Output {
    match isa {
        DotIsa::Portable => kernel.run_portable(),
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        // SAFETY: the caller guarantees support of the instructions.
        DotIsa::Neon => unsafe { kernel.run_neon() },
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the caller guarantees support of the instructions.
        DotIsa::Avx2 => unsafe { kernel.run_avx2() },
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the caller guarantees support of the instructions.
        DotIsa::AvxVnni => unsafe { kernel.run_avx_vnni() },
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the caller guarantees support of the instructions.
        DotIsa::Avx512Vnni => unsafe { kernel.run_avx512_vnni() },
    }
}

/// # Safety
/// One integer for each lane must be readable.
#[inline(always)]
pub unsafe fn load_sums<V: Vector>(source: *const i32) -> V::Bits {
    // SAFETY: loading floats only moves bits, and the caller guarantees them.
    unsafe { V::load(source.cast()) }.to_bits()
}

/// # Safety
/// One integer for each lane must be writable.
#[inline(always)]
unsafe fn store_sums<V: Vector>(sums: V::Bits, target: *mut i32) {
    // SAFETY: storing floats only moves bits, and the caller guarantees the memory.
    unsafe { V::from_bits(sums).store(target.cast()) }
}

/// Scalar implementation.
#[derive(Clone, Copy)]
pub(super) struct Plain;

const PLAIN: usize = 8;

impl Int8Dot for Plain {
    type Left = [[u8; 4]; PLAIN];
    type Right = [[i8; 4]; PLAIN];
    const ROWS: usize = 2;

    #[inline(always)]
    unsafe fn left(source: *const u8) -> [[u8; 4]; PLAIN] {
        // SAFETY: the caller guarantees the bytes.
        [unsafe { source.cast::<[u8; 4]>().read() }; PLAIN]
    }

    #[inline(always)]
    fn left_of(bits: Bits<Self>) -> [[u8; 4]; PLAIN] {
        let mut lanes = [0; PLAIN];
        // SAFETY: there are as many lanes.
        unsafe { store_sums::<Self::Floats>(bits, lanes.as_mut_ptr()) };
        lanes.map(i32::to_le_bytes)
    }

    #[inline(always)]
    unsafe fn interleave(rows: [*const u8; 4], count: usize) -> [[[u8; 4]; PLAIN]; 4] {
        let mut all = [[[0; 4]; PLAIN]; 4];
        for (vector, lanes) in all.iter_mut().enumerate() {
            for (lane, bytes) in lanes.iter_mut().enumerate() {
                let at = interleaved(vector, lane);
                if at < count {
                    // SAFETY: the caller guarantees the bytes.
                    *bytes = rows.map(|row| unsafe { *row.add(at) });
                }
            }
        }
        all
    }

    #[inline(always)]
    unsafe fn store_interleaved(codes: [Bits<Self>; 4], target: *mut u8, count: usize) {
        for (vector, codes) in codes.into_iter().enumerate() {
            let mut lanes = [0; PLAIN];
            // SAFETY: there are as many lanes.
            unsafe { store_sums::<Self::Floats>(codes, lanes.as_mut_ptr()) };
            for (lane, code) in lanes.into_iter().enumerate() {
                let at = interleaved(vector, lane);
                if at < count {
                    // SAFETY: the caller guarantees the bytes.
                    unsafe { *target.add(at) = code as u8 };
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn right(source: *const i8) -> [[i8; 4]; PLAIN] {
        // SAFETY: the caller guarantees the bytes.
        unsafe { source.cast::<[[i8; 4]; PLAIN]>().read() }
    }

    #[inline(always)]
    fn dot(sums: Bits<Self>, left: [[u8; 4]; PLAIN], right: [[i8; 4]; PLAIN]) -> Bits<Self> {
        let mut lanes = [0; PLAIN];
        // SAFETY: there are as many lanes.
        unsafe { store_sums::<Self::Floats>(sums, lanes.as_mut_ptr()) };
        for ((lane, left), right) in lanes.iter_mut().zip(left).zip(right) {
            for (left, right) in left.into_iter().zip(right) {
                *lane += i32::from(left) * i32::from(right);
            }
        }
        // SAFETY: there are as many lanes.
        unsafe { load_sums::<Self::Floats>(lanes.as_ptr()) }
    }

    #[inline(always)]
    fn multiply(left: Bits<Self>, right: Bits<Self>) -> Bits<Self> {
        let (mut product, mut factors) = ([0i32; PLAIN], [0i32; PLAIN]);
        // SAFETY: there are as many lanes.
        unsafe {
            store_sums::<Self::Floats>(left, product.as_mut_ptr());
            store_sums::<Self::Floats>(right, factors.as_mut_ptr());
        }
        for (product, factor) in product.iter_mut().zip(factors) {
            *product = product.wrapping_mul(factor);
        }
        // SAFETY: there are as many lanes.
        unsafe { load_sums::<Self::Floats>(product.as_ptr()) }
    }

    #[inline(always)]
    unsafe fn store_bytes(codes: Bits<Self>, target: *mut u8, count: usize) {
        let mut lanes = [0; PLAIN];
        // SAFETY: there are as many lanes, and the caller guarantees the bytes.
        unsafe {
            store_sums::<Self::Floats>(codes, lanes.as_mut_ptr());
            for (at, lane) in lanes.into_iter().enumerate().take(count) {
                *target.add(at) = lane as u8;
            }
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(source: *const u8, count: usize) -> Bits<Self> {
        let mut lanes = [0; PLAIN];
        for (at, lane) in lanes.iter_mut().enumerate().take(count) {
            // SAFETY: the caller guarantees the bytes.
            *lane = i32::from(unsafe { *source.add(at) });
        }
        // SAFETY: there are as many lanes.
        unsafe { load_sums::<Self::Floats>(lanes.as_ptr()) }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Bits, Int8Dot};

    /// Defines methods that consist of a few instructions.
    macro_rules! parts {
        ($left:ty, $right:ty, $rows:expr;
         left($a:ident) = $left_body:expr;
         right($b:ident) = $right_body:expr;
         dot($sums:ident, $x:ident, $y:ident) = $dot_body:expr;) => {
            type Left = $left;
            type Right = $right;
            const ROWS: usize = $rows;

            #[inline(always)]
            unsafe fn left($a: *const u8) -> $left {
                // SAFETY: the caller guarantees the bytes, and the machine supports the instructions.
                unsafe { $left_body }
            }

            #[inline(always)]
            unsafe fn right($b: *const i8) -> $right {
                // SAFETY: the caller guarantees the bytes, and the machine supports the instructions.
                unsafe { $right_body }
            }

            #[inline(always)]
            fn left_of(bits: Bits<Self>) -> $left {
                Self::of_bytes(bits)
            }

            #[inline(always)]
            fn dot($sums: Bits<Self>, $x: $left, $y: $right) -> Bits<Self> {
                // SAFETY: these sums are created only if the machine supports the instructions.
                unsafe { $dot_body }
            }
        };
    }

    /// Methods for sums in 256-bit vectors that do not depend on the dot product instruction.
    macro_rules! half_kilobit {
        () => {
            #[inline(always)]
            fn multiply(left: Bits<Self>, right: Bits<Self>) -> Bits<Self> {
                // SAFETY: these sums are created only if the machine supports the instructions.
                unsafe { _mm256_mullo_epi32(left, right) }
            }

            #[inline(always)]
            unsafe fn store_bytes(codes: Bits<Self>, target: *mut u8, count: usize) {
                // SAFETY: the caller guarantees the bytes, and the machine supports the instructions.
                unsafe {
                    let words = _mm_packs_epi32(
                        _mm256_castsi256_si128(codes),
                        _mm256_extracti128_si256::<1>(codes),
                    );
                    let bytes = _mm_packus_epi16(words, words);
                    if count == 8 {
                        _mm_storel_epi64(target.cast(), bytes);
                    } else {
                        let mut all = [0u8; 16];
                        _mm_storeu_si128(all.as_mut_ptr().cast(), bytes);
                        std::ptr::copy_nonoverlapping(all.as_ptr(), target, count);
                    }
                }
            }

            #[inline(always)]
            unsafe fn load_bytes(source: *const u8, count: usize) -> Bits<Self> {
                // SAFETY: the caller guarantees the bytes, and the machine supports the instructions.
                unsafe {
                    if count == 8 {
                        return _mm256_cvtepu8_epi32(_mm_loadl_epi64(source.cast()));
                    }
                    let mut all = [0u8; 16];
                    std::ptr::copy_nonoverlapping(source, all.as_mut_ptr(), count);
                    _mm256_cvtepu8_epi32(_mm_loadu_si128(all.as_ptr().cast()))
                }
            }

            #[inline(always)]
            unsafe fn interleave(rows: [*const u8; 4], count: usize) -> [Self::Left; 4] {
                // SAFETY: the caller guarantees the bytes, and the machine supports the instructions.
                unsafe {
                    let [a, b, c, d] = rows;
                    let (a, b) = (first_bytes(a, count), first_bytes(b, count));
                    let (c, d) = (first_bytes(c, count), first_bytes(d, count));
                    let (low, high) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
                    let (other_low, other_high) =
                        (_mm256_unpacklo_epi8(c, d), _mm256_unpackhi_epi8(c, d));
                    [
                        Self::of_bytes(_mm256_unpacklo_epi16(low, other_low)),
                        Self::of_bytes(_mm256_unpackhi_epi16(low, other_low)),
                        Self::of_bytes(_mm256_unpacklo_epi16(high, other_high)),
                        Self::of_bytes(_mm256_unpackhi_epi16(high, other_high)),
                    ]
                }
            }

            #[inline(always)]
            unsafe fn store_interleaved(codes: [Bits<Self>; 4], target: *mut u8, count: usize) {
                // SAFETY: the caller guarantees the bytes, and the machine supports the instructions.
                unsafe {
                    let [a, b, c, d] = codes;
                    let words = (_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
                    let bytes = _mm256_packus_epi16(words.0, words.1);
                    if count >= 32 {
                        return _mm256_storeu_si256(target.cast(), bytes);
                    }
                    let mut all = [0u8; 32];
                    _mm256_storeu_si256(all.as_mut_ptr().cast(), bytes);
                    std::ptr::copy_nonoverlapping(all.as_ptr(), target, count);
                }
            }
        };
    }

    /// Implementation by 16-bit products of the even bytes and of the odd bytes.
    #[derive(Clone, Copy)]
    pub(super) struct Pairs;

    impl Int8Dot for Pairs {
        parts! {
            (__m256i, __m256i), (__m256i, __m256i), 4;
            left(source) = Self::of_bytes(_mm256_set1_epi32(source.cast::<i32>().read_unaligned()));
            right(source) = {
                let bytes = _mm256_loadu_si256(source.cast());
                (_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(bytes)), _mm256_srai_epi16::<8>(bytes))
            };
            dot(sums, left, right) = {
                let even = _mm256_add_epi32(sums, _mm256_madd_epi16(left.0, right.0));
                _mm256_add_epi32(even, _mm256_madd_epi16(left.1, right.1))
            };
        }
        half_kilobit! {}
    }

    impl Pairs {
        #[inline(always)]
        fn of_bytes(bytes: __m256i) -> (__m256i, __m256i) {
            // SAFETY: bytes are loaded only if the machine supports the instructions.
            unsafe {
                let even = _mm256_and_si256(bytes, _mm256_set1_epi16(0xff));
                (even, _mm256_srli_epi16::<8>(bytes))
            }
        }
    }

    /// Implementation with AVX-VNNI.
    #[derive(Clone, Copy)]
    pub(super) struct Vnni256;

    impl Int8Dot for Vnni256 {
        parts! {
            __m256i, __m256i, 6;
            left(source) = _mm256_set1_epi32(source.cast::<i32>().read_unaligned());
            right(source) = _mm256_loadu_si256(source.cast());
            dot(sums, left, right) = _mm256_dpbusd_avx_epi32(sums, left, right);
        }
        half_kilobit! {}
    }

    impl Vnni256 {
        #[inline(always)]
        fn of_bytes(bytes: __m256i) -> __m256i {
            bytes
        }
    }

    /// Implementation with AVX-512 VNNI.
    #[derive(Clone, Copy)]
    pub(super) struct Vnni512;

    impl Int8Dot for Vnni512 {
        parts! {
            __m512i, __m512i, 12;
            left(source) = _mm512_set1_epi32(source.cast::<i32>().read_unaligned());
            right(source) = _mm512_loadu_si512(source.cast());
            dot(sums, left, right) = _mm512_dpbusd_epi32(sums, left, right);
        }

        #[inline(always)]
        fn multiply(left: Bits<Self>, right: Bits<Self>) -> Bits<Self> {
            // SAFETY: these sums are created only if the machine supports the instructions.
            unsafe { _mm512_mullo_epi32(left, right) }
        }

        #[inline(always)]
        unsafe fn store_bytes(codes: Bits<Self>, target: *mut u8, count: usize) {
            // SAFETY: the caller guarantees the bytes, and the machine supports the instructions.
            unsafe {
                let bytes = _mm512_cvtepi32_epi8(codes);
                match count {
                    16 => _mm_storeu_si128(target.cast(), bytes),
                    _ => _mm_mask_storeu_epi8(target.cast(), first(count), bytes),
                }
            }
        }

        #[inline(always)]
        unsafe fn load_bytes(source: *const u8, count: usize) -> Bits<Self> {
            // SAFETY: the caller guarantees the bytes, and the machine supports the instructions.
            unsafe { _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(first(count), source.cast())) }
        }

        #[inline(always)]
        unsafe fn interleave(rows: [*const u8; 4], count: usize) -> [__m512i; 4] {
            // SAFETY: the caller guarantees the bytes, and the machine supports the instructions.
            unsafe {
                let [a, b, c, d] = rows;
                let (a, b) = (first_bytes_512(a, count), first_bytes_512(b, count));
                let (c, d) = (first_bytes_512(c, count), first_bytes_512(d, count));
                let (low, high) = (_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b));
                let (other_low, other_high) =
                    (_mm512_unpacklo_epi8(c, d), _mm512_unpackhi_epi8(c, d));
                [
                    _mm512_unpacklo_epi16(low, other_low),
                    _mm512_unpackhi_epi16(low, other_low),
                    _mm512_unpacklo_epi16(high, other_high),
                    _mm512_unpackhi_epi16(high, other_high),
                ]
            }
        }

        #[inline(always)]
        unsafe fn store_interleaved(codes: [Bits<Self>; 4], target: *mut u8, count: usize) {
            // SAFETY: the caller guarantees the bytes, and the machine supports the instructions.
            unsafe {
                let [a, b, c, d] = codes;
                let words = (_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
                let bytes = _mm512_packus_epi16(words.0, words.1);
                match count {
                    64 => _mm512_storeu_si512(target.cast(), bytes),
                    _ => _mm512_mask_storeu_epi8(target.cast(), (1 << count) - 1, bytes),
                }
            }
        }
    }

    impl Vnni512 {
        #[inline(always)]
        fn of_bytes(bytes: __m512i) -> __m512i {
            bytes
        }
    }

    /// A mask of the first `count` lanes.
    #[inline(always)]
    fn first(count: usize) -> u16 {
        ((1u32 << count) - 1) as u16
    }

    /// Loads the first bytes of a row. The others are 0.
    ///
    /// # Safety
    /// The machine must support AVX2, and `count` bytes must be readable.
    #[inline(always)]
    unsafe fn first_bytes(row: *const u8, count: usize) -> __m256i {
        // SAFETY: the caller guarantees both.
        unsafe {
            if count >= 32 {
                return _mm256_loadu_si256(row.cast());
            }
            let mut all = [0u8; 32];
            std::ptr::copy_nonoverlapping(row, all.as_mut_ptr(), count);
            _mm256_loadu_si256(all.as_ptr().cast())
        }
    }

    /// Like [`first_bytes`], of 64 bytes.
    ///
    /// # Safety
    /// The machine must support AVX-512, and `count` bytes must be readable.
    #[inline(always)]
    unsafe fn first_bytes_512(row: *const u8, count: usize) -> __m512i {
        // SAFETY: the caller guarantees both.
        unsafe {
            match count {
                64 => _mm512_loadu_si512(row.cast()),
                _ => _mm512_maskz_loadu_epi8((1 << count) - 1, row.cast()),
            }
        }
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod neon {
    use std::arch::aarch64::*;

    use super::{Bits, Int8Dot};

    /// Loads the first bytes of a row with their highest bits flipped; the others are 0x80.
    ///
    /// # Safety
    /// The machine must support the instructions, and `count` bytes must be readable.
    #[inline(always)]
    unsafe fn first_bytes(row: *const u8, count: usize) -> uint8x16_t {
        let mut all = [0u8; 16];
        // SAFETY: the caller guarantees both.
        unsafe {
            std::ptr::copy_nonoverlapping(row, all.as_mut_ptr(), count.min(16));
            veorq_u8(vld1q_u8(all.as_ptr()), vdupq_n_u8(0x80))
        }
    }

    /// Implementation by products of signed bytes: an unsigned byte is 128 plus the signed byte with its
    /// highest bit flipped.
    #[derive(Clone, Copy)]
    pub(super) struct SignedBytes;

    impl Int8Dot for SignedBytes {
        type Left = int8x16_t;
        type Right = (int8x16_t, uint32x4_t);
        const ROWS: usize = 8;

        #[inline(always)]
        unsafe fn left(source: *const u8) -> int8x16_t {
            // SAFETY: the caller guarantees the bytes, and the machine supports the instructions.
            unsafe {
                let bytes = vdupq_n_u32(source.cast::<u32>().read_unaligned() ^ 0x8080_8080);
                vreinterpretq_s8_u32(bytes)
            }
        }

        #[inline(always)]
        fn left_of(bits: uint32x4_t) -> int8x16_t {
            // SAFETY: these bits are created only if the machine supports the instructions.
            unsafe { vreinterpretq_s8_u32(veorq_u32(bits, vdupq_n_u32(0x8080_8080))) }
        }

        #[inline(always)]
        unsafe fn interleave(rows: [*const u8; 4], count: usize) -> [int8x16_t; 4] {
            // SAFETY: the caller guarantees the bytes, and the machine supports the instructions.
            unsafe {
                let [a, b, c, d] = rows;
                let (a, b) = (first_bytes(a, count), first_bytes(b, count));
                let (c, d) = (first_bytes(c, count), first_bytes(d, count));
                let low = (vzip1q_u8(a, b), vzip1q_u8(c, d));
                let high = (vzip2q_u8(a, b), vzip2q_u8(c, d));
                let low = (vreinterpretq_u16_u8(low.0), vreinterpretq_u16_u8(low.1));
                let high = (vreinterpretq_u16_u8(high.0), vreinterpretq_u16_u8(high.1));
                [
                    vreinterpretq_s8_u16(vzip1q_u16(low.0, low.1)),
                    vreinterpretq_s8_u16(vzip2q_u16(low.0, low.1)),
                    vreinterpretq_s8_u16(vzip1q_u16(high.0, high.1)),
                    vreinterpretq_s8_u16(vzip2q_u16(high.0, high.1)),
                ]
            }
        }

        #[inline(always)]
        unsafe fn store_interleaved(codes: [Bits<Self>; 4], target: *mut u8, count: usize) {
            for (vector, codes) in codes.into_iter().enumerate() {
                let there = count.saturating_sub(vector * 4).min(4);
                // SAFETY: the caller guarantees the bytes.
                unsafe { Self::store_bytes(codes, target.wrapping_add(vector * 4), there) }
            }
        }

        #[inline(always)]
        unsafe fn right(source: *const i8) -> (int8x16_t, uint32x4_t) {
            // SAFETY: the caller guarantees the bytes, and the machine supports the instructions.
            unsafe {
                let bytes = vld1q_s8(source);
                // 128 times the sum of each lane's weights.
                let sums = vpaddlq_s16(vpaddlq_s8(bytes));
                (bytes, vreinterpretq_u32_s32(vshlq_n_s32::<7>(sums)))
            }
        }

        #[inline(always)]
        fn dot(sums: uint32x4_t, left: int8x16_t, right: (int8x16_t, uint32x4_t)) -> uint32x4_t {
            // SAFETY: these sums are created only if the machine supports the instructions, and the inline
            // assembly accesses only its registers.
            unsafe {
                let mut sums = vaddq_u32(sums, right.1);
                std::arch::asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
                    inout(vreg) sums, in(vreg) left, in(vreg) right.0,
                    options(pure, nomem, nostack, preserves_flags));
                sums
            }
        }

        #[inline(always)]
        fn multiply(left: uint32x4_t, right: uint32x4_t) -> uint32x4_t {
            // SAFETY: these sums are created only if the machine supports the instructions.
            unsafe { vmulq_u32(left, right) }
        }

        #[inline(always)]
        unsafe fn store_bytes(codes: Bits<Self>, target: *mut u8, count: usize) {
            let mut lanes = [0u32; 4];
            // SAFETY: the caller guarantees the bytes, and the machine supports the instructions.
            unsafe {
                vst1q_u32(lanes.as_mut_ptr(), codes);
                for (at, lane) in lanes.into_iter().enumerate().take(count) {
                    *target.add(at) = lane as u8;
                }
            }
        }

        #[inline(always)]
        unsafe fn load_bytes(source: *const u8, count: usize) -> Bits<Self> {
            let mut lanes = [0u32; 4];
            // SAFETY: the caller guarantees the bytes, and the machine supports the instructions.
            unsafe {
                for (at, lane) in lanes.iter_mut().enumerate().take(count) {
                    *lane = u32::from(*source.add(at));
                }
                vld1q_u32(lanes.as_ptr())
            }
        }
    }
}
