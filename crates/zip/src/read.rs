use std::collections::HashMap;

use coremill_tensor::Buffer;
use miniz_oxide::inflate::{TINFLStatus, decompress_to_vec_with_limit};

use crate::error::{Error, escape_truncated};
use crate::format::*;
use crate::limits::{MAX_ENTRIES, MAX_NAME_BYTES};

/// Number of bytes per step of a checksum.
const WINDOW: usize = 4 << 20;

/// An opened archive: names, and locations of their data.
#[derive(Debug)]
pub struct Archive {
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
    crc: u32,
    method: u16,
    flags: u16,
}

impl Archive {
    /// Reads the central directory.
    pub fn open(bytes: Buffer) -> Result<Archive, Error> {
        let (entries, by_name) = directory(bytes.as_bytes())?;
        Ok(Archive { bytes, entries, by_name })
    }

    /// Names of the entries, in directory order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// Whether an entry with this name exists.
    pub fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Size of an entry according to the directory; `None` if there is no such entry.
    pub fn size(&self, name: &str) -> Option<u64> {
        self.by_name.get(name).map(|&index| self.entries[index].size)
    }

    /// Whether an entry is stored without compression.
    pub fn is_stored(&self, name: &str) -> bool {
        self.by_name.get(name).is_some_and(|&index| self.entries[index].method == METHOD_STORED)
    }

    /// The bytes of a stored entry as a slice of the archive, after verifying their checksum.
    ///
    /// Verification reads a mapped archive in windows and releases their pages, so it does not increase memory use.
    pub fn stored(&self, name: &str) -> Result<Buffer, Error> {
        let entry = self.entry(name)?;
        if entry.method != METHOD_STORED {
            let message = format!("the entry is compressed (method {})", entry.method);
            return Err(Error::unsupported(message)
                .with_hint("repack the archive without compression (`zip -0`)")
                .in_entry(name));
        }
        let read = || {
            let run = whole(entry, self.run(entry)?)?;
            check(entry, &run)?;
            Ok(run)
        };
        read().map_err(|error: Error| error.in_entry(name))
    }

    /// The first bytes of an entry, at most `most`, decompressed if necessary. They are not verified, because the
    /// checksum covers the whole entry.
    pub fn read_start(&self, name: &str, most: usize) -> Result<Buffer, Error> {
        let entry = self.entry(name)?;
        let read = || {
            let run = self.run(entry)?;
            if entry.is_stored()? {
                let length = run.len().min(most);
                return run
                    .slice(0..length)
                    .ok_or_else(|| Error::malformed("the entry is truncated"));
            }
            match decompress_to_vec_with_limit(run.as_bytes(), most) {
                Ok(bytes) => Ok(Buffer::from(bytes)),
                Err(error) if error.status == TINFLStatus::HasMoreOutput => {
                    let mut start = error.output;
                    start.truncate(most);
                    Ok(Buffer::from(start))
                }
                Err(error) => Err(broken(error.status)),
            }
        };
        read().map_err(|error| error.in_entry(name))
    }

    /// The bytes of an entry, at most `most`, decompressed if necessary. The checksum is verified.
    pub fn read(&self, name: &str, most: u64) -> Result<Buffer, Error> {
        let entry = self.entry(name)?;
        let read = || {
            let run = self.run(entry)?;
            let bytes = match entry.is_stored()? {
                true => whole(entry, run)?,
                false => inflate(entry, run.as_bytes(), most)?,
            };
            if bytes.len() as u64 > most {
                return Err(too_long(entry, most));
            }
            check(entry, &bytes)?;
            Ok(bytes)
        };
        read().map_err(|error| error.in_entry(name))
    }

    fn entry(&self, name: &str) -> Result<&Entry, Error> {
        match self.by_name.get(name) {
            Some(&index) => Ok(&self.entries[index]),
            None => Err(Error::malformed(format!(
                "the archive has no entry `{}`",
                escape_truncated(name)
            ))),
        }
    }

    /// The data after the entry's local header.
    fn run(&self, entry: &Entry) -> Result<Buffer, Error> {
        if entry.flags & FLAG_ENCRYPTED != 0 {
            return Err(Error::unsupported("encrypted entries are not supported"));
        }
        let outside = || {
            Error::malformed(format!(
                "{} bytes after the header at {} are outside the file of {} bytes",
                entry.compressed,
                entry.header,
                self.bytes.len()
            ))
        };
        let header = usize::try_from(entry.header).map_err(|_| outside())?;
        let local = Fields::at(self.bytes.as_bytes(), header, LOCAL_BYTES).ok_or_else(outside)?;
        if local.u32(0) != LOCAL {
            return Err(Error::malformed(format!("no entry starts at offset {}", entry.header)));
        }
        // Only the lengths of variable fields are read from the local header, as its sizes are 0 if a descriptor
        // follows.
        let start = header + LOCAL_BYTES + usize::from(local.u16(26)) + usize::from(local.u16(28));
        let size = usize::try_from(entry.compressed).map_err(|_| outside())?;
        let end = start.checked_add(size).ok_or_else(outside)?;
        self.bytes.slice(start..end).ok_or_else(outside)
    }
}

impl Entry {
    /// Whether the entry is stored rather than deflated. Other methods are an error.
    fn is_stored(&self) -> Result<bool, Error> {
        match self.method {
            METHOD_STORED => Ok(true),
            METHOD_DEFLATED => Ok(false),
            method => {
                let message = format!(
                    "the entry must be stored (method 0) or deflated (8), got method {method}"
                );
                Err(Error::unsupported(message))
            }
        }
    }
}

/// The data of a stored entry, if it has the size stated in the directory.
fn whole(entry: &Entry, run: Buffer) -> Result<Buffer, Error> {
    if entry.size != entry.compressed {
        return Err(Error::malformed(format!(
            "the sizes of a stored entry must be equal, got {} bytes compressed and {} uncompressed",
            entry.compressed, entry.size
        )));
    }
    Ok(run)
}

/// Verifies the checksum of an entry.
fn check(entry: &Entry, bytes: &Buffer) -> Result<(), Error> {
    let mut crc = crc32fast::Hasher::new();
    let read = bytes.for_each_window(0..bytes.len(), WINDOW, &mut |window| {
        crc.update(window);
        Ok(())
    });
    read.map_err(|error| Error::malformed(format!("the bytes cannot be read: {error}")))?;
    let crc = crc.finalize();
    if crc == entry.crc {
        return Ok(());
    }
    let message = format!("the checksum must be {:08x}, got {crc:08x}", entry.crc);
    Err(Error::malformed(message).with_hint("the file is damaged; copy or export it again"))
}

/// Decompresses an entry. Memory is allocated as data is produced, not by the size stated in the directory.
fn inflate(entry: &Entry, run: &[u8], most: u64) -> Result<Buffer, Error> {
    if entry.size > most {
        return Err(too_long(entry, most));
    }
    let size = usize::try_from(entry.size).map_err(|_| too_long(entry, most))?;
    match decompress_to_vec_with_limit(run, size) {
        Ok(bytes) if bytes.len() == size => Ok(Buffer::from(bytes)),
        Ok(bytes) => Err(Error::malformed(format!(
            "the entry expands to {} bytes; the directory states {size}",
            bytes.len()
        ))),
        Err(error) if error.status == TINFLStatus::HasMoreOutput => {
            let message = format!("the entry expands to more than {size} bytes");
            Err(Error::malformed(message + ", the size that the directory states"))
        }
        Err(error) => Err(broken(error.status)),
    }
}

fn broken(status: TINFLStatus) -> Error {
    Error::malformed(format!("the compressed data of the entry is invalid ({status:?})"))
        .with_hint("the file may be damaged")
}

fn too_long(entry: &Entry, most: u64) -> Error {
    Error::limit(format!("the entry must have at most {most} bytes, got {}", entry.size))
}

/// Bytes whose length was checked.
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

/// Location of the central directory.
struct End {
    entries: u64,
    size: u64,
    offset: u64,
}

fn directory(bytes: &[u8]) -> Result<(Vec<Entry>, HashMap<String, usize>), Error> {
    let end = end(bytes)?;
    if end.entries > MAX_ENTRIES {
        return Err(Error::limit(format!(
            "the archive claims {} entries; the maximum is {MAX_ENTRIES}",
            end.entries
        )));
    }
    let start = usize::try_from(end.offset).ok();
    let size = usize::try_from(end.size).ok();
    let range = start.zip(size).and_then(|(start, size)| Some(start..start.checked_add(size)?));
    let directory = range.and_then(|range| bytes.get(range)).ok_or_else(|| {
        Error::malformed(format!(
            "the directory of {} bytes at {} is outside the file of {} bytes",
            end.size,
            end.offset,
            bytes.len()
        ))
        .with_hint("the file may be truncated")
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
                escape_truncated(&entry.name)
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
            // A comment that ends exactly at the end of the file distinguishes a record from similar bytes.
            fields.u32(0) == END && at + END_BYTES + usize::from(fields.u16(20)) == bytes.len()
        })
    });
    let Some(at) = found else {
        return Err(Error::malformed("the file is not a zip archive")
            .with_hint("the file may be truncated"));
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
            "the zip64 end record is missing at {}, where the locator points",
            locator.u64(8)
        ))),
    }
}

/// Parses a directory record, and returns the offset of the next one.
fn central(directory: &[u8], at: usize) -> Result<(Entry, usize), &'static str> {
    let fields = Fields::at(directory, at, CENTRAL_BYTES).ok_or("is truncated")?;
    if fields.u32(0) != CENTRAL {
        return Err("does not start with its signature");
    }
    let name_bytes = usize::from(fields.u16(28));
    let extra_bytes = usize::from(fields.u16(30));
    let comment_bytes = usize::from(fields.u16(32));
    let rest = at + CENTRAL_BYTES;
    let name = directory.get(rest..rest + name_bytes).ok_or("is truncated")?;
    if name.len() > MAX_NAME_BYTES {
        return Err("has a name that is too long");
    }
    let name = std::str::from_utf8(name).map_err(|_| "has a name that is not UTF-8")?;
    let extra_at = rest + name_bytes;
    let extra = directory.get(extra_at..extra_at + extra_bytes).ok_or("is truncated")?;
    let mut entry = Entry {
        name: name.to_owned(),
        header: fields.u32(42).into(),
        size: fields.u32(24).into(),
        compressed: fields.u32(20).into(),
        crc: fields.u32(16),
        method: fields.u16(10),
        flags: fields.u16(8),
    };
    widen(&mut entry, extra)?;
    Ok((entry, extra_at + extra_bytes + comment_bytes))
}

/// Reads the values that do not fit in 32 bits from the zip64 field, which contains only these, in this order.
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
