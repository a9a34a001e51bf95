use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use crate::error::{Error, ErrorKind, Result};
use crate::files::{open, read, read_directory, remove_all, require_directory, sync_directory};
use crate::key::Key;
use crate::lock::{Lock, Mode};
use crate::manifest::{CONTENT, Manifest, VerifyLevel};

type Source = Box<dyn std::error::Error + Send + Sync>;

/// File that marks a directory as a cache.
const MARKER: &str = "coremill-store";

/// Its content: the version of the layout.
const FORMAT: &[u8] = b"1\n";

/// Maximum length of kinds and labels.
const MAX_NAME: usize = 4096;

/// Options of a cache.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Maximum size of all entries. The entry that exceeds it stays; the next one makes room.
    pub limit: u64,
    /// Whether an entry is on the disk before it is returned, so that it survives a power failure. It survives the
    /// process in any case.
    pub durable: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { limit: 10 << 30, durable: true }
    }
}

/// A directory of entries. Any number of threads and processes may use it at once.
pub struct Store {
    root: PathBuf,
    options: Options,
}

/// Files of a key. They stay while this is held.
#[derive(Debug)]
pub struct Entry {
    path: PathBuf,
    bytes: u64,
    _lock: Lock,
}

impl Store {
    /// Opens a cache and creates it if it is missing. Remains of dead processes are removed.
    pub fn open(root: impl Into<PathBuf>, options: &Options) -> Result<Store> {
        let store = Store { root: root.into(), options: *options };
        store.sweep()?;
        Ok(store)
    }

    /// Directory of the user's cache: `COREMILL_CACHE`, or `coremill` in the system's directory for caches.
    pub fn default_root() -> Option<PathBuf> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let home = |below: &str| variable("HOME").map(|home| Path::new(&home).join(below));
        if let Some(root) = variable("COREMILL_CACHE") {
            return Some(root.into());
        }
        let caches = if cfg!(target_vendor = "apple") {
            home("Library/Caches")
        } else if cfg!(windows) {
            variable("LOCALAPPDATA").map(PathBuf::from)
        } else {
            variable("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| home(".cache"))
        };
        caches.map(|caches| caches.join("coremill"))
    }

    /// Directory of the cache.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The entry of a key, if it exists and is intact. A damaged one is removed.
    pub fn get(&self, key: &Key) -> Result<Option<Entry>> {
        let name = key.to_string();
        let place = self.entry_path(&name);
        if fs::symlink_metadata(&place).is_err() {
            return Ok(None);
        }
        let lock = self.lock(&self.use_lock(&name), Mode::Shared)?;
        match Manifest::read_checked(&place, &name, VerifyLevel::Quick) {
            None => Ok(None),
            Some(Ok(manifest)) => {
                // A use that cannot be recorded, on a full disk for instance, is a use still.
                let _ = self.record_use(&place);
                let (path, bytes) = (place.join(CONTENT), manifest.bytes);
                Ok(Some(Entry { path, bytes, _lock: lock }))
            }
            Some(Err(_)) => {
                drop(lock);
                self.remove_if(&name, |manifest| manifest.is_err())?;
                Ok(None)
            }
        }
    }

    /// The entry of a key. If it is missing, `make` writes its files into the given directory; `kind` and `label`
    /// describe it for people. Concurrent requests for the same key wait, and get the same entry.
    pub fn get_or_insert<E: Into<Source>>(
        &self,
        key: &Key,
        kind: &str,
        label: &str,
        make: impl FnOnce(&Path) -> std::result::Result<(), E>,
    ) -> Result<Entry> {
        if let Some(entry) = self.get(key)? {
            return Ok(entry);
        }
        for name in [kind, label] {
            if name.len() > MAX_NAME {
                let message = format!("the description of a cache entry has {} bytes", name.len());
                return Err(Error::new(ErrorKind::Input, message)
                    .with_hint(format!("use at most {MAX_NAME} bytes")));
            }
        }
        self.make_directories()?;
        let name = key.to_string();
        let making = self.make_lock(&name);
        let lock = self.lock(&making, Mode::Exclusive)?;
        let entry = match self.get(key)? {
            Some(entry) => Ok(entry),
            None => self.insert(&name, kind, label, make),
        };
        lock.remove(&making);
        entry
    }

    /// As [`Store::get_or_insert`] for bytes in memory, which become one file: [`Entry::path`] joined with `data`.
    pub fn get_or_insert_bytes(
        &self,
        key: &Key,
        kind: &str,
        label: &str,
        bytes: &[u8],
    ) -> Result<Entry> {
        self.get_or_insert(key, kind, label, |place| fs::write(place.join("data"), bytes))
    }

    /// Removes an entry, unless it is in use. Returns whether it was removed.
    pub fn remove(&self, key: &Key) -> Result<bool> {
        self.remove_if(&key.to_string(), |_| true)
    }

    /// Makes an entry in `staging` and publishes it. The caller holds the lock of its maker.
    fn insert<E: Into<Source>>(
        &self,
        name: &str,
        kind: &str,
        label: &str,
        make: impl FnOnce(&Path) -> std::result::Result<(), E>,
    ) -> Result<Entry> {
        let staging = self.root.join("staging").join(name);
        let content = staging.join(CONTENT);
        // An earlier maker died.
        remove_all(&staging)?;
        let made = (|| {
            fs::create_dir_all(&content).map_err(|error| Error::io("make", &content, error))?;
            make(&content).map_err(|error| Error::make(label, error))?;
            let durable = self.options.durable;
            let manifest = Manifest::describe(&staging, name.to_owned(), kind, label, durable)?;
            manifest.write(&staging, durable)?;
            self.publish(&staging, &manifest)
        })();
        if made.is_err() {
            // The first error counts; a later sweep removes the rest.
            let _ = remove_all(&staging);
        }
        made
    }

    /// Moves an entry into its place, atomically and as the last step.
    fn publish(&self, staging: &Path, manifest: &Manifest) -> Result<Entry> {
        let name = &manifest.key;
        let place = self.entry_path(name);
        let _exclusive = self.exclusive()?;
        // A damaged entry in its place is useless to its users, too.
        self.discard(name)?;
        self.make_room(manifest.bytes)?;
        let lock = self.lock(&self.use_lock(name), Mode::Shared)?;
        self.record_use(staging).map_err(|error| Error::io("write", staging, error))?;
        fs::rename(staging, &place).map_err(|error| Error::io("write", &place, error))?;
        if self.options.durable {
            let entries = self.root.join("entries");
            let synced = sync_directory(&entries);
            synced.map_err(|error| Error::io("write", &entries, error))?;
        }
        let _ = self.empty_trash();
        Ok(Entry { path: place.join(CONTENT), bytes: manifest.bytes, _lock: lock })
    }

    /// Removes entries until there is room for `bytes`. An entry may exceed the limit if the others do not: a model
    /// larger than the limit is stored, too.
    fn make_room(&self, bytes: u64) -> Result {
        let limit = self.options.limit;
        let left = self.shrink(limit.saturating_sub(bytes))?;
        if left <= limit {
            return Ok(());
        }
        let message = format!(
            "the cache `{}` holds {left} bytes that are in use, but its limit is {limit} bytes",
            self.root.display()
        );
        Err(Error::new(ErrorKind::Full, message)
            .with_hint("raise the limit, or unload models that are no longer needed"))
    }

    /// Removes an entry that is not in use, if `condition` holds for its checked manifest.
    pub(crate) fn remove_if(
        &self,
        name: &str,
        condition: impl FnOnce(&std::result::Result<Manifest, String>) -> bool,
    ) -> Result<bool> {
        let _exclusive = self.exclusive()?;
        let manifest = Manifest::read_checked(&self.entry_path(name), name, VerifyLevel::Quick);
        if !manifest.is_some_and(|manifest| condition(&manifest)) || !self.discard_unused(name)? {
            return Ok(false);
        }
        self.empty_trash()?;
        Ok(true)
    }

    /// Moves an entry to the trash unless it is in use. The caller holds the exclusive lock.
    pub(crate) fn discard_unused(&self, name: &str) -> Result<bool> {
        let path = self.use_lock(name);
        let Some(lock) = self.try_lock(&path, Mode::Exclusive)? else { return Ok(false) };
        self.discard(name)?;
        lock.remove(&path);
        Ok(true)
    }

    /// Moves an entry to the trash, atomically.
    fn discard(&self, name: &str) -> Result {
        let place = self.entry_path(name);
        match fs::rename(&place, self.trash_path(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io("remove", &place, error))
            }
            _ => Ok(()),
        }
    }

    /// Keeps other processes from adding and removing entries while the lock is held.
    pub(crate) fn exclusive(&self) -> Result<Lock> {
        self.make_directories()?;
        self.lock(&self.root.join("lock"), Mode::Exclusive)
    }

    /// Deletes the content of the trash.
    pub(crate) fn empty_trash(&self) -> Result {
        let trash = self.root.join("trash");
        read_directory(&trash)?.iter().try_for_each(|name| remove_all(&trash.join(name)))
    }

    /// Creates missing directories. A directory of something else is left alone.
    pub(crate) fn make_directories(&self) -> Result {
        let marker = self.root.join(MARKER);
        match read(&marker, MAX_NAME as u64) {
            Ok(format) if format == FORMAT => {}
            // Empty: its writer died, or is about to write it.
            Ok(format) if format.is_empty() => self.mark(&marker)?,
            Ok(_) => {
                let message = format!(
                    "the cache `{}` belongs to another version of coremill",
                    self.root.display()
                );
                return Err(Error::new(ErrorKind::Input, message)
                    .with_hint("use another directory, or remove this one"));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let is_empty = read_directory(&self.root)?.is_empty();
                // Another process may have created it meanwhile.
                if !is_empty && fs::symlink_metadata(&marker).is_err() {
                    let message = format!("`{}` is not a cache of coremill", self.root.display());
                    return Err(Error::new(ErrorKind::Input, message).with_hint(
                        "use the directory of a cache, an empty directory, or a new directory",
                    ));
                }
                self.mark(&marker)?;
            }
            Err(error) => return Err(Error::io("read", &marker, error)),
        }
        for name in ["entries", "staging", "locks", "trash", "values"] {
            let path = self.root.join(name);
            require_directory(&path).map_err(|error| Error::io("use", &path, error))?;
        }
        Ok(())
    }

    fn mark(&self, marker: &Path) -> Result {
        let write = || {
            fs::create_dir_all(&self.root)?;
            let mut options = fs::File::options();
            open(marker, options.write(true).create(true).truncate(false))?.write_all(FORMAT)
        };
        write().map_err(|error| Error::io("write", marker, error))
    }

    pub(crate) fn lock(&self, path: &Path, mode: Mode) -> Result<Lock> {
        Lock::acquire(path, mode).map_err(|error| Error::io("lock", path, error))
    }

    pub(crate) fn try_lock(&self, path: &Path, mode: Mode) -> Result<Option<Lock>> {
        Lock::try_acquire(path, mode).map_err(|error| Error::io("lock", path, error))
    }

    pub(crate) fn entry_path(&self, name: &str) -> PathBuf {
        self.root.join("entries").join(name)
    }

    pub(crate) fn use_lock(&self, name: &str) -> PathBuf {
        self.root.join("locks").join(format!("{name}.use"))
    }

    pub(crate) fn make_lock(&self, name: &str) -> PathBuf {
        self.root.join("locks").join(format!("{name}.make"))
    }

    /// A unique path in the trash.
    fn trash_path(&self, name: &str) -> PathBuf {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_nanos());
        self.root.join("trash").join(format!("{name}.{}.{now}.{count}", std::process::id()))
    }
}

impl Entry {
    /// Directory of its files.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size of its files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
