//! Weight files: the format that Core ML calls MILBlob storage, version 2.
//!
//! A file starts with a header of 64 bytes: the number of records and the version, as little-endian `u32`s.
//! Each record starts at a multiple of 64 bytes with 64 bytes of metadata, followed directly by its elements:
//!
//! | bytes | contents |
//! |---|---|
//! | 0..4 | the sentinel `0xDEADBEEF` |
//! | 4..8 | the element type, in a numbering of its own |
//! | 8..16 | the number of bytes of the elements |
//! | 16..24 | the offset of the elements in the file |
//! | 24..32 | the number of unused bits in the last byte, for elements narrower than a byte |
//! | 32..64 | zeros |
//!
//! Programs refer to a record by its file and offset. Names of files start with `@model_path/`, which is the
//! directory of the model file.

mod files;
mod layout;
mod stream;
#[cfg(test)]
mod tests;

pub use files::WeightFiles;
pub use layout::Layout;
pub(crate) use layout::{WrittenFile, copy_file};

use coremill_tensor::DType;

use super::error::{Error, ErrorKind};
use coremill_mil::ir::Opset;

/// Prefix of the names of weight files in programs.
pub(crate) const MODEL_PATH: &str = "@model_path/";

/// Default weight file.
pub(crate) const DEFAULT_FILE: &str = "@model_path/weights/weight.bin";

/// Alignment of records and their elements.
pub(crate) const ALIGNMENT: u64 = 64;

/// Size in bytes of a file's header, and of a record's metadata.
pub(crate) const HEADER_BYTES: usize = 64;

const VERSION: u32 = 2;
const SENTINEL: u32 = 0xdead_beef;

/// Minimum number of elements of a constant in a weight file.
const FEWEST_ELEMENTS: u64 = 10;

/// Whether a constant is stored in the weight file, by the rule of coremltools: it must have at least ten
/// elements, and the opset must support the element type in weight files.
pub fn belongs_in_file(dtype: DType, count: u64, opset: Opset) -> bool {
    let accepted = match dtype {
        DType::Fp16 | DType::Fp32 | DType::Int8 | DType::UInt8 => true,
        // Types narrower than a byte were introduced in iOS 18 and have always been supported in weight
        // files.
        DType::Int4
        | DType::UInt1
        | DType::UInt2
        | DType::UInt3
        | DType::UInt4
        | DType::UInt6
        | DType::Int16
        | DType::UInt16
        | DType::Int32
        | DType::UInt32 => opset >= Opset::Ios18,
        // The format has codes for these types, but converters do not use them.
        DType::Bf16 | DType::Fp8E4M3Fn | DType::Fp8E5M2 => false,
        DType::Bool | DType::String | DType::Fp64 | DType::Int64 | DType::UInt64 => false,
    };
    accepted && count >= FEWEST_ELEMENTS
}

/// Code of an element type in weight files; `None` if they do not support it.
pub(crate) const fn code(dtype: DType) -> Option<u32> {
    Some(match dtype {
        DType::Fp16 => 1,
        DType::Fp32 => 2,
        DType::UInt8 => 3,
        DType::Int8 => 4,
        DType::Bf16 => 5,
        DType::Int16 => 6,
        DType::UInt16 => 7,
        DType::Int4 => 8,
        DType::UInt1 => 9,
        DType::UInt2 => 10,
        DType::UInt4 => 11,
        DType::UInt3 => 12,
        DType::UInt6 => 13,
        DType::Int32 => 14,
        DType::UInt32 => 15,
        DType::Fp8E4M3Fn => 16,
        DType::Fp8E5M2 => 17,
        DType::Bool | DType::String | DType::Fp64 | DType::Int64 | DType::UInt64 => return None,
    })
}

/// Whether the element type with this code is narrower than a byte.
fn is_narrow(number: u32) -> bool {
    DType::ALL.into_iter().any(|dtype| dtype.is_sub_byte() && code(dtype) == Some(number))
}

/// Metadata of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Code of the element type.
    pub(crate) code: u32,
    /// Size of the elements in bytes.
    pub(crate) bytes: u64,
    /// Offset of the elements.
    pub(crate) data: u64,
    /// Number of unused bits in the last byte.
    pub(crate) padding_bits: u64,
}

impl Record {
    /// The record of `count` elements with its metadata at `offset`.
    fn of(dtype: DType, count: u64, offset: u64) -> Option<Record> {
        let bytes = dtype.storage_bytes(count)?;
        let bits = u64::from(dtype.bits()?);
        let used = count.checked_mul(bits)? % 8;
        Some(Record {
            code: code(dtype)?,
            bytes,
            data: offset.checked_add(HEADER_BYTES as u64)?,
            padding_bits: (8 - used) % 8,
        })
    }

    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&SENTINEL.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.code.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.data.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.padding_bits.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; HEADER_BYTES], offset: u64) -> Result<Record, Error> {
        let sentinel = u32_at(bytes, 0);
        if sentinel != SENTINEL {
            let message = format!("no weight record starts here: found {sentinel:#010x}");
            return Err(Error::new(ErrorKind::Weights, message).at(offset));
        }
        let code = u32_at(bytes, 4);
        // Writers that predate types narrower than a byte left this field uninitialized, so it is valid only
        // for such types.
        let padding_bits = if is_narrow(code) { u64_at(bytes, 24) } else { 0 };
        Ok(Record { code, bytes: u64_at(bytes, 8), data: u64_at(bytes, 16), padding_bits })
    }
}

fn header(records: u32) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[0..4].copy_from_slice(&records.to_le_bytes());
    bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

fn u64_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}
