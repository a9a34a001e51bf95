use std::collections::HashMap;

use crate::program::Unknown;

/// A written object, as distance from the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Offset(u32);

/// Writes a file from end to start, so that the targets of all offsets already exist.
///
/// Equal strings and vtables are written once.
#[derive(Default)]
pub(crate) struct Builder {
    /// The bytes in reverse order.
    reversed: Vec<u8>,
    strings: HashMap<String, Offset>,
    layouts: HashMap<Vec<u16>, u32>,
}

/// A number in a field or vector.
pub(crate) trait Scalar: Copy + PartialEq + Default {
    /// Appends the bytes in reverse file order.
    fn push_reversed(self, to: &mut Vec<u8>);
}

macro_rules! scalars {
    ($($type:ty)*) => {
        $(impl Scalar for $type {
            fn push_reversed(self, to: &mut Vec<u8>) {
                to.extend(self.to_be_bytes());
            }
        })*
    };
}

scalars! { u8 i8 i32 u32 i64 u64 f64 }

impl Scalar for bool {
    fn push_reversed(self, to: &mut Vec<u8>) {
        to.push(u8::from(self));
    }
}

/// A field of a table.
enum Field {
    Scalar { slot: u16, bytes: Vec<u8> },
    Offset { slot: u16, target: Offset },
}

impl Field {
    fn slot(&self) -> u16 {
        match self {
            Field::Scalar { slot, .. } | Field::Offset { slot, .. } => *slot,
        }
    }

    fn size(&self) -> usize {
        match self {
            Field::Scalar { bytes, .. } => bytes.len(),
            Field::Offset { .. } => 4,
        }
    }
}

/// Fields of a table to be written.
#[derive(Default)]
pub(crate) struct Fields(Vec<Field>);

impl Fields {
    /// Adds a number. Zeros are omitted, because they are the default of absent fields.
    pub(crate) fn scalar<T: Scalar>(&mut self, slot: u16, value: T) -> &mut Fields {
        if value != T::default() {
            self.scalar_even_if_default(slot, value);
        }
        self
    }

    pub(crate) fn scalar_even_if_default<T: Scalar>(&mut self, slot: u16, value: T) -> &mut Fields {
        let mut bytes = Vec::new();
        value.push_reversed(&mut bytes);
        bytes.reverse();
        self.0.push(Field::Scalar { slot, bytes });
        self
    }

    pub(crate) fn offset(&mut self, slot: u16, target: impl Into<Option<Offset>>) -> &mut Fields {
        if let Some(target) = target.into() {
            self.0.push(Field::Offset { slot, target });
        }
        self
    }

    /// Adds unknown fields. The caller has checked that they contain no offsets.
    pub(crate) fn unknown(&mut self, unknown: &Unknown) -> &mut Fields {
        for field in &unknown.0 {
            self.0.push(Field::Scalar { slot: field.slot, bytes: field.bytes.clone() });
        }
        self
    }
}

impl Builder {
    /// Number of bytes written; `None` above the range of offsets.
    pub(crate) fn len(&self) -> Option<u32> {
        // Offsets to vtables are signed.
        u32::try_from(self.reversed.len()).ok().filter(|length| *length < 1 << 31)
    }

    /// Current position. Overflow is detected at the end.
    fn here(&self) -> Offset {
        Offset(self.reversed.len() as u32)
    }

    /// Pads so that the end of the next `size` bytes is aligned.
    fn align(&mut self, size: usize, alignment: usize) {
        let end = self.reversed.len() + size;
        let padded = end.next_multiple_of(alignment) - size;
        self.reversed.resize(padded, 0);
    }

    pub(crate) fn string(&mut self, text: &str) -> Offset {
        if let Some(known) = self.strings.get(text) {
            return *known;
        }
        self.align(text.len() + 1, 4);
        self.reversed.push(0);
        self.reversed.extend(text.bytes().rev());
        self.count(text.len());
        let here = self.here();
        self.strings.insert(text.to_owned(), here);
        here
    }

    pub(crate) fn optional_string(&mut self, text: Option<&str>) -> Option<Offset> {
        text.map(|text| self.string(text))
    }

    pub(crate) fn vector<T: Scalar>(&mut self, elements: &[T]) -> Offset {
        let size = size_of::<T>();
        self.align(size_of_val(elements), size.max(4));
        for element in elements.iter().rev() {
            element.push_reversed(&mut self.reversed);
        }
        self.count(elements.len());
        self.here()
    }

    pub(crate) fn vector_of_tables(&mut self, tables: &[Offset]) -> Offset {
        self.align(4 * tables.len(), 4);
        for table in tables.iter().rev() {
            self.refer(*table);
        }
        self.count(tables.len());
        self.here()
    }

    fn count(&mut self, count: usize) {
        // A vector with more elements exceeds the range of offsets, which is detected at the end.
        (count as u32).push_reversed(&mut self.reversed);
    }

    /// Writes an offset relative to its own position.
    fn refer(&mut self, target: Offset) {
        let place = self.reversed.len() as u32 + 4;
        place.wrapping_sub(target.0).push_reversed(&mut self.reversed);
    }

    pub(crate) fn table(&mut self, fields: &mut Fields) -> Offset {
        // Fields are sorted by size to reduce padding.
        let mut fields = std::mem::take(&mut fields.0);
        fields.sort_by_key(|field| (field.size(), std::cmp::Reverse(field.slot())));
        let end = self.reversed.len();
        let mut places = Vec::new();
        for field in &fields {
            self.align(field.size(), field.size().next_power_of_two().min(8));
            match field {
                Field::Scalar { bytes, .. } => self.reversed.extend(bytes.iter().rev()),
                Field::Offset { target, .. } => self.refer(*target),
            }
            places.push(self.reversed.len());
        }
        self.align(4, 4);
        let start = self.reversed.len() + 4;

        let slots = fields.iter().map(|field| usize::from(field.slot()) + 1).max().unwrap_or(0);
        let mut layout = vec![0; 2 + slots];
        layout[0] = 4 + 2 * slots as u16;
        layout[1] = (start - end) as u16;
        for (field, place) in fields.iter().zip(places) {
            layout[2 + usize::from(field.slot())] = (start - place) as u16;
        }
        // The offset is the distance from the vtable to the table, in either direction.
        let known = self.layouts.get(&layout).copied();
        let layout_at = known.unwrap_or((start + 2 * layout.len()) as u32);
        layout_at.wrapping_sub(start as u32).push_reversed(&mut self.reversed);
        if known.is_none() {
            for entry in layout.iter().rev() {
                self.reversed.extend(entry.to_be_bytes());
            }
            self.layouts.insert(layout, layout_at);
        }
        Offset(start as u32)
    }

    /// Writes the start of the file: the offset of the root, the identifier, and a header. The length of the file is
    /// a multiple of `alignment`. Returns `None` if the file exceeds the range of offsets.
    pub(crate) fn finish(
        mut self,
        root: Offset,
        identifier: [u8; 4],
        header: &[u8],
        alignment: usize,
    ) -> Option<Vec<u8>> {
        self.align(header.len() + 8, alignment);
        self.reversed.extend(header.iter().rev());
        self.reversed.extend(identifier.iter().rev());
        self.refer(root);
        self.len()?;
        self.reversed.reverse();
        Some(self.reversed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Bytes;
    use super::*;
    use crate::program::UnknownField;

    #[test]
    fn round_trips_every_field_type() {
        let mut builder = Builder::default();
        let text = builder.string("text");
        assert_eq!(builder.string("text"), text);
        let longs = builder.vector(&[1i64, -2, 3]);
        let doubles = builder.vector(&[0.5f64]);
        let bools = builder.vector(&[true, false, true]);
        let inner = builder.table(Fields::default().scalar(0, 7i8).offset(3, text));
        let empty = builder.table(&mut Fields::default());
        let tables = builder.vector_of_tables(&[inner, empty, inner]);
        let unknown = Unknown(vec![UnknownField { slot: 9, bytes: vec![9; 8], may_refer: false }]);
        let root = builder.table(
            Fields::default()
                .scalar(0, true)
                .scalar(1, -5i32)
                .scalar(2, 1u64 << 40)
                .scalar(3, 0u32)
                .offset(4, longs)
                .offset(5, doubles)
                .offset(6, bools)
                .offset(7, tables)
                .unknown(&unknown),
        );
        let bytes = builder.finish(root, *b"TEST", &[0xab; 32], 16).expect("a small file");
        assert_eq!(&bytes[4..8], b"TEST");
        assert_eq!(bytes[8..40], [0xab; 32]);
        assert!(bytes.len().is_multiple_of(16));

        let read = Bytes::new(&bytes);
        let root = read.root().expect("a table");
        assert!(root.bool(0).expect("a bool"));
        assert_eq!(root.i32(1, 0).expect("a number"), -5);
        assert_eq!(root.u64(2, 0).expect("a number"), 1 << 40);
        assert_eq!(root.u32(3, 3).expect("the default"), 3);
        assert_eq!(root.i64s(4).expect("a vector"), Some(vec![1, -2, 3]));
        assert_eq!(root.f64s(5).expect("a vector"), Some(vec![0.5]));
        assert_eq!(root.bools(6).expect("a vector"), Some(vec![true, false, true]));
        let tables = root.tables(7, |_, table| Ok((table.i8(0, 0)?, table.string(3)?)));
        let inner = (7, Some("text".to_owned()));
        assert_eq!(tables.expect("tables"), [inner.clone(), (0, None), inner]);
        assert_eq!(root.unknown(8).expect("fields"), unknown);
    }

    #[test]
    fn limits_tables_reached_through_shared_offsets() {
        let mut builder = Builder::default();
        let leaf = builder.table(&mut Fields::default());
        let leaves = builder.vector_of_tables(&vec![leaf; 10_000]);
        let branch = builder.table(Fields::default().offset(0, leaves));
        let branches = builder.vector_of_tables(&vec![branch; 10_000]);
        let root = builder.table(Fields::default().offset(0, branches));
        let bytes = builder.finish(root, *b"TEST", &[], 16).expect("a small file");
        assert!(bytes.len() < 100_000);
        let bytes = Bytes::new(&bytes);
        let mut seen = 0u64;
        let read = bytes.root().expect("a table").tables(0, |_, branch| {
            branch.tables(0, |_, _| {
                seen += 1;
                Ok(())
            })
        });
        let error = read.expect_err("10^8 tables are too many");
        assert_eq!(error.kind(), crate::ErrorKind::Limit);
        assert!(seen < 1_000_000, "{seen}");
    }
}
