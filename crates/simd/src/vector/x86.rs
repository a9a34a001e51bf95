//! Vectors of AVX2, AVX-512, and SSE2, the baseline of the target.

use std::arch::x86_64::*;

use super::Vector;
use super::unpack::unpack_by_element;

mod unpack;

#[derive(Clone, Copy)]
pub(super) struct F32x4(__m128);

#[derive(Clone, Copy)]
pub(super) struct F32x8(__m256);

#[derive(Clone, Copy)]
pub(super) struct F32x16(__m512);

unpack_by_element!(F32x4);

/// Eight elements starting at `8 - count` are a mask of the first `count` lanes.
static WINDOW: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[inline(always)]
fn first_lanes(count: usize) -> __m256i {
    let window = &WINDOW[8 - count.min(8)..][..8];
    // SAFETY: the window has eight elements, and vectors are created only if AVX is supported.
    unsafe { _mm256_loadu_si256(window.as_ptr().cast()) }
}

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
const DOWN: i32 = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
const UP: i32 = _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC;
const CUT: i32 = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;

impl Vector for F32x8 {
    const LANES: usize = 8;
    const FUSED: bool = true;
    const TUNED: bool = true;
    type Mask = __m256;
    type Bits = __m256i;

    memory! {
        load(source: *const f32) -> Self = F32x8(_mm256_loadu_ps(source));
        load_partial(source: *const f32, count: usize) -> Self =
            F32x8(_mm256_maskload_ps(source, first_lanes(count)));
        store(self, target: *mut f32) = _mm256_storeu_ps(target, self.0);
        store_partial(self, target: *mut f32, count: usize) =
            _mm256_maskstore_ps(target, first_lanes(count), self.0);
        load_f16(source: *const u16) -> Self =
            F32x8(_mm256_cvtph_ps(_mm_loadu_si128(source.cast())));
        store_f16(self, target: *mut u16) =
            _mm_storeu_si128(target.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0));
        load_words(source: *const i16) -> Self =
            F32x8(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_loadu_si128(source.cast()))));
    }
    methods! {
        splat(value: f32) -> Self = F32x8(_mm256_set1_ps(value));
        add(self, other: Self) -> Self = F32x8(_mm256_add_ps(self.0, other.0));
        sub(self, other: Self) -> Self = F32x8(_mm256_sub_ps(self.0, other.0));
        mul(self, other: Self) -> Self = F32x8(_mm256_mul_ps(self.0, other.0));
        div(self, other: Self) -> Self = F32x8(_mm256_div_ps(self.0, other.0));
        mul_add(self, factor: Self, addend: Self) -> Self =
            F32x8(_mm256_fmadd_ps(self.0, factor.0, addend.0));
        neg_mul_add(self, factor: Self, addend: Self) -> Self =
            F32x8(_mm256_fnmadd_ps(self.0, factor.0, addend.0));
        min(self, other: Self) -> Self = F32x8(_mm256_min_ps(self.0, other.0));
        max(self, other: Self) -> Self = F32x8(_mm256_max_ps(self.0, other.0));
        sqrt(self) -> Self = F32x8(_mm256_sqrt_ps(self.0));
        round(self) -> Self = F32x8(_mm256_round_ps::<NEAREST>(self.0));
        floor(self) -> Self = F32x8(_mm256_round_ps::<DOWN>(self.0));
        ceil(self) -> Self = F32x8(_mm256_round_ps::<UP>(self.0));
        trunc(self) -> Self = F32x8(_mm256_round_ps::<CUT>(self.0));
        scale(self, exponent: Self) -> Self = {
            // Scale in two steps, so that each factor is a normal number.
            let exponent = exponent.to_int();
            let half = _mm256_srai_epi32::<1>(exponent);
            let rest = _mm256_sub_epi32(exponent, half);
            let bias = _mm256_set1_epi32(127);
            let power = |n| F32x8(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, bias))));
            self.mul(power(half)).mul(power(rest))
        };
        round_to_f16(self) -> Self =
            F32x8(_mm256_cvtph_ps(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0)));
        less(self, other: Self) -> __m256 = _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, other.0);
        less_equal(self, other: Self) -> __m256 = _mm256_cmp_ps::<_CMP_LE_OQ>(self.0, other.0);
        equal(self, other: Self) -> __m256 = _mm256_cmp_ps::<_CMP_EQ_OQ>(self.0, other.0);
        both(left: __m256, right: __m256) -> __m256 = _mm256_and_ps(left, right);
        either(left: __m256, right: __m256) -> __m256 = _mm256_or_ps(left, right);
        not(mask: __m256) -> __m256 = _mm256_xor_ps(mask, _mm256_castsi256_ps(_mm256_set1_epi32(-1)));
        any(mask: __m256) -> bool = _mm256_movemask_ps(mask) != 0;
        select(mask: __m256, yes: Self, no: Self) -> Self = F32x8(_mm256_blendv_ps(no.0, yes.0, mask));
        to_bits(self) -> __m256i = _mm256_castps_si256(self.0);
        from_bits(bits: __m256i) -> Self = F32x8(_mm256_castsi256_ps(bits));
        to_int(self) -> __m256i = _mm256_cvtps_epi32(self.0);
        from_int(bits: __m256i) -> Self = F32x8(_mm256_cvtepi32_ps(bits));
        bits(value: u32) -> __m256i = _mm256_set1_epi32(value as i32);
        bits_add(left: __m256i, right: __m256i) -> __m256i = _mm256_add_epi32(left, right);
        bits_sub(left: __m256i, right: __m256i) -> __m256i = _mm256_sub_epi32(left, right);
        bits_and(left: __m256i, right: __m256i) -> __m256i = _mm256_and_si256(left, right);
        bits_or(left: __m256i, right: __m256i) -> __m256i = _mm256_or_si256(left, right);
        bits_xor(left: __m256i, right: __m256i) -> __m256i = _mm256_xor_si256(left, right);
        bits_left<const N>(bits: __m256i) -> __m256i = _mm256_sllv_epi32(bits, Self::bits(N));
        bits_right_signed<const N>(bits: __m256i) -> __m256i = _mm256_srav_epi32(bits, Self::bits(N));
        bits_equal(left: __m256i, right: __m256i) -> __m256 =
            _mm256_castsi256_ps(_mm256_cmpeq_epi32(left, right));
        interleave(self, other: Self) -> (Self, Self) = {
            let low = _mm256_unpacklo_ps(self.0, other.0);
            let high = _mm256_unpackhi_ps(self.0, other.0);
            let first = _mm256_permute2f128_ps::<0x20>(low, high);
            (F32x8(first), F32x8(_mm256_permute2f128_ps::<0x31>(low, high)))
        };
        sum(self) -> f32 = {
            let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        };
        maximum(self) -> f32 = {
            let four = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        };
    }
}

impl Vector for F32x16 {
    const LANES: usize = 16;
    const FUSED: bool = true;
    const TUNED: bool = true;
    type Mask = __mmask16;
    type Bits = __m512i;

    #[inline(always)]
    fn both(left: __mmask16, right: __mmask16) -> __mmask16 {
        left & right
    }
    #[inline(always)]
    fn either(left: __mmask16, right: __mmask16) -> __mmask16 {
        left | right
    }
    #[inline(always)]
    fn not(mask: __mmask16) -> __mmask16 {
        !mask
    }
    #[inline(always)]
    fn any(mask: __mmask16) -> bool {
        mask != 0
    }

    memory! {
        load(source: *const f32) -> Self = F32x16(_mm512_loadu_ps(source));
        load_partial(source: *const f32, count: usize) -> Self =
            F32x16(_mm512_maskz_loadu_ps(((1u32 << count) - 1) as u16, source));
        store(self, target: *mut f32) = _mm512_storeu_ps(target, self.0);
        store_partial(self, target: *mut f32, count: usize) =
            _mm512_mask_storeu_ps(target, ((1u32 << count) - 1) as u16, self.0);
        load_f16(source: *const u16) -> Self =
            F32x16(_mm512_cvtph_ps(_mm256_loadu_si256(source.cast())));
        store_f16(self, target: *mut u16) =
            _mm256_storeu_si256(target.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0));
        load_words(source: *const i16) -> Self =
            F32x16(_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_loadu_si256(source.cast()))));
    }
    methods! {
        splat(value: f32) -> Self = F32x16(_mm512_set1_ps(value));
        add(self, other: Self) -> Self = F32x16(_mm512_add_ps(self.0, other.0));
        sub(self, other: Self) -> Self = F32x16(_mm512_sub_ps(self.0, other.0));
        mul(self, other: Self) -> Self = F32x16(_mm512_mul_ps(self.0, other.0));
        div(self, other: Self) -> Self = F32x16(_mm512_div_ps(self.0, other.0));
        mul_add(self, factor: Self, addend: Self) -> Self =
            F32x16(_mm512_fmadd_ps(self.0, factor.0, addend.0));
        neg_mul_add(self, factor: Self, addend: Self) -> Self =
            F32x16(_mm512_fnmadd_ps(self.0, factor.0, addend.0));
        min(self, other: Self) -> Self = F32x16(_mm512_min_ps(self.0, other.0));
        max(self, other: Self) -> Self = F32x16(_mm512_max_ps(self.0, other.0));
        sqrt(self) -> Self = F32x16(_mm512_sqrt_ps(self.0));
        round(self) -> Self = F32x16(_mm512_roundscale_ps::<NEAREST>(self.0));
        floor(self) -> Self = F32x16(_mm512_roundscale_ps::<DOWN>(self.0));
        ceil(self) -> Self = F32x16(_mm512_roundscale_ps::<UP>(self.0));
        trunc(self) -> Self = F32x16(_mm512_roundscale_ps::<CUT>(self.0));
        scale(self, exponent: Self) -> Self = F32x16(_mm512_scalef_ps(self.0, exponent.0));
        round_to_f16(self) -> Self =
            F32x16(_mm512_cvtph_ps(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0)));
        less(self, other: Self) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, other.0);
        less_equal(self, other: Self) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(self.0, other.0);
        equal(self, other: Self) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(self.0, other.0);
        select(mask: __mmask16, yes: Self, no: Self) -> Self = F32x16(_mm512_mask_blend_ps(mask, no.0, yes.0));
        to_bits(self) -> __m512i = _mm512_castps_si512(self.0);
        from_bits(bits: __m512i) -> Self = F32x16(_mm512_castsi512_ps(bits));
        to_int(self) -> __m512i = _mm512_cvtps_epi32(self.0);
        from_int(bits: __m512i) -> Self = F32x16(_mm512_cvtepi32_ps(bits));
        bits(value: u32) -> __m512i = _mm512_set1_epi32(value as i32);
        bits_add(left: __m512i, right: __m512i) -> __m512i = _mm512_add_epi32(left, right);
        bits_sub(left: __m512i, right: __m512i) -> __m512i = _mm512_sub_epi32(left, right);
        bits_and(left: __m512i, right: __m512i) -> __m512i = _mm512_and_si512(left, right);
        bits_or(left: __m512i, right: __m512i) -> __m512i = _mm512_or_si512(left, right);
        bits_xor(left: __m512i, right: __m512i) -> __m512i = _mm512_xor_si512(left, right);
        bits_left<const N>(bits: __m512i) -> __m512i = _mm512_slli_epi32::<N>(bits);
        bits_right_signed<const N>(bits: __m512i) -> __m512i = _mm512_srai_epi32::<N>(bits);
        bits_equal(left: __m512i, right: __m512i) -> __mmask16 = _mm512_cmpeq_epi32_mask(left, right);
        interleave(self, other: Self) -> (Self, Self) = {
            let first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
            let pick = |lanes| F32x16(_mm512_permutex2var_ps(self.0, lanes, other.0));
            (pick(first), pick(second))
        };
        sum(self) -> f32 = _mm512_reduce_add_ps(self.0);
        maximum(self) -> f32 = _mm512_reduce_max_ps(self.0);
    }
}

/// Copies up to four elements. It is not inlined because it has many callers, so that the copies would make
/// up most of the portable kernels' code.
///
/// # Safety
/// `count` elements must be readable and writable.
#[inline(never)]
unsafe fn copy_some(source: *const f32, target: *mut f32, count: usize) {
    for at in 0..count.min(4) {
        // SAFETY: the caller guarantees the elements.
        unsafe { *target.add(at) = *source.add(at) };
    }
}

/// Applies a scalar function to each of four lanes.
#[inline(always)]
fn each_of_four(x: __m128, function: impl Fn(f32) -> f32) -> __m128 {
    let mut lanes = [0.0; 4];
    // SAFETY: the array has four lanes.
    unsafe {
        _mm_storeu_ps(lanes.as_mut_ptr(), x);
        let lanes = lanes.map(function);
        _mm_loadu_ps(lanes.as_ptr())
    }
}

impl Vector for F32x4 {
    const LANES: usize = 4;
    const FUSED: bool = false;
    const TUNED: bool = false;
    type Mask = __m128;
    type Bits = __m128i;

    #[inline(always)]
    fn ceil(self) -> Self {
        self.neg().floor().neg()
    }
    #[inline(always)]
    fn trunc(self) -> Self {
        self.abs().floor().with_sign_of(self)
    }
    #[inline(always)]
    fn round_to_f16(self) -> Self {
        F32x4(each_of_four(self.0, super::round_to_f16))
    }

    memory! {
        load(source: *const f32) -> Self = F32x4(_mm_loadu_ps(source));
        load_partial(source: *const f32, count: usize) -> Self = {
            if count >= 4 {
                return Self::load(source);
            }
            let mut lanes = [0.0; 4];
            copy_some(source, lanes.as_mut_ptr(), count);
            F32x4(_mm_loadu_ps(lanes.as_ptr()))
        };
        store(self, target: *mut f32) = _mm_storeu_ps(target, self.0);
        store_partial(self, target: *mut f32, count: usize) = {
            if count >= 4 {
                return self.store(target);
            }
            let mut lanes = [0.0; 4];
            _mm_storeu_ps(lanes.as_mut_ptr(), self.0);
            copy_some(lanes.as_ptr(), target, count);
        };
        load_f16(source: *const u16) -> Self = {
            let halves = source.cast::<[u16; 4]>().read_unaligned();
            let mut lanes = [0.0; 4];
            for (lane, bits) in lanes.iter_mut().zip(halves) {
                *lane = half::f16::from_bits(bits).to_f32_const();
            }
            F32x4(_mm_loadu_ps(lanes.as_ptr()))
        };
        store_f16(self, target: *mut u16) = {
            let mut lanes = [0.0; 4];
            _mm_storeu_ps(lanes.as_mut_ptr(), self.0);
            let mut halves = [0; 4];
            for (half, lane) in halves.iter_mut().zip(lanes) {
                *half = half::f16::from_f32_const(lane).to_bits();
            }
            target.cast::<[u16; 4]>().write_unaligned(halves);
        };
        load_words(source: *const i16) -> Self = {
            let lanes = source.cast::<[i16; 4]>().read_unaligned().map(f32::from);
            F32x4(_mm_loadu_ps(lanes.as_ptr()))
        };
    }
    methods! {
        splat(value: f32) -> Self = F32x4(_mm_set1_ps(value));
        add(self, other: Self) -> Self = F32x4(_mm_add_ps(self.0, other.0));
        sub(self, other: Self) -> Self = F32x4(_mm_sub_ps(self.0, other.0));
        mul(self, other: Self) -> Self = F32x4(_mm_mul_ps(self.0, other.0));
        div(self, other: Self) -> Self = F32x4(_mm_div_ps(self.0, other.0));
        mul_add(self, factor: Self, addend: Self) -> Self =
            F32x4(_mm_add_ps(_mm_mul_ps(self.0, factor.0), addend.0));
        neg_mul_add(self, factor: Self, addend: Self) -> Self =
            F32x4(_mm_sub_ps(addend.0, _mm_mul_ps(self.0, factor.0)));
        min(self, other: Self) -> Self = F32x4(_mm_min_ps(self.0, other.0));
        max(self, other: Self) -> Self = F32x4(_mm_max_ps(self.0, other.0));
        sqrt(self) -> Self = F32x4(_mm_sqrt_ps(self.0));
        round(self) -> Self = {
            // All numbers from 2^23 on are integers; the comparison also preserves NaN.
            let fraction = self.abs().less(Self::splat(8_388_608.0));
            let rounded = F32x4(_mm_cvtepi32_ps(_mm_cvtps_epi32(self.0))).with_sign_of(self);
            Self::select(fraction, rounded, self)
        };
        floor(self) -> Self = {
            let rounded = self.round();
            let above = self.less(rounded);
            let below = rounded.sub(F32x4(_mm_and_ps(above, _mm_set1_ps(1.0))));
            Self::select(above, below, rounded)
        };
        scale(self, exponent: Self) -> Self = {
            // Scale in two steps, so that each factor is a normal number.
            let exponent = exponent.to_int();
            let half = _mm_srai_epi32::<1>(exponent);
            let rest = _mm_sub_epi32(exponent, half);
            let bias = _mm_set1_epi32(127);
            let power = |n| F32x4(_mm_castsi128_ps(_mm_slli_epi32::<23>(_mm_add_epi32(n, bias))));
            self.mul(power(half)).mul(power(rest))
        };
        less(self, other: Self) -> __m128 = _mm_cmplt_ps(self.0, other.0);
        less_equal(self, other: Self) -> __m128 = _mm_cmple_ps(self.0, other.0);
        equal(self, other: Self) -> __m128 = _mm_cmpeq_ps(self.0, other.0);
        both(left: __m128, right: __m128) -> __m128 = _mm_and_ps(left, right);
        either(left: __m128, right: __m128) -> __m128 = _mm_or_ps(left, right);
        not(mask: __m128) -> __m128 = _mm_xor_ps(mask, _mm_castsi128_ps(_mm_set1_epi32(-1)));
        any(mask: __m128) -> bool = _mm_movemask_ps(mask) != 0;
        select(mask: __m128, yes: Self, no: Self) -> Self =
            F32x4(_mm_or_ps(_mm_and_ps(mask, yes.0), _mm_andnot_ps(mask, no.0)));
        to_bits(self) -> __m128i = _mm_castps_si128(self.0);
        from_bits(bits: __m128i) -> Self = F32x4(_mm_castsi128_ps(bits));
        to_int(self) -> __m128i = _mm_cvtps_epi32(self.0);
        from_int(bits: __m128i) -> Self = F32x4(_mm_cvtepi32_ps(bits));
        bits(value: u32) -> __m128i = _mm_set1_epi32(value as i32);
        bits_add(left: __m128i, right: __m128i) -> __m128i = _mm_add_epi32(left, right);
        bits_sub(left: __m128i, right: __m128i) -> __m128i = _mm_sub_epi32(left, right);
        bits_and(left: __m128i, right: __m128i) -> __m128i = _mm_and_si128(left, right);
        bits_or(left: __m128i, right: __m128i) -> __m128i = _mm_or_si128(left, right);
        bits_xor(left: __m128i, right: __m128i) -> __m128i = _mm_xor_si128(left, right);
        bits_left<const N>(bits: __m128i) -> __m128i =
            _mm_sll_epi32(bits, _mm_cvtsi32_si128(N as i32));
        bits_right_signed<const N>(bits: __m128i) -> __m128i =
            _mm_sra_epi32(bits, _mm_cvtsi32_si128(N as i32));
        bits_equal(left: __m128i, right: __m128i) -> __m128 =
            _mm_castsi128_ps(_mm_cmpeq_epi32(left, right));
        interleave(self, other: Self) -> (Self, Self) = {
            let first = _mm_unpacklo_ps(self.0, other.0);
            (F32x4(first), F32x4(_mm_unpackhi_ps(self.0, other.0)))
        };
        sum(self) -> f32 = {
            let two = _mm_add_ps(self.0, _mm_movehl_ps(self.0, self.0));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        };
        maximum(self) -> f32 = {
            let two = _mm_max_ps(self.0, _mm_movehl_ps(self.0, self.0));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        };
    }
}
