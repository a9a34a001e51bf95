//! Reader of programs.

mod plan;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use coremill_tensor::Buffer;

use crate::ByteRope;
use crate::check::check;
use crate::error::{Error, ErrorKind, escape_truncated};
use crate::flatbuffer::Table;
use crate::program::{NamedData, Placement, Program, Value};
use crate::schema;
use crate::segments::{self, UsedSegments};

type Result<T> = std::result::Result<T, Error>;

/// File identifier, which follows the offset of the root table.
pub(crate) const IDENTIFIER: [u8; 4] = *b"ET12";

/// Signature of the header, which follows the identifier.
pub(crate) const HEADER_MAGIC: [u8; 4] = *b"eh00";

/// Size of the header with all known fields, and without the last one, which was added later.
pub(crate) const HEADER_BYTES: u32 = 32;
const SHORT_HEADER_BYTES: u32 = 24;

/// Reads a program. Constants and payloads are mapped; the file must not be truncated while the program is in use.
pub fn read(path: &Path) -> Result<Program> {
    let mapped = Buffer::map(path);
    let mapped = mapped.map_err(|error| Error::io(format!("map {}", path.display()), error))?;
    from_buffer(&mapped)
}

/// Whether a file that starts with `start` is a program of any version. 8 bytes suffice.
pub fn is_program(start: &[u8]) -> bool {
    start.get(4..).is_some_and(|start| start.starts_with(b"ET"))
}

/// Parses a program in memory or mapped.
pub fn from_buffer(file: &Buffer) -> Result<Program> {
    let whole = file.as_bytes();
    if whole.get(4..8) != Some(&IDENTIFIER) {
        let mut error = Error::new(ErrorKind::OtherFormat, "this is not an ExecuTorch program");
        if let Some(found) = whole.get(4..8).filter(|found| found.starts_with(b"ET")) {
            let found = escape_truncated(&String::from_utf8_lossy(found));
            error = Error::unsupported(format!("programs of version `{found}` are not supported"));
        }
        return Err(error.with_hint("supported programs have `ET12` at byte 4"));
    }
    let header = Header::read(whole)?;
    let tables = segments::tables(file, header.program_size)?;
    let program = program(&tables.root()?, file, header.segment_base)?;
    check(&program)?;
    file.check().map_err(|error| Error::io("read the program", error))?;
    Ok(program)
}

/// Contents of the header; a file without segments has none.
struct Header {
    program_size: u64,
    segment_base: Option<u64>,
}

impl Header {
    fn read(file: &[u8]) -> Result<Header> {
        let length = file.len() as u64;
        if file.get(8..12) != Some(&HEADER_MAGIC) {
            return Ok(Header { program_size: length, segment_base: None });
        }
        let word = |at: usize| {
            let bytes = file.get(at..).and_then(|rest| rest.first_chunk());
            let cut = || Error::malformed("the file ends within its header").at(at as u64);
            bytes.map(|bytes| u64::from_le_bytes(*bytes)).ok_or_else(cut)
        };
        let header_length = (word(12)? & u64::from(u32::MAX)) as u32;
        if header_length < SHORT_HEADER_BYTES {
            let message = format!(
                "the header has {header_length} bytes; expected at least {SHORT_HEADER_BYTES}"
            );
            return Err(Error::malformed(message).at(12));
        }
        let (program_size, base) = (word(16)?, word(24)?);
        let data_size = if header_length < HEADER_BYTES { 0 } else { word(32)? };
        let end = base.checked_add(data_size);
        if program_size > length || end.is_none_or(|end| end > length) {
            let message = format!(
                "the file has {length} bytes; its header declares {program_size} bytes of tables and {data_size} bytes \
                 of data at offset {base}"
            );
            let error = Error::malformed(message).at(16);
            return Err(error.with_hint("the file may be cut short"));
        }
        Ok(Header { program_size, segment_base: (base != 0).then_some(base) })
    }
}

fn program(table: &Table<'_>, file: &Buffer, segment_base: Option<u64>) -> Result<Program> {
    use schema::program as slot;
    let mut segments =
        UsedSegments::new(segments::read(table, slot::SEGMENTS, file, segment_base)?);
    let mut program = Program {
        version: table.u32(slot::VERSION, 0)?,
        unknown: table.unknown(slot::COUNT)?,
        ..Program::default()
    };

    let inline = table.tables(slot::DELEGATE_DATA, |_, data| inline_data(&data, file))?;
    let mut delegate_data = DelegateData { inline, found: Vec::new() };
    program.plans = table.tables(slot::PLANS, |index, plan| {
        plan::plan(&plan, &mut |reference| delegate_data.index(reference, &mut segments))
            .map_err(|error| error.within(format!("method {index}")))
    })?;
    let data_of = |(inline, index): &(bool, usize)| match inline {
        true => delegate_data.inline[*index].clone(),
        false => segments.peek(*index),
    };
    program.delegate_data = delegate_data.found.iter().map(data_of).collect();

    let lengths = lengths_of(&program, |placement| match placement {
        Placement::Constant(index) => Some(index),
        _ => None,
    });
    program.constants = match table.table(slot::CONSTANT_SEGMENT)? {
        Some(offsets) => subsegments(&offsets, &mut segments, &lengths),
        None => Ok(Vec::new()),
    }
    .map_err(|error| error.within("constants"))?;
    let inline = table.tables(slot::CONSTANT_BUFFERS, |_, data| inline_data(&data, file))?;
    if !inline.is_empty() {
        if !program.constants.is_empty() {
            let message = "constants are stored both in the tables and in a segment";
            return Err(Error::malformed(message).at(table.offset()));
        }
        // The first entry is reserved for "none".
        program.constants = inline.into_iter().skip(1).collect();
    }

    let lengths = lengths_of(&program, |placement| match placement {
        Placement::Initialized { initial, .. } => Some(initial),
        _ => None,
    });
    let mut mutable = table
        .tables(slot::MUTABLE_SEGMENTS, |_, offsets| subsegments(&offsets, &mut segments, &lengths))
        .map_err(|error| error.within("initial values"))?;
    if mutable.len() > 1 {
        let message =
            format!("initial values are in {} segments; at most one is supported", mutable.len());
        return Err(Error::unsupported(message).at(table.offset()));
    }
    program.mutable_data = mutable.pop().unwrap_or_default();

    program.named_data = table.tables(slot::NAMED_DATA, |_, named| {
        let index = named.u32(schema::named_data::SEGMENT, 0)?;
        Ok(NamedData {
            key: named.string(schema::named_data::KEY)?.unwrap_or_default(),
            data: segments.get(index, named.offset())?,
            alignment: 1,
            unknown: named.unknown(schema::named_data::TENSOR_LAYOUT)?,
        })
    })?;
    program.other_segments = segments.others();
    Ok(program)
}

/// Data stored inside a table.
fn inline_data(table: &Table<'_>, file: &Buffer) -> Result<ByteRope> {
    table.expect_known(schema::single::COUNT, "inline data")?;
    let range = table.byte_range(schema::single::VALUE)?.unwrap_or_default();
    Ok(file.slice(range).map(ByteRope::from).unwrap_or_default())
}

/// Payloads of delegates, deduplicated.
struct DelegateData {
    inline: Vec<ByteRope>,
    /// Whether each payload is stored in the tables, and its index there or among the segments.
    found: Vec<(bool, usize)>,
}

impl DelegateData {
    /// Index in [`Program::delegate_data`] of the target of a reference.
    fn index(&mut self, reference: &Table<'_>, segments: &mut UsedSegments) -> Result<u32> {
        use schema::data_reference as slot;
        reference.expect_known(slot::COUNT, "a data reference")?;
        let index = reference.u32(slot::INDEX, 0)?;
        let inline = match reference.i8(slot::LOCATION, 0)? {
            schema::location::INLINE => true,
            schema::location::SEGMENT => false,
            other => {
                let message = format!("a delegate's data has unknown location {other}");
                return Err(Error::unsupported(message).at(reference.offset()));
            }
        };
        if !inline {
            segments.get(index, reference.offset())?;
        } else if index as usize >= self.inline.len() {
            let count = self.inline.len();
            let message = format!("inline data {index} is out of range; there are {count}");
            return Err(Error::malformed(message).at(reference.offset()));
        }
        let wanted = (inline, index as usize);
        let known = self.found.iter().position(|known| *known == wanted);
        Ok(known.unwrap_or_else(|| {
            self.found.push(wanted);
            self.found.len() - 1
        }) as u32)
    }
}

/// Size of each piece of data, which follows from the tensors that use it, as the file does not contain it.
fn lengths_of(program: &Program, which: impl Fn(Placement) -> Option<u32>) -> BTreeMap<u32, u64> {
    let mut lengths = BTreeMap::new();
    for value in program.plans.iter().flat_map(|plan| &plan.values) {
        let Value::Tensor(tensor) = value else { continue };
        if let (Some(index), Some(length)) = (which(tensor.placement), tensor.byte_length()) {
            let known: &mut u64 = lengths.entry(index).or_default();
            *known = length.max(*known);
        }
    }
    lengths
}

/// Splits a segment into subsegments. The first offset is reserved for "none".
fn subsegments(
    table: &Table<'_>,
    segments: &mut UsedSegments,
    lengths: &BTreeMap<u32, u64>,
) -> Result<Vec<ByteRope>> {
    use schema::subsegments as slot;
    table.expect_known(slot::COUNT, "a list of offsets")?;
    let offsets = table.u64s(slot::OFFSETS)?.unwrap_or_default();
    let index = table.u32(slot::SEGMENT, 0)?;
    if offsets.len() < 2 {
        // An empty segment, which some files omit.
        let _ = segments.get(index, table.offset());
        return Ok(Vec::new());
    }
    let segment = segments.get(index, table.offset())?;
    let mut sorted = offsets.clone();
    sorted.push(segment.len() as u64);
    sorted.sort_unstable();
    let mut parts = Vec::with_capacity(offsets.len() - 1);
    for (index, &start) in offsets.iter().skip(1).enumerate() {
        // Data that no tensor uses extends to the next offset.
        let next = || sorted.get(sorted.partition_point(|offset| *offset <= start)).copied();
        let needed = lengths.get(&(index as u32));
        let end = match needed {
            Some(length) => start.checked_add(*length),
            None => next().or(Some(start)),
        };
        let range = end.and_then(|end| within(start, end)).and_then(|range| segment.slice(range));
        parts.push(range.ok_or_else(|| {
            let message = format!(
                "{} bytes at offset {start} exceed a segment of {} bytes",
                needed.copied().unwrap_or_default(),
                segment.len()
            );
            Error::malformed(message).at(table.offset())
        })?);
    }
    Ok(parts)
}

fn within(start: u64, end: u64) -> Option<Range<usize>> {
    Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
}
