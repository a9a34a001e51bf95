//! What shows a store and keeps it tidy.

use std::path::PathBuf;

use crate::error::Result;
use crate::index::Use;
use crate::key::Key;
use crate::lock::Mode;
use crate::manifest::{CONTENT, Manifest, VerifyLevel};
use crate::store::{Store, read_directory, remove_all};

/// An entry, for people.
#[derive(Clone, Debug)]
pub struct EntryInfo {
    /// The key.
    pub key: Key,
    /// What kind of thing it is.
    pub kind: String,
    /// What it is called.
    pub label: String,
    /// What its files take.
    pub bytes: u64,
    /// When it was made, in milliseconds since 1970.
    pub created: u64,
    /// When it was used last, in milliseconds since 1970.
    pub used: u64,
    /// How often it was stored and found.
    pub uses: u64,
    /// Where its files are.
    pub path: PathBuf,
    order: u64,
}

/// What [`Store::verify`] found.
#[derive(Clone, Debug, Default)]
pub struct Verified {
    /// How many entries are as they were written.
    pub sound: usize,
    /// Those that were not, and were removed unless they are in use.
    pub damaged: Vec<DamagedEntry>,
}

/// An entry that is not as it was written.
#[derive(Clone, Debug)]
pub struct DamagedEntry {
    /// The key.
    pub key: Key,
    /// What is wrong.
    pub reason: String,
    /// Whether it was removed; it stays while it is in use.
    pub removed: bool,
}

impl Store {
    /// The entries, the one used last first. Damaged ones are left out.
    pub fn list(&self) -> Result<Vec<EntryInfo>> {
        let mut listed = Vec::new();
        for key in self.keys()? {
            let name = key.to_string();
            let place = self.entry_path(&name);
            let Some(Ok(manifest)) = Manifest::read(&place, &name) else { continue };
            let usage = self.with_index(|index| index.usage(&name))?.unwrap_or_default();
            let Use { count, order, at } = usage;
            listed.push(EntryInfo {
                key,
                kind: manifest.kind,
                label: manifest.label,
                bytes: manifest.bytes,
                created: manifest.created,
                used: at,
                uses: count,
                path: place.join(CONTENT),
                order,
            });
        }
        listed.sort_by_key(|entry| std::cmp::Reverse(entry.order));
        Ok(listed)
    }

    /// The bytes of all entries.
    pub fn size(&self) -> Result<u64> {
        self.with_index(|index| index.total())
    }

    /// Reads every byte of every entry, and removes those that are not as they were written.
    pub fn verify(&self) -> Result<Verified> {
        let mut verified = Verified::default();
        for key in self.keys()? {
            let name = key.to_string();
            let place = self.entry_path(&name);
            let lock = self.lock(&self.use_lock(&name), Mode::Shared)?;
            let Some(manifest) = Manifest::read(&place, &name) else { continue };
            let sound = manifest.and_then(|manifest| manifest.check(&place, VerifyLevel::Full));
            drop(lock);
            match sound {
                Ok(()) => verified.sound += 1,
                Err(reason) => {
                    let removed = self.remove_if(&name, |_| true)?;
                    verified.damaged.push(DamagedEntry { key, reason, removed });
                }
            }
        }
        Ok(verified)
    }

    /// Removes entries that nobody uses, the least recently used first, until they take so many bytes, and what
    /// processes that died left behind. Gives how many bytes are left.
    pub fn prune(&self, bytes: u64) -> Result<u64> {
        let held = self.exclusive()?;
        let left = self.shrink(&held, bytes)?;
        held.done();
        drop(held);
        self.sweep()?;
        Ok(left)
    }

    /// Removes all entries that nobody uses, and all values. Gives how many bytes are left.
    pub fn purge(&self) -> Result<u64> {
        let left = self.prune(0)?;
        self.with_index(|index| index.connection.execute("DELETE FROM pairs", []))?;
        Ok(left)
    }

    /// Removes what processes that died left behind.
    pub(crate) fn sweep(&self) -> Result {
        let held = self.exclusive()?;
        let staging = self.root().join("staging");
        for name in read_directory(&staging)? {
            // Whoever makes an entry holds its lock.
            let known = name.to_str().filter(|name| Key::parse(name).is_some());
            let path = known.map(|name| self.make_lock(name));
            let Some(path) = path else {
                remove_all(&staging.join(name))?;
                continue;
            };
            if let Some(lock) = self.try_lock(&path, Mode::Exclusive)? {
                remove_all(&staging.join(name))?;
                lock.remove(&path);
            }
        }
        let locks = self.root().join("locks");
        for name in read_directory(&locks)? {
            let path = locks.join(&name);
            let entry = name.to_str().and_then(|name| name.strip_suffix(".use"));
            let is_needed = entry.is_some_and(|entry| self.entry_path(entry).exists());
            if !is_needed && let Some(lock) = self.try_lock(&path, Mode::Exclusive)? {
                lock.remove(&path);
            }
        }
        held.done();
        self.empty_trash()
    }

    fn keys(&self) -> Result<Vec<Key>> {
        let names = read_directory(&self.root().join("entries"))?;
        let mut keys: Vec<Key> =
            names.iter().filter_map(|name| Key::parse(name.to_str()?)).collect();
        keys.sort();
        Ok(keys)
    }
}
