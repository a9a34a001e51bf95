use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use coremill_tensor::{Buffer, ByteSource};

/// Number of bytes compared per step.
const COMPARED: usize = 1 << 16;

/// Bytes composed of consecutive parts. A delegate's payload, for example, consists of mapped weights, computed
/// weights and JSON, and is never in memory as a whole.
///
/// Clones share their parts. Data read from a file has a single part.
#[derive(Clone, Default)]
pub struct ByteRope {
    parts: Vec<Buffer>,
    /// End offset of each part.
    ends: Vec<usize>,
}

impl ByteRope {
    /// An empty rope.
    pub fn new() -> ByteRope {
        ByteRope::default()
    }

    /// Appends bytes.
    ///
    /// # Panics
    /// If the total length exceeds the address space.
    pub fn push(&mut self, part: impl Into<Buffer>) {
        let part = part.into();
        if part.is_empty() {
            return;
        }
        let end = self.len().checked_add(part.len()).expect("the length of data is addressable");
        self.ends.push(end);
        self.parts.push(part);
    }

    /// Appends all parts of another rope.
    pub fn append(&mut self, other: &ByteRope) {
        for part in &other.parts {
            self.push(part.clone());
        }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The parts, none of which is empty.
    pub fn parts(&self) -> &[Buffer] {
        &self.parts
    }

    /// A range of the bytes, shared with this rope; `None` if out of bounds.
    pub fn slice(&self, range: Range<usize>) -> Option<ByteRope> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        let mut slice = ByteRope::new();
        self.for_each_part(range, &mut |part, within| {
            slice.push(part.slice(within).expect("within the part"));
            Ok(())
        })
        .expect("nothing is read");
        Some(slice)
    }

    /// All bytes as one buffer. Several parts are not copied, but joined on each read.
    pub fn to_buffer(&self) -> Buffer {
        match self.parts.as_slice() {
            [] => Buffer::from(Vec::new()),
            [only] => only.clone(),
            _ => Buffer::deferred(Arc::new(ContiguousData(self.clone()))),
        }
    }

    /// Copies bytes from `offset` into `target`.
    pub fn read_at(&self, offset: usize, target: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(target.len()).filter(|end| *end <= self.len());
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut rest = target;
        self.for_each_part(offset..end, &mut |part, within| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(within.len());
            rest = later;
            part.read_at(within.start, now)
        })
    }

    /// Calls `visit` with consecutive windows of at most `size` bytes.
    ///
    /// # Panics
    /// If `size` is 0.
    pub fn for_each_window(
        &self,
        size: usize,
        visit: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        self.parts.iter().try_for_each(|part| part.for_each_window(0..part.len(), size, visit))
    }

    /// Calls `visit` with every part that overlaps the range, and the overlap within the part.
    fn for_each_part(
        &self,
        range: Range<usize>,
        visit: &mut dyn FnMut(&Buffer, Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        let first = self.ends.partition_point(|end| *end <= range.start);
        for (part, end) in self.parts.iter().zip(&self.ends).skip(first) {
            let start = end - part.len();
            if start >= range.end {
                break;
            }
            let within = range.start.max(start) - start..range.end.min(*end) - start;
            visit(part, within)?;
        }
        Ok(())
    }
}

/// Data read as one buffer.
struct ContiguousData(ByteRope);

impl ByteSource for ContiguousData {
    fn length(&self) -> usize {
        self.0.len()
    }

    fn produce(&self, offset: usize, target: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, target)
    }
}

impl From<Buffer> for ByteRope {
    fn from(buffer: Buffer) -> ByteRope {
        let mut data = ByteRope::new();
        data.push(buffer);
        data
    }
}

impl From<Vec<u8>> for ByteRope {
    fn from(bytes: Vec<u8>) -> ByteRope {
        ByteRope::from(Buffer::from(bytes))
    }
}

impl FromIterator<Buffer> for ByteRope {
    fn from_iter<T: IntoIterator<Item = Buffer>>(parts: T) -> ByteRope {
        let mut data = ByteRope::new();
        parts.into_iter().for_each(|part| data.push(part));
        data
    }
}

impl PartialEq for ByteRope {
    /// Compares contents, independent of the division into parts. Unreadable bytes are not equal to anything.
    fn eq(&self, other: &ByteRope) -> bool {
        if self.len() != other.len() {
            return false;
        }
        if self.ends == other.ends {
            return self.parts == other.parts;
        }
        let mut window = vec![0; COMPARED.min(other.len())];
        let mut offset = 0;
        let mut equal = true;
        let read = self.for_each_window(COMPARED, &mut |bytes| {
            let window = &mut window[..bytes.len()];
            other.read_at(offset, window)?;
            offset += bytes.len();
            equal &= bytes == window;
            Ok(())
        });
        read.is_ok() && equal
    }
}

impl Eq for ByteRope {}

impl fmt::Debug for ByteRope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Data({} bytes in {} parts)", self.len(), self.parts.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(parts: &[&[u8]]) -> ByteRope {
        parts.iter().map(|part| Buffer::from(part.to_vec())).collect()
    }

    #[test]
    fn byte_rope_reads_parts_as_contiguous_bytes() {
        let rope = data(&[b"ab", b"", b"cde", b"f"]);
        assert_eq!((rope.len(), rope.parts().len()), (6, 3));
        assert_eq!(rope, data(&[b"abcdef"]));
        assert_ne!(rope, data(&[b"abcdeg"]));
        assert_ne!(rope, data(&[b"abcde"]));
        assert_eq!(rope.to_buffer().as_bytes(), b"abcdef");
        for start in 0..=6 {
            for end in start..=6 {
                let slice = rope.slice(start..end).expect("a valid range");
                assert_eq!(slice.to_buffer().as_bytes(), &b"abcdef"[start..end]);
                let mut target = vec![0; end - start];
                rope.read_at(start, &mut target).expect("a valid range");
                assert_eq!(target, &b"abcdef"[start..end]);
            }
        }
        assert_eq!(rope.slice(3..7), None);
        assert!(rope.read_at(6, &mut [0]).is_err());
        assert!(rope.read_at(usize::MAX, &mut [0; 2]).is_err());
    }
}
