use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

/// A cheaply cloned, immutable run of bytes, in memory or mapped from a file.
///
/// Clones and [slices](Buffer::slice) share one owner. A mapped file must not be shortened while it
/// is mapped: the operating system then faults on access, as with every memory-mapped reader.
#[derive(Clone)]
pub struct Buffer {
    owner: Arc<Owner>,
    range: Range<usize>,
}

enum Owner {
    Memory(Vec<u8>),
    File { path: PathBuf, file: File, map: Mmap },
}

/// Where in a file a mapped buffer lies.
#[derive(Clone, Copy, Debug)]
pub struct FileSpan<'a> {
    /// The path under which the file was opened.
    pub path: &'a Path,
    /// The open file; reading it at an offset does not touch the mapping.
    pub file: &'a File,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
}

impl Buffer {
    /// Maps a whole file. An empty file gives an empty buffer.
    pub fn map(path: &Path) -> io::Result<Buffer> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        if length == 0 {
            return Ok(Buffer::from(Vec::new()));
        }
        // SAFETY: the mapping is private and read-only, and lives as long as the `File` beside it.
        // Another process may still change or shorten the file; the type's documentation says so.
        #[expect(unsafe_code, reason = "mapping a file is the purpose of this type")]
        let map = unsafe { Mmap::map(&file)? };
        let range = 0..map.len();
        Ok(Buffer { owner: Arc::new(Owner::File { path: path.to_owned(), file, map }), range })
    }

    /// The bytes. Reading a mapped buffer brings its pages into memory.
    pub fn as_bytes(&self) -> &[u8] {
        let all: &[u8] = match &*self.owner {
            Owner::Memory(bytes) => bytes,
            Owner::File { map, .. } => map,
        };
        &all[self.range.clone()]
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// A part of this buffer, sharing its owner; none if the range does not lie within.
    pub fn slice(&self, range: Range<usize>) -> Option<Buffer> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        let start = self.range.start + range.start;
        Some(Buffer { owner: Arc::clone(&self.owner), range: start..start + range.len() })
    }

    /// The file and the place in it, if the buffer is mapped.
    pub fn file_span(&self) -> Option<FileSpan<'_>> {
        match &*self.owner {
            Owner::Memory(_) => None,
            Owner::File { path, file, .. } => Some(FileSpan {
                path,
                file,
                offset: self.range.start as u64,
                length: self.range.len() as u64,
            }),
        }
    }

    /// The whole of the mapped file that this buffer is a part of.
    pub fn whole_file(&self) -> Option<Buffer> {
        match &*self.owner {
            Owner::Memory(_) => None,
            Owner::File { map, .. } => {
                Some(Buffer { owner: Arc::clone(&self.owner), range: 0..map.len() })
            }
        }
    }

    /// Lets the system take back the pages behind this buffer, so that reading a large file once
    /// does not grow the process. Later reads bring them in again. Does nothing for memory.
    pub fn release_pages(&self) {
        #[cfg(unix)]
        if let Owner::File { map, .. } = &*self.owner {
            // The advice must cover whole pages; partly covered ones at the ends stay.
            const PAGE: usize = 4096;
            let start = self.range.start.next_multiple_of(PAGE);
            let end = self.range.end - self.range.end % PAGE;
            if start < end {
                // SAFETY: the mapping is read-only and backed by a file, so dropped pages are read
                // back from it unchanged. A failed advice changes nothing.
                #[expect(unsafe_code, reason = "dropping clean pages of a read-only mapping")]
                let _ = unsafe {
                    map.unchecked_advise_range(
                        memmap2::UncheckedAdvice::DontNeed,
                        start,
                        end - start,
                    )
                };
            }
        }
    }

    /// Whether both are the very same bytes of the same owner.
    pub fn same_place(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.owner, &other.owner) && self.range == other.range
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Buffer {
        let range = 0..bytes.len();
        Buffer { owner: Arc::new(Owner::Memory(bytes)), range }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Buffer) -> bool {
        self.same_place(other) || self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Buffer {}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.file_span() {
            Some(span) => write!(
                f,
                "Buffer({} bytes at {} of {})",
                span.length,
                span.offset,
                span.path.display()
            ),
            None if self.len() <= 16 => write!(f, "Buffer({:02x?})", self.as_bytes()),
            None => write!(f, "Buffer({} bytes in memory)", self.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_stay_within() {
        let buffer = Buffer::from(vec![1, 2, 3, 4]);
        let middle = buffer.slice(1..3).expect("in range");
        assert_eq!(middle.as_bytes(), [2, 3]);
        assert_eq!(middle.slice(1..2).expect("in range").as_bytes(), [3]);
        assert_eq!(middle.slice(1..3), None);
        #[expect(clippy::reversed_empty_ranges, reason = "the case under test")]
        let reversed = buffer.slice(3..1);
        assert_eq!(reversed, None);
    }

    #[test]
    fn maps_files_and_survives_releasing_pages() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("bytes");
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).expect("write");
        let buffer = Buffer::map(&path).expect("map");
        assert_eq!(buffer.as_bytes(), bytes);
        let part = buffer.slice(10..90_000).expect("in range");
        part.release_pages();
        assert_eq!(part.as_bytes(), &bytes[10..90_000]);
        let span = part.file_span().expect("mapped");
        assert_eq!((span.offset, span.length), (10, 89_990));
    }

    #[test]
    fn empty_files_map() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("empty");
        std::fs::write(&path, []).expect("write");
        assert!(Buffer::map(&path).expect("map").is_empty());
    }
}
