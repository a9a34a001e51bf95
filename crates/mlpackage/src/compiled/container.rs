//! `coremldata.bin`: the kind of a compiled model, its version and its description.
//!
//! Little-endian, as Apple's compiler writes it for one ML Program:
//!
//! ```text
//! u32            502, the field of the model file that holds an ML Program
//! u32            the specification version from compiler 3520 on, 5 before
//! 20 bytes       zero
//! u64 + text     "generic"
//! u64            the specification version
//! 24 bytes       zero
//! u64 + bytes    the description, a `ModelDescription` message that always has its metadata field
//! for each function: u32 502, 12 bytes zero
//! ```
//!
//! and for a pipeline:
//!
//! ```text
//! u32            202, the field of the model file that holds a pipeline
//! u32            1
//! 12 bytes       zero
//! u64            1
//! u64 + text     "generic.model0v9.0.0" for each stage, with its index and its version, then "generic"
//! u64            the specification version
//! 24 bytes       zero
//! u64 + bytes    the description
//! u64            the number of stages
//! u64            202
//! ```
//!
//! The `modelNames/coremldata.bin` of a pipeline is a count as `u64`, and the name of each stage behind its length as `u64`.

use crate::package::decode::kind_name;
use crate::package::{Error, ErrorKind};
use coremill_mil::limits;

/// Number of the model file's field for an ML Program.
const ML_PROGRAM: u32 = 502;

/// Number of the model file's field for a pipeline.
const PIPELINE: u32 = 202;

/// Target of a model. In a pipeline, the stages precede it.
const TARGET: &str = "generic";

/// Maximum size of a description in bytes; real ones have some kilobytes.
const MAX_DESCRIPTION: u64 = 64 << 20;

/// Maximum length of a stage's name.
const MAX_NAME: u64 = 1 << 16;

/// Maximum length of the text before the description.
const MAX_TARGET: u64 = 1 << 16;

/// Content of a `coremldata.bin`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contents<'b> {
    pub(super) kind: Kind,
    pub(super) specification_version: i32,
    pub(super) description: &'b [u8],
}

/// Supported kinds of compiled models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Program,
    /// A pipeline with this number of stages.
    Pipeline(usize),
}

pub(super) fn write(specification_version: i32, description: &[u8], functions: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(description.len() + 128);
    bytes.extend(ML_PROGRAM.to_le_bytes());
    bytes.extend(specification_version.to_le_bytes());
    bytes.extend([0; 20]);
    target_and_description(&mut bytes, TARGET, specification_version, description);
    for _ in 0..functions.max(1) {
        bytes.extend(ML_PROGRAM.to_le_bytes());
        bytes.extend([0; 12]);
    }
    bytes
}

/// Encodes the file of a pipeline whose stages have these specification versions.
pub(super) fn write_pipeline(
    specification_version: i32,
    description: &[u8],
    stages: &[i32],
) -> Vec<u8> {
    let mut target = String::new();
    for (index, version) in stages.iter().enumerate() {
        target.push_str(&format!("{TARGET}.model{index}v{version}.0.0"));
    }
    target.push_str(TARGET);
    let mut bytes = Vec::with_capacity(description.len() + 256);
    bytes.extend(PIPELINE.to_le_bytes());
    bytes.extend(1u32.to_le_bytes());
    bytes.extend([0; 12]);
    bytes.extend(1u64.to_le_bytes());
    target_and_description(&mut bytes, &target, specification_version, description);
    bytes.extend((stages.len() as u64).to_le_bytes());
    bytes.extend(u64::from(PIPELINE).to_le_bytes());
    bytes
}

fn target_and_description(
    bytes: &mut Vec<u8>,
    target: &str,
    specification_version: i32,
    description: &[u8],
) {
    bytes.extend((target.len() as u64).to_le_bytes());
    bytes.extend(target.as_bytes());
    bytes.extend((specification_version as u64).to_le_bytes());
    bytes.extend([0; 24]);
    bytes.extend((description.len() as u64).to_le_bytes());
    bytes.extend(description);
}

pub(super) fn read(bytes: &[u8]) -> Result<Contents<'_>, Error> {
    let mut rest = bytes;
    let truncated = || {
        let message = format!("coremldata.bin is truncated: it ends after {} bytes", bytes.len());
        Error::new(ErrorKind::ModelFile, message)
    };
    let mut take = |count: u64| {
        let count = usize::try_from(count).ok().filter(|&count| count <= rest.len())?;
        let (taken, left) = rest.split_at(count);
        rest = left;
        Some(taken)
    };
    let kind = take(4).and_then(word).ok_or_else(truncated)?;
    if !matches!(kind, ML_PROGRAM | PIPELINE) {
        let unknown = || format!("model of unknown kind {kind}");
        let name = kind_name(kind).map_or_else(unknown, |name| format!("`{name}`"));
        let message = format!(
            "the compiled model is a {name}; only `mlProgram` and `pipeline` are supported"
        );
        return Err(Error::new(ErrorKind::OtherModel, message));
    }
    // Only some compilers write the specification version into the word after the kind.
    take(24).ok_or_else(truncated)?;
    let length = take(8).and_then(long).ok_or_else(truncated)?;
    if length > MAX_TARGET {
        let message = format!("the target name must have at most {MAX_TARGET} bytes, got {length}");
        return Err(Error::new(ErrorKind::ModelFile, message));
    }
    take(length).ok_or_else(truncated)?;
    let version = take(8).and_then(long).ok_or_else(truncated)?;
    let specification_version = i32::try_from(version).map_err(|_| {
        Error::new(ErrorKind::ModelFile, format!("specification version {version} is out of range"))
    })?;
    take(24).ok_or_else(truncated)?;
    let length = take(8).and_then(long).ok_or_else(truncated)?;
    if length > MAX_DESCRIPTION {
        let message =
            format!("the description has {length} bytes; the maximum is {MAX_DESCRIPTION}");
        return Err(Error::new(ErrorKind::ModelFile, message));
    }
    let description = take(length).ok_or_else(truncated)?;
    let kind = if kind == PIPELINE {
        let stages = take(8).and_then(long).ok_or_else(truncated)?;
        let limit = limits::PIPELINE_STAGES;
        match usize::try_from(stages) {
            Ok(stages @ 1..) if stages <= limit => Kind::Pipeline(stages),
            _ => {
                let message = format!("a pipeline must have 1 to {limit} stages, got {stages}");
                return Err(Error::new(ErrorKind::ModelFile, message));
            }
        }
    } else {
        // The remaining bytes only repeat the kind, once for each function.
        Kind::Program
    };
    Ok(Contents { kind, specification_version, description })
}

/// Encodes the file with the names of a pipeline's stages.
pub(super) fn write_names(names: &[&str]) -> Vec<u8> {
    let mut bytes = (names.len() as u64).to_le_bytes().to_vec();
    for name in names {
        bytes.extend((name.len() as u64).to_le_bytes());
        bytes.extend(name.as_bytes());
    }
    bytes
}

/// Decodes the names of this number of stages.
pub(super) fn read_names(bytes: &[u8], stages: usize) -> Result<Vec<String>, Error> {
    let wrong = |message: String| Error::new(ErrorKind::ModelFile, message);
    let truncated = || wrong(format!("the file is truncated: it ends after {} bytes", bytes.len()));
    let mut rest = bytes;
    let long = |rest: &mut &[u8]| {
        let (long, left) = rest.split_first_chunk::<8>()?;
        *rest = left;
        Some(u64::from_le_bytes(*long))
    };
    let count = long(&mut rest).ok_or_else(truncated)?;
    if count != stages as u64 {
        return Err(wrong(format!("expected {stages} stage names, got {count}")));
    }
    let mut names = Vec::with_capacity(stages);
    for _ in 0..stages {
        let length = long(&mut rest).ok_or_else(truncated)?;
        if length > MAX_NAME {
            return Err(wrong(format!(
                "a stage name has {length} bytes; the maximum is {MAX_NAME}"
            )));
        }
        let (name, left) = rest.split_at_checked(length as usize).ok_or_else(truncated)?;
        rest = left;
        let name =
            std::str::from_utf8(name).map_err(|_| wrong("a stage name is not UTF-8".to_owned()));
        names.push(name?.to_owned());
    }
    Ok(names)
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
    fn round_trips_program_with_expected_layout() {
        let bytes = write(9, b"description", 2);
        assert_eq!(&bytes[..8], [0xf6, 1, 0, 0, 9, 0, 0, 0]);
        assert_eq!(bytes[0x2b], 9);
        assert_eq!(bytes.len(), 0x53 + 11 + 32);
        let contents = read(&bytes).expect("contents");
        let expected =
            Contents { kind: Kind::Program, specification_version: 9, description: b"description" };
        assert_eq!(contents, expected);
    }

    #[test]
    fn ignores_word_after_kind() {
        let mut bytes = write(7, b"description", 1);
        bytes[4] = 5;
        assert_eq!(read(&bytes).expect("contents").specification_version, 7);
    }

    #[test]
    fn round_trips_pipelines_and_rejects_bad_stage_counts() {
        let bytes = write_pipeline(9, b"description", &[9, 8]);
        let target = b"generic.model0v9.0.0generic.model1v8.0.0generic";
        assert_eq!(bytes[0x24..0x24 + target.len()], target[..]);
        let contents = read(&bytes).expect("contents");
        assert_eq!(contents.kind, Kind::Pipeline(2));
        assert_eq!(
            (contents.specification_version, contents.description),
            (9, &b"description"[..])
        );
        let stages = bytes.len() - 16;
        for count in [0u8, 0xff] {
            let mut damaged = bytes.clone();
            damaged[stages..stages + 8].fill(count);
            let error = read(&damaged).expect_err("a bad stage count").to_string();
            assert!(error.contains("must have 1 to"), "{error}");
        }
    }

    #[test]
    fn round_trips_stage_names_and_rejects_damage() {
        let bytes = write_names(&["stage0", "", "größe"]);
        assert_eq!(bytes[..22], *b"\x03\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0stage0");
        assert_eq!(read_names(&bytes, 3).expect("names"), ["stage0", "", "größe"]);
        assert!(read_names(&bytes, 2).is_err());
        for length in 0..bytes.len() {
            assert!(read_names(&bytes[..length], 3).is_err(), "{length}");
        }
        let mut damaged = bytes.clone();
        damaged[8..16].fill(0xff);
        assert!(read_names(&damaged, 3).is_err());
    }

    #[test]
    fn rejects_every_truncation() {
        let bytes = write(9, b"description", 1);
        for length in 0..bytes.len() - 16 {
            assert!(read(&bytes[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn rejects_out_of_range_lengths() {
        let mut bytes = write(9, b"description", 1);
        for at in [0x1c, 0x4b] {
            let saved: [u8; 8] = bytes[at..at + 8].try_into().expect("eight bytes");
            bytes[at..at + 8].fill(0xff);
            assert!(read(&bytes).is_err());
            bytes[at..at + 8].copy_from_slice(&saved);
        }
        assert!(read(&bytes).is_ok());
    }

    #[test]
    fn rejects_other_model_kinds_by_name() {
        let mut bytes = write(9, b"", 1);
        bytes[..2].copy_from_slice(&500u16.to_le_bytes());
        assert!(
            read(&bytes).expect_err("a neural network").to_string().contains("`neuralNetwork`")
        );
    }
}
