use std::arch::x86_64::*;

use super::{F32x8, F32x16};
use crate::vector::{Fields, Unpack, Vector};

impl Unpack for F32x8 {
    type Table = [F32x8; 2];
    type WideTable = *const f32;

    memory! {
        unpack_f16(source: *const u8) -> Self = Self::load_f16(source.cast());
        unpack_bf16(source: *const u8) -> Self = {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(source.cast()));
            F32x8(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)))
        };
        unpack_i8(source: *const u8) -> Self =
            F32x8(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(source.cast()))));
        unpack_u8(source: *const u8) -> Self =
            F32x8(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(source.cast()))));
        load_table(entries: *const f32) -> [F32x8; 2] = [Self::load(entries), Self::load(entries.add(8))];
        look_up(source: *const u8, fields: &Fields, table: [F32x8; 2]) -> Self =
            selected8(table, shifted8(source, fields));
        look_up_halves(source: *const u8, table: [F32x8; 2]) -> [Self; 2] = {
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(source.cast()));
            [selected8(table, bytes), selected8(table, _mm256_srli_epi32::<4>(bytes))]
        };
        look_up_wide(source: *const u8, fields: &Fields, table: *const f32) -> Self =
            Self::gather(source, fields, table);
        gather(source: *const u8, fields: &Fields, entries: *const f32) -> Self = {
            let index = shifted8(source, fields);
            let index = _mm256_and_si256(index, _mm256_set1_epi32(fields.mask as i32));
            F32x8(_mm256_i32gather_ps::<4>(entries, index))
        };
    }
    #[inline(always)]
    unsafe fn load_wide_table(entries: *const f32) -> *const f32 {
        entries
    }
    #[inline(always)]
    fn shift_table(table: [F32x8; 2], offset: Self) -> [F32x8; 2] {
        [table[0].sub(offset), table[1].sub(offset)]
    }
}

/// Looks up the entries for the lowest four bits of each lane.
///
/// # Safety
/// The machine must support AVX2.
#[inline(always)]
unsafe fn selected8(table: [F32x8; 2], index: __m256i) -> F32x8 {
    // SAFETY: the caller guarantees support of the instructions.
    unsafe {
        let low = _mm256_permutevar8x32_ps(table[0].0, index);
        let high = _mm256_permutevar8x32_ps(table[1].0, index);
        // The fourth bit becomes the sign bit, by which `blendv` selects.
        let choice = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index));
        F32x8(_mm256_blendv_ps(low, high, choice))
    }
}

/// Shifts each field to the lowest bits of its lane; the bits above contain the following fields.
///
/// # Safety
/// Sixteen bytes must be readable, and the machine must support AVX2.
#[inline(always)]
unsafe fn shifted8(source: *const u8, fields: &Fields) -> __m256i {
    // SAFETY: the caller guarantees the bytes and support of the instructions.
    unsafe {
        let bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128(source.cast()));
        let pairs = _mm256_shuffle_epi8(bytes, _mm256_loadu_si256(fields.bytes.as_ptr().cast()));
        _mm256_srlv_epi32(pairs, _mm256_loadu_si256(fields.shifts.as_ptr().cast()))
    }
}

impl Unpack for F32x16 {
    type Table = F32x16;
    type WideTable = [F32x16; 4];

    memory! {
        unpack_f16(source: *const u8) -> Self = Self::load_f16(source.cast());
        unpack_bf16(source: *const u8) -> Self = {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(source.cast()));
            F32x16(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        };
        unpack_i8(source: *const u8) -> Self =
            F32x16(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(source.cast()))));
        unpack_u8(source: *const u8) -> Self =
            F32x16(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(source.cast()))));
        load_table(entries: *const f32) -> F32x16 = Self::load(entries);
        look_up(source: *const u8, fields: &Fields, table: F32x16) -> Self =
            F32x16(_mm512_permutexvar_ps(shifted16(source, fields), table.0));
        look_up_halves(source: *const u8, table: F32x16) -> [Self; 2] = {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(source.cast()));
            let upper = _mm512_srli_epi32::<4>(bytes);
            [F32x16(_mm512_permutexvar_ps(bytes, table.0)), F32x16(_mm512_permutexvar_ps(upper, table.0))]
        };
        load_wide_table(entries: *const f32) -> [F32x16; 4] = [
            Self::load(entries),
            Self::load(entries.add(16)),
            Self::load(entries.add(32)),
            Self::load(entries.add(48)),
        ];
        look_up_wide(source: *const u8, fields: &Fields, table: [F32x16; 4]) -> Self = {
            let index = shifted16(source, fields);
            let low = _mm512_permutex2var_ps(table[0].0, index, table[1].0);
            let high = _mm512_permutex2var_ps(table[2].0, index, table[3].0);
            let choice = _mm512_test_epi32_mask(index, _mm512_set1_epi32(32));
            F32x16(_mm512_mask_blend_ps(choice, low, high))
        };
        gather(source: *const u8, fields: &Fields, entries: *const f32) -> Self = {
            let index = shifted16(source, fields);
            let index = _mm512_and_si512(index, _mm512_set1_epi32(fields.mask as i32));
            F32x16(_mm512_i32gather_ps::<4>(index, entries))
        };
    }
    #[inline(always)]
    fn shift_table(table: F32x16, offset: Self) -> F32x16 {
        table.sub(offset)
    }
}

/// Shifts each field to the lowest bits of its lane; the bits above contain the following fields.
///
/// # Safety
/// Sixteen bytes must be readable, and the machine must support AVX-512.
#[inline(always)]
unsafe fn shifted16(source: *const u8, fields: &Fields) -> __m512i {
    // SAFETY: the caller guarantees the bytes and support of the instructions.
    unsafe {
        let bytes = _mm512_broadcast_i32x4(_mm_loadu_si128(source.cast()));
        let pairs = _mm512_shuffle_epi8(bytes, _mm512_loadu_si512(fields.bytes.as_ptr().cast()));
        _mm512_srlv_epi32(pairs, _mm512_loadu_si512(fields.shifts.as_ptr().cast()))
    }
}
