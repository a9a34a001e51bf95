//! Parallel writes of files in windows. The bytes may have to be computed.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::cancel::{self, CancellationToken};
use crate::pages::bring_pages;
use crate::room::Preallocation;

/// Maximum number of threads; more would wait for the file system.
const MAX_THREADS: usize = 8;

/// Maximum number of windows waiting to be written.
const MAX_WAITING: usize = 2;

/// Number of consecutive windows of new memory filled by one thread, so that it does not share large pages.
const GROUP: usize = 8;

/// Bytes copied per step: small enough to stay in the cache of the thread that allocates the pages.
const COPIED: usize = 256 << 10;

/// Copies of fewer bytes use a single thread.
const SHARED: usize = 4 << 20;

/// Calls `visit` for each window of `length` bytes on several threads, with its offset and a buffer for its bytes.
/// The buffer may contain bytes of an earlier window and may be replaced. The first error stops the iteration.
pub fn for_each_window(
    length: u64,
    window: usize,
    visit: impl Fn(u64, &mut Vec<u8>) -> io::Result<()> + Sync,
) -> io::Result<()> {
    let too_long = || {
        io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("{length} bytes exceed the address space"),
        )
    };
    let count = usize::try_from(length.div_ceil(window as u64)).map_err(|_| too_long())?;
    let size_at =
        |offset: u64| usize::try_from(length - offset).map_or(window, |left| left.min(window));
    share(count, MAX_THREADS, Vec::new, |room, index| {
        let offset = index as u64 * window as u64;
        room.resize(size_at(offset), 0);
        visit(offset, room)
    })
}

/// Calls `visit` with each number below `count`, on one thread per processor but at most `most`, each with its own
/// `scratch`. The first error stops the iteration.
pub fn share<S>(
    count: usize,
    most: usize,
    scratch: impl Fn() -> S + Sync,
    visit: impl Fn(&mut S, usize) -> io::Result<()> + Sync,
) -> io::Result<()> {
    let next = AtomicUsize::new(0);
    let token = cancel::current();
    let work = || -> io::Result<()> {
        let mut scratch = scratch();
        loop {
            if token.as_ref().is_some_and(CancellationToken::is_cancelled) {
                next.store(count, Ordering::Relaxed);
            }
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return Ok(());
            }
            if let Err(error) = visit(&mut scratch, index) {
                // Skips the remaining numbers.
                next.store(count, Ordering::Relaxed);
                return Err(error);
            }
        }
    };
    // Querying the number of processors takes longer than most small pieces of work.
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if count > 1 { processors().min(most).min(count) } else { count };
    let outcome = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        others.into_iter().fold(own, |result, other| {
            let failed = || Err(io::Error::other("a thread that computes bytes panicked"));
            result.and(other.join().unwrap_or_else(|_| failed()))
        })
    });
    // After a cancellation, some numbers were not visited.
    cancel::point();
    outcome
}

/// Fills new memory on several threads: `visit` receives each window with its offset. The first error stops the
/// iteration.
pub fn fill_windows(
    target: &mut [u8],
    window: usize,
    visit: impl Fn(usize, &mut [u8]) -> io::Result<()> + Sync,
) -> io::Result<()> {
    let size = GROUP * window;
    let groups = target.chunks_mut(size).enumerate();
    let (count, groups) = (groups.len(), Mutex::new(groups));
    let nothing = || ();
    share(count, MAX_THREADS, nothing, |(), _| {
        let next = groups.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some((group, windows)) = next else { return Ok(()) };
        for (index, part) in windows.chunks_mut(window).enumerate() {
            bring_pages(part);
            visit(group * size + index * window, part)?;
        }
        Ok(())
    })
}

/// Copies bytes, with several threads if there are many, because the system takes longer to allocate new memory than
/// a processor takes to fill it.
pub fn copied(bytes: &[u8]) -> Vec<u8> {
    if bytes.len() < SHARED {
        return bytes.to_vec();
    }
    let mut copy = vec![0; bytes.len()];
    let done = fill_windows(&mut copy, COPIED, |offset, window| {
        window.copy_from_slice(&bytes[offset..][..window.len()]);
        Ok(())
    });
    match done {
        Ok(()) => copy,
        Err(_) => bytes.to_vec(),
    }
}

/// A file that several threads write to.
///
/// File systems allow one writing thread at a time, so that thread also writes windows that others have completed.
pub struct PositionedWriter<'f> {
    file: &'f File,
    room: Mutex<Preallocation>,
    queue: Mutex<Queue>,
    /// Notified when a window was written.
    written: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Whether a thread is writing.
    busy: bool,
    /// Windows waiting to be written, with their offsets.
    waiting: Vec<(u64, Vec<u8>)>,
    /// Buffers of written windows, for reuse.
    free: Vec<Vec<u8>>,
    /// Number of buffers that are waiting, being written, or free.
    windows: usize,
}

impl<'f> PositionedWriter<'f> {
    /// Wraps a file that already has its final length and no other writers.
    pub fn new(file: &'f File) -> PositionedWriter<'f> {
        PositionedWriter {
            file,
            room: Mutex::new(Preallocation::of(file)),
            queue: Mutex::default(),
            written: Condvar::new(),
        }
    }

    /// Writes a window at its offset. If another thread is writing, the window is left to it and replaced by another
    /// buffer; everything is written when all threads have returned.
    pub fn write_at(&self, offset: u64, window: &mut Vec<u8>) -> io::Result<()> {
        let mut queue = self.queue();
        while queue.busy {
            let room = queue.free.pop().or_else(|| {
                let more = queue.windows < MAX_WAITING;
                queue.windows += usize::from(more);
                more.then(Vec::new)
            });
            if let Some(room) = room {
                queue.waiting.push((offset, std::mem::replace(window, room)));
                return Ok(());
            }
            queue = self.written.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        self.write_all(queue, offset, window)
    }

    /// Writes bytes, then the windows that others have queued.
    fn write_all(
        &self,
        mut queue: MutexGuard<'_, Queue>,
        offset: u64,
        bytes: &[u8],
    ) -> io::Result<()> {
        queue.busy = true;
        drop(queue);
        let mut done = self.write(offset, bytes);
        loop {
            let mut queue = self.queue();
            let next = queue.waiting.pop().filter(|_| done.is_ok());
            let Some((offset, window)) = next else {
                queue.busy = false;
                self.written.notify_all();
                return done;
            };
            drop(queue);
            done = self.write(offset, &window);
            self.queue().free.push(window);
            self.written.notify_one();
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let end = offset.saturating_add(bytes.len() as u64);
        self.room.lock().unwrap_or_else(PoisonError::into_inner).reserve(self.file, offset..end);
        write_at(self.file, offset, bytes)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(unix)]
fn write_at(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(windows)]
fn write_at(file: &File, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = std::os::windows::fs::FileExt::seek_write(file, bytes, offset)?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        offset += count as u64;
        bytes = &bytes[count..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallel_copy_matches_source() {
        for length in [0, 1, 5000, (4 << 20) - 1, 4 << 20, (9 << 20) + 77] {
            let bytes: Vec<u8> = (0..length as u32).map(|at| (at / 5 + at) as u8).collect();
            assert!(copied(&bytes) == bytes, "{length}");
        }
    }

    #[test]
    fn visits_and_writes_each_window_once() {
        let bytes: Vec<u8> = (0..1000_u32).map(|at| (at % 251) as u8).collect();
        for length in [0, 1, 63, 64, 65, 128, 1000] {
            let file = tempfile::NamedTempFile::new().expect("a temporary file");
            let shared = PositionedWriter::new(file.as_file());
            let visited = AtomicUsize::new(0);
            for_each_window(length as u64, 64, |offset, window| {
                let size = window.len();
                visited.fetch_add(size, Ordering::Relaxed);
                window.copy_from_slice(&bytes[offset as usize..][..size]);
                shared.write_at(offset, window)
            })
            .expect("written");
            assert_eq!(visited.into_inner(), length);
            assert!(std::fs::read(file.path()).expect("a file") == bytes[..length], "{length}");
        }
    }

    #[test]
    fn first_error_stops_iteration() {
        // Visiting all windows would take forever.
        let error = for_each_window(u64::MAX >> 1, 64, |offset, _| match offset {
            640 => Err(io::Error::other("the disk is gone")),
            _ => Ok(()),
        });
        assert_eq!(error.expect_err("it fails").to_string(), "the disk is gone");
    }
}
