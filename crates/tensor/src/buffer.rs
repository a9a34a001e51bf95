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

/// Shorter parts of a file are read, not looked at through the mapping: one touch of that brings in
/// pages around the touched one.
const FAULT_AROUND: usize = 64 << 10;

/// After so many bytes all pages of a mapping are given back. Giving back what was looked at each time would have all
/// processors forget where pages are again and again.
#[cfg(unix)]
const RELEASE_ALL: usize = 32 << 20;

/// Of a mapping that is very large all pages are given back after this part of it, since it takes a look at each page.
#[cfg(unix)]
const RELEASES: usize = 128;

/// What comparing two buffers looks at in a step.
const COMPARED: usize = 64 << 10;

/// A cheaply cloned, immutable run of bytes: in memory, mapped from a file, or
/// [deferred](Buffer::deferred), which is computed when it is read.
///
/// Clones and [slices](Buffer::slice) share one owner. A mapped file must not be shortened while it
/// is mapped: the operating system then faults on access, as with every memory-mapped reader, unless the
/// process [guards](coremill_io::guard) what it maps.
///
/// [`read_at`](Buffer::read_at), [`with_window`](Buffer::with_window) and
/// [`for_each_window`](Buffer::for_each_window) keep nothing of what they read, so a weight of any size
/// flows through them in bounded memory. [`as_bytes`](Buffer::as_bytes) is for small ones.
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

/// The files that some buffers lie in.
#[derive(Clone, Debug, Default)]
pub struct Files(Vec<Buffer>);

impl Files {
    /// The files, each once.
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

    /// Fails if bytes of one were read that it no longer has: see [`Buffer::check`].
    pub fn check(&self) -> io::Result<()> {
        self.0.iter().try_for_each(Buffer::check)
    }
}

impl Buffer {
    /// Maps a whole file. An empty file gives an empty buffer.
    pub fn map(path: &Path) -> io::Result<Buffer> {
        let Some(mapping) = Mapping::new(path)? else { return Ok(Buffer::from(Vec::new())) };
        let range = 0..mapping.map.len();
        Ok(Buffer { owner: Arc::new(Owner::File(mapping)), range })
    }

    /// Bytes that somebody else owns: those of a tensor of another runtime, for instance. They lie in memory, and have
    /// to stay where they are and as many as they are.
    pub fn lent(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Buffer {
        let range = 0..(*owner).as_ref().len();
        Buffer { owner: Arc::new(Owner::Lent(owner)), range }
    }

    /// Bytes that are computed whenever they are read.
    pub fn deferred(producer: Arc<dyn ByteSource>) -> Buffer {
        let length = producer.length();
        let owner = Owner::Deferred { producer, length, kept: OnceLock::new() };
        Buffer { owner: Arc::new(owner), range: 0..length }
    }

    /// The bytes. Reading a mapped buffer brings its pages into memory; a deferred one is computed as
    /// a whole, and what came out is kept.
    ///
    /// # Panics
    /// Where a deferred buffer cannot be computed, for instance because the disk that its source is on
    /// fails; touching a mapping ends the process then.
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

    /// Copies a part of the bytes into `target` and keeps nothing of it. A mapped buffer's file is read
    /// without its mapping, a deferred one is computed where `target` lies.
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

    /// Calls `visit` with a part of the bytes: where they lie if that is in memory or mapped, and a copy
    /// otherwise. Pages that a mapping brought in for it are given back.
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

    /// Calls `visit` with each part of `size` bytes in turn, the last one shorter, as
    /// [`with_window`](Buffer::with_window) does.
    ///
    /// # Panics
    /// Where the size is 0.
    pub fn for_each_window(
        &self,
        range: Range<usize>,
        size: usize,
        visit: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        assert!(size > 0, "windows of no bytes");
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start.saturating_add(size));
            self.with_window(start..end, &mut *visit)??;
            start = end;
        }
        Ok(())
    }

    /// Fails if bytes were read that their file no longer has, where zeros stood for them; the error names the file.
    /// Whoever has looked at [`as_bytes`](Buffer::as_bytes) asks before the result is used; windows ask themselves.
    pub fn check(&self) -> io::Result<()> {
        match &*self.owner {
            Owner::File(mapping) => mapping.check(),
            Owner::Watched { bytes, .. } => bytes.check(),
            Owner::Memory(_) | Owner::Lent(_) | Owner::Deferred { .. } => Ok(()),
        }
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Whether the bytes are computed when they are read, or somebody watches who reads them: whoever can do without
    /// them does.
    pub fn is_deferred(&self) -> bool {
        match &*self.owner {
            Owner::Deferred { kept, .. } => kept.get().is_none(),
            Owner::Watched { .. } => true,
            Owner::Memory(_) | Owner::Lent(_) | Owner::File(_) => false,
        }
    }

    /// Bytes that note when they are read.
    pub(crate) fn watched(bytes: Buffer) -> Buffer {
        let range = 0..bytes.len();
        Buffer { owner: Arc::new(Owner::Watched { bytes, read: AtomicBool::new(false) }), range }
    }

    /// The bytes that are watched, if they are.
    pub(crate) fn watched_bytes(&self) -> Option<Buffer> {
        match &*self.owner {
            Owner::Watched { bytes, .. } => bytes.slice(self.range.clone()),
            _ => None,
        }
    }

    /// The bytes that are watched, if they are all of them.
    pub(crate) fn all_watched(&self) -> Option<Buffer> {
        match &*self.owner {
            Owner::Watched { bytes, .. } => (self.len() == bytes.len()).then(|| bytes.clone()),
            _ => None,
        }
    }

    /// Whether watched bytes were read.
    pub(crate) fn was_read(&self) -> bool {
        matches!(&*self.owner, Owner::Watched { read, .. } if read.load(Ordering::Relaxed))
    }

    /// How many buffers share the owner.
    pub(crate) fn holders(&self) -> usize {
        Arc::strong_count(&self.owner)
    }

    /// Which part of another buffer's owner this is.
    pub(crate) fn part_of(&self, other: &Buffer) -> Option<Range<usize>> {
        Arc::ptr_eq(&self.owner, &other.owner).then(|| self.range.clone())
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

    /// The whole of the mapped file that this buffer is a part of.
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

    /// Lets the system take back the pages behind this buffer, so that reading a large file once
    /// does not grow the process. Later reads bring them in again. Does nothing for memory.
    pub fn release_pages(&self) {
        if let Owner::File(mapping) = &*self.owner {
            release(&mapping.map, &self.range);
        }
    }

    /// Whether both are the very same bytes of the same owner.
    pub fn same_place(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.owner, &other.owner) && self.range == other.range
    }

    /// What tells that two buffers are equal without a look at their bytes: the same place, or computed
    /// alike from the same places. It means something only while both buffers live.
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

    /// The producer of a deferred buffer, if the buffer is all of its result.
    pub(crate) fn producer(&self) -> Option<&dyn ByteSource> {
        match &*self.owner {
            Owner::Deferred { producer, length, .. } if self.range == (0..*length) => {
                Some(&**producer)
            }
            _ => None,
        }
    }

    /// The place in the owner of a part of this buffer.
    fn within(&self, offset: usize, length: usize) -> io::Result<Range<usize>> {
        match offset.checked_add(length) {
            Some(end) if end <= self.len() => Ok(self.range.start + offset..self.range.start + end),
            _ => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("{length} bytes from {offset} on of a buffer of {} bytes", self.len()),
            )),
        }
    }
}

/// Has bytes computed that begin and end within elements of the producer.
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

/// Gives the pages of a mapping back when much was looked at, of which a part is the latest.
fn release_some(map: &Mmap, range: &Range<usize>, released: &AtomicUsize) {
    #[cfg(unix)]
    {
        // A system that keeps files in large pieces brings in whole ones, so that pages come back for
        // which other threads were done already: all go.
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

/// Gives the pages of a part of a mapping back. Touching one page of a part brought in its neighbours,
/// so these go, too.
fn release(map: &Mmap, range: &Range<usize>) {
    #[cfg(unix)]
    {
        let start = range.start - range.start % FAULT_AROUND;
        let end = range.end.next_multiple_of(FAULT_AROUND).min(map.len());
        if start < end {
            // SAFETY: the mapping is read-only and backed by a file, so dropped pages are read
            // back from it unchanged. A failed advice changes nothing.
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
    /// Large buffers are compared part by part, and nothing of them is kept. Bytes that cannot be
    /// read equal none.
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

    #[cfg(unix)]
    #[test]
    fn a_file_that_is_cut_short_is_an_error_that_names_it() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), vec![7; 1 << 20]).expect("written");
        let whole = Buffer::map(file.path()).expect("map");
        let behind = whole.slice(1 << 19..1 << 20).expect("a part");
        let files = Files::of([&whole, &behind, &Buffer::from(vec![1])]);
        file.as_file().set_len(4096).expect("cut");
        assert!(files.check().is_ok() && whole.as_bytes()[..4096].iter().all(|&byte| byte == 7));
        assert_eq!(behind.as_bytes()[5], 0);
        let name = file.path().display().to_string();
        let names =
            |told: io::Result<()>| told.expect_err("it is short").to_string().contains(&name);
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
    fn empty_files_map() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("empty");
        std::fs::write(&path, []).expect("write");
        assert!(Buffer::map(&path).expect("map").is_empty());
    }
}
