//! A cache of compiled models and other bytes on disk, by key, for any number of processes at once.
//!
//! A [`Store`] is a directory. [`Store::get_or_insert`] returns the [`Entry`] of a [`Key`] and makes it if it is
//! missing: it appears at once or not at all, and while an `Entry` is held, no process removes its files. If entries
//! exceed [`Options::limit`], the least recently used ones are removed. [`Store::value`] returns small values.
//!
//! ```
//! use coremill_cache::{Key, Options, Store};
//!
//! let directory = tempfile::tempdir()?;
//! let store = Store::open(directory.path(), &Options::default())?;
//! let key = Key::new([&b"the model's content"[..], b"all", b"24A335"]);
//! let entry = store.get_or_insert(&key, "model", "digits", |place| {
//!     std::fs::write(place.join("model.mil"), "program(1.3) {}")
//! })?;
//! assert_eq!(std::fs::read(entry.path().join("model.mil"))?, b"program(1.3) {}");
//! assert!(store.get(&key)?.is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | path in the directory | content |
//! |---|---|
//! | `coremill-store` | version of the layout; a directory without this file is left alone |
//! | `entries/KEY/content` | files of an entry |
//! | `entries/KEY/manifest.json` | their sizes, times and hashes |
//! | `entries/KEY/usage` | number of uses, position in the order of use, time of the last use |
//! | `values/KEY` | a small value |
//! | `clock` | last position in the order of use |
//! | `staging/KEY` | an entry while it is made |
//! | `locks/KEY.use`, `locks/KEY.make` | locked by the users of an entry, and by its maker |
//! | `lock` | locked while entries are added or removed |
//! | `trash` | files to be deleted |
//!
//! **There is no index.** An entry exists if its directory does. `clock`, `usage` and values carry a hash; a damaged one
//! counts as absent, and no entry is lost with it.
//!
//! **Positions are times that never go back**: the current time, or the last position plus one if the clock was set back.
//!
//! **Links are not followed.** A symbolic link, a pipe or a device instead of a file or directory is refused or replaced.
//!
//! | module | content |
//! |---|---|
//! | `store` | [`Store`]: find and add entries, make room |
//! | `maintenance` | list, verify, prune, purge, sweep |
//! | `usage` | order of use |
//! | `values` | small values |
//! | `key` | [`Key`], hashes of files |
//! | `manifest` | description of an entry's files |
//! | `files`, `lock` | safe access to files, locks between processes |

mod error;
mod files;
mod key;
mod lock;
mod maintenance;
mod manifest;
mod store;
mod usage;
mod values;

pub use error::{Error, ErrorKind};
pub use key::{Key, hash_file};
pub use maintenance::{DamagedEntry, EntryInfo, Verification};
pub use store::{Entry, Options, Store};
