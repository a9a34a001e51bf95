//! `.gguf` files: metadata, tensor descriptions, and tensors at aligned offsets.

use std::collections::BTreeMap;
use std::path::Path;

use coremill_tensor::Buffer;

use super::{map, part, refused};
use crate::error::Result as CrateResult;
use crate::params::Param;
use crate::scheme::Scheme;

pub(super) const MAGIC: [u8; 4] = *b"GGUF";

/// Maximum size of names and metadata in bytes; vocabularies have some megabytes.
const MAX_HEADER_BYTES: usize = 256 << 20;

/// Maximum nesting depth of arrays.
const MAX_DEPTH: usize = 4;

/// Maximum number of metadata entries: each takes several times its bytes in memory, and files have about a hundred.
const MAX_ENTRIES: u64 = 1 << 16;

/// Maximum number of tensors, for the same reason. Models with separate experts have tens of thousands.
const MAX_TENSORS: u64 = 1 << 17;

/// Maximum rank of a tensor, as in the format's own reader.
const MAX_RANK: u32 = 8;

/// A GGUF file: metadata and tensors by name.
#[derive(Clone, Debug, Default)]
pub struct Gguf {
    /// Metadata of the model, for instance `llama.block_count`.
    pub metadata: BTreeMap<String, MetadataValue>,
    /// The tensors in the order of the file.
    pub(super) tensors: Vec<(String, Param)>,
    /// Names of tensors in schemes that are not supported, with the schemes' codes.
    pub unsupported: Vec<(String, u32)>,
}

/// A value of a GGUF file's metadata.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum MetadataValue {
    /// A signed integer of any width.
    Int(i64),
    /// An unsigned integer of any width.
    UInt(u64),
    /// A float of any width.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A string.
    Text(String),
    /// Several values of one type.
    Array(MetadataArray),
}

/// Values of one type, which stay in the file and are read one by one: a vocabulary takes no memory.
#[derive(Clone, Debug)]
pub struct MetadataArray {
    kind: u32,
    count: u64,
    depth: usize,
    bytes: Buffer,
}

impl MetadataArray {
    /// Number of values.
    pub fn len(&self) -> usize {
        usize::try_from(self.count).unwrap_or(usize::MAX)
    }

    /// Whether the array has no values.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The values in order. Reading ends early if the file was shortened meanwhile.
    pub fn iter(&self) -> impl Iterator<Item = MetadataValue> {
        let mut reader = Reader { file: &self.bytes, at: 0 };
        (0..self.count).map_while(move |_| reader.value(self.kind, self.depth).ok())
    }
}

impl MetadataValue {
    /// The value as an unsigned integer, if it is an integer in range.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            MetadataValue::UInt(value) => Some(value),
            MetadataValue::Int(value) => u64::try_from(value).ok(),
            _ => None,
        }
    }

    /// The value as a float, if it is a number.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            MetadataValue::Float(value) => Some(value),
            MetadataValue::UInt(value) => Some(value as f64),
            MetadataValue::Int(value) => Some(value as f64),
            _ => None,
        }
    }

    /// The value as a boolean, if it is one.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            MetadataValue::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// The values, if there are several.
    pub fn as_array(&self) -> Option<&MetadataArray> {
        match self {
            MetadataValue::Array(values) => Some(values),
            _ => None,
        }
    }

    /// The value as a string, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            MetadataValue::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl Gguf {
    /// Opens a file; its tensors stay mapped.
    pub fn open(path: impl AsRef<Path>) -> CrateResult<Gguf> {
        let path = path.as_ref();
        parse(&map(path)?).map_err(|message| refused(path, message))
    }

    /// The message that refuses a tensor because of its scheme, if the scheme is not supported.
    pub fn refusal(&self, name: &str) -> Option<String> {
        let (name, code) = self.unsupported.iter().find(|(refused, _)| refused == name)?;
        Some(unsupported_scheme(name, *code))
    }

    /// The tensors in the order of the file.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Param)> {
        self.tensors.iter().map(|(name, param)| (name.as_str(), param))
    }
}

pub(super) fn parse(file: &Buffer) -> Result<Gguf, String> {
    let mut reader = Reader { file, at: 0 };
    if reader.array::<4>()? != MAGIC {
        return Err("is not a GGUF file".to_owned());
    }
    let version = reader.u32()?;
    if !(2..=3).contains(&version) {
        return Err(format!("has GGUF version {version}; expected 2 or 3"));
    }
    let (tensor_count, entry_count) = (reader.u64()?, reader.u64()?);
    for (what, count, most) in
        [("metadata entries", entry_count, MAX_ENTRIES), ("tensors", tensor_count, MAX_TENSORS)]
    {
        if count > most {
            return Err(format!("has {count} {what}; expected at most {most}"));
        }
    }
    let mut metadata = BTreeMap::new();
    for _ in 0..entry_count {
        let key = reader.text()?;
        let kind = reader.u32()?;
        metadata.insert(key, reader.value(kind, 0)?);
    }
    let (mut found, mut unsupported) = (Vec::new(), Vec::new());
    for _ in 0..tensor_count {
        let name = reader.text()?;
        let rank = reader.u32()?;
        if rank > MAX_RANK {
            return Err(format!(
                "tensor `{name}` must have at most {MAX_RANK} dimensions, got {rank}"
            ));
        }
        // The file stores the innermost size first.
        let mut shape = Vec::new();
        for _ in 0..rank {
            shape.insert(0, reader.u64()?);
        }
        let (code, offset) = (reader.u32()?, reader.u64()?);
        let Some(scheme) = Scheme::from_code(code) else {
            unsupported.push((name, code));
            continue;
        };
        found.push((name, scheme, shape, offset));
    }
    let alignment = metadata.get("general.alignment").and_then(MetadataValue::as_u64).unwrap_or(32);
    if !alignment.is_power_of_two() {
        return Err(format!(
            "has a tensor alignment of {alignment} bytes, which is not a power of two"
        ));
    }
    let start = (reader.at as u64).checked_next_multiple_of(alignment);
    let mut tensors = Vec::with_capacity(found.len());
    for (name, scheme, shape, offset) in found {
        let Some(length) = scheme.storage_bytes(&shape) else {
            let block = scheme.block().0;
            if shape.last().is_none_or(|row| row.is_multiple_of(block as u64)) {
                return Err(format!("tensor `{name}` of shape {shape:?} is too large"));
            }
            return Err(format!(
                "tensor `{name}` of shape {shape:?} is stored in {scheme}, whose row lengths are multiples of {block}"
            ));
        };
        let bytes = start.and_then(|start| part(file, start.checked_add(offset)?, length));
        let Some(bytes) = bytes else {
            return Err(format!("tensor `{name}` extends beyond the end of the file"));
        };
        let param = Param::blocks(scheme, shape, bytes);
        tensors.push((name, param.map_err(|error| error.to_string())?));
    }
    Ok(Gguf { metadata, tensors, unsupported })
}

/// The reason why a tensor in an unsupported scheme is refused.
pub(super) fn unsupported_scheme(name: &str, code: u32) -> String {
    let known: Vec<_> = Scheme::ALL.iter().map(|scheme| scheme.name()).collect();
    format!("tensor `{name}` is stored in scheme {code}; expected {}", known.join(", "))
}

struct Reader<'f> {
    file: &'f Buffer,
    at: usize,
}

impl Reader<'_> {
    fn bytes(&mut self, target: &mut [u8]) -> Result<(), String> {
        let at = self.at;
        self.file
            .read_at(at, target)
            .map_err(|_| format!("ends at byte {at}, within its header"))?;
        self.at += target.len();
        if self.at > MAX_HEADER_BYTES {
            return Err(format!("has a header of more than {MAX_HEADER_BYTES} bytes"));
        }
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        self.bytes(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    /// Skips `count` bytes, which must exist.
    fn skip_bytes(&mut self, count: u64) -> Result<(), String> {
        let left = self.file.len().min(MAX_HEADER_BYTES).saturating_sub(self.at) as u64;
        if count > left {
            let at = self.at;
            return Err(format!(
                "ends at byte {at}, within its header of at most {MAX_HEADER_BYTES}"
            ));
        }
        self.at += count as usize;
        Ok(())
    }

    /// The length of a text.
    fn length(&mut self) -> Result<u64, String> {
        let length = self.u64()?;
        let left = (self.file.len() - self.at).min(MAX_HEADER_BYTES) as u64;
        if length > left {
            return Err(format!(
                "has a string of {length} bytes at byte {}, which extends beyond its end",
                self.at
            ));
        }
        Ok(length)
    }

    fn text(&mut self) -> Result<String, String> {
        let length = self.length()?;
        let mut bytes = vec![0; length as usize];
        self.bytes(&mut bytes)?;
        // Vocabularies contain tokens that are parts of characters.
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// Skips an array and returns its description. Its values are checked, and none is kept.
    fn array_value(&mut self, depth: usize) -> Result<MetadataArray, String> {
        let (kind, count) = (self.u32()?, self.u64()?);
        // Each value needs at least one byte.
        if count > (self.file.len() - self.at) as u64 {
            return Err(format!("has an oversized array of {count} elements at byte {}", self.at));
        }
        let start = self.at;
        match size(kind) {
            Some(size) => self.skip_bytes(count.saturating_mul(size))?,
            None => {
                for _ in 0..count {
                    match kind {
                        8 => {
                            let length = self.length()?;
                            self.skip_bytes(length)?;
                        }
                        9 if depth < MAX_DEPTH => drop(self.array_value(depth + 1)?),
                        _ => return Err(unknown_kind(kind, self.at)),
                    }
                }
            }
        }
        let bytes = self.file.slice(start..self.at).ok_or_else(|| unknown_kind(kind, start))?;
        Ok(MetadataArray { kind, count, depth: depth + 1, bytes })
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<MetadataValue, String> {
        Ok(match kind {
            0 => MetadataValue::UInt(self.array::<1>()?[0].into()),
            1 => MetadataValue::Int((self.array::<1>()?[0] as i8).into()),
            2 => MetadataValue::UInt(u16::from_le_bytes(self.array()?).into()),
            3 => MetadataValue::Int(i16::from_le_bytes(self.array()?).into()),
            4 => MetadataValue::UInt(self.u32()?.into()),
            5 => MetadataValue::Int(i32::from_le_bytes(self.array()?).into()),
            6 => MetadataValue::Float(f32::from_le_bytes(self.array()?).into()),
            7 => MetadataValue::Bool(self.array::<1>()?[0] != 0),
            8 => MetadataValue::Text(self.text()?),
            9 if depth < MAX_DEPTH => MetadataValue::Array(self.array_value(depth)?),
            10 => MetadataValue::UInt(self.u64()?),
            11 => MetadataValue::Int(i64::from_le_bytes(self.array()?)),
            12 => MetadataValue::Float(f64::from_le_bytes(self.array()?)),
            _ => return Err(unknown_kind(kind, self.at)),
        })
    }
}

fn unknown_kind(kind: u32, at: usize) -> String {
    format!("has metadata of unsupported type {kind} at byte {at}")
}

/// Bytes of a value, for types whose values all take as many.
fn size(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &mut Vec<u8>, text: &str) {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    }

    fn file(code: u32, shape: &[u64], data: &[u8]) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        text(&mut bytes, "general.name");
        bytes.extend(8u32.to_le_bytes());
        text(&mut bytes, "tiny");
        text(&mut bytes, "w");
        bytes.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|extent| bytes.extend(extent.to_le_bytes()));
        bytes.extend(code.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(data);
        bytes
    }

    #[test]
    fn reverses_gguf_dimension_order() {
        let data: Vec<u8> = (0..6).flat_map(|x| (x as f32).to_le_bytes()).collect();
        let gguf = parse(&Buffer::from(file(0, &[3, 2], &data))).expect("a valid file");
        assert_eq!(gguf.metadata["general.name"].as_str(), Some("tiny"));
        let (name, param) = gguf.tensors().next().expect("a tensor");
        assert_eq!((name, param.shape()), ("w", &[2, 3][..]));
        assert_eq!(param.to_floats().expect("floats"), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    }

    #[test]
    fn rejects_invalid_tensors_and_truncated_files() {
        let refusal = |bytes: Vec<u8>| parse(&Buffer::from(bytes)).expect_err("refused");
        let unknown_scheme =
            parse(&Buffer::from(file(99, &[32], &[0; 34]))).expect("the tensor is skipped");
        assert!(unknown_scheme.refusal("w").expect("refused").contains("scheme 99"));
        assert_eq!(unknown_scheme.tensors().count(), 0);
        assert!(refusal(file(8, &[33], &[0; 64])).contains("multiples of 32"));
        assert!(refusal(file(8, &[32], &[0; 8])).contains("beyond the end"));
        assert!(refusal(file(8, &[u64::MAX - 31, 32], &[0; 34])).contains("is too large"));
        let whole = file(8, &[32], &[1; 34]);
        for length in 0..whole.len() {
            assert!(parse(&Buffer::from(whole[..length].to_vec())).is_err(), "{length} bytes");
        }
    }

    /// A file without tensors whose only entry is an array.
    fn array(kind: u32, count: u64, values: &[u8]) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        text(&mut bytes, "a");
        bytes.extend(9u32.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.extend(values);
        bytes
    }

    #[test]
    fn parses_plain_and_nested_metadata_arrays() {
        let mut words = Vec::new();
        text(&mut words, "one");
        text(&mut words, "two");
        let gguf = parse(&Buffer::from(array(8, 2, &words))).expect("a valid file");
        let values = gguf.metadata["a"].as_array().expect("an array");
        let words: Vec<_> = values.iter().filter_map(|it| it.as_str().map(str::to_owned)).collect();
        assert_eq!((values.len(), words), (2, vec!["one".to_owned(), "two".to_owned()]));

        let nested =
            [&8u32.to_le_bytes()[..], &1u64.to_le_bytes(), &1u64.to_le_bytes(), b"x"].concat();
        let gguf = parse(&Buffer::from(array(9, 1, &nested))).expect("a valid file");
        let outer = gguf.metadata["a"].as_array().expect("an array");
        let inner = outer.iter().next().expect("one element");
        let inner = inner.as_array().expect("an array").iter().next().expect("one element");
        assert_eq!(inner.as_str(), Some("x"));
    }

    #[test]
    fn rejects_hostile_arrays_and_tensor_counts() {
        let refusal = |bytes: Vec<u8>| parse(&Buffer::from(bytes)).expect_err("refused");
        assert!(refusal(array(4, 8, &[0; 16])).contains("ends at byte"));
        assert!(refusal(array(0, u64::MAX, &[0; 16])).contains("array of"));
        assert!(refusal(array(13, 1, &[0; 16])).contains("type 13"));
        let mut deep = array(9, 1, &[]);
        for _ in 0..8 {
            deep.extend(9u32.to_le_bytes());
            deep.extend(1u64.to_le_bytes());
        }
        deep.extend([0; 64]);
        assert!(refusal(deep).contains("type 9"));
        let mut many = file(0, &[1], &[0; 4]);
        many[8..16].copy_from_slice(&(1u64 << 40).to_le_bytes());
        assert!(refusal(many).contains("expected at most"));
    }
}
