//! Directories of packages: listing without following symbolic links, and atomic replacement.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use coremill_io::{Temporary, uninterrupted};
use coremill_tensor::Buffer;

use super::error::{Error, ErrorKind, shortened};
use coremill_mil::limits;

type Result<T> = std::result::Result<T, Error>;

/// Options for writing a package.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Whether to wait until all data is on the disk before the package is moved into place, so that a power
    /// failure cannot leave a partial package. A killed writer never does, with either setting.
    pub durable: bool,
}

/// The files and directories below a directory, by path with `/` separators; files with their sizes.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) files: BTreeMap<String, u64>,
    pub(crate) directories: Vec<String>,
}

impl Listing {
    /// Whether there is a file or directory at a path.
    pub(crate) fn contains(&self, path: &str) -> bool {
        self.files.contains_key(path) || self.directories.iter().any(|known| known == path)
    }
}

/// Lists a directory. Symbolic links and special files are errors.
pub(crate) fn list(root: &Path) -> Result<Listing> {
    let mut listing = Listing::default();
    let mut entries = 0;
    let mut pending = vec![(root.to_owned(), String::new(), 0)];
    while let Some((directory, prefix, depth)) = pending.pop() {
        let doing = || format!("list {}", directory.display());
        for found in fs::read_dir(&directory).map_err(|error| Error::io(doing(), error))? {
            let found = found.map_err(|error| Error::io(doing(), error))?;
            entries += 1;
            if entries > limits::PACKAGE_ENTRIES {
                let limit = limits::PACKAGE_ENTRIES;
                let message =
                    format!("the package contains more than {limit} files and directories");
                return Err(Error::new(ErrorKind::Limit, message));
            }
            let name = found.file_name();
            let Some(name) = name.to_str() else {
                let message = format!("the name of {} is not UTF-8", found.path().display());
                return Err(Error::new(ErrorKind::Package, message));
            };
            let path = format!("{prefix}{name}");
            let metadata =
                found.metadata().map_err(|error| Error::io(format!("examine {path}"), error))?;
            if metadata.is_dir() {
                if depth == limits::PACKAGE_DEPTH {
                    let message =
                        format!("directories are nested deeper than {}", limits::PACKAGE_DEPTH);
                    return Err(Error::new(ErrorKind::Limit, message).in_file(path));
                }
                pending.push((found.path(), format!("{path}/"), depth + 1));
                listing.directories.push(path);
            } else if metadata.is_file() {
                listing.files.insert(path, metadata.len());
            } else {
                return Err(not_regular(&metadata).in_file(path));
            }
        }
    }
    Ok(listing)
}

/// Checks a path from a file: it must be relative and must not leave the directory. Returns the reason if it
/// is invalid.
pub(crate) fn check_path(path: &str) -> std::result::Result<(), &'static str> {
    if path.is_empty() {
        return Err("is empty");
    }
    if path.starts_with('/') {
        return Err("is absolute");
    }
    if path.contains(['\\', ':', '\0']) {
        return Err("contains a character that is not portable");
    }
    for part in path.split('/') {
        match part {
            "" => return Err("has an empty component"),
            "." | ".." => return Err("has a component `.` or `..`"),
            _ => {}
        }
    }
    Ok(())
}

/// Maps a file below a directory. `path` must have passed [`check_path`]. No component may be a symbolic
/// link.
pub(crate) fn map(root: &Path, path: &str) -> Result<Buffer> {
    let mut full = root.to_owned();
    let parts: Vec<&str> = path.split('/').collect();
    for (index, part) in parts.iter().enumerate() {
        full.push(part);
        let metadata = match fs::symlink_metadata(&full) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let message = format!("the package has no file `{}`", shortened(path));
                let hint = "weights are stored next to the model file; move both together";
                return Err(Error::new(ErrorKind::Weights, message).with_hint(hint));
            }
            Err(error) => return Err(Error::io(format!("examine {}", full.display()), error)),
        };
        let last = index + 1 == parts.len();
        if (last && !metadata.is_file()) || (!last && !metadata.is_dir()) {
            return Err(not_regular(&metadata).in_file(parts[..=index].join("/")));
        }
    }
    Buffer::map(&full).map_err(|error| Error::io(format!("map {}", full.display()), error))
}

/// Reads a directory that another process may replace at the same time. Repeats the read until the directory
/// was the same one from start to end.
pub(crate) fn read_one<T>(
    path: &Path,
    mut read: impl FnMut() -> std::result::Result<T, Error>,
) -> std::result::Result<T, Error> {
    for _ in 0..ATTEMPTS {
        // While it is open, no other directory can have the same identity.
        let Ok(opened) = fs::File::open(path) else { return read() };
        let result = read();
        if stands_at(&opened, path) {
            return result;
        }
    }
    let message = format!("{} is being replaced repeatedly", path.display());
    let hint = "read it while no other process is writing to it";
    Err(Error::new(ErrorKind::Package, message).with_hint(hint))
}

/// Maximum number of attempts to read a directory that is being replaced.
const ATTEMPTS: usize = 100;

#[cfg(unix)]
fn stands_at(opened: &fs::File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (opened.metadata(), fs::metadata(path)) {
        (Ok(left), Ok(right)) => (left.dev(), left.ino()) == (right.dev(), right.ino()),
        _ => false,
    }
}

#[cfg(not(unix))]
fn stands_at(_: &fs::File, _: &Path) -> bool {
    // This system does not replace a directory with open files.
    true
}

fn not_regular(metadata: &fs::Metadata) -> Error {
    let found = if metadata.is_symlink() {
        "a symbolic link"
    } else if metadata.is_dir() {
        "a directory where a file is expected"
    } else if metadata.is_file() {
        "a file where a directory is expected"
    } else {
        "neither a file nor a directory"
    };
    let message = format!("found {found}");
    Error::new(ErrorKind::Package, message)
        .with_hint("packages may contain only regular files and directories")
}

/// Target of a write to a path: if the path is a symbolic link, the link stays and its target is replaced.
pub(crate) fn destination(path: &Path) -> Result<PathBuf> {
    if !fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink()) {
        return Ok(path.to_owned());
    }
    fs::canonicalize(path).map_err(|_| {
        let message = format!("{} is a dangling symbolic link", path.display());
        Error::new(ErrorKind::Unwritable, message)
    })
}

/// A directory that is written next to its target and then moved there in one step. If it is dropped before
/// that, it is removed.
pub(crate) struct StagingDirectory {
    path: PathBuf,
    target: PathBuf,
    _lock: fs::File,
    lock_path: PathBuf,
    _temporary: [Temporary; 2],
}

impl StagingDirectory {
    /// Creates an empty directory next to `target`, and removes leftovers of killed writers of the same
    /// target.
    pub(crate) fn new(target: &Path) -> Result<StagingDirectory> {
        let Some(name) = target.file_name() else {
            let message = format!("{} does not name a package", target.display());
            return Err(Error::new(ErrorKind::Unwritable, message));
        };
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let beside = |suffix: &str| {
            let mut hidden = OsString::from(".");
            hidden.push(name);
            hidden.push(suffix);
            parent.join(hidden)
        };
        // The lock is released when its process ends for any reason. The owner of the lock may therefore
        // treat a directory with the fixed name as a leftover.
        let lock_path = beside(".coremill-lock");
        let (lock, locked) = lock(&lock_path)?;
        let path = beside(".coremill-new");
        uninterrupted(|| put_back(&aside_of(&path), target))?;
        remove(&path)?;
        let staged = uninterrupted(|| fs::create_dir(&path).map(|()| Temporary::new(&path)));
        let staged = staged.map_err(|error| {
            let _ = fs::remove_file(&lock_path);
            Error::io(format!("create the directory {}", path.display()), error)
        })?;
        let _temporary = [locked, staged];
        Ok(StagingDirectory { path, target: target.to_owned(), _lock: lock, lock_path, _temporary })
    }

    /// Path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the directory to the target, replacing an existing directory in the same step. There is a
    /// complete directory at the target at any time.
    pub(crate) fn commit(self, durable: bool) -> Result<()> {
        let doing = || format!("move the new files to {}", self.target.display());
        let failed = |error: io::Error| Error::io(doing(), error);
        coremill_io::unchanged().map_err(failed)?;
        // Between the two steps of a replacement, the staging directory may be the only copy of the old
        // contents.
        let put = uninterrupted(|| match fs::symlink_metadata(&self.target) {
            Ok(_) => exchange(&self.path, &self.target),
            Err(_) => fs::rename(&self.path, &self.target),
        });
        put.map_err(failed)?;
        if durable {
            sync_directory(self.target.parent()).map_err(failed)?;
        }
        // The old contents of the target are now here. The next writer would remove them as well.
        remove(&self.path)
    }
}

impl Drop for StagingDirectory {
    fn drop(&mut self) {
        // Ignore errors of the cleanup; the next writer repeats it.
        let _ = remove(&self.path);
        let _ = fs::remove_file(&self.lock_path);
    }
}

/// Takes the lock of a target, waiting for other writers.
fn lock(path: &Path) -> Result<(fs::File, Temporary)> {
    let failed = |error: io::Error| match path.parent() {
        Some(parent) if error.kind() == io::ErrorKind::NotFound => {
            Error::new(ErrorKind::Io, format!("{}: no such directory", parent.display()))
        }
        _ => Error::io(format!("lock {}", path.display()), error),
    };
    enum Attempt {
        Locked(fs::File, Temporary),
        /// Another writer has the lock.
        Busy(fs::File),
        /// The previous writer removed the file when it finished. A lock on a removed file has no effect.
        Removed,
    }
    let attempt = || {
        let options = &mut fs::OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).open(path)?;
        match file.try_lock() {
            Ok(()) if is_same_file(&file, path) => Ok(Attempt::Locked(file, Temporary::new(path))),
            Ok(()) => Ok(Attempt::Removed),
            Err(fs::TryLockError::WouldBlock) => Ok(Attempt::Busy(file)),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    };
    loop {
        match uninterrupted(attempt).map_err(failed)? {
            Attempt::Locked(file, temporary) => return Ok((file, temporary)),
            Attempt::Busy(file) => file.lock().map_err(failed)?,
            Attempt::Removed => {}
        }
    }
}

#[cfg(unix)]
fn is_same_file(file: &fs::File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(left), Ok(right)) => (left.dev(), left.ino()) == (right.dev(), right.ino()),
        _ => false,
    }
}

#[cfg(not(unix))]
fn is_same_file(_: &fs::File, path: &Path) -> bool {
    // This system does not remove open files.
    path.exists()
}

fn remove(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    };
    removed.map_err(|error| Error::io(format!("remove {}", path.display()), error))
}

/// Swaps two paths atomically.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn exchange(new: &Path, old: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        // Some file systems do not support exchange.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOTSUP | rustix::io::Errno::NOSYS) => {
            replace(new, old)
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn exchange(new: &Path, old: &Path) -> io::Result<()> {
    replace(new, old)
}

/// Replaces in two steps, on systems without an atomic exchange. If the writer is killed in between, the old
/// contents are next to the target, and the next writer moves them back.
fn replace(new: &Path, old: &Path) -> io::Result<()> {
    let aside = aside_of(new);
    fs::rename(old, &aside)?;
    if let Err(error) = fs::rename(new, old) {
        fs::rename(&aside, old)?;
        return Err(error);
    }
    fs::rename(&aside, new)
}

/// Temporary path of the old contents in [`replace`].
fn aside_of(new: &Path) -> PathBuf {
    let mut aside = OsString::from(new.as_os_str());
    aside.push("-old");
    PathBuf::from(aside)
}

/// Moves the old contents back if a writer was killed after it moved them aside; otherwise removes them.
fn put_back(aside: &Path, target: &Path) -> Result<()> {
    if fs::symlink_metadata(aside).is_err() {
        return Ok(());
    }
    if fs::symlink_metadata(target).is_ok() {
        return remove(aside);
    }
    fs::rename(aside, target)
        .map_err(|error| Error::io(format!("restore {}", target.display()), error))
}

#[cfg(unix)]
pub(crate) fn sync_directory(path: Option<&Path>) -> io::Result<()> {
    let path = path.filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::File::open(path)?.sync_all()
}

#[cfg(not(unix))]
pub(crate) fn sync_directory(_: Option<&Path>) -> io::Result<()> {
    // This system does not open directories as files.
    Ok(())
}

/// Reads a file of at most `limit` bytes.
pub(super) fn read_whole(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let failed = |error| Error::io(format!("read {}", path.display()), error);
    let mut file = fs::File::open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    let too_long = || {
        let message = format!("the file is larger than {limit} bytes");
        Error::new(ErrorKind::Limit, message)
    };
    if length > limit {
        return Err(too_long());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    // The file may have grown, or may be a special file with unknown length.
    Read::by_ref(&mut file).take(limit + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > limit {
        return Err(too_long());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(path: &Path, content: &str) {
        fs::create_dir(path).expect("make a package");
        fs::write(path.join("file"), content).expect("write a file");
    }

    fn content(path: &Path) -> String {
        fs::read_to_string(path.join("file")).expect("read the file")
    }

    /// Names of the entries of a directory.
    fn names(directory: &Path) -> Vec<OsString> {
        let entries = fs::read_dir(directory).expect("list the directory");
        entries.map(|entry| entry.expect("read an entry").file_name()).collect()
    }

    #[test]
    fn replace_swaps_directories_without_atomic_exchange() {
        let scratch = tempfile::tempdir().expect("temporary directory");
        let (new, old) = (scratch.path().join(".new"), scratch.path().join("old"));
        package(&new, "new");
        package(&old, "old");
        replace(&new, &old).expect("replace");
        assert_eq!((content(&old), content(&new)), ("new".to_owned(), "old".to_owned()));
    }

    #[test]
    fn staging_recovers_target_of_killed_writer() {
        let scratch = tempfile::tempdir().expect("temporary directory");
        let target = scratch.path().join("model.mlpackage");
        let staged = scratch.path().join(".model.mlpackage.coremill-new");
        // Killed between the two steps: the old contents are aside, the new ones are staged.
        package(&aside_of(&staged), "old");
        package(&staged, "new");
        drop(StagingDirectory::new(&target).expect("stage"));
        assert_eq!(content(&target), "old");
        assert_eq!(names(scratch.path()), ["model.mlpackage"]);
        // Killed after both steps: the target is complete, and the leftover must be removed.
        package(&aside_of(&staged), "older");
        drop(StagingDirectory::new(&target).expect("stage"));
        assert_eq!(content(&target), "old");
        assert_eq!(names(scratch.path()), ["model.mlpackage"]);
    }
}
