//! Temporary files and directories of writers, and their removal on signals.
//!
//! A writer creates a [`Temporary`] for each path that it writes next to its output. A process that calls
//! [`remove_staged_on_signals`] removes all of them when it receives a termination signal, and then ends by the same
//! signal. Steps of a writer that must not be interrupted, such as creating a file and registering it, run in
//! [`uninterrupted`].

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};

/// Paths to remove, in order of creation.
static PATHS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Function of [`on_signal`].
static HANDLER: Mutex<Option<Box<dyn FnOnce() + Send>>> = Mutex::new(None);

/// Held during uninterrupted steps, and permanently once the process is about to end by a signal.
static GATE: Mutex<()> = Mutex::new(());

thread_local! {
    /// Depth of nested calls of [`uninterrupted`] in this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A path that is registered for removal until this is dropped.
#[derive(Debug)]
pub struct Temporary {
    path: PathBuf,
}

impl Temporary {
    /// Registers a path. Call it within [`uninterrupted`], together with the creation of the file.
    pub fn new(path: &Path) -> Temporary {
        // The current directory may change before the path is removed.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        lock(&PATHS).push(path.clone());
        Temporary { path }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let mut paths = lock(&PATHS);
        if let Some(index) = paths.iter().rposition(|path| *path == self.path) {
            paths.remove(index);
        }
    }
}

/// Runs steps during which no signal removes temporary files. They must be short, as signals wait for them.
pub fn uninterrupted<T>(steps: impl FnOnce() -> T) -> T {
    struct Deeper;
    impl Drop for Deeper {
        fn drop(&mut self) {
            DEPTH.set(DEPTH.get() - 1);
        }
    }
    let _gate = (DEPTH.get() == 0).then(|| lock(&GATE));
    DEPTH.set(DEPTH.get() + 1);
    let _deeper = Deeper;
    steps()
}

/// Creates a directory below an existing one, including the directories in between.
///
/// Unlike [`std::fs::create_dir_all`], it never creates `root`: once a signal has removed a temporary directory, writers in other
/// threads fail instead of creating it again.
pub fn create_directories_below(root: &Path, relative: impl AsRef<Path>) -> io::Result<()> {
    let mut path = root.to_owned();
    for part in relative.as_ref().components() {
        path.push(part);
        match fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
            made => made?,
        }
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes SIGINT, SIGTERM and SIGHUP remove the temporary files before they end this process. Signals that the
/// process inherited as ignored stay ignored.
///
/// Call it before any other thread starts, because threads inherit the set of blocked signals.
#[cfg(unix)]
pub fn remove_staged_on_signals() {
    signals::wait_in_a_thread();
}

/// Runs a function at the first termination signal instead of ending the process, so that a server can answer its clients
/// and return. The next signal ends the process. [`remove_staged_on_signals`] must have been called; on systems without
/// these signals the function never runs.
pub fn on_signal(handler: impl FnOnce() + Send + 'static) {
    *lock(&HANDLER) = Some(Box::new(handler));
}

/// Has no effect on this system: later writers remove leftovers of interrupted ones.
#[cfg(not(unix))]
pub fn remove_staged_on_signals() {}

#[cfg(unix)]
mod signals {
    #![expect(unsafe_code, reason = "signal handling has only a C interface")]

    use std::ffi::c_int;
    use std::fs;
    use std::io;
    use std::path::Path;
    use std::time::Duration;

    use super::{GATE, HANDLER, PATHS, lock};

    /// Number of attempts to remove a directory in which other threads still create files.
    const ATTEMPTS: usize = 100;
    const PAUSE: Duration = Duration::from_millis(1);

    pub(super) fn wait_in_a_thread() {
        let Some(signals) = block() else { return };
        let waiting = std::thread::Builder::new().name("signals".to_owned());
        let spawned = waiting.spawn(move || {
            while let Some(signal) = wait(&signals) {
                let handler = lock(&HANDLER).take();
                if let Some(handler) = handler {
                    handler();
                    continue;
                }
                // From here on, nothing may be created or renamed.
                let _gate = lock(&GATE);
                remove_all();
                end_by(signal);
            }
        });
        if spawned.is_err() {
            unblock(&signals);
        }
    }

    /// Blocks the termination signals that are not ignored, so that only the waiting thread receives them.
    fn block() -> Option<libc::sigset_t> {
        // SAFETY: `sigemptyset` initializes the set before it is read, a zeroed action is valid memory for the
        // current one, and all pointers are to locals.
        unsafe {
            let mut signals: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut signals);
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
                let mut action: libc::sigaction = std::mem::zeroed();
                let known = libc::sigaction(signal, std::ptr::null(), &raw mut action);
                if known == 0 && action.sa_sigaction == libc::SIG_DFL {
                    libc::sigaddset(&raw mut signals, signal);
                }
            }
            let set =
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut());
            (set == 0).then_some(signals)
        }
    }

    fn unblock(signals: &libc::sigset_t) {
        // SAFETY: the set is initialized, and the previous set is not requested.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, signals, std::ptr::null_mut()) };
    }

    fn wait(signals: &libc::sigset_t) -> Option<c_int> {
        let mut signal = 0;
        // SAFETY: the set is initialized, and the number is a local.
        let waited = unsafe { libc::sigwait(signals, &raw mut signal) };
        (waited == 0).then_some(signal)
    }

    fn remove_all() {
        for _ in 0..ATTEMPTS {
            // A directory's lock, which is created first, is removed last.
            let paths: Vec<_> = lock(&PATHS).iter().rev().cloned().collect();
            if paths.iter().map(|path| remove(path)).fold(true, |all, gone| all & gone) {
                break;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Whether the path no longer exists.
    fn remove(path: &Path) -> bool {
        let removed = match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() => fs::remove_dir_all(path),
            Ok(_) => fs::remove_file(path),
            Err(error) => Err(error),
        };
        removed.is_ok() || removed.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    /// Ends the process by the signal's default action, so that shells and callers see the signal.
    fn end_by(signal: c_int) -> ! {
        // SAFETY: the set is initialized before it is read; raising a signal and exiting have no preconditions.
        unsafe {
            let mut own: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut own);
            libc::sigaddset(&raw mut own, signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const own, std::ptr::null_mut());
            libc::raise(signal);
            // The signal was handled after all.
            libc::_exit(128 + signal)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn does_not_recreate_removed_root_directory() {
        let folder = tempfile::tempdir().expect("a directory");
        let root = folder.path().join("root");
        fs::create_dir(&root).expect("a directory");
        for _ in 0..2 {
            create_directories_below(&root, "a/b").expect("the root exists");
        }
        assert!(root.join("a/b").is_dir());
        fs::write(root.join("file"), "").expect("a file");
        assert!(create_directories_below(&root, "file/a").is_err());
        fs::remove_dir_all(&root).expect("removed");
        let error = create_directories_below(&root, "a").expect_err("the root is gone");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(!root.exists());
    }

    #[test]
    fn temporary_paths_stay_registered_until_drop() {
        let path = Path::new("/nowhere/of-this-test");
        let count = || lock(&PATHS).iter().filter(|known| *known == path).count();
        let outer = uninterrupted(|| Temporary::new(path));
        let inner = uninterrupted(|| uninterrupted(|| Temporary::new(path)));
        assert_eq!(count(), 2);
        drop(outer);
        assert_eq!(count(), 1);
        drop(inner);
        assert_eq!(count(), 0);
    }
}
