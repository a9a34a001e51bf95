//! Locks between processes. The system releases them when a process dies.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;

use crate::files;

/// A lock on a file, held until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

/// Sharing of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Held by any number of holders in this mode.
    Shared,
    /// Held by one holder.
    Exclusive,
}

impl Lock {
    /// Waits for a lock. Creates its file if it is missing.
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

    /// Takes a lock; `None` if another holder excludes it.
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

    /// The locked file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Removes the file of an exclusive lock. Processes that wait for it notice, and create another.
    pub(crate) fn remove(self, path: &Path) {
        // Elsewhere open files cannot be removed, or waiting processes would not notice.
        if cfg!(unix) {
            let _ = fs::remove_file(path);
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    let open = || {
        let mut options = File::options();
        files::open(path, options.read(true).write(true).create(true).truncate(false))
    };
    match open() {
        // Another process deleted the directory.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            open()
        }
        opened => opened,
    }
}

/// Whether a file is still at a path: it may have been removed between opening and locking.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(identity(&file.metadata()?) == identity(&found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Device and number of a file.
#[cfg(unix)]
fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

/// Open files are not replaced here.
#[cfg(not(unix))]
fn identity(_: &fs::Metadata) -> (u64, u64) {
    (0, 0)
}
