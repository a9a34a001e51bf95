//! External data: `.ptd` files with tensors that a program refers to by name.

use std::collections::BTreeSet;
use std::path::Path;

use coremill_tensor::Buffer;

use crate::ByteRope;
use crate::check::shape;
use crate::error::{Error, ErrorKind, escape_truncated};
use crate::flatbuffer::{Builder, Fields, Offset, Table};
use crate::program::{ScalarType, Unknown};
use crate::schema;
use crate::segments::{self, SEGMENT_ALIGNMENT, Segments, UsedSegments, WriteOptions};

type Result<T> = std::result::Result<T, Error>;

/// File identifier, which follows the offset of the root table.
const IDENTIFIER: [u8; 4] = *b"FT01";

/// Signature of the header, which follows the identifier.
const HEADER_MAGIC: [u8; 4] = *b"FH01";

/// Size of the header, including its signature.
const HEADER_BYTES: usize = 40;

/// Alignment of the end of the tables.
const TABLE_ALIGNMENT: usize = 16;

/// A file of named data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExternalData {
    /// Schema version; always 0 so far.
    pub version: u32,
    /// Named data.
    pub entries: Vec<ExternalEntry>,
    /// Unreferenced segments of the file.
    pub other_segments: Vec<ByteRope>,
    /// Unknown fields of newer writers.
    pub unknown: Unknown,
}

/// Named data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExternalEntry {
    /// Unique name.
    pub key: String,
    /// The bytes.
    pub data: ByteRope,
    /// Layout of a tensor; `None` for other data.
    pub layout: Option<TensorLayout>,
    /// Alignment in the file, a power of two. It is not stored in the file, so it is 1 after reading. Segments are
    /// aligned to at least 128 in any case.
    pub alignment: u32,
    /// Unknown fields of newer writers.
    pub unknown: Unknown,
}

/// Layout of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorLayout {
    /// Element type.
    pub scalar_type: ScalarType,
    /// Sizes of the dimensions.
    pub sizes: Vec<i32>,
    /// Dimensions in memory order, outermost first.
    pub dim_order: Vec<u8>,
}

impl ExternalData {
    /// Reads a file. The data is mapped; the file must not be truncated while it is in use.
    pub fn read(path: &Path) -> Result<ExternalData> {
        let mapped = Buffer::map(path);
        let mapped = mapped.map_err(|error| Error::io(format!("map {}", path.display()), error))?;
        ExternalData::from_buffer(&mapped)
    }

    /// Parses a file in memory or mapped.
    pub fn from_buffer(file: &Buffer) -> Result<ExternalData> {
        let whole = file.as_bytes();
        if whole.get(4..8) != Some(&IDENTIFIER) {
            let error = Error::new(ErrorKind::OtherFormat, "this is not an external data file");
            return Err(error.with_hint("external data files have `FT01` at byte 4"));
        }
        let (tables, base) = header(whole)?;
        let tables = segments::tables(file, tables)?;
        let data = data(&tables.root()?, file, base)?;
        check(&data)?;
        file.check().map_err(|error| Error::io("read the data", error))?;
        Ok(data)
    }

    /// The entry with a name.
    pub fn get(&self, key: &str) -> Option<&ExternalEntry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// Writes a file atomically, replacing an existing one. Output is deterministic.
    pub fn write(&self, path: &Path, options: &WriteOptions) -> Result<()> {
        segments::write(path, &self.to_data()?, options)
    }

    /// Serializes the file without copying the named data.
    pub fn to_data(&self) -> Result<ByteRope> {
        check(self).map_err(|error| error.with_kind(ErrorKind::Unwritable))?;
        let mut segments = Segments::default();
        let mut builder = Builder::default();
        let root = write(self, &mut builder, &mut segments)?;
        let mut header = [0; HEADER_BYTES];
        let too_large = || Error::new(ErrorKind::Unwritable, "the tables exceed 2^31 bytes");
        let bytes = builder.finish(root, IDENTIFIER, &header, TABLE_ALIGNMENT);
        let mut bytes = bytes.ok_or_else(too_large)?;
        let size = bytes.len() as u64;
        // This size of the tables starts after the header.
        let start = 8 + HEADER_BYTES as u64;
        // A file without data has no segments after the tables.
        let base = match segments.len() {
            0 => 0,
            _ => size.next_multiple_of(SEGMENT_ALIGNMENT),
        };
        let words = [start, size - start, base, segments.len()];
        header[..4].copy_from_slice(&HEADER_MAGIC);
        header[4..8].copy_from_slice(&(HEADER_BYTES as u32).to_le_bytes());
        for (at, word) in words.into_iter().enumerate() {
            header[8 + 8 * at..16 + 8 * at].copy_from_slice(&word.to_le_bytes());
        }
        bytes[8..8 + HEADER_BYTES].copy_from_slice(&header);
        Ok(segments.behind(bytes))
    }
}

/// End of the tables, and start of the segments.
fn header(file: &[u8]) -> Result<(u64, Option<u64>)> {
    let header =
        file.get(8..8 + HEADER_BYTES).and_then(|header| header.first_chunk::<HEADER_BYTES>());
    let Some(header) = header else {
        return Err(Error::malformed("the file ends within its header"));
    };
    let length = u64::from(u32::from_le_bytes([header[4], header[5], header[6], header[7]]));
    if header[..4] != HEADER_MAGIC || length < HEADER_BYTES as u64 {
        let found = escape_truncated(&String::from_utf8_lossy(&header[..4]));
        let message =
            format!("expected a header `FH01` of at least 40 bytes, got `{found}` of {length}");
        return Err(Error::malformed(message).at(8));
    }
    let word = |at: usize| header[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    let (offset, size, base, data) = (word(8), word(16), word(24), word(32));
    let end = offset.checked_add(size);
    let all = file.len() as u64;
    let sound =
        end.is_some_and(|end| end <= all) && base.checked_add(data).is_some_and(|end| end <= all);
    match end {
        Some(end) if sound => Ok((end, (base != 0).then_some(base))),
        _ => {
            let message = format!(
                "the file has {all} bytes; its header declares {size} bytes of tables at offset {offset} and {data} bytes \
                 of data at offset {base}"
            );
            let error = Error::malformed(message).at(16);
            Err(error.with_hint("the file may be cut short"))
        }
    }
}

fn data(table: &Table<'_>, file: &Buffer, base: Option<u64>) -> Result<ExternalData> {
    use schema::flat_tensor as slot;
    let mut segments = UsedSegments::new(segments::read(table, slot::SEGMENTS, file, base)?);
    let entries = table.tables(slot::NAMED_DATA, |_, named| {
        use schema::named_data as slot;
        let index = named.u32(slot::SEGMENT, 0)?;
        let layout = match named.table(slot::TENSOR_LAYOUT)? {
            Some(layout) => Some(self::layout(&layout)?),
            None => None,
        };
        Ok(ExternalEntry {
            key: named.string(slot::KEY)?.unwrap_or_default(),
            data: segments.get(index, named.offset())?,
            layout,
            alignment: 1,
            unknown: named.unknown(slot::COUNT)?,
        })
    })?;
    Ok(ExternalData {
        version: table.u32(slot::VERSION, 0)?,
        entries,
        other_segments: segments.others(),
        unknown: table.unknown(slot::COUNT)?,
    })
}

fn layout(table: &Table<'_>) -> Result<TensorLayout> {
    use schema::tensor_layout as slot;
    table.expect_known(slot::COUNT, "a tensor")?;
    let number = table.i8(slot::SCALAR_TYPE, 0)?;
    let scalar_type = ScalarType::from_number(number).ok_or_else(|| {
        let message = format!("unknown element type {number}");
        Error::unsupported(message).at(table.offset())
    })?;
    Ok(TensorLayout {
        scalar_type,
        sizes: table.i32s(slot::SIZES)?.unwrap_or_default(),
        dim_order: table.u8s(slot::DIM_ORDER)?.unwrap_or_default().to_vec(),
    })
}

/// Validates data that was read or is to be written.
fn check(data: &ExternalData) -> Result<()> {
    let mut keys = BTreeSet::new();
    for entry in &data.entries {
        let within = |error: Error| error.within(format!("`{}`", escape_truncated(&entry.key)));
        if !keys.insert(&entry.key) {
            return Err(within(Error::malformed("there are two entries with this name")));
        }
        if let Some(layout) = &entry.layout {
            check_layout(layout, entry.data.len() as u64).map_err(within)?;
        }
    }
    Ok(())
}

fn check_layout(layout: &TensorLayout, found: u64) -> Result<()> {
    let sizes = &layout.sizes;
    let length = shape(layout.scalar_type, sizes, &layout.dim_order)?;
    if length != found {
        let message = format!("a tensor of sizes {sizes:?} has {length} bytes, got {found}");
        return Err(Error::malformed(message));
    }
    Ok(())
}

fn write(data: &ExternalData, builder: &mut Builder, segments: &mut Segments) -> Result<Offset> {
    use schema::flat_tensor as slot;
    data.unknown.check_writable("the file")?;
    let mut entries = Vec::new();
    for entry in &data.entries {
        use schema::named_data as slot;
        let within = |error: Error| error.within(format!("`{}`", escape_truncated(&entry.key)));
        entry.unknown.check_writable("the entry").map_err(within)?;
        let alignment = segments::alignment(entry.alignment).map_err(within)?;
        let segment = segments.add(&entry.data, alignment)?;
        let key = builder.string(&entry.key);
        let layout = entry.layout.as_ref().map(|layout| {
            use schema::tensor_layout as slot;
            let sizes = builder.vector(&layout.sizes);
            let order = builder.vector(&layout.dim_order);
            let mut fields = Fields::default();
            fields.scalar(slot::SCALAR_TYPE, layout.scalar_type as i8);
            builder.table(fields.offset(slot::SIZES, sizes).offset(slot::DIM_ORDER, order))
        });
        let mut fields = Fields::default();
        fields.offset(slot::KEY, key).scalar(slot::SEGMENT, segment);
        fields.offset(slot::TENSOR_LAYOUT, layout).unknown(&entry.unknown);
        entries.push(builder.table(&mut fields));
    }
    for other in &data.other_segments {
        segments.add_new(other, SEGMENT_ALIGNMENT)?;
    }
    let mut fields = Fields::default();
    fields.scalar(slot::VERSION, data.version);
    fields.offset(slot::SEGMENTS, segments.tables(builder));
    fields.offset(slot::NAMED_DATA, builder.vector_of_tables(&entries));
    Ok(builder.table(fields.unknown(&data.unknown)))
}
