//! Unpacking of stored integers to words.

#![expect(unsafe_code, reason = "vectors are read from bytes whose extents are checked once")]

use super::super::format::{Format, QuantizedMatrix};
use super::BLOCK;
use coremill_simd::vector::{Bits, Int8Dot, Vector, WordDot};
use coremill_tensor::DType;

/// Stored integers of a size. A vector has [`EACH`](Self::EACH) adjacent elements of a row in each lane.
pub(super) trait Codes: Copy + Sync {
    /// Number of bits of an element.
    const BITS: usize;
    /// Number of elements of a lane, 4 or 8.
    const EACH: usize;

    /// Reads `EACH` elements for each lane. The first `EACH / 2` vectors are used: the lower word of a lane of vector `p` is
    /// element `p`, and the higher one is element `p + EACH / 2`.
    ///
    /// # Safety
    /// The bytes of the elements must be readable.
    unsafe fn words<D: WordDot>(&self, source: *const u8) -> [Bits<D>; 4];

    /// Reads the same elements as unsigned bytes, which are greater by [`zero`](Self::zero). The first `EACH / 4` vectors are
    /// used: byte `b` of a lane of vector `v` is element `b * EACH / 4 + v`.
    ///
    /// # Safety
    /// The bytes of the elements must be readable.
    unsafe fn bytes<D: Int8Dot>(&self, source: *const u8) -> [D::Left; 2];

    fn zero(&self) -> f32;
}

/// Integers of 4 bits.
#[derive(Clone, Copy)]
pub(super) struct Nibbles<const SIGNED: bool>;

impl<const SIGNED: bool> Codes for Nibbles<SIGNED> {
    const BITS: usize = 4;
    const EACH: usize = 8;

    #[inline(always)]
    unsafe fn words<D: WordDot>(&self, source: *const u8) -> [Bits<D>; 4] {
        // SAFETY: the caller guarantees the bytes.
        let all = unsafe { D::load_bits(source) };
        if SIGNED {
            return [
                D::words_right_signed::<12>(D::words_left::<12>(all)),
                D::words_right_signed::<12>(D::words_left::<8>(all)),
                D::words_right_signed::<12>(D::words_left::<4>(all)),
                D::words_right_signed::<12>(all),
            ];
        }
        let mask = D::Floats::bits(0x000f_000f);
        [
            D::Floats::bits_and(all, mask),
            D::Floats::bits_and(D::Floats::bits_right_signed::<4>(all), mask),
            D::Floats::bits_and(D::Floats::bits_right_signed::<8>(all), mask),
            D::Floats::bits_and(D::Floats::bits_right_signed::<12>(all), mask),
        ]
    }

    #[inline(always)]
    unsafe fn bytes<D: Int8Dot>(&self, source: *const u8) -> [D::Left; 2] {
        // SAFETY: the caller guarantees the bytes.
        let mut all = unsafe { D::load_bits(source) };
        if SIGNED {
            all = D::Floats::bits_xor(all, D::Floats::bits(0x8888_8888));
        }
        let mask = D::Floats::bits(0x0f0f_0f0f);
        let odd = D::Floats::bits_right_signed::<4>(all);
        [D::left_of(D::Floats::bits_and(all, mask)), D::left_of(D::Floats::bits_and(odd, mask))]
    }

    #[inline(always)]
    fn zero(&self) -> f32 {
        if SIGNED { 8.0 } else { 0.0 }
    }
}

/// Integers of 8 bits.
#[derive(Clone, Copy)]
pub(super) struct Bytes<const SIGNED: bool>;

impl<const SIGNED: bool> Codes for Bytes<SIGNED> {
    const BITS: usize = 8;
    const EACH: usize = 4;

    #[inline(always)]
    unsafe fn words<D: WordDot>(&self, source: *const u8) -> [Bits<D>; 4] {
        // SAFETY: the caller guarantees the bytes.
        let all = unsafe { D::load_bits(source) };
        let (even, odd) = if SIGNED {
            (D::words_right_signed::<8>(D::words_left::<8>(all)), D::words_right_signed::<8>(all))
        } else {
            let mask = D::Floats::bits(0x00ff_00ff);
            let odd = D::Floats::bits_right_signed::<8>(all);
            (D::Floats::bits_and(all, mask), D::Floats::bits_and(odd, mask))
        };
        [even, odd, even, odd]
    }

    #[inline(always)]
    unsafe fn bytes<D: Int8Dot>(&self, source: *const u8) -> [D::Left; 2] {
        // SAFETY: the caller guarantees the bytes.
        let mut all = unsafe { D::load_bits(source) };
        if SIGNED {
            all = D::Floats::bits_xor(all, D::Floats::bits(0x8080_8080));
        }
        [D::left_of(all); 2]
    }

    #[inline(always)]
    fn zero(&self) -> f32 {
        if SIGNED { 128.0 } else { 0.0 }
    }
}

/// Integers of 6 bits, from which a number is subtracted.
#[derive(Clone, Copy)]
pub(super) struct Sixes {
    zero: u16,
}

impl Codes for Sixes {
    const BITS: usize = 6;
    const EACH: usize = 4;

    #[inline(always)]
    unsafe fn words<D: WordDot>(&self, source: *const u8) -> [Bits<D>; 4] {
        // SAFETY: the caller guarantees the bytes.
        let [even, odd] = unsafe { D::load_sixes(source) };
        let zero = D::Floats::bits(u32::from(self.zero) << 16 | u32::from(self.zero));
        let (even, odd) = (D::words_sub(even, zero), D::words_sub(odd, zero));
        [even, odd, even, odd]
    }

    #[inline(always)]
    unsafe fn bytes<D: Int8Dot>(&self, source: *const u8) -> [D::Left; 2] {
        // SAFETY: the caller guarantees the bytes.
        [D::left_of(unsafe { D::load_six_bytes(source) }); 2]
    }

    #[inline(always)]
    fn zero(&self) -> f32 {
        f32::from(self.zero)
    }
}

/// The form of the integers of a matrix.
#[derive(Clone, Copy)]
pub(super) enum Form {
    Nibbles(Nibbles<false>),
    SignedNibbles(Nibbles<true>),
    Bytes(Bytes<false>),
    SignedBytes(Bytes<true>),
    Sixes(Sixes),
}

/// Work that is generic over the integers.
pub(super) trait UseCodes {
    fn run<C: Codes>(self, codes: C);
}

impl Form {
    /// The form, if blocks have whole vectors.
    pub(super) fn of(weights: &QuantizedMatrix) -> Option<Form> {
        let form = match &weights.format {
            Format::Affine { dtype: DType::UInt4, .. } => Form::Nibbles(Nibbles),
            Format::Affine { dtype: DType::Int4, .. } => Form::SignedNibbles(Nibbles),
            Format::Affine { dtype: DType::UInt8, .. } => Form::Bytes(Bytes),
            Format::Affine { dtype: DType::Int8, .. } => Form::SignedBytes(Bytes),
            Format::Palette { bits: 6, palettes, scale: Some(_), .. } => {
                let zero = zero(&palettes.entries).filter(|_| palettes.entries.len() == 64)?;
                Form::Sixes(Sixes { zero })
            }
            _ => return None,
        };
        let block = weights.columns() / weights.across().max(1);
        let least = if weights.shift().is_some() || weights.offset().is_some() {
            BLOCK
        } else {
            form.part()
        };
        let whole = weights.columns().is_multiple_of(BLOCK) && block.is_multiple_of(least);
        (whole && block > 0).then_some(form)
    }

    /// Number of elements of four lanes, which have a common scale.
    pub(super) fn part(self) -> usize {
        4 * self.each()
    }

    /// Number of elements of a lane.
    pub(super) fn each(self) -> usize {
        match self {
            Form::Nibbles(_) | Form::SignedNibbles(_) => Nibbles::<false>::EACH,
            Form::Bytes(_) | Form::SignedBytes(_) => Bytes::<false>::EACH,
            Form::Sixes(_) => Sixes::EACH,
        }
    }

    pub(super) fn use_codes(self, work: impl UseCodes) {
        match self {
            Form::Nibbles(codes) => work.run(codes),
            Form::SignedNibbles(codes) => work.run(codes),
            Form::Bytes(codes) => work.run(codes),
            Form::SignedBytes(codes) => work.run(codes),
            Form::Sixes(codes) => work.run(codes),
        }
    }
}

/// The number that entries subtract from their index, if they do.
fn zero(entries: &[f32]) -> Option<u16> {
    let zero = -entries.first()?;
    let is_zero = |(index, &entry): (usize, &f32)| entry == index as f32 - zero;
    let fits = (0.0..=64.0).contains(&zero) && zero.fract() == 0.0;
    (fits && entries.iter().enumerate().all(is_zero)).then_some(zero as u16)
}
