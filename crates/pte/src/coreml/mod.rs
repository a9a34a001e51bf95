//! Payload of ExecuTorch's Core ML backend: a directory with a model, serialized to one blob.
//!
//! | path | holds |
//! |---|---|
//! | `metadata.json` | [`Metadata`]: names of inputs and outputs, in order, and an identifier |
//! | `model.mlpackage/…` or `model.mlmodelc/…` | the model as a package or compiled |
//! | `debug_info.json` | [`DebugInfo`]: source nodes of each operation; optional |
//!
//! [`Directory`] implements the directory. If several methods share a model, the directory is stored as named data
//! of the program, and each delegate's payload is a [`Reference`] to a function of it. A [`Description`] contains
//! the interfaces that a model itself declares, for directories without `metadata.json`.

mod debug_info;
mod description;
mod directory;
mod layout;
mod metadata;
mod reference;

use coremill_tensor::Buffer;

pub use debug_info::{DebugInfo, PathPart};
pub use description::Description;
pub use directory::{Directory, Entry};
pub use metadata::{Interface, Metadata, Methods};
pub use reference::Reference;

use crate::ByteRope;
use crate::error::{Error, escape_truncated};
use crate::program::{Delegate, Program};

/// Backend id of the delegates.
pub const BACKEND: &str = "CoreMLBackend";

/// Directory of a package.
pub const PACKAGE: &str = "model.mlpackage";

/// Directory of a compiled model, which takes precedence over a package.
pub const COMPILED: &str = "model.mlmodelc";

/// File with the [`Metadata`].
pub const METADATA: &str = "metadata.json";

/// File with the [`DebugInfo`].
pub const DEBUG_INFO: &str = "debug_info.json";

/// Payload of a delegate.
#[derive(Clone, Debug)]
pub struct Payload {
    /// All files.
    pub directory: Directory,
    /// Contents of `metadata.json`.
    pub metadata: Metadata,
    /// For a shared model: the named data with the directory, and the selected function.
    pub reference: Option<Reference>,
}

impl Payload {
    /// The payload of a delegate.
    pub fn of(program: &Program, delegate: &Delegate) -> Result<Payload, Error> {
        let data = program.delegate_data.get(delegate.data as usize).ok_or_else(|| {
            let count = program.delegate_data.len();
            Error::malformed(format!("data {} is out of range; there are {count}", delegate.data))
        })?;
        let Some(reference) = Reference::read(&data.to_buffer())? else {
            return Payload::read(data);
        };
        let found = program.named_data.iter().find(|named| named.key == reference.key);
        let named = found.ok_or_else(|| {
            let key = escape_truncated(&reference.key);
            Error::malformed(format!("the program has no named data `{key}`"))
        })?;
        let within =
            |error: Error| error.within(format!("named data `{}`", escape_truncated(&named.key)));
        let payload = Payload::read(&named.data).map_err(within)?;
        payload.metadata.interface(Some(&reference.function)).map_err(within)?;
        Ok(Payload { reference: Some(reference), ..payload })
    }

    /// Parses the payload in a serialized directory.
    pub fn read(data: &ByteRope) -> Result<Payload, Error> {
        let directory = Directory::read(data)?;
        let Some(metadata) = directory.file(METADATA) else {
            return Err(Error::malformed(format!("the directory has no `{METADATA}`")));
        };
        let metadata = Metadata::read(&metadata.to_buffer())
            .map_err(|error| error.within(format!("`{METADATA}`")))?;
        Ok(Payload { directory, metadata, reference: None })
    }

    /// Names of inputs and outputs.
    pub fn interface(&self) -> Result<&Interface, Error> {
        self.metadata.interface(self.reference.as_ref().map(|reference| &*reference.function))
    }

    /// The selected function of the model; `None` for the only one.
    pub fn function(&self) -> Option<&str> {
        self.reference.as_ref().map(|reference| &*reference.function)
    }

    /// The model's files by relative path, and whether the model is compiled.
    pub fn model(&self) -> Result<(bool, Vec<(String, Buffer)>), Error> {
        for (compiled, root) in [(true, COMPILED), (false, PACKAGE)] {
            let files = self.directory.below(root);
            if !files.is_empty() {
                let file = |(path, data): (&str, &ByteRope)| (path.to_owned(), data.to_buffer());
                return Ok((compiled, files.into_iter().map(file).collect()));
            }
        }
        Err(Error::malformed(format!(
            "the directory contains neither `{PACKAGE}` nor `{COMPILED}`"
        )))
    }

    /// Contents of `debug_info.json`, if present.
    pub fn debug_info(&self) -> Result<Option<DebugInfo>, Error> {
        let Some(file) = self.directory.file(DEBUG_INFO) else { return Ok(None) };
        let info = DebugInfo::read(&file.to_buffer());
        info.map(Some).map_err(|error| error.within(format!("`{DEBUG_INFO}`")))
    }
}

/// Identifier derived from content, by which devices cache compiled models. Equal content has equal identifiers.
///
/// It has the format of ExecuTorch's random identifiers.
pub fn identifier(content: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("coremill Core ML delegate identifier");
    let mut bytes = [0; 16];
    hasher.update(content).finalize_xof().fill(&mut bytes);
    // A version 8 UUID, whose remaining bits are application-defined.
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    format!("executorch_{}", parts.join("-"))
}

/// Parses JSON.
fn from_json<T: serde::de::DeserializeOwned>(bytes: &Buffer) -> Result<T, Error> {
    if bytes.len() > crate::limits::JSON_BYTES {
        let limit = crate::limits::JSON_BYTES;
        return Err(Error::limit(format!(
            "the JSON has {} bytes; the maximum is {limit}",
            bytes.len()
        )));
    }
    serde_json::from_slice(bytes.as_bytes())
        .map_err(|error| Error::malformed(format!("cannot parse the JSON: {error}")))
}

/// Serializes JSON like Python: a space after each comma and colon, ASCII only.
fn to_json(value: &impl serde::Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Python);
    value.serialize(&mut serializer).expect("strings and numbers in memory have a JSON form");
    bytes
}

struct Python;

impl serde_json::ser::Formatter for Python {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        to: &mut W,
    ) -> std::io::Result<()> {
        to.write_all(b": ")
    }

    fn write_string_fragment<W: ?Sized + std::io::Write>(
        &mut self,
        to: &mut W,
        fragment: &str,
    ) -> std::io::Result<()> {
        for c in fragment.chars() {
            if c.is_ascii() && c != '\u{7f}' {
                to.write_all(&[c as u8])?;
            } else {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(to, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }
}
