//! Access to files of a cache. An attacker or an accident may have put something else in their places.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use crate::error::{Error, Result};

/// Length of the hash before the content of a record.
const HASH: usize = blake3::OUT_LEN;

/// Opens a regular file. A symbolic link is not followed, and a pipe does not block.
pub(crate) fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NOFOLLOW | libc::O_NONBLOCK);
    #[cfg(not(unix))]
    if is_other(path) {
        return Err(not_regular());
    }
    match options.open(path) {
        Ok(file) if file.metadata()?.is_file() => Ok(file),
        Err(error) if !is_other(path) => Err(error),
        _ => Err(not_regular()),
    }
}

/// Whether something other than a regular file is at a path.
pub(crate) fn is_other(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file())
}

fn not_regular() -> io::Error {
    io::Error::other("it is not a regular file")
}

/// Reads a regular file of at most `max` bytes.
pub(crate) fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    read_all(&open(path, OpenOptions::new().read(true))?, max)
}

fn read_all(file: &File, max: u64) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    if length > max {
        return Err(io::Error::other(format!("it has {length} bytes; the maximum is {max}")));
    }
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Replaces the content of a file by a record: a hash and the bytes. A record that was written in part is detected.
pub(crate) fn write_record(mut file: &File, bytes: &[u8]) -> io::Result<()> {
    let record = [blake3::hash(bytes).as_bytes(), bytes].concat();
    file.rewind()?;
    file.write_all(&record)?;
    file.set_len(record.len() as u64)
}

/// Reads a record of at most `max` bytes. `None` if it is missing or damaged.
pub(crate) fn read_record(mut file: &File, max: usize) -> Option<Vec<u8>> {
    file.rewind().ok()?;
    let mut record = read_all(file, (HASH + max) as u64).ok()?;
    let bytes = record.get(HASH..)?;
    if record[..HASH] != blake3::hash(bytes).as_bytes()[..] {
        return None;
    }
    record.drain(..HASH);
    Some(record)
}

/// Requires a directory, and makes it if it is missing. A symbolic link to one is refused: files are deleted in it.
pub(crate) fn require_directory(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Err(_) if !is_directory(path) => Err(io::Error::other("it is not a directory")),
        _ => Ok(()),
    }
}

/// Whether a directory, not a link to one, is at a path.
pub(crate) fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

/// Names in a directory; empty if it is missing.
pub(crate) fn read_directory(path: &Path) -> Result<Vec<OsString>> {
    let failed = |error| Error::io("read", path, error);
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    entries.map(|entry| entry.map(|entry| entry.file_name()).map_err(failed)).collect()
}

/// Removes a file or directory if it exists. Other processes may remove it at the same time.
pub(crate) fn remove_all(path: &Path) -> Result {
    let removed = if is_directory(path) { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("remove", path, error))
        }
        _ => Ok(()),
    }
}

/// Waits until the names in a directory are on the disk, if the system can open directories.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(directory)?.sync_all() } else { Ok(()) }
}
