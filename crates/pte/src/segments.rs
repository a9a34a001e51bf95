//! Common parts of both file formats: tables at the start, followed by segments.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use coremill_io::{PositionedWriter, for_each_window, write_anew};
use coremill_tensor::Buffer;

use crate::ByteRope;
use crate::error::{Error, ErrorKind};
use crate::flatbuffer::{Bytes, Fields, Offset, Table};
use crate::program::Unknown;
use crate::schema;

type Result<T> = std::result::Result<T, Error>;

/// Alignment of segments, relative to the start of the file and of the first segment.
pub const SEGMENT_ALIGNMENT: u64 = 128;

/// Maximum number of a plausible field of a newer schema.
const UNKNOWN_SLOTS: u16 = 256;

/// Maximum size in bytes of an unknown field.
const UNKNOWN_BYTES: usize = 64;

/// Buffer size of a writer thread.
const WINDOW: usize = 1 << 20;

/// Reads the segments listed in a table. Each must be inside the file, after `base`.
pub(crate) fn read(
    table: &Table<'_>,
    slot: u16,
    file: &Buffer,
    base: Option<u64>,
) -> Result<Vec<ByteRope>> {
    table.tables(slot, |index, segment| {
        segment.expect_known(schema::segment::COUNT, "a segment")?;
        let offset = segment.u64(schema::segment::OFFSET, 0)?;
        let size = segment.u64(schema::segment::SIZE, 0)?;
        let Some(base) = base.or((size == 0).then_some(0)) else {
            let message = "the file has segments, but its header has no segment offset";
            return Err(Error::malformed(message).at(segment.offset()));
        };
        let found = range(base, offset, size).and_then(|range| file.slice(range));
        found.map(ByteRope::from).ok_or_else(|| {
            let message = format!(
                "segment {index} has {size} bytes at offset {base} + {offset}, beyond the end of the \
                 file at {}",
                file.len()
            );
            Error::malformed(message).at(segment.offset())
        })
    })
}

fn range(base: u64, offset: u64, size: u64) -> Option<Range<usize>> {
    let start = base.checked_add(offset)?;
    let end = start.checked_add(size)?;
    Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
}

/// The tables, given their length in the header.
pub(crate) fn tables<'b>(file: &'b Buffer, length: u64) -> Result<Bytes<'b>> {
    let whole = file.as_bytes();
    let tables = usize::try_from(length).ok().and_then(|length| whole.get(..length));
    tables.map(Bytes::new).ok_or_else(|| {
        let message = format!("the tables have {length} bytes, but the file has {}", whole.len());
        Error::malformed(message)
    })
}

/// Segments to be written, in order.
#[derive(Default)]
pub(crate) struct Segments {
    placed: Vec<(u64, ByteRope)>,
    end: u64,
}

impl Segments {
    /// Adds a segment and returns its index. Data that is identical to a previous segment's, by its location in
    /// memory, is not written again.
    pub(crate) fn add(&mut self, data: &ByteRope, alignment: u64) -> Result<u32> {
        let same = |(offset, known): &(u64, ByteRope)| {
            offset.is_multiple_of(alignment) && same_place(known, data)
        };
        if let Some(known) = self.placed.iter().position(same) {
            return Ok(known as u32);
        }
        self.add_new(data, alignment)
    }

    pub(crate) fn add_new(&mut self, data: &ByteRope, alignment: u64) -> Result<u32> {
        let too_large = || Error::new(ErrorKind::Unwritable, "the segments exceed 2^63 bytes");
        let index = u32::try_from(self.placed.len()).map_err(|_| too_large())?;
        let offset = self.end.checked_next_multiple_of(alignment).ok_or_else(too_large)?;
        let end = offset.checked_add(data.len() as u64).filter(|end| *end < 1 << 63);
        self.end = end.ok_or_else(too_large)?;
        self.placed.push((offset, data.clone()));
        Ok(index)
    }

    /// Size in bytes from the first segment to the end of the last.
    pub(crate) fn len(&self) -> u64 {
        self.end
    }

    /// Writes the table of segments.
    pub(crate) fn tables(&self, builder: &mut crate::flatbuffer::Builder) -> Offset {
        let tables: Vec<Offset> = self
            .placed
            .iter()
            .map(|(offset, data)| {
                let mut fields = Fields::default();
                fields.scalar(schema::segment::OFFSET, *offset);
                fields.scalar(schema::segment::SIZE, data.len() as u64);
                builder.table(&mut fields)
            })
            .collect();
        builder.vector_of_tables(&tables)
    }

    /// Appends the segments to the tables.
    pub(crate) fn behind(self, tables: Vec<u8>) -> ByteRope {
        let base = (tables.len() as u64).next_multiple_of(SEGMENT_ALIGNMENT);
        let mut whole = ByteRope::from(tables);
        for (offset, data) in self.placed {
            let gap = base + offset - whole.len() as u64;
            whole.push(vec![0; gap as usize]);
            whole.append(&data);
        }
        whole
    }
}

/// Whether both consist of the same parts in memory.
fn same_place(left: &ByteRope, right: &ByteRope) -> bool {
    let parts = || left.parts().iter().zip(right.parts());
    left.parts().len() == right.parts().len()
        && parts().all(|(left, right)| left.identity() == right.identity())
}

/// Validates the alignment of a segment.
pub(crate) fn alignment(asked: u32) -> Result<u64> {
    if !asked.is_power_of_two() {
        let message = format!("the alignment must be a power of two, got {asked}");
        return Err(Error::new(ErrorKind::Unwritable, message));
    }
    Ok(SEGMENT_ALIGNMENT.max(u64::from(asked)))
}

impl Unknown {
    /// Rejects unknown fields that cannot be written, because they may contain offsets.
    pub(crate) fn check_writable(&self, what: &str) -> Result<()> {
        for field in &self.0 {
            let problem = if field.may_refer {
                "may contain an offset to other data in the file"
            } else if field.slot >= UNKNOWN_SLOTS || field.bytes.len() > UNKNOWN_BYTES {
                "is too large"
            } else {
                continue;
            };
            let slot = field.slot;
            let message = format!("{what} has an unknown field {slot}, which {problem}");
            return Err(Error::new(ErrorKind::Unwritable, message));
        }
        Ok(())
    }
}

/// Segments that were read, with a flag for each that is referenced.
pub(crate) struct UsedSegments {
    all: Vec<ByteRope>,
    used: Vec<bool>,
}

impl UsedSegments {
    pub(crate) fn new(all: Vec<ByteRope>) -> UsedSegments {
        UsedSegments { used: vec![false; all.len()], all }
    }

    pub(crate) fn get(&mut self, index: u32, at: u64) -> Result<ByteRope> {
        let found = self.all.get(index as usize).cloned().ok_or_else(|| {
            let count = self.all.len();
            Error::malformed(format!("segment {index} is out of range; there are {count}")).at(at)
        })?;
        self.used[index as usize] = true;
        Ok(found)
    }

    /// A segment that was already retrieved.
    pub(crate) fn peek(&self, index: usize) -> ByteRope {
        self.all[index].clone()
    }

    pub(crate) fn others(self) -> Vec<ByteRope> {
        let others = self.all.into_iter().zip(self.used);
        others.filter(|(data, used)| !used && !data.is_empty()).map(|(data, _)| data).collect()
    }
}

/// Options for writing a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Whether to flush the file to disk before it replaces the old one, so that even a power loss cannot leave it
    /// incomplete. A killed process never leaves an incomplete file in either case.
    pub durable: bool,
}

/// Writes a file atomically: it is written next to its destination and then renamed.
pub(crate) fn write(path: &Path, content: &ByteRope, options: &WriteOptions) -> Result<()> {
    write_anew(path, options.durable, |file| fill(file, content))
        .map_err(|error| Error::io(format!("write {}", path.display()), error))
}

/// Fills an empty file.
fn fill(file: &File, content: &ByteRope) -> io::Result<()> {
    file.set_len(content.len() as u64)?;
    let shared = PositionedWriter::new(file);
    for_each_window(content.len() as u64, WINDOW, |offset, window| {
        content.read_at(offset as usize, window)?;
        shared.write_at(offset, window)
    })
}
