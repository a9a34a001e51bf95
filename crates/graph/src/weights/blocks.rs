//! GGUF blocks as compressed constants of Core ML.
//!
//! A weight is `factor · code - offset`. Codes are integers or indices into a table of integers. A 5-bit code is
//! split into a magnitude and a sign: `±(magnitude + 1/2)` minus a constant. Core ML rounds every product to the type
//! of the result, so exactness depends on this type:
//!
//! | result | exact | in the package | bits a weight: GGUF, package |
//! |---|---|---|---|
//! | any | Q8_0 | `int8`, a scale for 32 | 8.5, 8.5 |
//! | any | Q4_0 | `int4`, a scale for 32 | 4.5, 4.5 |
//! | any | IQ4_NL | `uint4` into a table, a scale for 32 | 4.5, 4.5 |
//! | any | MXFP4 | the same | 4.25, 4.5 in `fp16`, 4.25 in `fp32` |
//! | any | TQ1_0, TQ2_0 | `uint2` into a table, a scale for 256 | 1.69, 2.06; 2.06, 2.06 |
//! | any | Q1_0, Q2_0 | `uint1`, `uint2` into a table, a scale for 128 | 1.12, 1.12; 2.12, 2.12 |
//! | any | Q5_0 | `uint4` magnitudes, `uint1` signs, a scale for 32 | 5.5, 5.53 |
//! | `fp32` | F16 | `fp16`, cast | 16, 16 |
//! | `fp32` | Q8_K | `int8`, a scale for 256 | 9.12, 8.12 |
//! | `fp32` | Q3_K | `uint3` into a table; 6-bit scales of 16 that are scaled themselves | 3.44, 3.44 |
//! | `fp32` | Q6_K | `uint6` into a table; 8-bit scales of 16 that are scaled themselves | 6.56, 6.56 |
//! | `fp32` | IQ4_XS | `uint4` into a table; 6-bit scales of 32 that are scaled themselves | 4.25, 4.25 |
//! | `fp32` | Q4_1, Q5_1 | a second operation subtracts the offset | 5, 5.03; 6, 6.06 |
//! | `fp32` | Q2_K, Q4_K, Q5_K | the same, with offsets that are scaled themselves | 2.62, 2.69; 4.5, 4.53; 5.5, 5.56 |
//!
//! In `fp16`, the products of the other schemes are rounded more than once. On request these weights keep their codes,
//! scales and offsets nevertheless: only the arithmetic of the device rounds.

use std::io;
use std::sync::Arc;

use coremill_kernels::codes;
use coremill_tensor::{Buffer, ByteSource, DType, Fingerprint};
use half::f16;

use crate::scheme::{MAX_WEIGHTS, Scheme, exponent_half};

/// A compressed constant of Core ML.
pub(crate) enum Form {
    /// Stored elements; each applies to `share` adjacent weights.
    Stored { dtype: DType, elements: Buffer, share: u64 },
    /// Conversion of `fp16` to `fp32`.
    Widened(Box<Form>),
    /// Indices into a table.
    Table { indices: Box<Form>, dtype: DType, entries: Vec<u8> },
    /// `scale · (data - offset)`; a scale and an offset apply to several adjacent weights.
    Scaled { data: Box<Form>, scale: Box<Form>, offset: Option<Box<Form>> },
}

/// Allowed forms of a compressed tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllowedForms {
    /// Whether the weights are used in `fp32`.
    pub(crate) wide: bool,
    /// Whether intermediate results may be rounded to `fp16` if no form is exact.
    pub(crate) rounded: bool,
}

impl Form {
    /// The element type.
    pub(crate) fn dtype(&self) -> DType {
        match self {
            Form::Stored { dtype, .. } | Form::Table { dtype, .. } => *dtype,
            Form::Widened(_) => DType::Fp32,
            Form::Scaled { scale, .. } => scale.dtype(),
        }
    }

    /// Number of adjacent weights that share an element.
    pub(crate) fn share(&self) -> u64 {
        match self {
            Form::Stored { share, .. } => *share,
            Form::Table { indices: of, .. } | Form::Widened(of) | Form::Scaled { data: of, .. } => {
                of.share()
            }
        }
    }

    /// Returns a form of a tensor; `None` if no form is allowed.
    pub(crate) fn of(scheme: Scheme, blocks: &Buffer, allowed: AllowedForms) -> Option<Form> {
        use Scheme::{Bf16, F16, F32};
        let wide = allowed.wide;
        let exact = match scheme {
            F32 | Bf16 => return None,
            F16 if !wide => return None,
            _ => wide || is_exact_in_fp16(scheme),
        };
        let source = Source { scheme, blocks };
        if scheme == F16 {
            let stored = Form::Stored { dtype: DType::Fp16, elements: blocks.clone(), share: 1 };
            return Some(Form::Widened(Box::new(stored)));
        }
        (exact || allowed.rounded).then(|| source.whole(wide))
    }
}

/// Whether a single product of a code and a scale is rounded to `fp16`.
pub(super) fn is_exact_in_fp16(scheme: Scheme) -> bool {
    use Scheme::{F16, Iq4Nl, Mxfp4, Q1_0, Q2_0, Q4_0, Q5_0, Q8_0, Tq1_0, Tq2_0};
    matches!(scheme, F16 | Q1_0 | Q2_0 | Q4_0 | Q5_0 | Q8_0 | Iq4Nl | Mxfp4 | Tq1_0 | Tq2_0)
}

/// Source of forms.
struct Source<'b> {
    scheme: Scheme,
    blocks: &'b Buffer,
}

impl Source<'_> {
    fn whole(&self, wide: bool) -> Form {
        let (data, shift) = self.data();
        let offset = shift.map(|shift| self.filled(shift));
        let products = scaled(data, self.factors(wide), offset);
        if !self.scheme.has_offsets() {
            return products;
        }
        scaled(products, self.filled(1.0), Some(self.offsets(wide)))
    }

    /// The codes, and the number that remains to be subtracted from them.
    fn data(&self) -> (Form, Option<f32>) {
        use Scheme::{
            Iq4Nl, Iq4Xs, Mxfp4, Q1_0, Q2_0, Q2_K, Q3_K, Q4_0, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, Q8_K,
            Tq1_0, Tq2_0,
        };
        let scheme = self.scheme;
        let meanings = |dtype: DType| {
            let count = 1u8 << dtype.bits().unwrap_or(0);
            let entries = (0..count).map(|code| scheme.meaning(code) as u8).collect();
            table(self.stored(dtype, Part::Codes), DType::Int8, entries)
        };
        let data = match scheme {
            Q8_0 | Q8_K => self.stored(DType::Int8, Part::Codes),
            Q4_0 => self.stored(DType::Int4, Part::Codes),
            Q1_0 => meanings(DType::UInt1),
            Q2_K | Q2_0 | Tq1_0 | Tq2_0 => meanings(DType::UInt2),
            Q3_K => meanings(DType::UInt3),
            Iq4Nl | Iq4Xs | Mxfp4 => meanings(DType::UInt4),
            Q6_K => meanings(DType::UInt6),
            Q5_0 | Q5_1 | Q5_K => {
                let odd = (0..16).map(|magnitude| 2 * magnitude + 1).collect();
                let odd = table(self.stored(DType::UInt4, Part::Magnitudes), DType::Int8, odd);
                let signs = self.stored(DType::UInt1, Part::Signs);
                let signs = table(signs, DType::Fp32, floats([-0.5, 0.5]));
                // The code of 0 is 16 steps below the middle, or there is none.
                let shift = if scheme == Q5_0 { 0.5 } else { -15.5 };
                return (scaled(odd, signs, None), Some(shift));
            }
            _ => self.stored(DType::UInt4, Part::Codes),
        };
        (data, None)
    }

    fn factors(&self, wide: bool) -> Form {
        match self.scheme {
            Scheme::Q8_K => self.stored(DType::Fp32, Part::Factors),
            Scheme::Mxfp4 if wide => {
                let powers = floats((0..=255).map(exponent_half));
                table(self.stored(DType::UInt8, Part::Exponents), DType::Fp32, powers)
            }
            scheme if scheme.has_groups() => {
                scaled(self.steps(Part::FactorSteps), self.halves(Part::Scales, wide), None)
            }
            _ => self.halves(Part::Scales, wide),
        }
    }

    fn offsets(&self, wide: bool) -> Form {
        match self.scheme.has_groups() {
            false if wide => self.stored(DType::Fp16, Part::Offsets),
            false => self.stored(DType::Fp32, Part::Offsets),
            true => {
                scaled(self.steps(Part::OffsetSteps), self.halves(Part::OffsetScales, wide), None)
            }
        }
    }

    /// Numbers that `fp16` represents exactly, as `fp32`. In an `fp16` program the compiler narrows them.
    fn halves(&self, part: Part, wide: bool) -> Form {
        match wide {
            true => Form::Widened(Box::new(self.stored(DType::Fp16, part))),
            false => self.stored(DType::Fp32, part),
        }
    }

    /// Factors or offsets of groups in units of the block's.
    fn steps(&self, part: Part) -> Form {
        match self.scheme {
            Scheme::Q2_K => self.stored(DType::UInt4, part),
            Scheme::Q6_K => self.stored(DType::Int8, part),
            scheme => {
                let entries = (0..64).map(|code| (code - scheme.step_middle()) as u8).collect();
                table(self.stored(DType::UInt6, part), DType::Int8, entries)
            }
        }
    }

    /// The same number for each group, in almost no space.
    fn filled(&self, number: f32) -> Form {
        table(self.stored(DType::UInt1, Part::Nothing), DType::Fp32, floats([number, number]))
    }

    fn stored(&self, dtype: DType, part: Part) -> Form {
        let Source { scheme, blocks } = *self;
        let share = part.share(scheme) as u64;
        let parts = Parts { scheme, dtype, part, blocks: blocks.clone() };
        Form::Stored { dtype, elements: Buffer::deferred(Arc::new(parts)), share }
    }
}

fn scaled(data: Form, scale: Form, offset: Option<Form>) -> Form {
    Form::Scaled { data: Box::new(data), scale: Box::new(scale), offset: offset.map(Box::new) }
}

fn table(indices: Form, dtype: DType, entries: Vec<u8>) -> Form {
    Form::Table { indices: Box::new(indices), dtype, entries }
}

fn floats(numbers: impl IntoIterator<Item = f32>) -> Vec<u8> {
    numbers.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// A part of a block that is stored.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// The code of each weight.
    Codes,
    /// The 4-bit magnitude of each 5-bit code.
    Magnitudes,
    /// The sign of each 5-bit code.
    Signs,
    /// The factor of each group.
    Factors,
    /// The offset of each group.
    Offsets,
    /// The unit of the factors, with its index.
    Scales,
    FactorSteps,
    /// The unit of the offsets, with its index.
    OffsetScales,
    OffsetSteps,
    /// The scale of a block as a power of two.
    Exponents,
    /// No data.
    Nothing,
}

impl Part {
    /// Number of weights that share an element.
    fn share(self, scheme: Scheme) -> usize {
        match self {
            Part::Codes | Part::Magnitudes | Part::Signs => 1,
            Part::Scales | Part::OffsetScales | Part::Exponents => scheme.block().0,
            Part::Factors
            | Part::Offsets
            | Part::FactorSteps
            | Part::OffsetSteps
            | Part::Nothing => scheme.group(),
        }
    }
}

/// One part of all blocks.
struct Parts {
    scheme: Scheme,
    dtype: DType,
    part: Part,
    blocks: Buffer,
}

impl Parts {
    /// Number of elements in a block.
    fn count(&self) -> usize {
        self.scheme.block().0 / self.part.share(self.scheme)
    }

    /// Number of bytes in a block; may be 0 for [`Part::Nothing`].
    fn size(&self) -> usize {
        self.count() * self.dtype.bits().unwrap_or(8) as usize / 8
    }

    fn write(&self, block: &[u8], out: &mut [u8]) {
        let scheme = self.scheme;
        let floats = |out: &mut [u8], number: &dyn Fn(usize) -> f32| match self.dtype {
            DType::Fp16 => out.chunks_exact_mut(2).enumerate().for_each(|(at, out)| {
                out.copy_from_slice(&f16::from_f32(number(at)).to_le_bytes());
            }),
            _ => out.chunks_exact_mut(4).enumerate().for_each(|(at, out)| {
                out.copy_from_slice(&number(at).to_le_bytes());
            }),
        };
        let integers = |out: &mut [u8], integer: &dyn Fn(usize) -> u8| {
            let mut all = [0; MAX_WEIGHTS];
            let all = &mut all[..self.count()];
            all.iter_mut().enumerate().for_each(|(at, to)| *to = integer(at));
            codes::pack(self.dtype.bits().unwrap_or(8), all, out);
        };
        match self.part {
            Part::Codes | Part::Magnitudes | Part::Signs => self.write_codes(block, out),
            Part::Factors => floats(out, &|group| scheme.factor(block, group)),
            Part::Offsets => floats(out, &|group| scheme.offset(block, group)),
            Part::Scales => floats(out, &|_| scheme.scale(block)),
            Part::OffsetScales => floats(out, &|_| scheme.offset_scale(block)),
            Part::FactorSteps => {
                let middle = if self.dtype == DType::UInt6 { scheme.step_middle() } else { 0 };
                integers(out, &|group| (scheme.steps(block, group).0 + middle) as u8);
            }
            Part::OffsetSteps => integers(out, &|group| scheme.steps(block, group).1),
            Part::Exponents => integers(out, &|_| block[0]),
            Part::Nothing => out.fill(0),
        }
    }

    fn write_codes(&self, block: &[u8], out: &mut [u8]) {
        let mut codes = [0u8; MAX_WEIGHTS];
        let codes = &mut codes[..self.scheme.block().0];
        self.scheme.codes(block, codes);
        match self.part {
            Part::Magnitudes => codes.iter_mut().for_each(|code| {
                *code = if *code < 16 { 15 - *code } else { *code - 16 };
            }),
            Part::Signs => codes.iter_mut().for_each(|code| *code >>= 4),
            _ if self.dtype == DType::Int8 => return out.copy_from_slice(codes),
            _ if self.dtype == DType::Int4 => codes.iter_mut().for_each(|code| *code ^= 8),
            _ => {}
        }
        codes::pack(self.dtype.bits().unwrap_or(8), codes, out);
    }
}

impl ByteSource for Parts {
    fn length(&self) -> usize {
        let blocks = self.blocks.len() / self.scheme.block().1;
        match self.part {
            Part::Nothing => (blocks * self.count()).div_ceil(8),
            _ => blocks * self.size(),
        }
    }

    fn granule(&self) -> usize {
        self.size().max(1)
    }

    fn produce(&self, offset: usize, target: &mut [u8]) -> io::Result<()> {
        if matches!(self.part, Part::Nothing) {
            target.fill(0);
            return Ok(());
        }
        let (bytes, size) = (self.scheme.block().1, self.size());
        let (first, count) = (offset / size, target.len() / size);
        self.blocks.with_window(first * bytes..(first + count) * bytes, |source| {
            for (block, out) in source.chunks_exact(bytes).zip(target.chunks_exact_mut(size)) {
                self.write(block, out);
            }
        })
    }

    fn identity(&self) -> Option<Fingerprint> {
        let identity = Fingerprint::new(&format!("gguf {:?}", self.part));
        let identity = identity.with(u64::from(self.scheme.code()));
        Some(identity.with_part(&self.blocks.identity()))
    }
}
