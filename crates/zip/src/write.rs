use std::collections::HashSet;
use std::io::{self, Write};

use crate::format::*;

/// Date of every entry: 1 January 1980, the first valid date, so that output is deterministic.
const DATE: u16 = 0x0021;
/// Format version required of readers: 2.0, or 4.5 for zip64.
const VERSION: u16 = 20;
const VERSION_64: u16 = 45;

/// Writes an archive of stored entries.
#[derive(Debug)]
pub struct Writer<W> {
    to: W,
    offset: u64,
    directory: Vec<u8>,
    names: HashSet<String>,
    /// Sizes and offsets from this value on are written to zip64 fields.
    wide: u64,
}

impl<W: Write> Writer<W> {
    /// Starts an empty archive.
    pub fn new(to: W) -> Writer<W> {
        let wide = u64::from(u32::MAX);
        Writer { to, offset: 0, directory: Vec::new(), names: HashSet::new(), wide }
    }

    /// Adds an entry with the concatenation of some parts.
    pub fn add(&mut self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        let invalid = |message: String| Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        let Ok(name_bytes) = u16::try_from(name.len()) else {
            return invalid(format!(
                "an entry name must have at most 65535 bytes, got {}",
                name.len()
            ));
        };
        if !self.names.insert(name.to_owned()) {
            return invalid(format!("two entries have the name `{name}`"));
        }
        let mut crc = crc32fast::Hasher::new();
        parts.iter().for_each(|part| crc.update(part));
        let crc = crc.finalize();
        let size: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let at = self.offset;
        let flags = if name.is_ascii() { 0 } else { FLAG_UTF8 };

        let mut local = Record::new(LOCAL);
        let wide_size = size >= self.wide;
        local.u16(if wide_size { VERSION_64 } else { VERSION });
        local.u16s([flags, METHOD_STORED, 0, DATE]);
        local.u32(crc);
        let narrow = if wide_size { u32::MAX } else { size as u32 };
        local.u32(narrow).u32(narrow);
        local.u16(name_bytes).u16(if wide_size { 20 } else { 0 });
        local.bytes(name.as_bytes());
        if wide_size {
            local.u16s([EXTRA_ZIP64, 16]).u64(size).u64(size);
        }
        self.put(&local.0)?;
        for part in parts {
            self.put(part)?;
        }

        let wide_offset = at >= self.wide;
        let extra = 16 * u16::from(wide_size) + 8 * u16::from(wide_offset);
        let version = if extra > 0 { VERSION_64 } else { VERSION };
        let mut central = Record::new(CENTRAL);
        central.u16s([version, version, flags, METHOD_STORED, 0, DATE]);
        central.u32(crc).u32(narrow).u32(narrow);
        central.u16(name_bytes).u16(if extra > 0 { extra + 4 } else { 0 });
        // No comment, first disk, no attributes.
        central.u16s([0; 3]).u32(0);
        central.u32(if wide_offset { u32::MAX } else { at as u32 });
        central.bytes(name.as_bytes());
        if extra > 0 {
            central.u16s([EXTRA_ZIP64, extra]);
        }
        if wide_size {
            central.u64(size).u64(size);
        }
        if wide_offset {
            central.u64(at);
        }
        self.directory.extend(central.0);
        Ok(())
    }

    /// Writes the directory, and returns the writer.
    pub fn finish(mut self) -> io::Result<W> {
        let (at, size) = (self.offset, self.directory.len() as u64);
        let count = self.names.len() as u64;
        let mut tail = Record(std::mem::take(&mut self.directory));
        let wide = count >= u64::from(u16::MAX) || size >= self.wide || at >= self.wide;
        if wide {
            let end_64 = at + size;
            tail.u32(END_64).u64(END_64_BYTES as u64 - 12).u16s([VERSION_64; 2]).u32(0).u32(0);
            tail.u64(count).u64(count).u64(size).u64(at);
            tail.u32(LOCATOR_64).u32(0).u64(end_64).u32(1);
        }
        let count = u16::try_from(count).ok().filter(|_| !wide).unwrap_or(u16::MAX);
        let narrow = |value: u64| if wide { u32::MAX } else { value as u32 };
        tail.u32(END).u16s([0, 0, count, count]).u32(narrow(size)).u32(narrow(at)).u16(0);
        self.put(&tail.0)?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.offset += bytes.len() as u64;
        self.to.write_all(bytes)
    }
}

/// A little-endian record under construction.
struct Record(Vec<u8>);

impl Record {
    fn new(signature: u32) -> Record {
        Record(signature.to_le_bytes().to_vec())
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Record {
        self.0.extend(bytes);
        self
    }

    fn u16(&mut self, value: u16) -> &mut Record {
        self.bytes(&value.to_le_bytes())
    }

    fn u16s<const N: usize>(&mut self, values: [u16; N]) -> &mut Record {
        for value in values {
            self.u16(value);
        }
        self
    }

    fn u32(&mut self, value: u32) -> &mut Record {
        self.bytes(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Record {
        self.bytes(&value.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use coremill_tensor::Buffer;

    use super::*;
    use crate::read::Archive;

    fn entries(archive: &Archive) -> Vec<(String, Vec<u8>)> {
        let names: Vec<_> = archive.names().map(str::to_owned).collect();
        let read = |name: String| {
            let bytes = archive.read(&name, 1 << 20).expect("intact").as_bytes().to_vec();
            (name, bytes)
        };
        names.into_iter().map(read).collect()
    }

    #[test]
    fn round_trips_entries_with_and_without_zip64() {
        // With a threshold of 0, all fields are wide, as in archives above 4 GB.
        for wide in [u64::from(u32::MAX), 10, 0] {
            let mut writer = Writer { wide, ..Writer::new(Vec::new()) };
            writer.add("one", &[b"first ", b"part"]).expect("memory");
            writer.add("größe", &[&[7; 1000]]).expect("memory");
            writer.add("none", &[]).expect("memory");
            assert!(writer.add("one", &[]).is_err());
            let archive = Archive::open(Buffer::from(writer.finish().expect("memory")));
            let expected =
                [("one", b"first part".to_vec()), ("größe", vec![7; 1000]), ("none", vec![])];
            let found = entries(&archive.expect("intact"));
            assert_eq!(found, expected.map(|(name, bytes)| (name.to_owned(), bytes)), "{wide}");
        }
    }

    #[test]
    fn detects_checksum_mismatch_and_truncation() {
        let mut writer = Writer::new(Vec::new());
        writer.add("one", &[b"first part"]).expect("memory");
        let bytes = writer.finish().expect("memory");
        let open = |bytes: Vec<u8>| Archive::open(Buffer::from(bytes)).expect("a directory");
        let mut damaged = bytes.clone();
        damaged[LOCAL_BYTES + 3] ^= 1;
        let error = open(damaged).read("one", 100).expect_err("a changed first byte");
        assert!(error.to_string().starts_with("`one`: the checksum must be "), "{error}");
        let mut large = Writer::new(Vec::new());
        large.add("weights", &[&[3; 9 << 20]]).expect("memory");
        let mut large = large.finish().expect("memory");
        assert_eq!(open(large.clone()).stored("weights").expect("intact").len(), 9 << 20);
        large[5 << 20] ^= 1;
        let error = open(large).stored("weights").expect_err("a changed byte");
        assert!(error.to_string().starts_with("`weights`: the checksum must be "), "{error}");
        let error = open(bytes.clone()).read("one", 9).expect_err("ten bytes");
        assert_eq!(error.to_string(), "`one`: the entry must have at most 9 bytes, got 10");
        assert!(Archive::open(Buffer::from(bytes[..bytes.len() - 1].to_vec())).is_err());
    }
}
