//! Blocks of GGUF in the form of Core ML's compressed constants.
//!
//! | scheme | form | bits a weight, with `fp16` scales |
//! |---|---|---|
//! | Q8_0 | `int8`, one scale for 32 | 8.5 |
//! | Q8_K | `int8`, one scale for 256 | 8.06 |
//! | Q4_0 | `int4`, one scale for 32 | 4.5 |
//! | IQ4_NL, MXFP4 | `uint4` into a table of 16 `int8`, one scale for 32 | 4.5 |
//! | Q5_0 | `uint6` into a table of 64 `int8`, one scale for 32 | 6.5 |
//!
//! These are exact: the product of scale and code is the one that the scheme asks for. The others add a minimum
//! (Q4_1, Q5_1, Q2_K, Q4_K, Q5_K), which the form multiplies by the scale, or multiply two scales (Q3_K, Q6_K),
//! whose product has more digits than `fp16`.

use std::io;
use std::sync::Arc;

use coremill_tensor::{Buffer, DType, Identity, Produce, packed};

use super::scheme::{IQ4_NL, MXFP4, Scheme, exponent_half, five, half_at, nibbles};

/// A tensor as codes, what they stand for, and a scale for each block of a row.
pub(crate) struct Compressed {
    /// The type of the codes.
    pub(crate) dtype: DType,
    /// The packed codes.
    pub(crate) codes: Buffer,
    /// What a code stands for, where that is not the code itself.
    pub(crate) table: Option<Vec<i8>>,
    /// The scales in `fp32`.
    pub(crate) scales: Buffer,
    /// Weights that share a scale.
    pub(crate) block: u64,
}

impl Compressed {
    /// The form of a tensor, if there is one that is exact.
    pub(crate) fn of(scheme: Scheme, blocks: &Buffer) -> Option<Compressed> {
        let (dtype, table) = match scheme {
            Scheme::Q8_0 | Scheme::Q8_K => (DType::Int8, None),
            Scheme::Q4_0 => (DType::Int4, None),
            Scheme::Iq4Nl => (DType::UInt4, Some(IQ4_NL.to_vec())),
            Scheme::Mxfp4 => (DType::UInt4, Some(MXFP4.to_vec())),
            Scheme::Q5_0 => (DType::UInt6, Some((0..64).map(|code| (code % 32) - 16).collect())),
            Scheme::F32
            | Scheme::F16
            | Scheme::Bf16
            | Scheme::Q4_1
            | Scheme::Q5_1
            | Scheme::Q2_K
            | Scheme::Q3_K
            | Scheme::Q4_K
            | Scheme::Q5_K
            | Scheme::Q6_K => return None,
        };
        let part = |scales: bool| {
            Buffer::deferred(Arc::new(Part { scheme, dtype, scales, blocks: blocks.clone() }))
        };
        let block = scheme.block().0 as u64;
        Some(Compressed { dtype, codes: part(false), table, scales: part(true), block })
    }
}

/// The codes or the scales of blocks.
struct Part {
    scheme: Scheme,
    dtype: DType,
    scales: bool,
    blocks: Buffer,
}

impl Part {
    /// Bytes that a block gives.
    fn size(&self) -> usize {
        if self.scales {
            return 4;
        }
        let bits = self.dtype.bits().unwrap_or(8) as usize;
        self.scheme.block().0 * bits / 8
    }

    fn write(&self, block: &[u8], out: &mut [u8]) {
        if self.scales {
            let scale = match self.scheme {
                Scheme::Q8_K => f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
                Scheme::Mxfp4 => exponent_half(block[0]),
                _ => half_at(block, 0),
            };
            return out.copy_from_slice(&scale.to_le_bytes());
        }
        let mut codes = [0i16; 32];
        match self.scheme {
            Scheme::Q8_0 => return out.copy_from_slice(&block[2..34]),
            Scheme::Q8_K => return out.copy_from_slice(&block[4..260]),
            Scheme::Q4_0 => nibbles(&block[2..18], |at, code| codes[at] = i16::from(code) - 8),
            Scheme::Iq4Nl => nibbles(&block[2..18], |at, code| codes[at] = i16::from(code)),
            Scheme::Mxfp4 => nibbles(&block[1..17], |at, code| codes[at] = i16::from(code)),
            Scheme::Q5_0 => {
                let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
                nibbles(&block[6..22], |at, code| codes[at] = i16::from(five(code, high, at)));
            }
            _ => {}
        }
        if let Some(bytes) = packed::pack(self.dtype, &codes) {
            out.copy_from_slice(&bytes);
        }
    }
}

impl Produce for Part {
    fn length(&self) -> usize {
        self.blocks.len() / self.scheme.block().1 * self.size()
    }

    fn granule(&self) -> usize {
        self.size()
    }

    fn produce(&self, offset: usize, target: &mut [u8]) -> io::Result<()> {
        let (bytes, size) = (self.scheme.block().1, self.size());
        let (first, count) = (offset / size, target.len() / size);
        self.blocks.with_window(first * bytes..(first + count) * bytes, |source| {
            for (block, out) in source.chunks_exact(bytes).zip(target.chunks_exact_mut(size)) {
                self.write(block, out);
            }
        })
    }

    fn identity(&self) -> Option<Identity> {
        let kind = if self.scales { "gguf scales" } else { "gguf codes" };
        let identity = Identity::new(kind).with(u64::from(self.scheme.code()));
        Some(identity.with_part(&self.blocks.identity()))
    }
}
