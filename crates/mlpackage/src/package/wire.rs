//! Protobuf's wire format, read and written without a tree of messages.
//!
//! The project does not use `prost`, because `prost` drops unknown fields, which coremill preserves. Models
//! are decoded directly into the IR, and every error has the offset of the field. Only the part of the format
//! that models use is supported; groups, which no schema has used since 2008, are errors.
//!
//! The output equals the output of protobuf's own C++ writer with sorted maps: fields are in ascending order,
//! repeated numbers are packed, and fields with default values are omitted.

use super::error::{Error, ErrorKind, shortened};
use coremill_mil::limits;

type Result<T> = std::result::Result<T, Error>;

/// Iterates over the fields of a message.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    /// Offset of `bytes` in the file.
    offset: u64,
    depth: u32,
}

/// A field of a message.
#[derive(Clone, Copy)]
pub(crate) struct Field<'a> {
    /// Field number in the schema.
    pub(crate) number: u32,
    /// Offset in the file.
    pub(crate) offset: u64,
    /// The encoded field, including its number.
    pub(crate) raw: &'a [u8],
    wire: Wire<'a>,
    depth: u32,
}

#[derive(Clone, Copy)]
enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    /// Bytes, and their offset in the file.
    Bytes(&'a [u8], u64),
}

/// Error: an unknown field in a message that cannot preserve it.
pub(crate) fn unknown_field(field: &Field<'_>, holder: &str) -> Error {
    let message = format!("unknown field {} in {holder}", field.number);
    Error::new(ErrorKind::Unsupported, message).at(field.offset)
}

impl<'a> Reader<'a> {
    /// Returns a reader of the outermost message of a file.
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, offset: 0, depth: 1 }
    }

    /// Offset in the file of the next unread byte.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Number of unread bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Reads the next field.
    pub(crate) fn next(&mut self) -> Result<Option<Field<'a>>> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let (start, all) = (self.offset, self.bytes);
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).unwrap_or(0);
        if !(1..1 << 29).contains(&number) {
            let message = format!("invalid field number {}", key >> 3);
            return Err(malformed(message, start));
        }
        let wire = match key & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed64(u64::from_le_bytes(self.fixed()?)),
            2 => {
                let length = self.varint()?;
                let bytes = self.take(length, start)?;
                Wire::Bytes(bytes, self.offset - bytes.len() as u64)
            }
            5 => Wire::Fixed32(u32::from_le_bytes(self.fixed()?)),
            3 | 4 => {
                let message = format!("field {number} is a group, which is not supported");
                return Err(malformed(message, start));
            }
            other => {
                let message = format!("field {number} has the invalid wire type {other}");
                return Err(malformed(message, start));
            }
        };
        let raw = &all[..all.len() - self.bytes.len()];
        Ok(Some(Field { number, offset: start, raw, wire, depth: self.depth }))
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for index in 0..10 {
            let Some(&byte) = self.bytes.get(index) else {
                return Err(malformed("the message ends inside a number", self.offset));
            };
            if index == 9 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.bytes = &self.bytes[index + 1..];
                self.offset += index as u64 + 1;
                return Ok(value);
            }
        }
        Err(malformed("a number has more than 64 bits", self.offset))
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((bytes, rest)) = self.bytes.split_first_chunk::<N>() else {
            return Err(malformed("the message ends inside a number", self.offset));
        };
        self.bytes = rest;
        self.offset += N as u64;
        Ok(*bytes)
    }

    fn take(&mut self, length: u64, start: u64) -> Result<&'a [u8]> {
        let split = usize::try_from(length).ok().and_then(|at| self.bytes.split_at_checked(at));
        let Some((bytes, rest)) = split else {
            let left = self.bytes.len();
            let message = format!("a field has {length} bytes, but only {left} remain");
            return Err(malformed(message, start));
        };
        self.bytes = rest;
        self.offset += length;
        Ok(bytes)
    }
}

impl<'a> Field<'a> {
    /// The message in the field.
    pub(crate) fn message(&self, name: &str) -> Result<Reader<'a>> {
        let Wire::Bytes(bytes, offset) = self.wire else {
            return Err(self.mismatch(name, "a message"));
        };
        if self.depth >= limits::MESSAGE_DEPTH {
            let message = format!("messages are nested deeper than {}", limits::MESSAGE_DEPTH);
            return Err(Error::new(ErrorKind::Limit, message).at(self.offset).within(name));
        }
        Ok(Reader { bytes, offset, depth: self.depth + 1 })
    }

    /// The bytes in the field.
    pub(crate) fn bytes(&self, name: &str) -> Result<&'a [u8]> {
        match self.wire {
            Wire::Bytes(bytes, _) => Ok(bytes),
            _ => Err(self.mismatch(name, "bytes")),
        }
    }

    /// The string in the field.
    pub(crate) fn string(&self, name: &str) -> Result<&'a str> {
        let Wire::Bytes(bytes, offset) = self.wire else {
            return Err(self.mismatch(name, "a string"));
        };
        std::str::from_utf8(bytes).map_err(|error| {
            let offset = offset + error.valid_up_to() as u64;
            malformed("a string is not UTF-8", offset).within(name)
        })
    }

    /// The string in the field, checked as a name.
    pub(crate) fn name(&self, name: &str) -> Result<&'a str> {
        let text = self.string(name)?;
        if text.len() > limits::NAME_BYTES {
            let message =
                format!("a name has {} bytes; the maximum is {}", text.len(), limits::NAME_BYTES);
            return Err(Error::new(ErrorKind::Limit, message).at(self.offset).within(name));
        }
        Ok(text)
    }

    /// The number in the field.
    pub(crate) fn uint64(&self, name: &str) -> Result<u64> {
        match self.wire {
            Wire::Varint(value) => Ok(value),
            _ => Err(self.mismatch(name, "an integer")),
        }
    }

    /// The number in the field.
    pub(crate) fn int64(&self, name: &str) -> Result<i64> {
        self.uint64(name).map(u64::cast_signed)
    }

    /// The number in the field.
    pub(crate) fn int32(&self, name: &str) -> Result<i32> {
        let value = self.int64(name)?;
        i32::try_from(value).map_err(|_| self.too_wide(name, value))
    }

    /// The boolean in the field.
    pub(crate) fn bool(&self, name: &str) -> Result<bool> {
        Ok(self.uint64(name)? != 0)
    }

    /// The number in the field.
    pub(crate) fn float(&self, name: &str) -> Result<f32> {
        match self.wire {
            Wire::Fixed32(bits) => Ok(f32::from_bits(bits)),
            _ => Err(self.mismatch(name, "a float")),
        }
    }

    /// The number in the field.
    pub(crate) fn double(&self, name: &str) -> Result<f64> {
        match self.wire {
            Wire::Fixed64(bits) => Ok(f64::from_bits(bits)),
            _ => Err(self.mismatch(name, "a double")),
        }
    }

    /// The integers in the field, packed or a single one.
    pub(crate) fn int64s(&self, name: &str, to: &mut impl FnMut(i64) -> Result<()>) -> Result<()> {
        let Wire::Bytes(bytes, offset) = self.wire else {
            return to(self.int64(name)?);
        };
        let mut reader = Reader { bytes, offset, depth: self.depth };
        while reader.len() > 0 {
            let at = reader.offset;
            let value = reader.varint().map_err(|error| error.within(name))?.cast_signed();
            to(value).map_err(|error| error.at(at).within(name))?;
        }
        Ok(())
    }

    /// The little-endian bytes of the floats in the field, packed or a single one.
    pub(crate) fn floats(&self, name: &str, to: &mut Vec<u8>) -> Result<()> {
        match self.wire {
            Wire::Fixed32(bits) => to.extend_from_slice(&bits.to_le_bytes()),
            Wire::Bytes(bytes, _) if bytes.len() % 4 == 0 => to.extend_from_slice(bytes),
            _ => return Err(self.mismatch(name, "floats")),
        }
        Ok(())
    }

    /// The little-endian bytes of the doubles in the field, packed or a single one.
    pub(crate) fn doubles(&self, name: &str, to: &mut Vec<u8>) -> Result<()> {
        match self.wire {
            Wire::Fixed64(bits) => to.extend_from_slice(&bits.to_le_bytes()),
            Wire::Bytes(bytes, _) if bytes.len() % 8 == 0 => to.extend_from_slice(bytes),
            _ => return Err(self.mismatch(name, "doubles")),
        }
        Ok(())
    }

    /// Stores the value of a field that may occur only once.
    pub(crate) fn once<T>(&self, slot: &mut Option<T>, name: &str, value: T) -> Result<()> {
        if slot.replace(value).is_some() {
            // Readers handle duplicates differently: they use the last one or merge all.
            let shown = if name.contains(' ') { name.to_owned() } else { format!("`{name}`") };
            return Err(malformed(format!("found {shown} twice"), self.offset));
        }
        Ok(())
    }

    fn mismatch(&self, name: &str, expected: &str) -> Error {
        let found = match self.wire {
            Wire::Varint(_) => "a varint".to_owned(),
            Wire::Fixed64(_) => "8 bytes".to_owned(),
            Wire::Fixed32(_) => "4 bytes".to_owned(),
            Wire::Bytes(bytes, _) => format!("a length-delimited field of {} bytes", bytes.len()),
        };
        malformed(format!("expected {expected}, found {found}"), self.offset).within(name)
    }

    fn too_wide(&self, name: &str, value: i64) -> Error {
        malformed(format!("expected a 32-bit integer, got {value}"), self.offset).within(name)
    }
}

/// Error: a malformed message.
pub(crate) fn malformed(message: impl Into<String>, offset: u64) -> Error {
    Error::new(ErrorKind::ModelFile, message).at(offset)
}

/// Reads the key and the value of a map entry.
pub(crate) fn map_entry<'a>(field: &Field<'a>, name: &str) -> Result<(&'a str, Option<Field<'a>>)> {
    let mut reader = field.message(name)?;
    let (mut key, mut value) = (None, None);
    while let Some(field) = reader.next()? {
        match field.number {
            1 => field.once(&mut key, "key", field.name("key")?)?,
            2 => field.once(&mut value, "value", field)?,
            _ => return Err(unknown_field(&field, &format!("an entry of `{name}`"))),
        }
    }
    Ok((key.unwrap_or_default(), value))
}

/// Location of an entry of a map or list.
pub(crate) fn entry(name: &str, key: impl std::fmt::Display) -> String {
    format!("{name}[{}]", shortened(&key.to_string()))
}

/// Writer of message fields.
#[derive(Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Returns the written bytes.
    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }

    /// Writes an integer, unless it is 0.
    pub(crate) fn uint64(&mut self, number: u32, value: u64) {
        if value != 0 {
            self.uint64_always(number, value);
        }
    }

    /// Writes an integer in a `oneof`, where 0 is written as well.
    pub(crate) fn uint64_always(&mut self, number: u32, value: u64) {
        self.key(number, 0);
        self.varint(value);
    }

    /// Writes an integer, unless it is 0.
    pub(crate) fn int64(&mut self, number: u32, value: i64) {
        self.uint64(number, value.cast_unsigned());
    }

    /// Writes a boolean, unless it is false.
    pub(crate) fn bool(&mut self, number: u32, value: bool) {
        self.uint64(number, u64::from(value));
    }

    /// Writes a float in a `oneof`.
    pub(crate) fn float_always(&mut self, number: u32, value: f32) {
        self.key(number, 5);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes a double in a `oneof`.
    pub(crate) fn double_always(&mut self, number: u32, value: f64) {
        self.key(number, 1);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes a string, unless it is empty.
    pub(crate) fn string(&mut self, number: u32, text: &str) {
        if !text.is_empty() {
            self.bytes_always(number, text.as_bytes());
        }
    }

    /// Writes bytes or a string even if empty, for lists and for a `oneof`. Packed numbers of fixed width
    /// have the same encoding.
    pub(crate) fn bytes_always(&mut self, number: u32, bytes: &[u8]) {
        self.key(number, 2);
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes packed integers, unless the list is empty.
    pub(crate) fn int64s(&mut self, number: u32, values: impl ExactSizeIterator<Item = i64>) {
        if values.len() > 0 {
            self.message(number, |writer| {
                values.for_each(|value| writer.varint(value.cast_unsigned()));
            });
        }
    }

    /// Writes a message, even if it is empty.
    pub(crate) fn message(&mut self, number: u32, fill: impl FnOnce(&mut Writer)) {
        self.key(number, 2);
        // Most messages are short: reserve one byte for the length, and move the message if the length needs
        // more. Messages are nested about ten deep, so this is linear.
        let start = self.bytes.len();
        self.bytes.push(0);
        fill(self);
        let length = self.bytes.len() - start - 1;
        if let Ok(short @ 0..0x80) = u8::try_from(length) {
            self.bytes[start] = short;
            return;
        }
        let end = self.bytes.len();
        self.varint(length as u64);
        let width = self.bytes.len() - end;
        self.bytes[start..].rotate_right(width);
        // Remove the placeholder, which is now between the length and the message.
        self.bytes.remove(start + width);
    }

    /// Writes fields that are already encoded.
    pub(crate) fn raw(&mut self, fields: &[u8]) {
        self.bytes.extend_from_slice(fields);
    }

    fn key(&mut self, number: u32, wire_type: u8) {
        self.varint(u64::from(number) << 3 | u64::from(wire_type));
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(bytes: &[u8]) -> Result<Vec<u32>> {
        let mut reader = Reader::new(bytes);
        let mut numbers = Vec::new();
        while let Some(field) = reader.next()? {
            numbers.push(field.number);
        }
        Ok(numbers)
    }

    #[test]
    fn round_trips_every_field_type() {
        let mut writer = Writer::default();
        writer.int64(1, -1);
        writer.uint64(2, 0);
        writer.string(3, "text");
        writer.message(4, |writer| writer.bytes_always(1, &[7; 300]));
        writer.int64s(5, [0, -1, 1 << 40].into_iter());
        writer.float_always(600, -0.0);
        writer.double_always(7, 0.5);
        let bytes = writer.finish();
        let mut reader = Reader::new(&bytes);
        let mut next = || reader.next().expect("sound").expect("a field");
        assert_eq!(next().int64("a").expect("integer"), -1);
        assert_eq!(next().string("b").expect("string"), "text");
        let mut inner = next().message("c").expect("message");
        let inner = inner.next().expect("sound").expect("a field");
        assert_eq!(inner.bytes("d").expect("bytes"), [7; 300]);
        let mut values = Vec::new();
        let mut push = |value| {
            values.push(value);
            Ok(())
        };
        next().int64s("e", &mut push).expect("integers");
        assert_eq!(values, [0, -1, 1 << 40]);
        assert_eq!(next().float("f").expect("float").to_bits(), (-0.0f32).to_bits());
        assert_eq!(next().double("g").expect("double"), 0.5);
        assert!(reader.next().expect("sound").is_none());
    }

    #[test]
    fn round_trips_every_length_prefix_width() {
        for length in [0, 1, 0x7d, 0x7e, 0x7f, 0x80, 0x3fff, 0x4000, 0x20_0000] {
            let mut writer = Writer::default();
            writer.message(1, |writer| writer.raw(&vec![8; length]));
            writer.uint64(2, 5);
            let bytes = writer.finish();
            let mut reader = Reader::new(&bytes);
            let first = reader.next().expect("sound").expect("a field");
            assert_eq!(first.bytes("m").expect("bytes"), vec![8; length]);
            assert_eq!(first.raw.len() + 2, bytes.len());
            assert_eq!(reader.next().expect("sound").expect("a field").number, 2);
        }
    }

    #[test]
    fn reads_packed_and_unpacked_integers() {
        for bytes in [&[0x0a, 2, 1, 2][..], &[0x08, 1, 0x08, 2]] {
            let (mut reader, mut values) = (Reader::new(bytes), Vec::new());
            while let Some(field) = reader.next().expect("sound") {
                let mut push = |value| {
                    values.push(value);
                    Ok(())
                };
                field.int64s("a", &mut push).expect("integers");
            }
            assert_eq!(values, [1, 2]);
        }
    }

    #[test]
    fn rejects_malformed_messages_with_offset() {
        let cases: [(&str, &[u8], u64, &str); 9] = [
            ("cut key", &[0x80], 0, "ends inside a number"),
            ("cut varint", &[0x08, 0x80], 1, "ends inside a number"),
            ("cut fixed", &[0x08, 1, 0x0d, 0, 0], 3, "ends inside a number"),
            ("length", &[0x08, 1, 0x0a, 9, 0], 2, "a field has 9 bytes, but only 1 remain"),
            (
                "huge length",
                &[0x0a, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1],
                0,
                "but only 0 remain",
            ),
            ("wide varint", &[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2], 1, "64 bits"),
            ("number 0", &[0x00, 1], 0, "invalid field number 0"),
            ("group", &[0x08, 1, 0x0b, 0x0c], 2, "is a group"),
            ("wire type", &[0x0f], 0, "the invalid wire type 7"),
        ];
        for (name, bytes, offset, message) in cases {
            let error = fields(bytes).expect_err(name);
            assert_eq!(error.offset(), Some(offset), "{name}");
            assert!(error.message().contains(message), "{name}: {error}");
            assert_eq!(error.kind(), ErrorKind::ModelFile);
        }
    }

    #[test]
    fn reports_wire_type_mismatches() {
        let bytes = [0x08, 1];
        let field = Reader::new(&bytes).next().expect("sound").expect("a field");
        let error = field.string("author").expect_err("a varint");
        assert_eq!(error.location().as_deref(), Some("author"));
        assert_eq!(error.message(), "expected a string, found a varint");
        assert!(field.float("a").is_err() && field.double("a").is_err());
        let bytes = [0x0a, 3, 0x41, 0xff, 0x41];
        let field = Reader::new(&bytes).next().expect("sound").expect("a field");
        assert_eq!(field.string("a").expect_err("not UTF-8").offset(), Some(3));
        assert!(field.floats("a", &mut Vec::new()).is_err());
    }
}
