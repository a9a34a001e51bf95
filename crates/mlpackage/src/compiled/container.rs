//! `coremldata.bin`: the kind of a compiled model, its version and its description.
//!
//! Little-endian, as Apple's compiler writes it for one ML Program:
//!
//! ```text
//! u32            502, the field of the model file that holds an ML Program
//! u32            the specification version
//! 20 bytes       zero
//! u64 + text     "generic"
//! u64            the specification version again
//! 24 bytes       zero
//! u64 + bytes    the description, a `ModelDescription` message that always has its metadata field
//! for each function: u32 502, 12 bytes zero
//! ```

use crate::package::decode::kind_name;
use crate::package::{Error, ErrorKind};

/// The number of the model file's field that holds an ML Program.
const ML_PROGRAM: u32 = 502;

/// What stands where pipelines have the names of their parts.
const TARGET: &[u8] = b"generic";

/// Descriptions larger than this are refused; real ones take kilobytes.
const MAX_DESCRIPTION: u64 = 64 << 20;

/// Text before the description longer than this is refused.
const MAX_TARGET: u64 = 1 << 16;

/// What a `coremldata.bin` says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contents<'b> {
    pub(super) specification_version: i32,
    pub(super) description: &'b [u8],
}

pub(super) fn write(specification_version: i32, description: &[u8], functions: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(description.len() + 128);
    bytes.extend(ML_PROGRAM.to_le_bytes());
    bytes.extend(specification_version.to_le_bytes());
    bytes.extend([0; 20]);
    bytes.extend((TARGET.len() as u64).to_le_bytes());
    bytes.extend(TARGET);
    bytes.extend((specification_version as u64).to_le_bytes());
    bytes.extend([0; 24]);
    bytes.extend((description.len() as u64).to_le_bytes());
    bytes.extend(description);
    for _ in 0..functions.max(1) {
        bytes.extend(ML_PROGRAM.to_le_bytes());
        bytes.extend([0; 12]);
    }
    bytes
}

pub(super) fn read(bytes: &[u8]) -> Result<Contents<'_>, Error> {
    let mut rest = bytes;
    let truncated = || {
        let message =
            format!("coremldata.bin ends after {} bytes, in the middle of it", bytes.len());
        Error::new(ErrorKind::ModelFile, message)
    };
    let mut take = |count: u64| {
        let count = usize::try_from(count).ok().filter(|&count| count <= rest.len())?;
        let (taken, left) = rest.split_at(count);
        rest = left;
        Some(taken)
    };
    let kind = take(4).and_then(word).ok_or_else(truncated)?;
    if kind != ML_PROGRAM {
        let name = kind_name(kind).map_or_else(|| format!("model of kind {kind}"), str::to_owned);
        let message = format!("the compiled model is a `{name}`; only `mlProgram` is read");
        return Err(Error::new(ErrorKind::OtherModel, message));
    }
    let version = take(4).and_then(word).ok_or_else(truncated)?;
    let specification_version = i32::try_from(version).map_err(|_| {
        Error::new(ErrorKind::ModelFile, format!("specification version {version} is out of range"))
    })?;
    take(20).ok_or_else(truncated)?;
    let length = take(8).and_then(long).ok_or_else(truncated)?;
    if length > MAX_TARGET {
        let message =
            format!("a text of {length} bytes before the description; at most {MAX_TARGET} go");
        return Err(Error::new(ErrorKind::ModelFile, message));
    }
    take(length).ok_or_else(truncated)?;
    take(32).ok_or_else(truncated)?;
    let length = take(8).and_then(long).ok_or_else(truncated)?;
    if length > MAX_DESCRIPTION {
        let message = format!("a description of {length} bytes; at most {MAX_DESCRIPTION} go");
        return Err(Error::new(ErrorKind::ModelFile, message));
    }
    let description = take(length).ok_or_else(truncated)?;
    // What follows repeats the kind, once for each function, and says nothing else.
    Ok(Contents { specification_version, description })
}

fn word(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_le_bytes)
}

fn long(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_layout() {
        let bytes = write(9, b"description", 2);
        assert_eq!(&bytes[..8], [0xf6, 1, 0, 0, 9, 0, 0, 0]);
        assert_eq!(bytes[0x2b], 9);
        assert_eq!(bytes.len(), 0x53 + 11 + 32);
        let contents = read(&bytes).expect("contents");
        assert_eq!(contents, Contents { specification_version: 9, description: b"description" });
    }

    #[test]
    fn every_truncation_is_refused() {
        let bytes = write(9, b"description", 1);
        for length in 0..bytes.len() - 16 {
            assert!(read(&bytes[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        let mut bytes = write(9, b"description", 1);
        for at in [0x1c, 0x4b] {
            let saved: [u8; 8] = bytes[at..at + 8].try_into().expect("eight");
            bytes[at..at + 8].fill(0xff);
            assert!(read(&bytes).is_err());
            bytes[at..at + 8].copy_from_slice(&saved);
        }
        assert!(read(&bytes).is_ok());
    }

    #[test]
    fn other_kinds_are_refused_by_name() {
        let mut bytes = write(9, b"", 1);
        bytes[0] = 202;
        bytes[1] = 0;
        assert!(read(&bytes).expect_err("a pipeline").to_string().contains("pipeline"));
    }
}
