//! The schemes in which GGUF stores weights, and their decoding.
//!
//! Each block of 32, 128 or 256 weights of a row has its own scale. The arithmetic follows the reference in
//! Python's `gguf` operation by operation, so that results are bit-identical.

use std::fmt;
use std::io;
use std::sync::Arc;

use coremill_tensor::{Buffer, ByteSource, Fingerprint};
use half::{bf16, f16};

/// Maximum number of weights in a block.
pub(crate) const MAX_WEIGHTS: usize = 256;

/// Storage scheme of a tensor's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names are those of the format")]
#[expect(non_camel_case_types, reason = "the names are those of the format")]
pub enum Scheme {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    Iq4Nl,
    Iq4Xs,
    Tq1_0,
    Tq2_0,
    Mxfp4,
    Q1_0,
    Q2_0,
}

/// The values of IQ4_NL's codes.
const IQ4_NL: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The values of MXFP4's codes, doubled.
const MXFP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

impl Scheme {
    /// All schemes.
    pub const ALL: [Scheme; 21] = [
        Scheme::F32,
        Scheme::F16,
        Scheme::Bf16,
        Scheme::Q4_0,
        Scheme::Q4_1,
        Scheme::Q5_0,
        Scheme::Q5_1,
        Scheme::Q8_0,
        Scheme::Q2_K,
        Scheme::Q3_K,
        Scheme::Q4_K,
        Scheme::Q5_K,
        Scheme::Q6_K,
        Scheme::Q8_K,
        Scheme::Iq4Nl,
        Scheme::Iq4Xs,
        Scheme::Tq1_0,
        Scheme::Tq2_0,
        Scheme::Mxfp4,
        Scheme::Q1_0,
        Scheme::Q2_0,
    ];

    /// Code of the scheme in files.
    pub const fn code(self) -> u32 {
        match self {
            Scheme::F32 => 0,
            Scheme::F16 => 1,
            Scheme::Q4_0 => 2,
            Scheme::Q4_1 => 3,
            Scheme::Q5_0 => 6,
            Scheme::Q5_1 => 7,
            Scheme::Q8_0 => 8,
            Scheme::Q2_K => 10,
            Scheme::Q3_K => 11,
            Scheme::Q4_K => 12,
            Scheme::Q5_K => 13,
            Scheme::Q6_K => 14,
            Scheme::Q8_K => 15,
            Scheme::Iq4Nl => 20,
            Scheme::Iq4Xs => 23,
            Scheme::Bf16 => 30,
            Scheme::Tq1_0 => 34,
            Scheme::Tq2_0 => 35,
            Scheme::Mxfp4 => 39,
            Scheme::Q1_0 => 41,
            Scheme::Q2_0 => 42,
        }
    }

    /// Returns the scheme with this code.
    pub fn from_code(code: u32) -> Option<Scheme> {
        Scheme::ALL.into_iter().find(|scheme| scheme.code() == code)
    }

    /// Name in the format's documentation.
    pub const fn name(self) -> &'static str {
        match self {
            Scheme::F32 => "F32",
            Scheme::F16 => "F16",
            Scheme::Bf16 => "BF16",
            Scheme::Q4_0 => "Q4_0",
            Scheme::Q4_1 => "Q4_1",
            Scheme::Q5_0 => "Q5_0",
            Scheme::Q5_1 => "Q5_1",
            Scheme::Q8_0 => "Q8_0",
            Scheme::Q2_K => "Q2_K",
            Scheme::Q3_K => "Q3_K",
            Scheme::Q4_K => "Q4_K",
            Scheme::Q5_K => "Q5_K",
            Scheme::Q6_K => "Q6_K",
            Scheme::Q8_K => "Q8_K",
            Scheme::Iq4Nl => "IQ4_NL",
            Scheme::Iq4Xs => "IQ4_XS",
            Scheme::Tq1_0 => "TQ1_0",
            Scheme::Tq2_0 => "TQ2_0",
            Scheme::Mxfp4 => "MXFP4",
            Scheme::Q1_0 => "Q1_0",
            Scheme::Q2_0 => "Q2_0",
        }
    }

    /// Number of weights and of bytes in a block.
    pub const fn block(self) -> (usize, usize) {
        match self {
            Scheme::F32 => (1, 4),
            Scheme::F16 | Scheme::Bf16 => (1, 2),
            Scheme::Q4_0 | Scheme::Iq4Nl => (32, 18),
            Scheme::Q4_1 => (32, 20),
            Scheme::Q5_0 => (32, 22),
            Scheme::Q5_1 => (32, 24),
            Scheme::Q8_0 => (32, 34),
            Scheme::Mxfp4 => (32, 17),
            Scheme::Q1_0 => (128, 18),
            Scheme::Q2_0 => (128, 34),
            Scheme::Tq1_0 => (256, 54),
            Scheme::Tq2_0 => (256, 66),
            Scheme::Iq4Xs => (256, 136),
            Scheme::Q2_K => (256, 84),
            Scheme::Q3_K => (256, 110),
            Scheme::Q4_K => (256, 144),
            Scheme::Q5_K => (256, 176),
            Scheme::Q6_K => (256, 210),
            Scheme::Q8_K => (256, 292),
        }
    }

    /// Size of a tensor in bytes; `None` if its rows are not whole blocks.
    pub fn storage_bytes(self, shape: &[u64]) -> Option<u64> {
        let (weights, bytes) = self.block();
        let count = shape.iter().try_fold(1u64, |count, &extent| count.checked_mul(extent))?;
        let row = shape.last().copied().unwrap_or(1);
        if row % weights as u64 != 0 {
            return None;
        }
        (count / weights as u64).checked_mul(bytes as u64)
    }

    /// The weights as `fp32`, computed when they are read.
    pub(crate) fn dequantized(self, blocks: &Buffer) -> Buffer {
        if self == Scheme::F32 {
            return blocks.clone();
        }
        Buffer::deferred(Arc::new(DequantizedBlock { scheme: self, blocks: blocks.clone() }))
    }

    /// Number of adjacent weights that share a factor and an offset.
    pub(crate) const fn group(self) -> usize {
        match self {
            Scheme::Q2_K | Scheme::Q3_K | Scheme::Q6_K => 16,
            Scheme::Q4_K | Scheme::Q5_K | Scheme::Iq4Xs => 32,
            _ => self.block().0,
        }
    }

    /// Whether groups have their own factors, which are small multiples of the block's scale.
    pub(crate) const fn has_groups(self) -> bool {
        self.group() < self.block().0
    }

    /// Whether the scheme subtracts offsets.
    pub(crate) const fn has_offsets(self) -> bool {
        use Scheme::{Q2_K, Q4_1, Q4_K, Q5_1, Q5_K};
        matches!(self, Q4_1 | Q5_1 | Q2_K | Q4_K | Q5_K)
    }

    /// Decodes one block: factor times code minus offset, with the factor and the offset of the group.
    pub(crate) fn dequantize(self, block: &[u8], weights: &mut [f32]) {
        match self {
            Scheme::F32 => weights[0] = f32::from_le_bytes(word(block, 0)),
            Scheme::F16 => weights[0] = half_at(block, 0),
            Scheme::Bf16 => weights[0] = bf16::from_le_bytes(word(block, 0)).to_f32(),
            _ => {
                let mut codes = [0; MAX_WEIGHTS];
                self.codes(block, &mut codes[..weights.len()]);
                for (at, group) in weights.chunks_mut(self.group()).enumerate() {
                    let (factor, offset) = (self.factor(block, at), self.offset(block, at));
                    for (weight, &code) in group.iter_mut().zip(&codes[at * self.group()..]) {
                        *weight = factor * f32::from(self.meaning(code)) - offset;
                    }
                }
            }
        }
    }

    /// Factor of a group.
    pub(crate) fn factor(self, block: &[u8], group: usize) -> f32 {
        match self.has_groups() {
            true => self.scale(block) * f32::from(self.steps(block, group).0),
            false => self.scale(block),
        }
    }

    /// Offset that is subtracted for a group.
    pub(crate) fn offset(self, block: &[u8], group: usize) -> f32 {
        match self {
            // These schemes add a minimum instead.
            Scheme::Q4_1 | Scheme::Q5_1 => -half_at(block, 2),
            _ if self.has_offsets() => {
                self.offset_scale(block) * f32::from(self.steps(block, group).1)
            }
            _ => 0.0,
        }
    }

    /// Unit of the factors of a block's groups.
    pub(crate) fn scale(self, block: &[u8]) -> f32 {
        match self {
            Scheme::Q8_K => f32::from_le_bytes(word(block, 0)),
            Scheme::Mxfp4 => exponent_half(block[0]),
            _ => half_at(block, self.scale_place()),
        }
    }

    /// Unit of the offsets of a block's groups.
    pub(crate) fn offset_scale(self, block: &[u8]) -> f32 {
        half_at(block, self.scale_place() + 2)
    }

    /// Position of a block's half-precision scale.
    const fn scale_place(self) -> usize {
        match self {
            Scheme::Q2_K => 80,
            Scheme::Q3_K => 108,
            Scheme::Q6_K => 208,
            Scheme::Tq1_0 => 52,
            Scheme::Tq2_0 => 64,
            _ => 0,
        }
    }

    /// Factor and offset of a group, in units of [`scale`](Self::scale) and
    /// [`offset_scale`](Self::offset_scale).
    pub(crate) fn steps(self, block: &[u8], group: usize) -> (i8, u8) {
        match self {
            Scheme::Q2_K => ((block[group] & 15) as i8, block[group] >> 4),
            Scheme::Q3_K => {
                let packed = &block[96..108];
                let lower = (packed[group % 8] >> (4 * (group / 8))) & 15;
                let upper = (packed[8 + group % 4] >> (2 * (group / 4))) & 3;
                ((lower | (upper << 4)) as i8 - 32, 0)
            }
            Scheme::Q4_K | Scheme::Q5_K => {
                let (factor, offset) = six(&block[4..16], group);
                (factor as i8, offset)
            }
            Scheme::Q6_K => (block[192 + group] as i8, 0),
            Scheme::Iq4Xs => {
                let lower = (block[4 + group / 2] >> (4 * (group % 2))) & 15;
                let upper = (u16::from_le_bytes(word(block, 2)) >> (2 * group)) as u8 & 3;
                ((lower | (upper << 4)) as i8 - 32, 0)
            }
            _ => (1, 1),
        }
    }

    /// The 6-bit code of a group factor of 0.
    pub(crate) const fn step_middle(self) -> i8 {
        if matches!(self, Scheme::Q3_K | Scheme::Iq4Xs) { 32 } else { 0 }
    }

    /// Unpacks the codes of a block.
    pub(crate) fn codes(self, block: &[u8], codes: &mut [u8]) {
        match self {
            Scheme::F32 | Scheme::F16 | Scheme::Bf16 => {}
            Scheme::Q4_0 | Scheme::Iq4Nl => nibbles(&block[2..18], codes),
            Scheme::Q4_1 => nibbles(&block[4..20], codes),
            Scheme::Mxfp4 => nibbles(&block[1..17], codes),
            Scheme::Q5_0 => {
                nibbles(&block[6..22], codes);
                fifth_bits(u32::from_le_bytes(word(block, 2)), codes);
            }
            Scheme::Q5_1 => {
                nibbles(&block[8..24], codes);
                fifth_bits(u32::from_le_bytes(word(block, 4)), codes);
            }
            Scheme::Q8_0 => codes.copy_from_slice(&block[2..34]),
            Scheme::Q8_K => codes.copy_from_slice(&block[4..260]),
            Scheme::Iq4Xs => {
                for (bytes, codes) in block[8..136].chunks(16).zip(codes.chunks_mut(32)) {
                    nibbles(bytes, codes);
                }
            }
            Scheme::Q1_0 => row(&block[2..18], 1, codes),
            Scheme::Q2_0 => row(&block[2..34], 2, codes),
            Scheme::Tq1_0 => unpack_ternary(block, codes),
            Scheme::Tq2_0 => unpack_2bit(&block[..64], codes),
            Scheme::Q2_K => unpack_2bit(&block[16..80], codes),
            Scheme::Q3_K => {
                unpack_2bit(&block[32..96], codes);
                for (at, code) in codes.iter_mut().enumerate() {
                    *code |= ((block[at % 32] >> (at / 32)) & 1) << 2;
                }
            }
            Scheme::Q4_K => {
                pairs(&block[16..144], codes);
            }
            Scheme::Q5_K => {
                pairs(&block[48..176], codes);
                for (at, code) in codes.iter_mut().enumerate() {
                    *code |= ((block[16 + at % 32] >> (at / 32)) & 1) << 4;
                }
            }
            Scheme::Q6_K => {
                let (low, high) = (&block[..128], &block[128..192]);
                unpack_2bit(high, codes);
                for (at, code) in codes.iter_mut().enumerate() {
                    let (half, within) = (at / 128, at % 128);
                    let lower = (low[half * 64 + within % 64] >> (4 * (within / 64))) & 15;
                    *code = lower | (*code << 4);
                }
            }
        }
    }

    /// The integer represented by a code.
    pub(crate) fn meaning(self, code: u8) -> i8 {
        match self {
            Scheme::Q4_0 => code as i8 - 8,
            Scheme::Q5_0 => code as i8 - 16,
            Scheme::Q3_K => code as i8 - 4,
            Scheme::Q6_K => code as i8 - 32,
            Scheme::Q1_0 => 2 * code as i8 - 1,
            Scheme::Q2_0 | Scheme::Tq1_0 | Scheme::Tq2_0 => code as i8 - 1,
            Scheme::Iq4Nl | Scheme::Iq4Xs => IQ4_NL[usize::from(code)],
            Scheme::Mxfp4 => MXFP4[usize::from(code)],
            _ => code as i8,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|place| bytes[at + place])
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes(word(bytes, at)).to_f32()
}

/// Unpacks 32 codes: first the lower halves of the bytes, then the upper halves.
fn nibbles(bytes: &[u8], codes: &mut [u8]) {
    let (lower, upper) = codes.split_at_mut(bytes.len());
    for ((byte, lower), upper) in bytes.iter().zip(lower).zip(upper) {
        (*lower, *upper) = (byte & 15, byte >> 4);
    }
}

/// Unpacks 256 codes from 128 bytes, in groups of 64.
fn pairs(bytes: &[u8], codes: &mut [u8]) {
    for (bytes, codes) in bytes.chunks(32).zip(codes.chunks_mut(64)) {
        nibbles(bytes, codes);
    }
}

/// Unpacks two bits of 256 weights from 64 bytes, in groups of 128.
fn unpack_2bit(bytes: &[u8], codes: &mut [u8]) {
    for (at, code) in codes.iter_mut().enumerate() {
        let (half, within) = (at / 128, at % 128);
        *code = (bytes[half * 32 + within % 32] >> (2 * (within / 32))) & 3;
    }
}

/// Unpacks consecutive codes of `bits` bits, starting with the lowest bits of a byte.
fn row(bytes: &[u8], bits: usize, codes: &mut [u8]) {
    let each = 8 / bits;
    for (at, code) in codes.iter_mut().enumerate() {
        *code = (bytes[at / each] >> (bits * (at % each))) & ((1 << bits) - 1);
    }
}

/// Unpacks base-3 digits of 256 weights. A byte contains five or four digits as a fraction of 256, with the
/// first digit as the most significant. 160 digits are in 32 bytes, 80 in 16, and the others in 4.
fn unpack_ternary(bytes: &[u8], codes: &mut [u8]) {
    let mut codes = codes.iter_mut();
    for (bytes, digits) in [(&bytes[..32], 5), (&bytes[32..48], 5), (&bytes[48..52], 4)] {
        for digit in 0..digits {
            for (byte, code) in bytes.iter().zip(&mut codes) {
                let rest = byte.wrapping_mul(3u8.pow(digit));
                *code = ((u16::from(rest) * 3) >> 8) as u8;
            }
        }
    }
}

/// Adds the fifth bits of 32 codes, which are stored separately.
fn fifth_bits(high: u32, codes: &mut [u8]) {
    for (at, code) in codes.iter_mut().enumerate() {
        *code |= (((high >> at) & 1) as u8) << 4;
    }
}

/// Unpacks the 6-bit factor and offset of a group; eight pairs are packed in twelve bytes.
fn six(packed: &[u8], group: usize) -> (u8, u8) {
    if group < 4 {
        (packed[group] & 63, packed[group + 4] & 63)
    } else {
        let both = packed[group + 4];
        ((both & 15) | (packed[group - 4] >> 6 << 4), (both >> 4) | (packed[group] >> 6 << 4))
    }
}

/// Half of the power of two that an 8-bit exponent represents.
pub(crate) fn exponent_half(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => u32::from(exponent - 1) << 23,
    })
}

struct DequantizedBlock {
    scheme: Scheme,
    blocks: Buffer,
}

impl ByteSource for DequantizedBlock {
    fn length(&self) -> usize {
        let (weights, bytes) = self.scheme.block();
        self.blocks.len() / bytes * weights * 4
    }

    fn granule(&self) -> usize {
        self.scheme.block().0 * 4
    }

    fn produce(&self, offset: usize, target: &mut [u8]) -> io::Result<()> {
        let (count, bytes) = self.scheme.block();
        let (first, blocks) = (offset / (count * 4), target.len() / (count * 4));
        let range = first * bytes..(first + blocks) * bytes;
        self.blocks.with_window(range, |source| {
            let mut weights = vec![0.0; count];
            for (block, out) in source.chunks_exact(bytes).zip(target.chunks_exact_mut(count * 4)) {
                self.scheme.dequantize(block, &mut weights);
                for (weight, place) in weights.iter().zip(out.chunks_exact_mut(4)) {
                    place.copy_from_slice(&weight.to_le_bytes());
                }
            }
        })
    }

    fn identity(&self) -> Option<Fingerprint> {
        let identity = Fingerprint::new("gguf").with(u64::from(self.scheme.code()));
        Some(identity.with_part(&self.blocks.identity()))
    }
}
