//! Files that are mapped, and whether they are still what they were when they were opened.
//!
//! The system ends a process that touches a page of a mapping whose file was shortened. A process that calls
//! [`guard`] reads zeros there instead, and learns of it from [`changed`], as of files that were rewritten.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use memmap2::Mmap;

/// A file, mapped as a whole.
pub(crate) struct Mapping {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    pub(crate) map: Mmap,
    /// How many bytes were looked at, to know when pages are given back.
    pub(crate) released: AtomicUsize,
    /// The length and the time of the last change when it was mapped.
    stamp: (u64, Option<SystemTime>),
    guarded: Option<&'static Slot>,
}

/// A mapping that the handler of faults knows.
struct Slot {
    /// The addresses; 0 where the slot is free.
    start: AtomicUsize,
    end: AtomicUsize,
    /// Whether a page that the file no longer has was touched.
    is_short: AtomicBool,
}

/// More mappings than any model has files.
const SLOTS: usize = 4096;

static SLOT: [Slot; SLOTS] = [const {
    Slot { start: AtomicUsize::new(0), end: AtomicUsize::new(0), is_short: AtomicBool::new(false) }
}; SLOTS];

static GUARDED: AtomicBool = AtomicBool::new(false);
static KNOWN: Mutex<Known> = Mutex::new(Known { live: Vec::new(), changed: None });

/// What a process that guards its mappings knows of them.
struct Known {
    live: Vec<Weak<Mapping>>,
    /// The first that changed.
    changed: Option<PathBuf>,
}

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mapping {
    /// Maps a file; none if it is empty.
    pub(crate) fn new(path: &Path) -> io::Result<Option<Arc<Mapping>>> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.len() == 0 {
            return Ok(None);
        }
        // SAFETY: the mapping is private and read-only, and lives as long as the `File` beside it.
        // Another process may still change or shorten the file; the documentation of `Buffer` says so.
        #[expect(unsafe_code, reason = "mapping a file is the purpose of this type")]
        let map = unsafe { Mmap::map(&file)? };
        let stamp = (metadata.len(), metadata.modified().ok());
        let guarded = if GUARDED.load(Ordering::Acquire) { Slot::of(&map) } else { None };
        let (path, released) = (path.to_owned(), AtomicUsize::new(0));
        let mapping = Arc::new(Mapping { path, file, map, released, stamp, guarded });
        if GUARDED.load(Ordering::Acquire) {
            let mut known = known();
            known.live.retain(|held| held.strong_count() > 0);
            known.live.push(Arc::downgrade(&mapping));
        }
        Ok(Some(mapping))
    }

    fn is_changed(&self) -> bool {
        let is_short = self.guarded.is_some_and(|slot| slot.is_short.load(Ordering::Acquire));
        let now = self.file.metadata().map(|found| (found.len(), found.modified().ok()));
        is_short || now.is_ok_and(|now| now != self.stamp)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !GUARDED.load(Ordering::Acquire) {
            return;
        }
        if self.is_changed() {
            known().changed.get_or_insert_with(|| self.path.clone());
        }
        if let Some(slot) = self.guarded {
            slot.end.store(0, Ordering::Release);
            slot.start.store(0, Ordering::Release);
        }
    }
}

impl Slot {
    /// Takes a free slot for a mapping; none if all are taken.
    fn of(map: &Mmap) -> Option<&'static Slot> {
        let start = map.as_ptr().addr();
        let take = |slot: &&Slot| {
            let taken = slot.start.compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed);
            taken.is_ok()
        };
        let slot = SLOT.iter().find(take)?;
        slot.is_short.store(false, Ordering::Release);
        slot.end.store(start + map.len(), Ordering::Release);
        Some(slot)
    }
}

/// A file that changed since it was mapped, if one did. Nothing is known of files that were mapped before
/// [`guard`] was called.
pub fn changed() -> Option<PathBuf> {
    let live: Vec<_> = known().live.iter().filter_map(Weak::upgrade).collect();
    let changed = live.iter().find(|mapping| mapping.is_changed());
    let mut known = known();
    if let Some(mapping) = changed {
        known.changed.get_or_insert_with(|| mapping.path.clone());
    }
    known.changed.clone()
}

/// Fails if a file changed since it was mapped, as what was made of it may be nothing.
pub fn unchanged() -> io::Result<()> {
    match changed() {
        None => Ok(()),
        Some(path) => {
            let path = path.display();
            Err(io::Error::other(format!("`{path}` changed while it was read")))
        }
    }
}

/// Has this process outlive files that are shortened while they are mapped, and notice those that change: for
/// programs that own their process, as it takes the signal `SIGBUS`.
pub fn guard() {
    GUARDED.store(true, Ordering::Release);
    #[cfg(unix)]
    fault::catch();
}

/// What the system calls when a page cannot be had.
#[cfg(unix)]
mod fault {
    #![expect(unsafe_code, reason = "the system's interface for signals is C's")]

    use std::ffi::{c_int, c_void};
    use std::sync::atomic::Ordering;

    use super::SLOT;

    pub(super) fn catch() {
        // SAFETY: an action of zeros is one without flags and mask, both fields are set before it is used, and the
        // handler has the signature that `SA_SIGINFO` asks for. It does only what a handler may: it reads atomics,
        // and calls the system.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_fault;
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
        }
    }

    extern "C" fn on_fault(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
        // SAFETY: the system passes what it knows of the fault.
        let address = unsafe { (*info).si_addr() }.addr();
        let found = SLOT.iter().find(|slot| {
            let start = slot.start.load(Ordering::Acquire);
            start != 0 && (start..slot.end.load(Ordering::Acquire)).contains(&address)
        });
        let replaced = found.is_some_and(|slot| {
            slot.is_short.store(true, Ordering::Release);
            // SAFETY: `sysconf` has no conditions.
            let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
            let page = usize::try_from(page).unwrap_or(4096).max(1);
            let first = address - address % page;
            let length = slot.end.load(Ordering::Acquire) - first;
            // SAFETY: these pages belong to a mapping of ours that is alive, as somebody reads it. What comes in
            // their place can be read, as before, and goes when the mapping does.
            let mapped = unsafe {
                libc::mmap(
                    std::ptr::with_exposed_provenance_mut(first),
                    length,
                    libc::PROT_READ,
                    libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED,
                    -1,
                    0,
                )
            };
            mapped != libc::MAP_FAILED
        });
        if !replaced {
            // The fault happens again, and ends the process as it would have.
            // SAFETY: the default action is always valid.
            unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        }
    }
}
