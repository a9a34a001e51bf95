//! Output destinations: the meaning of a path, and how it is written.
//!
//! A regular file is written under a temporary name in the same directory and renamed, so that the path always has
//! either the complete old or the complete new content. For a symbolic link, the file it refers to is replaced.
//! Devices, pipes, sockets and open descriptors of a process (`/dev/stdout`) are written to directly.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::mapped::unchanged;
use crate::staged::{Temporary, uninterrupted};

const PREFIX: &str = ".coremill-";
/// Age at which later writers remove leftovers of killed writers.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// Destination of the bytes for a path.
enum Destination {
    /// A regular file, which is replaced.
    Replaced(PathBuf),
    /// A file, device or pipe that is written to directly.
    Written(File),
}

/// Writes the new content of a path. `durable` waits until it is on disk.
pub fn write_anew(
    path: &Path,
    durable: bool,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    match destination(path)? {
        Destination::Replaced(path) => {
            let directory = directory_of(&path);
            sweep(&directory);
            // Drop order: the file is removed before it is unregistered.
            let (_temporary, mut staged) = uninterrupted(|| {
                let staged = builder().tempfile_in(&directory)?;
                io::Result::Ok((Temporary::new(staged.path()), staged))
            })?;
            // Other writers do not remove locked files.
            let _ = staged.as_file().try_lock();
            write(staged.as_file_mut())?;
            unchanged()?;
            if durable {
                staged.as_file().sync_all()?;
            }
            uninterrupted(|| staged.persist(&path)).map_err(|error| error.error)?;
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
                return Err(io::Error::other("it is a dangling symbolic link"));
            }
            return Ok(Destination::Replaced(path.to_owned()));
        }
        Err(error) => return Err(error),
    };
    if found.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    if !is_stream(path) {
        return fs::canonicalize(path).map(Destination::Replaced);
    }
    match own_stream(path) {
        Some(stream) => stream.map(Destination::Written),
        None => OpenOptions::new().append(true).open(path).map(Destination::Written),
    }
}

/// Whether a path is written to directly instead of being replaced: a device, a pipe, a socket, or an open
/// descriptor.
pub fn is_stream(path: &Path) -> bool {
    fs::metadata(path)
        .is_ok_and(|found| !found.is_dir() && (!found.is_file() || descriptor(path).is_some()))
}

/// The open descriptor of a path such as `/dev/stdout`, `/dev/fd/3` or `/proc/self/fd/3`, if it is one. The
/// descriptor may refer to a regular file, which must not be replaced, because other processes have it open.
fn descriptor(path: &Path) -> Option<Descriptor> {
    let mut path = path.to_owned();
    // The system's limit for links.
    for _ in 0..40 {
        let directory = fs::canonicalize(directory_of(&path)).ok()?;
        let name = path.file_name()?.to_str()?.to_owned();
        if let Ok(number) = name.parse()
            && let Some(is_own) = holds_descriptors(&directory)
        {
            return Some(Descriptor { number, is_own });
        }
        path = directory.join(fs::read_link(directory.join(name)).ok()?);
    }
    None
}

/// An open descriptor of a process.
struct Descriptor {
    number: i32,
    /// Whether it belongs to this process.
    is_own: bool,
}

/// Whether a directory, given by a path without links, lists open descriptors. If so, whether they belong to this
/// process: `/proc/PID/fd`, `/proc/PID/task/TID/fd`, `/dev/fd`.
fn holds_descriptors(directory: &Path) -> Option<bool> {
    if directory == Path::new("/dev/fd") {
        return Some(true);
    }
    let within = directory.strip_prefix("/proc").ok()?;
    let mut parts = within.iter().map(|part| part.to_str().unwrap_or_default());
    let process = parts.next()?;
    let rest: Vec<&str> = parts.collect();
    let is_known = matches!(rest[..], ["fd"] | ["task", _, "fd"]);
    is_known.then(|| process == std::process::id().to_string())
}

/// This process's standard output or error, if the path refers to it. Opening the path would start at the beginning
/// of a redirected file.
#[cfg(unix)]
fn own_stream(path: &Path) -> Option<io::Result<File>> {
    use std::os::fd::AsFd;
    let descriptor = descriptor(path).filter(|descriptor| descriptor.is_own)?;
    let owned = match descriptor.number {
        1 => io::stdout().as_fd().try_clone_to_owned(),
        2 => io::stderr().as_fd().try_clone_to_owned(),
        _ => return None,
    };
    Some(owned.map(File::from))
}

#[cfg(not(unix))]
fn own_stream(_: &Path) -> Option<io::Result<File>> {
    None
}

/// A temporary directory for files that are then moved to its parent. It is removed on drop; later writers remove
/// leftovers of killed processes.
pub struct AtomicDirectory {
    directory: tempfile::TempDir,
    _lock: File,
    _temporary: Temporary,
}

/// Name of the file in a staged directory that its writer locks.
const LOCK: &str = ".lock";

impl AtomicDirectory {
    /// Creates an empty directory.
    pub fn new(beside: &Path) -> io::Result<AtomicDirectory> {
        sweep(beside);
        let (temporary, directory) = uninterrupted(|| {
            let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(beside)?;
            io::Result::Ok((Temporary::new(directory.path()), directory))
        })?;
        let lock = File::create_new(directory.path().join(LOCK))?;
        // Other writers do not remove locked directories.
        let _ = lock.try_lock();
        Ok(AtomicDirectory { directory, _lock: lock, _temporary: temporary })
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes leftovers of killed writers.
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
    // Temporary files are private to the owner, which would be unexpected for an output.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The process's umask applies to these permissions.
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
    // Directories cannot be opened as files on this system.
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
    fn writes_through_symlinks_and_rejects_dangling_ones() {
        let scratch = tempfile::tempdir().expect("a directory");
        let [file, link, dangling] = ["file", "link", "nowhere"].map(|it| scratch.path().join(it));
        write(&file, b"old").expect("a new file");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        write(&link, b"new").expect("written through the link");
        assert!(fs::symlink_metadata(&link).expect("metadata").is_symlink());
        assert_eq!(fs::read(&file).expect("the contents"), b"new");
        std::os::unix::fs::symlink(scratch.path().join("none"), &dangling).expect("a link");
        let error = write(&dangling, b"").expect_err("a dangling link");
        assert!(error.to_string().contains("dangling"), "{error}");
        assert!(write(scratch.path(), b"").is_err(), "a directory was written to");
    }

    #[test]
    fn writes_to_devices_without_replacing_them() {
        write(Path::new("/dev/null"), b"gone").expect("written to the device");
        use std::os::unix::fs::FileTypeExt;
        let null = fs::metadata("/dev/null").expect("metadata");
        assert!(null.file_type().is_char_device(), "`/dev/null` was replaced");
        assert!(write(Path::new("/dev/full"), b"no").is_err(), "writing to `/dev/full` must fail");
    }

    /// Files in `/dev/shm`, and files reached through `/proc`, are regular files.
    #[cfg(target_os = "linux")]
    #[test]
    fn treats_dev_shm_and_proc_fd_files_as_regular() {
        let shared = Path::new("/dev/shm");
        let scratch = tempfile::tempdir().expect("a directory");
        let in_memory = tempfile::tempdir_in(if shared.is_dir() { shared } else { scratch.path() });
        let in_memory = in_memory.expect("a directory");
        // The path of the directory through a file descriptor of this process.
        let held = File::open(scratch.path()).expect("a directory");
        let number = std::os::fd::AsRawFd::as_raw_fd(&held);
        let through_process = PathBuf::from(format!("/proc/self/fd/{number}"));
        for directory in [in_memory.path(), &through_process] {
            let path = directory.join("1");
            for bytes in [&b"a longer one"[..], b"short"] {
                assert!(!is_stream(&path));
                write(&path, bytes).expect("written");
                assert_eq!(fs::read(&path).expect("the contents"), bytes);
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn writes_to_open_file_descriptors() {
        let scratch = tempfile::tempdir().expect("a directory");
        let file = scratch.path().join("file");
        let held = File::create(&file).expect("a new file");
        let number = std::os::fd::AsRawFd::as_raw_fd(&held);
        for root in ["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd"] {
            let path = PathBuf::from(format!("{root}/{number}"));
            assert!(is_stream(&path), "{root}");
            write(&path, b"more,").expect("written to the descriptor");
        }
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink(format!("/dev/fd/{number}"), &link).expect("a link");
        assert!(is_stream(&link) && !is_stream(&file));
        assert_eq!(fs::read(&file).expect("the contents"), b"more,more,more,");
    }

    #[test]
    fn writes_to_fifos() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("pipe");
        let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL");
        #[expect(unsafe_code, reason = "the standard library cannot create named pipes")]
        // SAFETY: the name is NUL-terminated.
        let made = unsafe { libc::mkfifo(name.as_ptr(), 0o600) };
        assert_eq!(made, 0);
        let reader = std::thread::spawn({
            let path = path.clone();
            move || fs::read(path)
        });
        write(&path, b"through").expect("written to the pipe");
        assert_eq!(reader.join().expect("no panic").expect("read from the pipe"), b"through");
        assert!(is_stream(&path));
    }

    #[test]
    fn removes_only_stale_unlocked_temporary_files() {
        let scratch = tempfile::tempdir().expect("a directory");
        let names = [".coremill-old", ".coremill-held", ".coremill-young", "other"];
        let paths = names.map(|name| scratch.path().join(name));
        let files = paths.each_ref().map(|path| File::create(path).expect("a new file"));
        let long_ago = std::time::SystemTime::now() - 2 * FORGOTTEN;
        for index in [0, 1, 3] {
            files[index].set_modified(long_ago).expect("a new time");
        }
        files[1].lock().expect("a lock");
        write(&scratch.path().join("new"), b"").expect("a new file");
        assert_eq!(paths.map(|path| path.exists()), [false, true, true, true]);
    }
}
