use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use memmap2::Mmap;

use crate::produce::{ByteSource, Fingerprint};
use coremill_io::mapped::Mapping;

/// Shorter parts of a file are read instead of accessed through the mapping, because an access maps the pages
/// around it.
const FAULT_AROUND: usize = 64 << 10;

/// Number of accessed bytes after which all pages of a mapping are released. Releasing after each access
/// would flush the page tables of all processors again and again.
#[cfg(unix)]
const RELEASE_ALL: usize = 16 << 20;

/// For a very large mapping, all pages are released after this fraction of it was accessed, because releasing
/// visits each page.
#[cfg(unix)]
const RELEASES: usize = 256;

/// Number of bytes compared in a step.
const COMPARED: usize = 64 << 10;

/// A cheaply cloned, immutable byte array: in memory, mapped from a file, or [deferred](Buffer::deferred),
/// that is, computed when it is read.
///
/// Clones and [slices](Buffer::slice) share one owner. A mapped file must not be truncated while it is
/// mapped: an access then faults, as with every memory-mapped reader, unless the process
/// [guards](coremill_io::guard) its mappings.
///
/// [`read_at`](Buffer::read_at), [`with_window`](Buffer::with_window) and
/// [`for_each_window`](Buffer::for_each_window) do not keep the bytes that they read, so weights of any size
/// need bounded memory. [`as_bytes`](Buffer::as_bytes) is intended for small buffers.
#[derive(Clone)]
pub struct Buffer {
    owner: Arc<Owner>,
    range: Range<usize>,
}

enum Owner {
    Memory(Vec<u8>),
    Lent(Arc<dyn AsRef<[u8]> + Send + Sync>),
    File(Arc<Mapping>),
    Deferred { producer: Arc<dyn ByteSource>, length: usize, kept: OnceLock<Vec<u8>> },
    Watched { bytes: Buffer, read: AtomicBool },
}

/// Location of a mapped buffer in its file.
#[derive(Clone, Copy, Debug)]
pub struct FileSpan<'a> {
    /// The path with which the file was opened.
    pub path: &'a Path,
    /// The open file; reading it at an offset does not access the mapping.
    pub file: &'a File,
    /// Offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
}

/// The files of some buffers.
#[derive(Clone, Debug, Default)]
pub struct Files(Vec<Buffer>);

impl Files {
    /// Returns the files of the buffers, each once.
    pub fn of<'b>(buffers: impl IntoIterator<Item = &'b Buffer>) -> Files {
        let mut files: Vec<Buffer> = Vec::new();
        for buffer in buffers {
            let buffer = buffer.watched_bytes().unwrap_or_else(|| buffer.clone());
            let is_file = matches!(&*buffer.owner, Owner::File(_));
            if is_file && !files.iter().any(|known| Arc::ptr_eq(&known.owner, &buffer.owner)) {
                files.push(buffer);
            }
        }
        Files(files)
    }

    /// Returns an error if bytes were read after a file was truncated: see [`Buffer::check`].
    pub fn check(&self) -> io::Result<()> {
        self.0.iter().try_for_each(Buffer::check)
    }
}

impl Buffer {
    /// Maps a whole file. The buffer of an empty file is empty.
    pub fn map(path: &Path) -> io::Result<Buffer> {
        let Some(mapping) = Mapping::new(path)? else { return Ok(Buffer::from(Vec::new())) };
        let range = 0..mapping.map.len();
        Ok(Buffer { owner: Arc::new(Owner::File(mapping)), range })
    }

    /// Returns a buffer of bytes with another owner, for instance a tensor of another runtime. They must be
    /// in memory, at a fixed address and with a fixed length.
    pub fn lent(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Buffer {
        let range = 0..(*owner).as_ref().len();
        Buffer { owner: Arc::new(Owner::Lent(owner)), range }
    }

    /// Returns a buffer whose bytes are computed whenever they are read.
    pub fn deferred(producer: Arc<dyn ByteSource>) -> Buffer {
        let length = producer.length();
        let owner = Owner::Deferred { producer, length, kept: OnceLock::new() };
        Buffer { owner: Arc::new(owner), range: 0..length }
    }

    /// The bytes. A mapped buffer's pages are loaded into memory. A deferred buffer is computed as a whole,
    /// and the result is kept.
    ///
    /// # Panics
    /// Panics if a deferred buffer cannot be computed, for instance because the disk with its source fails.
    /// For a mapping, such a failure ends the process.
    pub fn as_bytes(&self) -> &[u8] {
        let all: &[u8] = match &*self.owner {
            Owner::Memory(bytes) => bytes,
            Owner::Lent(owner) => (**owner).as_ref(),
            Owner::File(mapping) => &mapping.map,
            Owner::Deferred { producer, length, kept } => kept.get_or_init(|| {
                let mut bytes = vec![0; *length];
                if let Err(error) = producer.produce(0, &mut bytes) {
                    panic!("{length} deferred bytes cannot be computed: {error}");
                }
                bytes
            }),
            Owner::Watched { bytes, read } => {
                read.store(true, Ordering::Relaxed);
                bytes.as_bytes()
            }
        };
        &all[self.range.clone()]
    }

    /// Copies a part of the bytes into `target`. A mapped file is read without the mapping, and a deferred
    /// buffer is computed directly into `target`.
    pub fn read_at(&self, offset: usize, target: &mut [u8]) -> io::Result<()> {
        let range = self.within(offset, target.len())?;
        match &*self.owner {
            Owner::Memory(bytes) => target.copy_from_slice(&bytes[range]),
            Owner::Lent(owner) => target.copy_from_slice(&(**owner).as_ref()[range]),
            Owner::File(mapping) => read_file_at(&mapping.file, range.start as u64, target)?,
            Owner::Deferred { producer, kept, length } => match kept.get() {
                Some(bytes) => target.copy_from_slice(&bytes[range]),
                None => produce_any(&**producer, *length, range.start, target)?,
            },
            Owner::Watched { bytes, read } => {
                read.store(true, Ordering::Relaxed);
                bytes.read_at(range.start, target)?;
            }
        }
        Ok(())
    }

    /// Calls `visit` with a part of the bytes: in place if they are in memory or mapped, otherwise with a
    /// copy. Pages loaded for a mapping are released afterwards.
    pub fn with_window<T>(
        &self,
        range: Range<usize>,
        visit: impl FnOnce(&[u8]) -> T,
    ) -> io::Result<T> {
        let length = range.end.saturating_sub(range.start);
        let within = self.within(range.start, length)?;
        match &*self.owner {
            Owner::Memory(bytes) => Ok(visit(&bytes[within])),
            Owner::Lent(owner) => Ok(visit(&(**owner).as_ref()[within])),
            Owner::File(mapping) if length >= FAULT_AROUND => {
                let result = visit(&mapping.map[within.clone()]);
                release_some(&mapping.map, &within, &mapping.released);
                mapping.check()?;
                Ok(result)
            }
            Owner::Deferred { kept, .. } if kept.get().is_some() => {
                Ok(visit(&self.as_bytes()[range]))
            }
            Owner::Watched { bytes, read } => {
                read.store(true, Ordering::Relaxed);
                bytes.with_window(within, visit)
            }
            Owner::File(_) | Owner::Deferred { .. } => {
                let mut copy = vec![0; length];
                self.read_at(range.start, &mut copy)?;
                Ok(visit(&copy))
            }
        }
    }

    /// Calls `visit` with consecutive parts of `size` bytes, the last one possibly shorter, like
    /// [`with_window`](Buffer::with_window).
    ///
    /// # Panics
    /// Panics if the size is 0.
    pub fn for_each_window(
        &self,
        range: Range<usize>,
        size: usize,
        visit: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        assert!(size > 0, "the window size must be at least 1");
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start.saturating_add(size));
            self.with_window(start..end, &mut *visit)??;
            start = end;
        }
        Ok(())
    }

    /// Returns an error if bytes were read after their file was truncated; such bytes are zeros. The error
    /// names the file. Users of [`as_bytes`](Buffer::as_bytes) must call this before they use a result;
    /// windows call it automatically.
    pub fn check(&self) -> io::Result<()> {
        match &*self.owner {
            Owner::File(mapping) => mapping.check(),
            Owner::Watched { bytes, .. } => bytes.check(),
            Owner::Memory(_) | Owner::Lent(_) | Owner::Deferred { .. } => Ok(()),
        }
    }

    /// Releases the pages of the buffer's file, if it is mapped. They are read again when they are used. A run that uses
    /// each weight once needs less memory with this.
    pub fn release_file(&self) {
        match &*self.owner {
            Owner::File(mapping) => release(&mapping.map, &(0..mapping.map.len())),
            Owner::Watched { bytes, .. } => bytes.release_file(),
            Owner::Memory(_) | Owner::Lent(_) | Owner::Deferred { .. } => {}
        }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Whether the bytes are computed when they are read, or reads of them are tracked. Code that does not
    /// depend on the bytes should then not read them.
    pub fn is_deferred(&self) -> bool {
        match &*self.owner {
            Owner::Deferred { kept, .. } => kept.get().is_none(),
            Owner::Watched { .. } => true,
            Owner::Memory(_) | Owner::Lent(_) | Owner::File(_) => false,
        }
    }

    /// Returns a buffer that records whether it was read.
    pub(crate) fn watched(bytes: Buffer) -> Buffer {
        let range = 0..bytes.len();
        Buffer { owner: Arc::new(Owner::Watched { bytes, read: AtomicBool::new(false) }), range }
    }

    /// The tracked bytes, if reads are tracked.
    pub(crate) fn watched_bytes(&self) -> Option<Buffer> {
        match &*self.owner {
            Owner::Watched { bytes, .. } => bytes.slice(self.range.clone()),
            _ => None,
        }
    }

    /// The tracked bytes, if reads are tracked and the buffer contains all of them.
    pub(crate) fn all_watched(&self) -> Option<Buffer> {
        match &*self.owner {
            Owner::Watched { bytes, .. } => (self.len() == bytes.len()).then(|| bytes.clone()),
            _ => None,
        }
    }

    /// Whether tracked bytes were read.
    pub(crate) fn was_read(&self) -> bool {
        matches!(&*self.owner, Owner::Watched { read, .. } if read.load(Ordering::Relaxed))
    }

    /// Number of buffers that share the owner.
    pub(crate) fn holders(&self) -> usize {
        Arc::strong_count(&self.owner)
    }

    /// Range of this buffer in the owner that it shares with another buffer.
    pub(crate) fn part_of(&self, other: &Buffer) -> Option<Range<usize>> {
        Arc::ptr_eq(&self.owner, &other.owner).then(|| self.range.clone())
    }

    /// Returns a part of this buffer with the same owner; `None` if the range is out of bounds.
    pub fn slice(&self, range: Range<usize>) -> Option<Buffer> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        let start = self.range.start + range.start;
        Some(Buffer { owner: Arc::clone(&self.owner), range: start..start + range.len() })
    }

    /// File and location, if the buffer is mapped.
    pub fn file_span(&self) -> Option<FileSpan<'_>> {
        match &*self.owner {
            Owner::Memory(_) | Owner::Lent(_) | Owner::Deferred { .. } | Owner::Watched { .. } => {
                None
            }
            Owner::File(mapping) => Some(FileSpan {
                path: &mapping.path,
                file: &mapping.file,
                offset: self.range.start as u64,
                length: self.range.len() as u64,
            }),
        }
    }

    /// The buffer of the whole mapped file.
    pub fn whole_file(&self) -> Option<Buffer> {
        match &*self.owner {
            Owner::Memory(_) | Owner::Lent(_) | Owner::Deferred { .. } | Owner::Watched { .. } => {
                None
            }
            Owner::File(mapping) => {
                Some(Buffer { owner: Arc::clone(&self.owner), range: 0..mapping.map.len() })
            }
        }
    }

    /// Lets the system reclaim the pages of this buffer, so that reading a large file once does not increase
    /// the memory of the process. Later reads load them again. Has no effect on memory that is not mapped.
    pub fn release_pages(&self) {
        if let Owner::File(mapping) = &*self.owner {
            release(&mapping.map, &self.range);
        }
    }

    /// Whether both are the same bytes of the same owner.
    pub fn same_place(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.owner, &other.owner) && self.range == other.range
    }

    /// Identity of the bytes, for detecting equal buffers without reading them: equal if both are the same
    /// bytes or are computed in the same way from the same bytes. It is valid only while both buffers exist.
    pub fn identity(&self) -> Fingerprint {
        let owner = match &*self.owner {
            Owner::Deferred { producer, .. } => producer.identity(),
            Owner::Memory(_) | Owner::Lent(_) | Owner::File(_) | Owner::Watched { .. } => None,
        };
        let owner = owner.unwrap_or_else(|| {
            Fingerprint::new("owner").with(Arc::as_ptr(&self.owner).addr() as u64)
        });
        owner.with(self.range.start as u64).with(self.range.len() as u64)
    }

    /// The producer of a deferred buffer, if the buffer is its complete result.
    pub(crate) fn producer(&self) -> Option<&dyn ByteSource> {
        match &*self.owner {
            Owner::Deferred { producer, length, .. } if self.range == (0..*length) => {
                Some(&**producer)
            }
            _ => None,
        }
    }

    /// The range in the owner for a part of this buffer.
    fn within(&self, offset: usize, length: usize) -> io::Result<Range<usize>> {
        match offset.checked_add(length) {
            Some(end) if end <= self.len() => Ok(self.range.start + offset..self.range.start + end),
            _ => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!(
                    "{length} bytes at offset {offset} are outside the buffer of {} bytes",
                    self.len()
                ),
            )),
        }
    }
}

/// Computes bytes whose range need not be aligned to the producer's granule.
fn produce_any(
    producer: &dyn ByteSource,
    total: usize,
    offset: usize,
    target: &mut [u8],
) -> io::Result<()> {
    let granule = producer.granule().max(1);
    let one = |at: usize| {
        let start = at - at % granule;
        let mut bytes = vec![0; granule.min(total - start)];
        producer.produce(start, &mut bytes).map(|()| bytes)
    };
    let (mut offset, mut target) = (offset, target);
    let skipped = offset % granule;
    if skipped != 0 && !target.is_empty() {
        let bytes = one(offset)?;
        let length = target.len().min(bytes.len() - skipped);
        let (first, rest) = target.split_at_mut(length);
        first.copy_from_slice(&bytes[skipped..skipped + length]);
        (offset, target) = (offset + length, rest);
    }
    let ends = offset + target.len() == total;
    let whole = if ends { target.len() } else { target.len() - target.len() % granule };
    let (middle, last) = target.split_at_mut(whole);
    if !middle.is_empty() {
        producer.produce(offset, middle)?;
    }
    if !last.is_empty() {
        let bytes = one(offset + whole)?;
        last.copy_from_slice(&bytes[..last.len()]);
    }
    Ok(())
}

/// Counts an access to a mapping, and releases its pages if enough was accessed.
fn release_some(map: &Mmap, range: &Range<usize>, released: &AtomicUsize) {
    #[cfg(unix)]
    {
        // On systems that cache files in large pages, pages that were already released by other threads are
        // mapped again. Therefore release all pages.
        let often = RELEASE_ALL.max(map.len() / RELEASES);
        let before = released.fetch_add(range.len(), Ordering::Relaxed);
        if before / often != before.wrapping_add(range.len()) / often {
            release(map, &(0..map.len()));
        } else if often > RELEASE_ALL {
            release(map, range);
        }
    }
    #[cfg(not(unix))]
    let _ = (map, range, released);
}

/// Releases the pages of a part of a mapping, including adjacent pages that were mapped by the same access.
fn release(map: &Mmap, range: &Range<usize>) {
    #[cfg(unix)]
    {
        let start = range.start - range.start % FAULT_AROUND;
        let end = range.end.next_multiple_of(FAULT_AROUND).min(map.len());
        if start < end {
            // SAFETY: the mapping is read-only and backed by a file, so released pages are read again
            // unchanged. A failing call has no effect.
            #[expect(unsafe_code, reason = "dropping clean pages of a read-only mapping")]
            let _ = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start)
            };
        }
    }
    #[cfg(not(unix))]
    let _ = (map, range);
}

#[cfg(unix)]
fn read_file_at(file: &File, offset: u64, target: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, target, offset)
}

#[cfg(windows)]
fn read_file_at(file: &File, mut offset: u64, mut target: &mut [u8]) -> io::Result<()> {
    while !target.is_empty() {
        let count = std::os::windows::fs::FileExt::seek_read(file, target, offset)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        offset += count as u64;
        target = &mut target[count..];
    }
    Ok(())
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
    /// Large buffers are compared in parts. Unreadable bytes are not equal to anything.
    fn eq(&self, other: &Buffer) -> bool {
        if self.same_place(other) {
            return true;
        }
        if self.len() != other.len() {
            return false;
        }
        if self.is_deferred() && self.identity() == other.identity() {
            return true;
        }
        (0..self.len()).step_by(COMPARED).all(|start| {
            let range = start..self.len().min(start + COMPARED);
            let compare = |left: &[u8]| other.with_window(range.clone(), |right| left == right);
            matches!(self.with_window(range.clone(), compare), Ok(Ok(true)))
        })
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
            None if self.watched_bytes().is_some() => {
                write!(f, "Buffer({} bytes, watched)", self.len())
            }
            None if self.is_deferred() => write!(f, "Buffer({} bytes, deferred)", self.len()),
            None if self.len() <= 16 => write!(f, "Buffer({:02x?})", self.as_bytes()),
            None => write!(f, "Buffer({} bytes in memory)", self.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_rejects_out_of_range_bounds() {
        let buffer = Buffer::from(vec![1, 2, 3, 4]);
        let middle = buffer.slice(1..3).expect("in range");
        assert_eq!(middle.as_bytes(), [2, 3]);
        assert_eq!(middle.slice(1..2).expect("in range").as_bytes(), [3]);
        assert_eq!(middle.slice(1..3), None);
        #[expect(clippy::reversed_empty_ranges, reason = "the case under test")]
        let reversed = buffer.slice(3..1);
        assert_eq!(reversed, None);
    }

    #[cfg(unix)]
    #[test]
    fn reports_truncation_of_mapped_file() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), vec![7; 1 << 20]).expect("written");
        let whole = Buffer::map(file.path()).expect("map");
        let behind = whole.slice(1 << 19..1 << 20).expect("a part");
        let files = Files::of([&whole, &behind, &Buffer::from(vec![1])]);
        file.as_file().set_len(4096).expect("cut");
        assert!(files.check().is_ok() && whole.as_bytes()[..4096].iter().all(|&byte| byte == 7));
        assert_eq!(behind.as_bytes()[5], 0);
        let name = file.path().display().to_string();
        let names = |result: io::Result<()>| {
            result.expect_err("a truncated file").to_string().contains(&name)
        };
        assert!(names(whole.check()) && names(files.check()));
        assert!(names(whole.for_each_window(0..1 << 20, 1 << 18, &mut |_| Ok(()))));
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
    fn maps_empty_files() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("empty");
        std::fs::write(&path, []).expect("write");
        assert!(Buffer::map(&path).expect("map").is_empty());
    }
}
