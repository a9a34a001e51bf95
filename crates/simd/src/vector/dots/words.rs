//! Dot products of 16-bit integers: for each lane, two signed words of both operands.

use super::super::{MAX_LANES, Portable, Vector};
use super::{Bits, PLAIN, Plain, load_sums, store_sums};

/// Vectors of 32-bit sums, to which products of words are added. A lane of an operand has two words.
///
/// Only [`dispatch_dots`](super::dispatch_dots) creates values of this trait and of [`Int8Dot`](super::Int8Dot).
pub trait WordDot: Copy {
    type Floats: Vector;

    /// Adds the products of both words of each lane to `sums`.
    fn dot_words(sums: Bits<Self>, left: Bits<Self>, right: Bits<Self>) -> Bits<Self>;
    fn words_sub(left: Bits<Self>, right: Bits<Self>) -> Bits<Self>;
    fn words_left<const N: u32>(words: Bits<Self>) -> Bits<Self>;
    /// Arithmetic right shift of each word.
    fn words_right_signed<const N: u32>(words: Bits<Self>) -> Bits<Self>;

    /// Loads the bits of all lanes from any address.
    ///
    /// # Safety
    /// Four bytes for each lane must be readable.
    #[inline(always)]
    unsafe fn load_bits(source: *const u8) -> Bits<Self> {
        let mut lanes = [0i32; MAX_LANES];
        // SAFETY: the caller guarantees the bytes; there are as many lanes as in the widest vector.
        unsafe {
            let bytes = 4 * Self::Floats::LANES;
            std::ptr::copy_nonoverlapping(source, lanes.as_mut_ptr().cast(), bytes);
            load_sums::<Self::Floats>(lanes.as_ptr())
        }
    }

    /// Loads four fields of six bits for each lane, from the lowest bit of the first byte on. The first result has the fields 0
    /// and 2 of each lane, the second one the fields 1 and 3.
    ///
    /// # Safety
    /// Three bytes for each lane must be readable.
    #[inline(always)]
    unsafe fn load_sixes(source: *const u8) -> [Bits<Self>; 2] {
        let mut words = [[0i32; MAX_LANES]; 2];
        for lane in 0..Self::Floats::LANES {
            // SAFETY: the caller guarantees the bytes.
            let [a, b, c] = unsafe { source.add(3 * lane).cast::<[u8; 3]>().read() };
            let fields = i32::from(a) | i32::from(b) << 8 | i32::from(c) << 16;
            let field = |index: usize| fields >> (6 * index) & 63;
            for (pair, words) in words.iter_mut().enumerate() {
                words[lane] = field(pair) | field(pair + 2) << 16;
            }
        }
        // SAFETY: there are as many lanes as in the widest vector.
        words.map(|words| unsafe { load_sums::<Self::Floats>(words.as_ptr()) })
    }

    /// Loads four fields of six bits for each lane, like [`load_sixes`](Self::load_sixes), as the four bytes of the lane.
    ///
    /// # Safety
    /// Three bytes for each lane must be readable.
    #[inline(always)]
    unsafe fn load_six_bytes(source: *const u8) -> Bits<Self> {
        // SAFETY: the caller guarantees the bytes.
        let [even, odd] = unsafe { Self::load_sixes(source) };
        Self::Floats::bits_or(even, Self::words_left::<8>(odd))
    }

    /// Loads a number for each group of four lanes.
    ///
    /// # Safety
    /// A number for every four lanes must be readable.
    #[inline(always)]
    unsafe fn spread(source: *const f32) -> Self::Floats {
        let mut lanes = [0.0; MAX_LANES];
        for (lane, to) in lanes.iter_mut().enumerate().take(Self::Floats::LANES) {
            // SAFETY: the caller guarantees the numbers.
            *to = unsafe { *source.add(lane / 4) };
        }
        // SAFETY: there are as many lanes as in the widest vector.
        unsafe { Self::Floats::load(lanes.as_ptr()) }
    }
}

/// The words of a lane, the first one in the lower half.
fn words_of(lane: i32) -> [i32; 2] {
    [i32::from(lane as i16), lane >> 16]
}

/// Computes each lane of a result from the lanes of the operands.
#[inline(always)]
fn by_lane<const N: usize>(
    operands: [Bits<Plain>; N],
    compute: impl Fn([i32; N]) -> i32,
) -> Bits<Plain> {
    let mut lanes = [[0i32; PLAIN]; N];
    for (bits, lanes) in operands.into_iter().zip(&mut lanes) {
        // SAFETY: there are as many lanes.
        unsafe { store_sums::<<Plain as WordDot>::Floats>(bits, lanes.as_mut_ptr()) };
    }
    let result: [i32; PLAIN] =
        std::array::from_fn(|lane| compute(std::array::from_fn(|operand| lanes[operand][lane])));
    // SAFETY: there are as many lanes.
    unsafe { load_sums::<<Plain as WordDot>::Floats>(result.as_ptr()) }
}

/// A lane of two words.
fn lane_of(words: [i32; 2]) -> i32 {
    words[0] & 0xffff | words[1] << 16
}

impl WordDot for Plain {
    type Floats = Portable;

    #[inline(always)]
    fn dot_words(sums: Bits<Self>, left: Bits<Self>, right: Bits<Self>) -> Bits<Self> {
        by_lane([sums, left, right], |[sum, left, right]| {
            let ([a, b], [c, d]) = (words_of(left), words_of(right));
            sum.wrapping_add((a * c).wrapping_add(b * d))
        })
    }

    #[inline(always)]
    fn words_sub(left: Bits<Self>, right: Bits<Self>) -> Bits<Self> {
        by_lane([left, right], |[left, right]| {
            let ([a, b], [c, d]) = (words_of(left), words_of(right));
            lane_of([a - c, b - d])
        })
    }

    #[inline(always)]
    fn words_left<const N: u32>(words: Bits<Self>) -> Bits<Self> {
        by_lane([words], |[lane]| lane_of(words_of(lane).map(|word| word << N)))
    }

    #[inline(always)]
    fn words_right_signed<const N: u32>(words: Bits<Self>) -> Bits<Self> {
        by_lane([words], |[lane]| lane_of(words_of(lane).map(|word| word >> N)))
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use std::arch::x86_64::*;

    use super::super::super::x86::{F32x8, F32x16};
    use super::super::x86::{Pairs, Vnni256, Vnni512};
    use super::{Bits, Vector, WordDot};

    /// Implementation with 256-bit vectors.
    macro_rules! half_kilobit {
        ($name:ty, $sums:ident, $left:ident, $right:ident, $dot:expr) => {
            impl WordDot for $name {
                type Floats = F32x8;

                methods! {
                    dot_words($sums: Bits<Self>, $left: Bits<Self>, $right: Bits<Self>) -> Bits<Self> = $dot;
                    words_sub(left: Bits<Self>, right: Bits<Self>) -> Bits<Self> =
                        _mm256_sub_epi16(left, right);
                    words_left<const N>(words: Bits<Self>) -> Bits<Self> =
                        _mm256_sll_epi16(words, _mm_cvtsi32_si128(N as i32));
                    words_right_signed<const N>(words: Bits<Self>) -> Bits<Self> =
                        _mm256_sra_epi16(words, _mm_cvtsi32_si128(N as i32));
                }
                memory! {
                    load_bits(source: *const u8) -> Bits<Self> = _mm256_loadu_si256(source.cast());
                    load_sixes(source: *const u8) -> [Bits<Self>; 2] = {
                        // The upper half has the last sixteen of the 24 bytes, of which it needs twelve.
                        let bytes = _mm256_set_m128i(
                            _mm_loadu_si128(source.add(8).cast()),
                            _mm_loadu_si128(source.cast()),
                        );
                        let even = _mm256_shuffle_epi8(bytes, _mm256_setr_epi8(
                            0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9, 10, 10, 11,
                            4, 5, 5, 6, 7, 8, 8, 9, 10, 11, 11, 12, 13, 14, 14, 15,
                        ));
                        let odd = _mm256_shuffle_epi8(bytes, _mm256_setr_epi8(
                            0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1,
                            4, 5, 6, -1, 7, 8, 9, -1, 10, 11, 12, -1, 13, 14, 15, -1,
                        ));
                        // Products move each field to the highest bits of its word.
                        let even = _mm256_mullo_epi16(even, _mm256_set1_epi32(64 << 16 | 1024));
                        let odd = _mm256_mullo_epi16(odd, _mm256_set1_epi32(256 << 16 | 16));
                        [_mm256_srli_epi16::<10>(even), _mm256_srli_epi16::<10>(odd)]
                    };
                    spread(source: *const f32) -> F32x8 = {
                        let both = _mm256_castpd_ps(_mm256_broadcast_sd(&source.cast::<f64>().read_unaligned()));
                        let lanes = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
                        F32x8::from_bits(_mm256_castps_si256(_mm256_permutevar_ps(both, lanes)))
                    };
                }
            }
        };
    }

    half_kilobit!(Pairs, sums, left, right, _mm256_add_epi32(sums, _mm256_madd_epi16(left, right)));
    half_kilobit!(Vnni256, sums, left, right, _mm256_dpwssd_avx_epi32(sums, left, right));

    /// Words with two fields each: the lower word of a lane has field 0 from bit 0 on and field 1 from bit 6 on, and the higher
    /// word has the fields 2 and 3. The upper four bits of a word are undefined.
    ///
    /// # Safety
    /// 48 bytes must be readable, and the machine must support the instructions.
    #[inline(always)]
    unsafe fn six_pairs(source: *const u8) -> __m512i {
        // SAFETY: the caller guarantees the bytes and the instructions.
        unsafe {
            let bytes = _mm512_maskz_loadu_epi32(0xfff, source.cast());
            // Each quarter gets its twelve bytes.
            let quarters = _mm512_setr_epi32(0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8, 8, 9, 10, 11, 11);
            let bytes = _mm512_permutexvar_epi32(quarters, bytes);
            let pairs = _mm_setr_epi8(0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9, 10, 10, 11);
            let pairs = _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(pairs));
            _mm512_srlv_epi16(pairs, _mm512_set1_epi32(4 << 16))
        }
    }

    impl WordDot for Vnni512 {
        type Floats = F32x16;

        methods! {
            dot_words(sums: Bits<Self>, left: Bits<Self>, right: Bits<Self>) -> Bits<Self> =
                _mm512_dpwssd_epi32(sums, left, right);
            words_sub(left: Bits<Self>, right: Bits<Self>) -> Bits<Self> =
                _mm512_sub_epi16(left, right);
            words_left<const N>(words: Bits<Self>) -> Bits<Self> =
                _mm512_sll_epi16(words, _mm_cvtsi32_si128(N as i32));
            words_right_signed<const N>(words: Bits<Self>) -> Bits<Self> =
                _mm512_sra_epi16(words, _mm_cvtsi32_si128(N as i32));
        }
        memory! {
            load_bits(source: *const u8) -> Bits<Self> = _mm512_loadu_si512(source.cast());
            load_sixes(source: *const u8) -> [Bits<Self>; 2] = {
                let pairs = six_pairs(source);
                let field = _mm512_set1_epi16(63);
                let odd = _mm512_srli_epi16::<6>(pairs);
                [_mm512_and_si512(pairs, field), _mm512_and_si512(odd, field)]
            };
            load_six_bytes(source: *const u8) -> Bits<Self> = {
                let pairs = six_pairs(source);
                let odd = _mm512_slli_epi16::<2>(pairs);
                // Bits of the lower bytes are those of `pairs`, others those of `odd`.
                let both = _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi16(0xff), pairs, odd);
                _mm512_and_si512(both, _mm512_set1_epi8(63))
            };
            spread(source: *const f32) -> F32x16 = {
                let four = _mm512_broadcast_f32x4(_mm_loadu_ps(source));
                let lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
                F32x16::from_bits(_mm512_castps_si512(_mm512_permutevar_ps(four, lanes)))
            };
        }
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod neon {
    use std::arch::aarch64::*;

    use super::super::super::neon::F32x4;
    use super::super::neon::SignedBytes;
    use super::WordDot;

    impl WordDot for SignedBytes {
        type Floats = F32x4;

        methods! {
            dot_words(sums: uint32x4_t, left: uint32x4_t, right: uint32x4_t) -> uint32x4_t = {
                let (left, right) = (vreinterpretq_s16_u32(left), vreinterpretq_s16_u32(right));
                let low = vmull_s16(vget_low_s16(left), vget_low_s16(right));
                let products = vpaddq_s32(low, vmull_high_s16(left, right));
                vaddq_u32(sums, vreinterpretq_u32_s32(products))
            };
            words_sub(left: uint32x4_t, right: uint32x4_t) -> uint32x4_t = vreinterpretq_u32_u16(
                vsubq_u16(vreinterpretq_u16_u32(left), vreinterpretq_u16_u32(right)),
            );
            words_left<const N>(words: uint32x4_t) -> uint32x4_t = vreinterpretq_u32_s16(
                vshlq_s16(vreinterpretq_s16_u32(words), vdupq_n_s16(N as i16)),
            );
            words_right_signed<const N>(words: uint32x4_t) -> uint32x4_t = vreinterpretq_u32_s16(
                vshlq_s16(vreinterpretq_s16_u32(words), vdupq_n_s16(-(N as i16))),
            );
        }
    }
}
