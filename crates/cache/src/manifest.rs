//! Description of an entry's files.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::files::{is_directory, open, read, sync_directory};
use crate::key::hash;

/// Directory of an entry's files, in the entry's directory.
pub(crate) const CONTENT: &str = "content";

/// File that describes them.
pub(crate) const MANIFEST: &str = "manifest.json";

/// Maximum length of a manifest.
const MAX_BYTES: u64 = 64 << 20;

/// Maximum depth of directories.
const MAX_DEPTH: usize = 64;

/// Version of manifests.
const FORMAT: u32 = 1;

/// Description of an entry, stored in its directory.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Manifest {
    format: u32,
    pub(crate) key: String,
    pub(crate) kind: String,
    pub(crate) label: String,
    pub(crate) bytes: u64,
    /// Milliseconds since 1970.
    pub(crate) created: u64,
    files: Vec<FileOf>,
}

/// A file of an entry.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct FileOf {
    /// With `/` between its parts.
    path: String,
    bytes: u64,
    /// Nanoseconds since 1970, as text because JSON's numbers are not wide enough everywhere.
    modified: String,
    hash: String,
}

/// Depth of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VerifyLevel {
    /// Sizes and times; hashes of files with another time.
    Quick,
    /// Every byte.
    Full,
}

impl Manifest {
    /// Describes the files of a new entry. If `durable`, they are on the disk when this returns.
    pub(crate) fn describe(
        entry: &Path,
        key: String,
        kind: &str,
        label: &str,
        durable: bool,
    ) -> Result<Manifest> {
        let mut files = Vec::new();
        let content = entry.join(CONTENT);
        collect(&content, "", 0, durable, &mut files)?;
        files.sort_by(|left, right| left.path.cmp(&right.path));
        if files.is_empty() {
            let message = format!("nothing was written for the entry `{label}`");
            return Err(Error::new(ErrorKind::Make, message));
        }
        let bytes = files.iter().map(|file| file.bytes).sum();
        let (kind, label) = (kind.to_owned(), label.to_owned());
        let created = milliseconds(SystemTime::now());
        Ok(Manifest { format: FORMAT, key, kind, label, bytes, created, files })
    }

    /// Writes it into an entry's directory.
    pub(crate) fn write(&self, entry: &Path, durable: bool) -> Result {
        let path = entry.join(MANIFEST);
        let text = serde_json::to_vec(self).map_err(|error| Error::make(&self.label, error))?;
        let write = || -> io::Result<()> {
            fs::write(&path, text)?;
            if durable {
                File::open(&path)?.sync_all()?;
                sync_directory(entry)?;
            }
            Ok(())
        };
        write().map_err(|error| Error::io("write", &path, error))
    }

    /// Reads the manifest of the entry `key`. `None` if the entry's directory is missing; an error with the reason if
    /// it is damaged.
    pub(crate) fn read(entry: &Path, key: &str) -> Option<std::result::Result<Manifest, String>> {
        if fs::symlink_metadata(entry).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return None;
        }
        let parse = || -> std::result::Result<Manifest, String> {
            let text = read(&entry.join(MANIFEST), MAX_BYTES)
                .map_err(|error| format!("`{MANIFEST}`: {error}"))?;
            let manifest: Manifest = serde_json::from_slice(&text)
                .map_err(|error| format!("`{MANIFEST}` is invalid: {error}"))?;
            if manifest.format != FORMAT || manifest.key != key {
                return Err(format!("`{MANIFEST}` belongs to another entry or version"));
            }
            Ok(manifest)
        };
        Some(parse())
    }

    /// Reads the manifest of the entry `key` and compares the entry's files with it, as [`Manifest::read`].
    pub(crate) fn read_checked(
        entry: &Path,
        key: &str,
        level: VerifyLevel,
    ) -> Option<std::result::Result<Manifest, String>> {
        let checked = |manifest: Manifest| manifest.check(entry, level).map(|()| manifest);
        Manifest::read(entry, key).map(|manifest| manifest.and_then(checked))
    }

    /// Compares the files with the written ones; the error names the difference.
    fn check(&self, entry: &Path, level: VerifyLevel) -> std::result::Result<(), String> {
        let content = entry.join(CONTENT);
        if !is_directory(entry) || !is_directory(&content) {
            return Err("it is not a directory".to_owned());
        }
        let mut found = Vec::new();
        list(&content, "", 0, &mut found).map_err(|error| error.to_string())?;
        found.sort_by(|(left, _), (right, _)| left.cmp(right));
        for file in &self.files {
            let at = found.binary_search_by(|(path, _)| path.as_str().cmp(&file.path));
            let Ok(at) = at else { return Err(format!("`{}` is missing", file.path)) };
            let metadata = &found[at].1;
            if metadata.len() != file.bytes {
                let (path, bytes, there) = (&file.path, file.bytes, metadata.len());
                return Err(format!("`{path}` has {there} bytes, but {bytes} bytes were written"));
            }
            if level == VerifyLevel::Quick && nanoseconds(metadata) == file.modified {
                continue;
            }
            let hash = hash_of(&content.join(&file.path), false);
            let hash = hash.map_err(|error| format!("`{}`: {error}", file.path))?;
            if hash != file.hash {
                return Err(format!("`{}` differs from the written bytes", file.path));
            }
        }
        if found.len() > self.files.len() {
            let is_known = |path: &str| self.files.iter().any(|file| file.path == path);
            let other = found.iter().find(|(path, _)| !is_known(path));
            let other = other.map_or("a file", |(path, _)| path);
            return Err(format!("`{other}` was added"));
        }
        Ok(())
    }
}

/// Lists the files under a directory. Anything that is neither a file nor a directory is an error.
fn list(
    directory: &Path,
    prefix: &str,
    depth: usize,
    found: &mut Vec<(String, fs::Metadata)>,
) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Err(io::Error::other(format!("`{prefix}` is nested too deeply")));
    }
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            return Err(io::Error::other(format!("the name `{}` is not UTF-8", name.display())));
        };
        let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            list(&entry.path(), &path, depth + 1, found)?;
        } else if metadata.is_file() {
            found.push((path, metadata));
        } else {
            return Err(io::Error::other(format!("`{path}` is neither a file nor a directory")));
        }
    }
    Ok(())
}

/// Describes the files under a directory; if `durable`, waits until they are on the disk.
fn collect(
    content: &Path,
    prefix: &str,
    depth: usize,
    durable: bool,
    files: &mut Vec<FileOf>,
) -> Result {
    let mut found = Vec::new();
    list(content, prefix, depth, &mut found).map_err(|error| Error::io("read", content, error))?;
    for (path, metadata) in found {
        let at = content.join(&path);
        let read = || -> io::Result<FileOf> {
            let hash = hash_of(&at, durable)?;
            let (bytes, modified) = (metadata.len(), nanoseconds(&metadata));
            Ok(FileOf { path, bytes, modified, hash })
        };
        files.push(read().map_err(|error| Error::io("read", &at, error))?);
    }
    if durable {
        let synced = sync_directories(content, 0);
        synced.map_err(|error| Error::io("write", content, error))?;
    }
    Ok(())
}

fn sync_directories(directory: &Path, depth: usize) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() && depth < MAX_DEPTH {
            sync_directories(&entry.path(), depth + 1)?;
        }
    }
    sync_directory(directory)
}

/// Hash of a file; if `durable`, waits until the file is on the disk.
fn hash_of(path: &Path, durable: bool) -> io::Result<String> {
    let file = open(path, File::options().read(true))?;
    if durable {
        file.sync_all()?;
    }
    Ok(blake3::Hash::from_bytes(hash(file)?).to_hex().to_string())
}

fn nanoseconds(metadata: &fs::Metadata) -> String {
    let modified = metadata.modified().unwrap_or(UNIX_EPOCH);
    match modified.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_nanos().to_string(),
        Err(before) => format!("-{}", before.duration().as_nanos()),
    }
}

/// Milliseconds since 1970; 0 for earlier times.
pub(crate) fn milliseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
