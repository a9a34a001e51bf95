//! Keeps compiled models and other bytes on disk, by key, for any number of processes at once.
//!
//! A [`Store`] is a directory. [`Store::get_or_insert`] gives the [`Entry`] of a [`Key`], or has it made: it appears at
//! once or not at all, and while an `Entry` is held, nobody removes its files. When entries take more than
//! [`Options::limit`], those go that were not used for the longest time. [`Store::values`] is a table of small values.
//!
//! ```
//! use coremill_store::{Key, Options, Store};
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
//! | path in the directory | holds |
//! |---|---|
//! | `coremill-store` | the form of the store; a directory without is not touched |
//! | `entries/KEY/content` | an entry's files |
//! | `entries/KEY/manifest.json` | their sizes, times and hashes |
//! | `index.db` | when entries were used, and the values: SQLite |
//! | `staging/KEY` | an entry while it is made |
//! | `locks/KEY.use`, `locks/KEY.make` | held by those that use an entry, and by the one that makes it |
//! | `lock` | held by whoever adds or removes entries; not empty if that process died |
//! | `trash` | what is being deleted |
//!
//! **Files are the truth, the index follows.** An entry exists if its directory does. An index that is damaged, gone or
//! behind is made again from the manifests; only the values and the order of use are lost with it.
//!
//! | module | holds |
//! |---|---|
//! | `store` | [`Store`]: finds, adds and makes room |
//! | `tend` | lists, verifies, prunes, purges, sweeps |
//! | `values` | [`Values`]: text, integers and bytes by key |
//! | `key` | [`Key`], and hashes of files |
//! | `manifest`, `index`, `lock` | what an entry consists of, SQLite, locks between processes |

mod error;
mod index;
mod key;
mod lock;
mod maintenance;
mod manifest;
mod store;
mod values;

pub use error::{Error, ErrorKind};
pub use key::{Key, hash_file};
pub use maintenance::{DamagedEntry, EntryInfo, Verified};
pub use store::{Entry, Options, Store};
pub use values::{StoredValue, Value, Values};
