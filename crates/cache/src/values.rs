//! Small values by key.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::SystemTime;

use crate::error::{Error, ErrorKind, Result};
use crate::files::{open, read_directory, read_record, remove_all, write_record};
use crate::key::Key;
use crate::store::Store;
use crate::usage::lock_record;

/// Maximum length of a value.
const MAX_BYTES: usize = 1 << 20;

/// Number of values from which the older half is removed.
const MAX_VALUES: usize = 10_000;

impl Store {
    /// The value of a key. A value may be lost at any time; it saves the time to compute it again.
    pub fn value(&self, key: &Key) -> Option<Vec<u8>> {
        let file = open(&self.values_path().join(key.to_string()), File::options().read(true));
        read_record(&file.ok()?, MAX_BYTES)
    }

    /// Sets the value of a key.
    pub fn set_value(&self, key: &Key, value: &[u8]) -> Result {
        if value.len() > MAX_BYTES {
            let message = format!("a value has {} bytes; the maximum is {MAX_BYTES}", value.len());
            return Err(
                Error::new(ErrorKind::Input, message).with_hint("store larger values as entries")
            );
        }
        self.make_directories()?;
        let path = self.values_path().join(key.to_string());
        let written = lock_record(&path).and_then(|lock| write_record(lock.file(), value));
        written.map_err(|error| Error::io("write", &path, error))
    }

    /// Removes all values.
    pub(crate) fn clear_values(&self) -> Result {
        let values = self.values_path();
        read_directory(&values)?.iter().try_for_each(|name| remove_all(&values.join(name)))
    }

    /// Removes the older half of too many values.
    pub(crate) fn trim_values(&self) -> Result {
        let names = read_directory(&self.values_path())?;
        if names.len() <= MAX_VALUES {
            return Ok(());
        }
        let modified = |path: &PathBuf| {
            fs::symlink_metadata(path)
                .and_then(|metadata| metadata.modified())
                .unwrap_or(SystemTime::UNIX_EPOCH)
        };
        let mut paths: Vec<_> = names.iter().map(|name| self.values_path().join(name)).collect();
        paths.sort_by_cached_key(modified);
        paths[..names.len() / 2].iter().try_for_each(|path| remove_all(path))
    }

    fn values_path(&self) -> PathBuf {
        self.root().join("values")
    }
}
