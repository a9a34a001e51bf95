//! Zip archives as torch writes them: entries stored, never compressed, so that each is a run of the file.
//!
//! The usual crate is not used: torch writes dates with month 0, local headers without sizes, and this reader
//! wants no more than where each entry lies. It goes by the central directory alone, zip64 included.

use std::collections::HashMap;

use coremill_tensor::Buffer;

use crate::error::{Error, shown};
use crate::limits::{MAX_ENTRIES, MAX_NAME_BYTES};

const END: u32 = 0x0605_4b50;
const END_BYTES: usize = 22;
const END_64: u32 = 0x0606_4b50;
const END_64_BYTES: usize = 56;
const LOCATOR_64: u32 = 0x0706_4b50;
const LOCATOR_64_BYTES: usize = 20;
const CENTRAL: u32 = 0x0201_4b50;
const CENTRAL_BYTES: usize = 46;
const LOCAL: u32 = 0x0403_4b50;
const LOCAL_BYTES: usize = 30;
/// The comment after the end record has a 16-bit length.
const MAX_COMMENT: usize = 0xffff;
const FLAG_ENCRYPTED: u16 = 1;
const METHOD_STORED: u16 = 0;
const EXTRA_ZIP64: u16 = 1;

/// An opened archive: names, and where their bytes are.
#[derive(Debug)]
pub(crate) struct Archive {
    bytes: Buffer,
    entries: Vec<Entry>,
    by_name: HashMap<String, usize>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    header: u64,
    size: u64,
    compressed: u64,
    method: u16,
    flags: u16,
}

impl Archive {
    /// Reads the central directory.
    pub(crate) fn open(bytes: Buffer) -> Result<Archive, Error> {
        let (entries, by_name) = directory(bytes.as_bytes())?;
        Ok(Archive { bytes, entries, by_name })
    }

    /// The names in the order of the directory.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// Whether there is an entry of this name.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// The bytes of an entry, none if there is no such entry.
    pub(crate) fn find(&self, name: &str) -> Result<Option<Buffer>, Error> {
        match self.by_name.get(name) {
            None => Ok(None),
            Some(&index) => {
                self.content(&self.entries[index]).map(Some).map_err(|error| error.in_entry(name))
            }
        }
    }

    /// The bytes of an entry that has to be there.
    pub(crate) fn get(&self, name: &str) -> Result<Buffer, Error> {
        self.find(name)?.ok_or_else(|| {
            Error::malformed(format!("the archive has no entry `{}`", shown(name)))
                .with_hint("export the program anew; the file may be incomplete")
        })
    }

    fn content(&self, entry: &Entry) -> Result<Buffer, Error> {
        if entry.flags & FLAG_ENCRYPTED != 0 {
            return Err(Error::unsupported("the entry is encrypted; torch writes plain ones"));
        }
        if entry.method != METHOD_STORED {
            return Err(Error::unsupported(format!(
                "the entry is compressed (method {}); torch stores entries as they are (method 0)",
                entry.method
            ))
            .with_hint("repack the archive without compression (`zip -0`), or export anew"));
        }
        if entry.size != entry.compressed {
            return Err(Error::malformed(format!(
                "the entry is stored, and yet has {} bytes in the archive and {} out of it",
                entry.compressed, entry.size
            )));
        }
        let outside = || {
            Error::malformed(format!(
                "{} bytes after the header at {} do not lie within the file of {} bytes",
                entry.size,
                entry.header,
                self.bytes.len()
            ))
        };
        let header = usize::try_from(entry.header).map_err(|_| outside())?;
        let local = Fields::at(self.bytes.as_bytes(), header, LOCAL_BYTES).ok_or_else(outside)?;
        if local.u32(0) != LOCAL {
            return Err(Error::malformed(format!("no entry starts at {}", entry.header)));
        }
        // Only the lengths are taken from the local header: its sizes are 0 where a descriptor follows.
        let start = header + LOCAL_BYTES + usize::from(local.u16(26)) + usize::from(local.u16(28));
        let size = usize::try_from(entry.size).map_err(|_| outside())?;
        let end = start.checked_add(size).ok_or_else(outside)?;
        self.bytes.slice(start..end).ok_or_else(outside)
    }
}

/// A run of bytes whose length was checked.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn at(bytes: &'a [u8], offset: usize, length: usize) -> Option<Fields<'a>> {
        bytes.get(offset..offset.checked_add(length)?).map(Fields)
    }

    fn array<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut array = [0; N];
        array.copy_from_slice(&self.0[offset..offset + N]);
        array
    }

    fn u16(&self, offset: usize) -> u16 {
        u16::from_le_bytes(self.array(offset))
    }

    fn u32(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.array(offset))
    }

    fn u64(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.array(offset))
    }
}

/// Where the central directory is.
struct End {
    entries: u64,
    size: u64,
    offset: u64,
}

fn directory(bytes: &[u8]) -> Result<(Vec<Entry>, HashMap<String, usize>), Error> {
    let end = end(bytes)?;
    if end.entries > MAX_ENTRIES {
        return Err(Error::limit(format!(
            "the archive claims {} entries; at most {MAX_ENTRIES} are read",
            end.entries
        )));
    }
    let start = usize::try_from(end.offset).ok();
    let size = usize::try_from(end.size).ok();
    let range = start.zip(size).and_then(|(start, size)| Some(start..start.checked_add(size)?));
    let directory = range.and_then(|range| bytes.get(range)).ok_or_else(|| {
        Error::malformed(format!(
            "the directory of {} bytes at {} does not lie within the file of {} bytes",
            end.size,
            end.offset,
            bytes.len()
        ))
        .with_hint("the file may be cut short")
    })?;
    let mut entries = Vec::new();
    let mut by_name = HashMap::new();
    let mut at = 0;
    for index in 0..end.entries {
        let (entry, next) = central(directory, at)
            .map_err(|what| Error::malformed(format!("entry {index} of the directory {what}")))?;
        at = next;
        if by_name.insert(entry.name.clone(), entries.len()).is_some() {
            return Err(Error::malformed(format!(
                "two entries have the name `{}`",
                shown(&entry.name)
            )));
        }
        entries.push(entry);
    }
    Ok((entries, by_name))
}

fn end(bytes: &[u8]) -> Result<End, Error> {
    let least = bytes.len().saturating_sub(END_BYTES + MAX_COMMENT);
    let last = bytes.len().checked_sub(END_BYTES);
    let found = last.and_then(|last| {
        (least..=last).rev().find(|&at| {
            let fields = Fields(&bytes[at..]);
            // A comment that reaches to the very end tells a record from bytes that look like one.
            fields.u32(0) == END && at + END_BYTES + usize::from(fields.u16(20)) == bytes.len()
        })
    });
    let Some(at) = found else {
        return Err(Error::malformed("the file is no zip archive, or is cut short")
            .with_hint("pass what `torch.export.save` or `executorch.exir.save` wrote"));
    };
    let fields = Fields(&bytes[at..at + END_BYTES]);
    let plain = End {
        entries: fields.u16(10).into(),
        size: fields.u32(12).into(),
        offset: fields.u32(16).into(),
    };
    let locator = at
        .checked_sub(LOCATOR_64_BYTES)
        .and_then(|at| Fields::at(bytes, at, LOCATOR_64_BYTES))
        .filter(|locator| locator.u32(0) == LOCATOR_64);
    let Some(locator) = locator else { return Ok(plain) };
    let at = usize::try_from(locator.u64(8)).ok();
    let record = at.and_then(|at| Fields::at(bytes, at, END_64_BYTES));
    match record.filter(|record| record.u32(0) == END_64) {
        Some(record) => {
            Ok(End { entries: record.u64(32), size: record.u64(40), offset: record.u64(48) })
        }
        None => Err(Error::malformed(format!(
            "there is no zip64 end record at {}, where the locator says it is",
            locator.u64(8)
        ))),
    }
}

/// One record of the directory, and where the next starts.
fn central(directory: &[u8], at: usize) -> Result<(Entry, usize), &'static str> {
    let fields = Fields::at(directory, at, CENTRAL_BYTES).ok_or("is cut short")?;
    if fields.u32(0) != CENTRAL {
        return Err("does not start with its signature");
    }
    let name_bytes = usize::from(fields.u16(28));
    let extra_bytes = usize::from(fields.u16(30));
    let comment_bytes = usize::from(fields.u16(32));
    let rest = at + CENTRAL_BYTES;
    let name = directory.get(rest..rest + name_bytes).ok_or("is cut short")?;
    if name.len() > MAX_NAME_BYTES {
        return Err("has a name that is too long");
    }
    let name = std::str::from_utf8(name).map_err(|_| "has a name that is not UTF-8")?;
    let extra_at = rest + name_bytes;
    let extra = directory.get(extra_at..extra_at + extra_bytes).ok_or("is cut short")?;
    let mut entry = Entry {
        name: name.to_owned(),
        header: fields.u32(42).into(),
        size: fields.u32(24).into(),
        compressed: fields.u32(20).into(),
        method: fields.u16(10),
        flags: fields.u16(8),
    };
    widen(&mut entry, extra)?;
    Ok((entry, extra_at + extra_bytes + comment_bytes))
}

/// Replaces what did not fit 32 bits by the zip64 field: only such values are there, in this order.
fn widen(entry: &mut Entry, mut extra: &[u8]) -> Result<(), &'static str> {
    while let Some(fields) = Fields::at(extra, 0, 4) {
        let length = usize::from(fields.u16(2));
        let Some(mut field) = extra.get(4..4 + length) else { break };
        if fields.u16(0) == EXTRA_ZIP64 {
            for value in [&mut entry.size, &mut entry.compressed, &mut entry.header] {
                if *value == u64::from(u32::MAX) {
                    *value = Fields::at(field, 0, 8).ok_or("has a short zip64 field")?.u64(0);
                    field = &field[8..];
                }
            }
            break;
        }
        extra = &extra[4 + length..];
    }
    Ok(())
}
