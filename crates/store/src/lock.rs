//! Locks between processes. The system releases them when a process dies.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;
use std::time::SystemTime;

/// A lock on a file, held until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

/// Who else may hold a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Others that share it.
    Shared,
    /// Nobody.
    Exclusive,
}

impl Lock {
    /// Waits for a lock. Its file is made if it is not there.
    pub(crate) fn acquire(path: &Path, mode: Mode) -> io::Result<Lock> {
        loop {
            let file = open(path)?;
            match mode {
                Mode::Shared => file.lock_shared()?,
                Mode::Exclusive => file.lock()?,
            }
            if is_at(&file, path)? {
                return Ok(Lock { file });
            }
        }
    }

    /// A lock, unless somebody holds it in a way that excludes this one.
    pub(crate) fn try_acquire(path: &Path, mode: Mode) -> io::Result<Option<Lock>> {
        loop {
            let file = open(path)?;
            let tried = match mode {
                Mode::Shared => file.try_lock_shared(),
                Mode::Exclusive => file.try_lock(),
            };
            match tried {
                Ok(()) if is_at(&file, path)? => return Ok(Some(Lock { file })),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    /// The file, to note something in.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Notes in the file's time that it was used now. A clock that cannot be written down does not matter.
    pub(crate) fn touch(&self) {
        let _ = self.file.set_modified(SystemTime::now());
    }

    /// Removes the file of a lock that nobody else holds. Those that wait for it find out, and make another.
    pub(crate) fn remove(self, path: &Path) {
        // Where files that are open cannot be removed, or others would not find out, it stays.
        if cfg!(unix) {
            let _ = fs::remove_file(path);
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    let open = || File::options().read(true).write(true).create(true).truncate(false).open(path);
    match open() {
        // Somebody deleted the directory under way.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            open()
        }
        opened => opened,
    }
}

/// Whether a file is still the one at a path: it may have been removed between opening and locking.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(there) => Ok(identity(&file.metadata()?) == identity(&there)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// What tells a file from all others.
#[cfg(unix)]
pub(crate) fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

/// Files that are open are not replaced here.
#[cfg(not(unix))]
pub(crate) fn identity(_: &fs::Metadata) -> (u64, u64) {
    (0, 0)
}
