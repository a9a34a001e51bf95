use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::error::{Error, ErrorKind, FREE_SPACE, Result, is_full};
use crate::index::{self, Index, is_damage};
use crate::key::Key;
use crate::lock::{Lock, Mode};
use crate::manifest::{CONTENT, Manifest, VerifyLevel, sync_directory};

type Source = Box<dyn std::error::Error + Send + Sync>;

/// The file that says that a directory is a store.
const MARKER: &str = "coremill-store";

/// What stands in it: the form of everything beside it.
const FORMAT: &[u8] = b"1\n";

/// Kinds and labels are at most this long.
const MAX_NAME: usize = 4096;

/// How a store is kept.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The bytes that all entries may take. The entry that passes the limit stays; the next one makes room.
    pub limit: u64,
    /// Whether an entry is on the disk before it is said to be stored, so that it outlives a power failure. It outlives
    /// the process in any case.
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
    pub(crate) options: Options,
    index: Mutex<Option<Index>>,
}

/// What is kept under a key. Its files stay while this is held.
#[derive(Debug)]
pub struct Entry {
    path: PathBuf,
    bytes: u64,
    _lock: Lock,
}

/// Held by whoever adds or removes entries.
pub(crate) struct WriteGuard {
    lock: Lock,
}

impl Store {
    /// Opens a store, and makes it if it is not there. What processes that died left behind is swept away.
    pub fn open(root: impl Into<PathBuf>, options: &Options) -> Result<Store> {
        let store = Store { root: root.into(), options: *options, index: Mutex::new(None) };
        store.make_directories()?;
        let held = store.exclusive()?;
        store.indexed(&held, |_| Ok(()))?;
        store.reconcile(&held)?;
        drop(held);
        store.sweep()?;
        Ok(store)
    }

    /// Where the store of this user is: `COREMILL_CACHE`, or `coremill` in the system's directory for caches.
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

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The entry of a key, if it is there and as it was written. A damaged one is removed.
    pub fn get(&self, key: &Key) -> Result<Option<Entry>> {
        let name = key.to_string();
        let place = self.entry_path(&name);
        if !place.exists() {
            return Ok(None);
        }
        let lock = self.lock(&self.use_lock(&name), Mode::Shared)?;
        match Manifest::read(&place, &name) {
            None => Ok(None),
            Some(manifest) => match manifest
                .and_then(|manifest| manifest.check(&place, VerifyLevel::Quick).map(|()| manifest))
            {
                Ok(manifest) => {
                    lock.touch();
                    self.note_use(&manifest)?;
                    let (path, bytes) = (place.join(CONTENT), manifest.bytes);
                    Ok(Some(Entry { path, bytes, _lock: lock }))
                }
                Err(_) => {
                    drop(lock);
                    self.remove_if(&name, |manifest| manifest.is_err())?;
                    Ok(None)
                }
            },
        }
    }

    /// The entry of a key. If it is not there, `make` writes its files into the directory that it is given; `kind` and
    /// `label` say to people what it is. Others that ask for the same key meanwhile wait, and get this one.
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
                let message = format!("{} bytes of text describe an entry", name.len());
                return Err(Error::new(ErrorKind::Input, message)
                    .with_hint(format!("use at most {MAX_NAME}")));
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

    /// The same for bytes in memory, which are kept as one file: [`Entry::path`] joined with `data`.
    pub fn get_or_insert_bytes(
        &self,
        key: &Key,
        kind: &str,
        label: &str,
        bytes: &[u8],
    ) -> Result<Entry> {
        self.get_or_insert(key, kind, label, |place| fs::write(place.join("data"), bytes))
    }

    /// Removes an entry. One that is in use stays, and so does this say.
    pub fn remove(&self, key: &Key) -> Result<bool> {
        self.remove_if(&key.to_string(), |_| true)
    }

    /// Makes an entry beside its place and puts it there. The caller holds the lock of those that make it.
    fn insert<E: Into<Source>>(
        &self,
        name: &str,
        kind: &str,
        label: &str,
        make: impl FnOnce(&Path) -> std::result::Result<(), E>,
    ) -> Result<Entry> {
        let staging = self.root.join("staging").join(name);
        let content = staging.join(CONTENT);
        // Whoever made it before has died.
        remove_all(&staging)?;
        let made = (|| {
            fs::create_dir_all(&content).map_err(|error| Error::io("make", &content, error))?;
            make(&content).map_err(|error| full_or_make(label, error.into()))?;
            let durable = self.options.durable;
            let manifest = Manifest::describe(&staging, name.to_owned(), kind, label, durable)?;
            manifest.write(&staging, durable)?;
            self.publish(&staging, &manifest)
        })();
        if made.is_err() {
            // The first error counts; what cannot be removed now is swept away later.
            let _ = remove_all(&staging);
        }
        made
    }

    /// Puts an entry in its place: at once, as the last step.
    fn publish(&self, staging: &Path, manifest: &Manifest) -> Result<Entry> {
        let name = &manifest.key;
        let place = self.entry_path(name);
        let held = self.exclusive()?;
        // A damaged one in its place is not a use to those that hold it, either.
        self.discard(name)?;
        self.make_room(&held, manifest.bytes)?;
        let lock = self.lock(&self.use_lock(name), Mode::Shared)?;
        self.indexed(&held, |index| {
            index.write(|transaction| index::put_entry(transaction, manifest, SystemTime::now()))
        })?;
        if let Err(error) = fs::rename(staging, &place) {
            // The index says more than there is, which the next look at it would tell; better now.
            let _ = self.indexed(&held, |index| index.forget(name));
            return Err(Error::io("write", &place, error));
        }
        if self.options.durable {
            let entries = self.root.join("entries");
            let synced = sync_directory(&entries);
            synced.map_err(|error| Error::io("write", &entries, error))?;
        }
        held.done();
        let _ = self.empty_trash();
        Ok(Entry { path: place.join(CONTENT), bytes: manifest.bytes, _lock: lock })
    }

    /// Removes entries until there is room for so many bytes. An entry may pass the limit if those that are there do
    /// not: a model larger than the limit is kept, too.
    fn make_room(&self, held: &WriteGuard, bytes: u64) -> Result {
        let limit = self.options.limit;
        let left = self.shrink(held, limit.saturating_sub(bytes))?;
        if left <= limit {
            return Ok(());
        }
        let message = format!(
            "the store `{}` holds {left} bytes that are in use; its limit is {limit}",
            self.root.display()
        );
        Err(Error::new(ErrorKind::Full, message)
            .with_hint("raise the limit, or unload models that are no longer needed"))
    }

    /// Removes entries that nobody uses, the least recently used first, until they take so many bytes. Gives how many
    /// bytes are left.
    pub(crate) fn shrink(&self, held: &WriteGuard, bytes: u64) -> Result<u64> {
        let mut total = self.indexed(held, |index| index.total())?;
        if total <= bytes {
            return Ok(total);
        }
        for (name, size) in self.indexed(held, |index| index.oldest_first())? {
            if total <= bytes {
                break;
            }
            // What the index holds may be rubbish; it never becomes a path unchecked.
            if Key::parse(&name).is_some() {
                let path = self.use_lock(&name);
                let Some(lock) = self.try_lock(&path, Mode::Exclusive)? else { continue };
                self.discard(&name)?;
                lock.remove(&path);
            }
            self.indexed(held, |index| index.forget(&name))?;
            total = total.saturating_sub(size);
        }
        Ok(total)
    }

    /// Removes an entry that nobody uses, if its manifest says so.
    pub(crate) fn remove_if(
        &self,
        name: &str,
        goes: impl FnOnce(&std::result::Result<Manifest, String>) -> bool,
    ) -> Result<bool> {
        let held = self.exclusive()?;
        let place = self.entry_path(name);
        let Some(manifest) = Manifest::read(&place, name) else { return Ok(false) };
        let manifest = manifest
            .and_then(|manifest| manifest.check(&place, VerifyLevel::Quick).map(|()| manifest));
        if !goes(&manifest) {
            return Ok(false);
        }
        let path = self.use_lock(name);
        let Some(lock) = self.try_lock(&path, Mode::Exclusive)? else { return Ok(false) };
        self.discard(name)?;
        lock.remove(&path);
        self.indexed(&held, |index| index.forget(name))?;
        held.done();
        self.empty_trash()?;
        Ok(true)
    }

    /// Takes an entry out of its place, at once.
    pub(crate) fn discard(&self, name: &str) -> Result {
        let place = self.entry_path(name);
        match fs::rename(&place, self.trash_place(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io("remove", &place, error))
            }
            _ => Ok(()),
        }
    }

    /// Keeps others from adding and removing entries, until this is dropped. If whoever did so last has died over it,
    /// the index follows what is there.
    pub(crate) fn exclusive(&self) -> Result<WriteGuard> {
        self.make_directories()?;
        let path = self.root.join("lock");
        let lock = self.lock(&path, Mode::Exclusive)?;
        let failed = |error| Error::io("use", &path, error);
        let is_dirty = lock.file().metadata().map_err(failed)?.len() > 0;
        let held = WriteGuard { lock };
        if is_dirty {
            self.reconcile(&held)?;
        }
        // Not `write`: the length alone says it, which needs no room on the disk.
        held.lock.file().set_len(1).map_err(failed)?;
        Ok(held)
    }

    /// Makes the index follow what is there.
    pub(crate) fn reconcile(&self, held: &WriteGuard) -> Result {
        let mut known: Vec<(String, u64)> = self.indexed(held, |index| index.oldest_first())?;
        known.sort();
        let entries = self.root.join("entries");
        let mut found = Vec::new();
        for entry in read_directory(&entries)? {
            let Some(name) = entry.to_str().filter(|name| Key::parse(name).is_some()) else {
                continue;
            };
            found.push(name.to_owned());
        }
        found.sort();
        for (name, _) in &known {
            if found.binary_search(name).is_err() {
                self.indexed(held, |index| index.forget(name))?;
            }
        }
        let mut unknown = Vec::new();
        for name in found {
            if known.binary_search_by(|(key, _)| key.cmp(&name)).is_ok() {
                continue;
            }
            match Manifest::read(&self.entry_path(&name), &name) {
                Some(Ok(manifest)) => {
                    let used = fs::metadata(self.use_lock(&name)).and_then(|lock| lock.modified());
                    let made = SystemTime::UNIX_EPOCH + Duration::from_millis(manifest.created);
                    unknown.push((used.unwrap_or(made), manifest));
                }
                Some(Err(_)) => self.discard(&name)?,
                None => {}
            }
        }
        unknown.sort_by_key(|(used, _)| *used);
        self.indexed(held, |index| {
            index.write(|transaction| {
                unknown
                    .iter()
                    .try_for_each(|(used, manifest)| index::put_entry(transaction, manifest, *used))
            })
        })
    }

    /// Uses the index. One that is damaged is made again. On a full disk, what was taken out of its place makes room.
    pub(crate) fn indexed<T>(
        &self,
        held: &WriteGuard,
        mut act: impl FnMut(&mut Index) -> rusqlite::Result<T>,
    ) -> Result<T> {
        let path = self.index_path();
        let outcome = match self.try_index(held, &mut act) {
            Err(error) if is_damage(&error) => {
                self.replace_index()?;
                let again = self.try_index(held, &mut |_| Ok(()));
                again.map_err(|error| Error::index(&path, error))?;
                self.reconcile(held)?;
                self.try_index(held, &mut act)
            }
            Err(error) if is_full(&error) => {
                self.empty_trash()?;
                self.try_index(held, &mut act)
            }
            outcome => outcome,
        };
        outcome.map_err(|error| Error::index(&path, error))
    }

    fn try_index<T>(
        &self,
        held: &WriteGuard,
        act: &mut impl FnMut(&mut Index) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let mut slot = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_new = false;
        let index = match slot.take().filter(Index::is_current) {
            Some(index) => slot.insert(index),
            None => {
                let path = self.index_path();
                if !path.exists() {
                    // They belong to a database that was deleted.
                    remove_companions(&path);
                    is_new = true;
                }
                slot.insert(Index::open(&path)?)
            }
        };
        if is_new {
            drop(slot);
            // Errors of the store come up again where they can be told.
            let _ = self.reconcile(held);
            return self.try_index(held, act);
        }
        act(index)
    }

    /// Uses the index without keeping others from adding entries, if it is sound. For what may be lost.
    pub(crate) fn try_shared<T>(
        &self,
        act: &mut impl FnMut(&mut Index) -> rusqlite::Result<T>,
    ) -> Option<rusqlite::Result<T>> {
        let mut slot = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let index = slot.as_mut().filter(|index| index.is_current())?;
        Some(act(index)).filter(|outcome| !outcome.as_ref().is_err_and(is_damage))
    }

    /// Uses the index, whatever becomes of it.
    pub(crate) fn with_index<T>(
        &self,
        mut act: impl FnMut(&mut Index) -> rusqlite::Result<T>,
    ) -> Result<T> {
        match self.try_shared(&mut act) {
            Some(outcome) => outcome.map_err(|error| Error::index(&self.index_path(), error)),
            None => {
                let held = self.exclusive()?;
                let outcome = self.indexed(&held, act);
                held.done();
                outcome
            }
        }
    }

    /// Notes that an entry was used. It is there, whether that can be written down or not.
    fn note_use(&self, manifest: &Manifest) -> Result {
        match self.with_index(|index| index.used(manifest)) {
            Err(error) if matches!(error.kind(), ErrorKind::Index | ErrorKind::Full) => Ok(()),
            outcome => outcome,
        }
    }

    /// Takes a damaged database out of its place.
    fn replace_index(&self) -> Result {
        *self.index.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let path = self.index_path();
        match fs::rename(&path, self.trash_place("index")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("remove", &path, error));
            }
            _ => {}
        }
        remove_companions(&path);
        Ok(())
    }

    /// Deletes what was taken out of its place.
    pub(crate) fn empty_trash(&self) -> Result {
        let trash = self.root.join("trash");
        read_directory(&trash)?.iter().try_for_each(|name| remove_all(&trash.join(name)))
    }

    /// Makes what is missing. A directory that is something else is left alone.
    fn make_directories(&self) -> Result {
        let marker = self.root.join(MARKER);
        match fs::read(&marker) {
            Ok(format) if format == FORMAT => {}
            // Cut short: whoever made it died, or is about to write it.
            Ok(format) if format.is_empty() => self.mark(&marker)?,
            Ok(_) => {
                let message = format!(
                    "the store `{}` has the form of another version of coremill",
                    self.root.display()
                );
                return Err(Error::new(ErrorKind::Input, message)
                    .with_hint("use another directory, or remove this one"));
            }
            Err(_) => {
                let is_empty = read_directory(&self.root)?.is_empty();
                if !is_empty && !marker.exists() {
                    let message = format!("`{}` is not a cache of coremill", self.root.display());
                    return Err(Error::new(ErrorKind::Input, message)
                        .with_hint("name the directory of a cache; one is created in a directory that is empty or missing"));
                }
                self.mark(&marker)?;
            }
        }
        for name in ["entries", "staging", "locks", "trash"] {
            let path = self.root.join(name);
            fs::create_dir_all(&path).map_err(|error| Error::io("make", &path, error))?;
        }
        Ok(())
    }

    fn mark(&self, marker: &Path) -> Result {
        let write = || fs::create_dir_all(&self.root).and_then(|()| fs::write(marker, FORMAT));
        write().map_err(|error| Error::io("make", marker, error))
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

    pub(crate) fn index_path(&self) -> PathBuf {
        self.root.join("index.db")
    }

    /// A place in the trash that nothing else takes.
    fn trash_place(&self, name: &str) -> PathBuf {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_nanos());
        self.root.join("trash").join(format!("{name}.{}.{now}.{count}", std::process::id()))
    }
}

impl Entry {
    /// The directory of its files.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What its files take.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl WriteGuard {
    /// Notes that the index and the entries agree. Dropped without, the next one to hold this looks.
    pub(crate) fn done(&self) {
        let _ = self.lock.file().set_len(0);
    }
}

/// The error of what makes an entry, which may be that the disk is full.
fn full_or_make(label: &str, error: Source) -> Error {
    let is_full = error.downcast_ref::<io::Error>().is_some_and(|error| {
        matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    });
    if is_full {
        let message = format!("cannot make the entry `{label}`: {error}");
        return Error::new(ErrorKind::Full, message).with_hint(FREE_SPACE);
    }
    Error::make(label, error)
}

/// The names in a directory; none if it is not there.
pub(crate) fn read_directory(path: &Path) -> Result<Vec<std::ffi::OsString>> {
    let failed = |error| Error::io("read", path, error);
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    entries.map(|entry| entry.map(|entry| entry.file_name()).map_err(failed)).collect()
}

/// Removes a file or directory, if it is there. Somebody else may be doing the same.
pub(crate) fn remove_all(path: &Path) -> Result {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("remove", path, error))
        }
        _ => Ok(()),
    }
}

/// Removes the files that SQLite keeps beside a database.
fn remove_companions(path: &Path) {
    for suffix in ["-wal", "-shm", "-journal"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        let _ = fs::remove_file(name);
    }
}
