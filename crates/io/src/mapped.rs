//! Mapped files, and detection of changes to them.
//!
//! The system terminates a process that accesses a page of a mapping beyond the end of a truncated file. A signal
//! handler maps zeros there instead and marks the mapping; readers call [`Mapping::check`]. A process that calls
//! [`guard`] can also detect rewritten files with [`changed`].

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use memmap2::Mmap;

/// A completely mapped file.
pub struct Mapping {
    /// Path under which the file was opened.
    pub path: PathBuf,
    /// The open file.
    pub file: File,
    /// Its bytes.
    pub map: Mmap,
    /// Number of bytes read, which determines when pages are released.
    pub released: AtomicUsize,
    /// Length and modification time when it was mapped.
    stamp: (u64, Option<SystemTime>),
    guarded: Option<&'static Slot>,
}

/// A mapping registered with the signal handler.
struct Slot {
    /// Address range; 0 if the slot is free.
    start: AtomicUsize,
    end: AtomicUsize,
    /// Whether a page beyond the end of the file was accessed.
    is_short: AtomicBool,
}

/// Maximum number of registered mappings, above any model's number of files.
const SLOTS: usize = 4096;

static SLOT: [Slot; SLOTS] = [const {
    Slot { start: AtomicUsize::new(0), end: AtomicUsize::new(0), is_short: AtomicBool::new(false) }
}; SLOTS];

static GUARDED: AtomicBool = AtomicBool::new(false);
static KNOWN: Mutex<GuardState> = Mutex::new(GuardState { live: Vec::new(), changed: None });

/// Mappings of a process that detects changes.
struct GuardState {
    live: Vec<Weak<Mapping>>,
    /// The first changed file.
    changed: Option<PathBuf>,
}

fn known() -> MutexGuard<'static, GuardState> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mapping {
    /// Maps a file; `None` if it is empty.
    pub fn new(path: &Path) -> io::Result<Option<Arc<Mapping>>> {
        // Opening a pipe would wait for a writer.
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.len() == 0 {
            return Ok(None);
        }
        // SAFETY: the mapping is private and read-only, and is dropped together with its `File`. Another process may
        // still change or truncate the file, which the documentation of `Buffer` states.
        #[expect(unsafe_code, reason = "mapping a file is the purpose of this type")]
        let map = unsafe { Mmap::map(&file)? };
        let stamp = (metadata.len(), metadata.modified().ok());
        #[cfg(unix)]
        fault::catch();
        let guarded = Slot::of(&map);
        let (path, released) = (path.to_owned(), AtomicUsize::new(0));
        let mapping = Arc::new(Mapping { path, file, map, released, stamp, guarded });
        if GUARDED.load(Ordering::Acquire) {
            let mut known = known();
            known.live.retain(|held| held.strong_count() > 0);
            known.live.push(Arc::downgrade(&mapping));
        }
        Ok(Some(mapping))
    }

    /// Fails if a page beyond the end of a truncated file was read.
    pub fn check(&self) -> io::Result<()> {
        match self.guarded {
            Some(slot) if slot.is_short.load(Ordering::Acquire) => {
                let path = self.path.display();
                Err(io::Error::other(format!("`{path}` was truncated while it was being read")))
            }
            _ => Ok(()),
        }
    }

    fn is_changed(&self) -> bool {
        let now = self.file.metadata().map(|found| (found.len(), found.modified().ok()));
        self.check().is_err() || now.is_ok_and(|now| now != self.stamp)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if GUARDED.load(Ordering::Acquire) && self.is_changed() {
            known().changed.get_or_insert_with(|| self.path.clone());
        }
        if let Some(slot) = self.guarded {
            slot.end.store(0, Ordering::Release);
            slot.start.store(0, Ordering::Release);
        }
    }
}

impl Slot {
    /// Registers a mapping; `None` if all slots are in use.
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

/// A file that changed since it was mapped, if there is one. Only files mapped after a call of [`guard`] are
/// detected.
pub fn changed() -> Option<PathBuf> {
    let live: Vec<_> = known().live.iter().filter_map(Weak::upgrade).collect();
    let changed = live.iter().find(|mapping| mapping.is_changed());
    let mut known = known();
    if let Some(mapping) = changed {
        known.changed.get_or_insert_with(|| mapping.path.clone());
    }
    known.changed.clone()
}

/// Fails if a file changed since it was mapped, because results computed from it may be invalid.
pub fn unchanged() -> io::Result<()> {
    match changed() {
        None => Ok(()),
        Some(path) => {
            let path = path.display();
            Err(io::Error::other(format!("`{path}` changed while it was being read")))
        }
    }
}

/// Enables the detection of changed files in this process. Intended for short-lived programs.
pub fn guard() {
    GUARDED.store(true, Ordering::Release);
}

/// Signal handler for inaccessible pages.
#[cfg(unix)]
mod fault {
    #![expect(unsafe_code, reason = "signal handling has only a C interface")]

    use std::ffi::{c_int, c_void};
    use std::sync::OnceLock;
    use std::sync::atomic::Ordering;

    use super::SLOT;

    type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

    /// Previous action for the signal.
    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

    pub(super) fn catch() {
        BEFORE.get_or_init(|| {
            // SAFETY: a zeroed action has no flags and mask, both fields are set before use, and the handler has the
            // signature that `SA_SIGINFO` requires. It is async-signal-safe: it reads atomics, makes system calls,
            // and calls the previous handler.
            unsafe {
                let mut before: libc::sigaction = std::mem::zeroed();
                let mut action: libc::sigaction = std::mem::zeroed();
                let handler: Handler = on_fault;
                action.sa_sigaction = handler as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before);
                before
            }
        });
    }

    /// Forwards an unrelated fault to the previous handler.
    fn hand_over(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        let before = BEFORE.get().filter(|before| before.sa_flags & libc::SA_SIGINFO != 0);
        match before {
            Some(before) => {
                // SAFETY: with `SA_SIGINFO` the field contains a function of this signature.
                let handler: Handler = unsafe { std::mem::transmute(before.sa_sigaction) };
                handler(signal, info, context);
            }
            None => {
                // The fault recurs, and is then handled by the restored action.
                let action = BEFORE.get().map_or(libc::SIG_DFL, |before| before.sa_sigaction);
                // SAFETY: the previous action was valid, and the default one always is.
                unsafe { libc::signal(signal, action) };
            }
        }
    }

    extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the system passes valid information on the fault.
        let address = unsafe { (*info).si_addr() }.addr();
        let found = SLOT.iter().find(|slot| {
            let start = slot.start.load(Ordering::Acquire);
            start != 0 && (start..slot.end.load(Ordering::Acquire)).contains(&address)
        });
        let replaced = found.is_some_and(|slot| {
            slot.is_short.store(true, Ordering::Release);
            // SAFETY: `sysconf` has no preconditions.
            let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
            let page = usize::try_from(page).unwrap_or(4096).max(1);
            let first = address - address % page;
            let length = slot.end.load(Ordering::Acquire) - first;
            // SAFETY: these pages belong to one of our live mappings, as they are being read. The replacement is
            // also readable and is unmapped together with the mapping.
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
            hand_over(signal, info, context);
        }
    }
}
