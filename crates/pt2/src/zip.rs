//! Zip archives written by torch. Entries are stored without compression, so each is a byte range of the
//! file.

use coremill_tensor::Buffer;
use coremill_zip as zip;

use crate::error::{Error, ErrorKind};

/// An opened archive: names of entries and locations of their bytes.
#[derive(Debug)]
pub(crate) struct Archive(zip::Archive);

impl Archive {
    /// Reads the central directory.
    pub(crate) fn open(bytes: Buffer) -> Result<Archive, Error> {
        let opened = zip::Archive::open(bytes).map_err(|error| {
            converted(&error).with_hint(
                "pass a complete file written by `torch.export.save` or `executorch.exir.save`",
            )
        });
        opened.map(Archive)
    }

    /// Names of the entries, in the order of the directory.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.names()
    }

    /// Whether there is an entry with this name.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// The bytes of an entry; `None` if there is no such entry.
    pub(crate) fn find(&self, name: &str) -> Result<Option<Buffer>, Error> {
        if self.contains(name) { self.get(name).map(Some) } else { Ok(None) }
    }

    /// The bytes of an entry that must exist.
    pub(crate) fn get(&self, name: &str) -> Result<Buffer, Error> {
        let missing = !self.contains(name);
        self.0.stored(name).map_err(|error| match converted(&error) {
            error if missing => {
                error.with_hint("export the program again; the file may be incomplete")
            }
            error => error,
        })
    }
}

fn converted(error: &zip::Error) -> Error {
    let kind = match error.kind() {
        zip::ErrorKind::Malformed => ErrorKind::Malformed,
        zip::ErrorKind::Unsupported => ErrorKind::Unsupported,
        zip::ErrorKind::Limit => ErrorKind::Limit,
    };
    let mut converted = Error::new(kind, error.message());
    if let Some(entry) = error.entry() {
        converted = converted.in_entry(entry);
    }
    match error.hint() {
        Some(hint) => converted.with_hint(hint),
        None => converted,
    }
}
