//! Listing, verifying, pruning and sweeping a cache.

use std::fs;
use std::path::PathBuf;

use crate::error::Result;
use crate::files::{is_other, read_directory, remove_all};
use crate::key::Key;
use crate::lock::Mode;
use crate::manifest::{CONTENT, Manifest, VerifyLevel};
use crate::store::Store;
use crate::usage::Usage;

/// Files of versions that kept an index in SQLite.
const OLD_INDEX: [&str; 4] = ["index.db", "index.db-wal", "index.db-shm", "index.db-journal"];

/// Description of an entry for people.
#[derive(Clone, Debug)]
pub struct EntryInfo {
    /// Key.
    pub key: Key,
    /// Kind of content.
    pub kind: String,
    /// Name for people.
    pub label: String,
    /// Size of its files.
    pub bytes: u64,
    /// Creation time, in milliseconds since 1970.
    pub created: u64,
    /// Time of the last use, in milliseconds since 1970.
    pub used: u64,
    /// Number of times that it was stored and found.
    pub uses: u64,
    /// Directory of its files.
    pub path: PathBuf,
}

/// Result of [`Store::verify`].
#[derive(Clone, Debug, Default)]
pub struct Verification {
    /// Number of intact entries.
    pub sound: usize,
    /// Damaged entries, removed unless they are in use.
    pub damaged: Vec<DamagedEntry>,
}

/// An entry that differs from its manifest.
#[derive(Clone, Debug)]
pub struct DamagedEntry {
    /// Key.
    pub key: Key,
    /// Description of the damage.
    pub reason: String,
    /// Whether it was removed; an entry in use is not.
    pub removed: bool,
}

impl Store {
    /// Entries, the last used first, without damaged ones.
    pub fn list(&self) -> Result<Vec<EntryInfo>> {
        let mut entries = self.entries()?;
        entries.sort_by_key(|(_, usage, _)| std::cmp::Reverse(*usage));
        let info = |(key, usage, manifest): (Key, Usage, std::result::Result<Manifest, String>)| {
            let manifest = manifest.ok()?;
            Some(EntryInfo {
                key,
                kind: manifest.kind,
                label: manifest.label,
                bytes: manifest.bytes,
                created: manifest.created,
                used: usage.time,
                uses: usage.count,
                path: self.entry_path(&key.to_string()).join(CONTENT),
            })
        };
        Ok(entries.into_iter().filter_map(info).collect())
    }

    /// Size of all entries.
    pub fn size(&self) -> Result<u64> {
        Ok(self.entries()?.iter().flat_map(|(_, _, manifest)| manifest).map(|one| one.bytes).sum())
    }

    /// Reads every byte of every entry, and removes damaged ones.
    pub fn verify(&self) -> Result<Verification> {
        let mut verified = Verification::default();
        for key in self.keys()? {
            let name = key.to_string();
            let lock = self.lock(&self.use_lock(&name), Mode::Shared)?;
            let checked = Manifest::read_checked(&self.entry_path(&name), &name, VerifyLevel::Full);
            drop(lock);
            match checked {
                Some(Ok(_)) => verified.sound += 1,
                Some(Err(reason)) => {
                    let removed = self.remove_if(&name, |_| true)?;
                    verified.damaged.push(DamagedEntry { key, reason, removed });
                }
                None => {}
            }
        }
        Ok(verified)
    }

    /// Removes entries that are not in use, the least recently used first, until they take at most `bytes`, and the
    /// remains of dead processes. Returns the size of the remaining entries.
    pub fn prune(&self, bytes: u64) -> Result<u64> {
        let lock = self.exclusive()?;
        let left = self.shrink(bytes)?;
        drop(lock);
        self.sweep()?;
        Ok(left)
    }

    /// Removes all entries that are not in use, and all values. Returns the size of the remaining entries.
    pub fn purge(&self) -> Result<u64> {
        let left = self.prune(0)?;
        self.clear_values()?;
        Ok(left)
    }

    /// Removes damaged entries, and others as [`Store::prune`]. The caller holds the exclusive lock.
    pub(crate) fn shrink(&self, bytes: u64) -> Result<u64> {
        let mut intact = Vec::new();
        for (key, usage, manifest) in self.entries()? {
            match manifest {
                Ok(manifest) => intact.push((usage, key, manifest.bytes)),
                Err(_) => drop(self.discard_unused(&key.to_string())?),
            }
        }
        let mut total = intact.iter().map(|(_, _, size)| size).sum();
        intact.sort_by_key(|(usage, ..)| *usage);
        for (_, key, size) in intact {
            if total <= bytes {
                break;
            }
            if self.discard_unused(&key.to_string())? {
                total -= size;
            }
        }
        Ok(total)
    }

    /// Removes the remains of dead processes and of earlier versions.
    pub(crate) fn sweep(&self) -> Result {
        let lock = self.exclusive()?;
        for name in OLD_INDEX {
            remove_all(&self.root().join(name))?;
        }
        let staging = self.root().join("staging");
        for name in read_directory(&staging)? {
            let Some(key) = name.to_str().filter(|name| Key::parse(name).is_some()) else {
                remove_all(&staging.join(name))?;
                continue;
            };
            // The maker of an entry holds its lock.
            let path = self.make_lock(key);
            if let Some(lock) = self.try_lock(&path, Mode::Exclusive)? {
                remove_all(&staging.join(name))?;
                lock.remove(&path);
            }
        }
        let locks = self.root().join("locks");
        for name in read_directory(&locks)? {
            let path = locks.join(&name);
            if is_other(&path) {
                remove_all(&path)?;
                continue;
            }
            let entry = name.to_str().and_then(|name| name.strip_suffix(".use"));
            let is_needed =
                entry.is_some_and(|entry| fs::symlink_metadata(self.entry_path(entry)).is_ok());
            if !is_needed && let Some(lock) = self.try_lock(&path, Mode::Exclusive)? {
                lock.remove(&path);
            }
        }
        drop(lock);
        self.trim_values()?;
        self.empty_trash()
    }

    /// Keys of the directories of entries.
    fn keys(&self) -> Result<Vec<Key>> {
        let names = read_directory(&self.root().join("entries"))?;
        let mut keys: Vec<Key> =
            names.iter().filter_map(|name| Key::parse(name.to_str()?)).collect();
        keys.sort();
        Ok(keys)
    }

    /// Entries, with a reason instead of the manifest if it is damaged.
    fn entries(&self) -> Result<Vec<(Key, Usage, std::result::Result<Manifest, String>)>> {
        let entry = |key: Key| {
            let name = key.to_string();
            let place = self.entry_path(&name);
            let manifest = Manifest::read(&place, &name)?;
            let created = manifest.as_ref().map_or(0, |manifest| manifest.created);
            Some((key, Usage::read(&place, &self.use_lock(&name), created), manifest))
        };
        Ok(self.keys()?.into_iter().filter_map(entry).collect())
    }
}
