use std::cell::Cell;

use crate::error::{Error, escape_truncated};
use crate::limits;
use crate::program::{Unknown, UnknownField};

type Result<T> = std::result::Result<T, Error>;

/// Memory charged per table, without its values.
const TABLE_COST: u64 = 128;

/// Size of the widest numbers.
const WIDEST: usize = 8;

/// Bytes of an untrusted file.
pub(crate) struct Bytes<'b> {
    bytes: &'b [u8],
    /// Remaining memory allowance.
    left: Cell<u64>,
}

impl<'b> Bytes<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> Bytes<'b> {
        let left = (bytes.len() as u64)
            .saturating_mul(limits::MEMORY_FACTOR)
            .saturating_add(limits::MEMORY_FLOOR);
        Bytes { bytes, left: Cell::new(left) }
    }

    /// The root table, whose offset starts the file.
    pub(crate) fn root(&self) -> Result<Table<'_>> {
        let offset = self.u32_at(0)?;
        self.table_at(u64::from(offset))
    }

    fn charge(&self, bytes: u64) -> Result<()> {
        match self.left.get().checked_sub(bytes) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => Err(Error::limit(format!(
                "reading requires more than {} times the size of the tables in memory",
                limits::MEMORY_FACTOR
            ))),
        }
    }

    fn part<const N: usize>(&self, at: u64) -> Result<[u8; N]> {
        let start = usize::try_from(at).ok();
        let part = start.and_then(|start| self.bytes.get(start..)?.first_chunk());
        part.copied().ok_or_else(|| {
            let length = self.bytes.len();
            Error::malformed(format!(
                "{N} bytes at offset {at} exceed the {length} bytes of the tables"
            ))
            .at(at)
        })
    }

    fn u16_at(&self, at: u64) -> Result<u16> {
        self.part(at).map(u16::from_le_bytes)
    }

    fn u32_at(&self, at: u64) -> Result<u32> {
        self.part(at).map(u32::from_le_bytes)
    }

    fn table_at(&self, at: u64) -> Result<Table<'_>> {
        self.charge(TABLE_COST)?;
        let back = i64::from(self.part(at).map(i32::from_le_bytes)?);
        let vtable = i64::try_from(at).ok().and_then(|at| at.checked_sub(back));
        let vtable = vtable
            .and_then(|vtable| u64::try_from(vtable).ok())
            .ok_or_else(|| Error::malformed("a table's vtable starts before the file").at(at))?;
        let layout_length = self.u16_at(vtable)?;
        let length = self.u16_at(vtable + 2)?;
        if layout_length < 4 || !layout_length.is_multiple_of(2) {
            let message = format!(
                "the size of a vtable must be even and at least 4 bytes, got {layout_length}"
            );
            return Err(Error::malformed(message).at(vtable));
        }
        let slots = (layout_length - 4) / 2;
        // Checks the bounds of both, so that later only field offsets must be checked.
        for (start, length) in [(vtable, layout_length), (at, length)] {
            if start + u64::from(length) > self.bytes.len() as u64 {
                let message =
                    format!("a table of {length} bytes extends beyond the end of the tables");
                return Err(Error::malformed(message).at(start));
            }
        }
        Ok(Table { bytes: self, at, vtable, slots, length })
    }

    /// Start and length of a vector.
    fn vector_at(&self, at: u64, size: u64) -> Result<(usize, usize)> {
        let count = u64::from(self.u32_at(at)?);
        let start = at + 4;
        let length = self.bytes.len() as u64;
        // Fewer than 2^32 elements of at most 8 bytes cannot overflow.
        if start + count * size > length {
            let message =
                format!("{count} elements of {size} bytes extend beyond the end of the tables");
            return Err(Error::malformed(message).at(at));
        }
        Ok((start as usize, count as usize))
    }
}

/// A table, which is in bounds together with its vtable.
#[derive(Clone, Copy)]
pub(crate) struct Table<'b> {
    bytes: &'b Bytes<'b>,
    at: u64,
    vtable: u64,
    slots: u16,
    length: u16,
}

macro_rules! scalars {
    ($($name:ident: $type:ty;)*) => {
        $(pub(crate) fn $name(&self, slot: u16, default: $type) -> Result<$type> {
            Ok(self.scalar(slot)?.map_or(default, <$type>::from_le_bytes))
        })*
    };
}

macro_rules! vectors {
    ($($name:ident: $type:ty;)*) => {
        $(pub(crate) fn $name(&self, slot: u16) -> Result<Option<Vec<$type>>> {
            const SIZE: usize = size_of::<$type>();
            let Some((start, count)) = self.vector(slot, SIZE as u64)? else { return Ok(None) };
            let bytes = &self.bytes.bytes[start..start + count * SIZE];
            let (elements, _) = bytes.as_chunks::<SIZE>();
            Ok(Some(elements.iter().map(|bytes| <$type>::from_le_bytes(*bytes)).collect()))
        })*
    };
}

impl<'b> Table<'b> {
    scalars! {
        i8: i8;
        u8: u8;
        i32: i32;
        u32: u32;
        i64: i64;
        u64: u64;
        f64: f64;
    }

    vectors! {
        i32s: i32;
        i64s: i64;
        u64s: u64;
        f64s: f64;
    }

    /// Start offset, for messages.
    pub(crate) fn offset(&self) -> u64 {
        self.at
    }

    pub(crate) fn bool(&self, slot: u16) -> Result<bool> {
        Ok(self.u8(slot, 0)? != 0)
    }

    pub(crate) fn bools(&self, slot: u16) -> Result<Option<Vec<bool>>> {
        let range = self.byte_range(slot)?;
        Ok(range.map(|range| self.bytes.bytes[range].iter().map(|byte| *byte != 0).collect()))
    }

    pub(crate) fn u8s(&self, slot: u16) -> Result<Option<&'b [u8]>> {
        Ok(self.byte_range(slot)?.map(|range| &self.bytes.bytes[range]))
    }

    /// Byte range of a vector of bytes.
    pub(crate) fn byte_range(&self, slot: u16) -> Result<Option<std::ops::Range<usize>>> {
        Ok(self.vector(slot, 1)?.map(|(start, count)| start..start + count))
    }

    pub(crate) fn string(&self, slot: u16) -> Result<Option<String>> {
        let Some(bytes) = self.u8s(slot)? else { return Ok(None) };
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Some(text.to_owned())),
            Err(error) => {
                let start = String::from_utf8_lossy(&bytes[..error.valid_up_to()]).into_owned();
                let message = format!("text is not UTF-8 after `{}`", escape_truncated(&start));
                Err(Error::malformed(message).at(self.at))
            }
        }
    }

    pub(crate) fn table(&self, slot: u16) -> Result<Option<Table<'b>>> {
        match self.target(slot)? {
            Some(at) => self.bytes.table_at(at).map(Some),
            None => Ok(None),
        }
    }

    /// Reads the tables of a vector in order; an absent vector is empty.
    pub(crate) fn tables<T>(
        &self,
        slot: u16,
        mut read: impl FnMut(usize, Table<'b>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let Some((start, count)) = self.vector(slot, 4)? else { return Ok(Vec::new()) };
        self.bytes.charge(TABLE_COST.saturating_mul(count as u64))?;
        let mut tables = Vec::with_capacity(count);
        for index in 0..count {
            let at = start as u64 + 4 * index as u64;
            let target = at + u64::from(self.bytes.u32_at(at)?);
            tables.push(read(index, self.bytes.table_at(target)?)?);
        }
        Ok(tables)
    }

    /// Fields from slot `first` on, which this crate's schema does not know.
    pub(crate) fn unknown(&self, first: u16) -> Result<Unknown> {
        let mut fields = Vec::new();
        for slot in first..self.slots {
            let Some(place) = self.place(slot)? else { continue };
            // The size of a field is not stored; it may extend to the next one.
            let mut end = self.length;
            for other in 0..self.slots {
                if let Some(other) = self.place(other)?.filter(|other| *other > place) {
                    end = end.min(other);
                }
            }
            let start = self.at as usize + usize::from(place);
            let mut bytes = self.bytes.bytes[start..self.at as usize + usize::from(end)].to_vec();
            // Zeros pad the gap to the next field. A number has the same value in a wider field.
            while bytes.len() > WIDEST && bytes.last() == Some(&0) {
                bytes.pop();
            }
            if bytes.len() < WIDEST {
                bytes.resize(WIDEST, 0);
            }
            let offset = bytes.first_chunk().map(|offset| u64::from(u32::from_le_bytes(*offset)));
            let may_refer = offset.is_some_and(|offset| {
                offset >= 4 && start as u64 + offset < self.bytes.bytes.len() as u64
            });
            self.bytes.charge(TABLE_COST + bytes.len() as u64)?;
            fields.push(UnknownField { slot, bytes, may_refer });
        }
        Ok(Unknown(fields))
    }

    /// Rejects unknown fields that could change the meaning of known ones.
    pub(crate) fn expect_known(&self, first: u16, what: &str) -> Result<()> {
        for slot in first..self.slots {
            if self.place(slot)?.is_some() {
                let message = format!("{what} has an unknown field {slot}");
                return Err(Error::unsupported(message).at(self.at));
            }
        }
        Ok(())
    }

    /// Offset of a field in its table.
    fn place(&self, slot: u16) -> Result<Option<u16>> {
        if slot >= self.slots {
            return Ok(None);
        }
        let place = self.bytes.u16_at(self.vtable + 4 + 2 * u64::from(slot))?;
        if place != 0 && (place < 4 || place >= self.length) {
            let message = format!(
                "field {slot} at offset {place} is outside its table of {} bytes",
                self.length
            );
            return Err(Error::malformed(message).at(self.at));
        }
        Ok((place != 0).then_some(place))
    }

    fn scalar<const N: usize>(&self, slot: u16) -> Result<Option<[u8; N]>> {
        let Some(place) = self.place(slot)? else { return Ok(None) };
        if usize::from(place) + N > usize::from(self.length) {
            let message = format!("field {slot} extends beyond the end of its table");
            return Err(Error::malformed(message).at(self.at));
        }
        self.bytes.part(self.at + u64::from(place)).map(Some)
    }

    /// Target of an offset field.
    fn target(&self, slot: u16) -> Result<Option<u64>> {
        let Some(offset) = self.scalar(slot)? else { return Ok(None) };
        let place = self.place(slot)?.map_or(0, u64::from);
        Ok(Some(self.at + place + u64::from(u32::from_le_bytes(offset))))
    }

    fn vector(&self, slot: u16, size: u64) -> Result<Option<(usize, usize)>> {
        let Some(at) = self.target(slot)? else { return Ok(None) };
        let (start, count) = self.bytes.vector_at(at, size)?;
        self.bytes.charge(size * count as u64)?;
        Ok(Some((start, count)))
    }
}
