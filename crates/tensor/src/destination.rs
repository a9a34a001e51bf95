//! Files that are written: what may be replaced, and how.
//!
//! A regular file is written beside its place and put there in one step: at any moment there is either the old one or
//! the new one, whole. A symbolic link stays, and what it leads to is replaced. Devices, pipes and what stands for the
//! process's own streams (`/dev/stdout`) are never replaced: they get the bytes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::mapped::unchanged;

const PREFIX: &str = ".coremill-";
/// What a writer that was killed leaves is taken away by later ones after this long.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// Where bytes for a path go.
enum Destination {
    /// A file, which is replaced.
    Replaced(PathBuf),
    /// Something that is written to as it is.
    Written(File),
}

/// Writes what stands at a path anew. `durable` waits until it is on the disk.
pub fn write_anew(
    path: &Path,
    durable: bool,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    match destination(path)? {
        Destination::Replaced(path) => {
            let directory = directory_of(&path);
            sweep(&directory);
            let mut staged = builder().tempfile_in(&directory)?;
            // Whoever sweeps leaves files alone that somebody holds.
            let _ = staged.as_file().try_lock();
            write(staged.as_file_mut())?;
            unchanged()?;
            if durable {
                staged.as_file().sync_all()?;
            }
            staged.persist(&path).map_err(|error| error.error)?;
            if durable { sync_directory(&directory) } else { Ok(()) }
        }
        Destination::Written(mut to) => {
            let mut staged = tempfile::tempfile()?;
            write(&mut staged)?;
            unchanged()?;
            staged.rewind()?;
            io::copy(&mut staged, &mut to).map(|_| ())
        }
    }
}

fn destination(path: &Path) -> io::Result<Destination> {
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if fs::symlink_metadata(path).is_ok() {
                return Err(io::Error::other("it is a symbolic link that leads nowhere"));
            }
            return Ok(Destination::Replaced(path.to_owned()));
        }
        Err(error) => return Err(error),
    };
    if found.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    // `/dev/stdout` may be a regular file; replacing that would take it away from the process.
    if !is_stream(path) {
        return fs::canonicalize(path).map(Destination::Replaced);
    }
    OpenOptions::new().append(true).open(path).map(Destination::Written)
}

/// Whether a path stands for something that bytes are written to as they are: a device, a pipe, or a stream of the
/// process.
pub fn is_stream(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_dir() && (!found.is_file() || is_a_stream(path)))
}

/// A directory to make files in that are to stand beside it. It goes when this is dropped; what a killed process
/// leaves, later writers take away.
pub struct StagedDirectory {
    directory: tempfile::TempDir,
    _lock: File,
}

/// The file in a staged directory that its writer holds.
const LOCK: &str = ".lock";

impl StagedDirectory {
    /// Makes an empty directory.
    pub fn new(beside: &Path) -> io::Result<StagedDirectory> {
        sweep(beside);
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(beside)?;
        let lock = File::create_new(directory.path().join(LOCK))?;
        // Whoever sweeps leaves directories alone that somebody holds.
        let _ = lock.try_lock();
        Ok(StagedDirectory { directory, _lock: lock })
    }

    /// Where it stands.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Whether a path leads through the process's own files.
fn is_a_stream(path: &Path) -> bool {
    let mut path = path.to_owned();
    // As many links as the system follows.
    for _ in 0..40 {
        if path.starts_with("/dev") || path.starts_with("/proc") {
            return true;
        }
        let Ok(next) = fs::read_link(&path) else { return false };
        path = directory_of(&path).join(next);
    }
    false
}

/// Takes away what writers left here that were killed.
fn sweep(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let Some(kind) = entry.file_type().ok().filter(|_| is_ours) else { continue };
        let age = entry.metadata().and_then(|found| found.modified()).ok();
        let age = age.and_then(|modified| modified.elapsed().ok());
        let path = entry.path();
        let lock = if kind.is_dir() { path.join(LOCK) } else { path.clone() };
        let held = || File::open(lock).is_ok_and(|file| file.try_lock().is_err());
        if age.is_none_or(|age| age <= FORGOTTEN) || held() {
            continue;
        }
        let _ = match kind.is_dir() {
            true => fs::remove_dir_all(path),
            false => fs::remove_file(path),
        };
    }
}

fn builder() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX);
    // A file of the owner's alone, as temporary files are, would surprise whoever is to read it.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The process's mask takes away from these.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder
}

#[cfg(unix)]
fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(not(unix))]
fn sync_directory(_: &Path) -> io::Result<()> {
    // Directories cannot be opened as files there.
    Ok(())
}

fn directory_of(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).to_owned()
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::Write;

    use super::*;

    fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
        write_anew(path, false, |file| file.write_all(bytes))
    }

    #[test]
    fn links_stay_and_what_they_lead_to_is_replaced() {
        let scratch = tempfile::tempdir().expect("a directory");
        let [file, link, nowhere] = ["file", "link", "nowhere"].map(|it| scratch.path().join(it));
        write(&file, b"old").expect("it is new");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        write(&link, b"new").expect("the file is there");
        assert!(fs::symlink_metadata(&link).expect("it is there").is_symlink());
        assert_eq!(fs::read(&file).expect("it is there"), b"new");
        std::os::unix::fs::symlink(scratch.path().join("none"), &nowhere).expect("a link");
        let error = write(&nowhere, b"").expect_err("it leads nowhere");
        assert!(error.to_string().contains("leads nowhere"), "{error}");
        assert!(write(scratch.path(), b"").is_err(), "a directory is not a file");
    }

    #[test]
    fn devices_are_written_to() {
        write(Path::new("/dev/null"), b"gone").expect("it takes everything");
        use std::os::unix::fs::FileTypeExt;
        let null = fs::metadata("/dev/null").expect("it is there");
        assert!(null.file_type().is_char_device(), "it was replaced");
        assert!(write(Path::new("/dev/full"), b"no").is_err(), "the disk is full");
    }

    #[test]
    fn what_killed_writers_left_is_swept() {
        let scratch = tempfile::tempdir().expect("a directory");
        let names = [".coremill-old", ".coremill-held", ".coremill-young", "other"];
        let paths = names.map(|name| scratch.path().join(name));
        let files = paths.each_ref().map(|path| File::create(path).expect("it is new"));
        let long_ago = std::time::SystemTime::now() - 2 * FORGOTTEN;
        for index in [0, 1, 3] {
            files[index].set_modified(long_ago).expect("it is ours");
        }
        files[1].lock().expect("nobody holds it");
        write(&scratch.path().join("new"), b"").expect("it is new");
        assert_eq!(paths.map(|path| path.exists()), [false, true, true, true]);
    }
}
