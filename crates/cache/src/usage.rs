//! Order of use.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::files::{is_other, open, read_record, remove_all, write_record};
use crate::lock::{Lock, Mode};
use crate::manifest::milliseconds;
use crate::store::Store;

/// File of an entry's use, in its directory.
const USAGE: &str = "usage";

/// Use of an entry. Sorts by the order of use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Usage {
    /// Position in the order of use; 0 if unknown.
    position: u64,
    /// Time of the last use, in milliseconds since 1970.
    pub(crate) time: u64,
    /// Number of uses.
    pub(crate) count: u64,
}

impl Usage {
    /// Reads the recorded use of an entry. Without a record, the time is the last change of the entry's lock,
    /// which earlier versions set. Without a lock, it is `created`.
    pub(crate) fn read(entry: &Path, lock: &Path, created: u64) -> Usage {
        Usage::read_recorded(entry).unwrap_or_else(|| {
            let changed = std::fs::symlink_metadata(lock).and_then(|metadata| metadata.modified());
            Usage { time: changed.map_or(created, milliseconds), ..Usage::default() }
        })
    }

    fn read_recorded(entry: &Path) -> Option<Usage> {
        let file = open(&entry.join(USAGE), File::options().read(true)).ok()?;
        let numbers = read_record(&file, 24)?;
        let number = |index: usize| {
            let bytes = numbers.get(8 * index..8 * (index + 1))?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        Some(Usage { position: number(0)?, time: number(1)?, count: number(2)? })
    }
}

impl Store {
    /// Records a use of the entry in a directory, as the last one.
    pub(crate) fn record_use(&self, entry: &Path) -> io::Result<()> {
        let clock = lock_record(&self.root().join("clock"))?;
        let now = SystemTime::now();
        let last = read_record(clock.file(), 8).and_then(|bytes| bytes.try_into().ok());
        let last = last.map_or(0, u64::from_le_bytes);
        let nanoseconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let position = nanoseconds.max(last.saturating_add(1));
        write_record(clock.file(), &position.to_le_bytes())?;
        let count = Usage::read_recorded(entry).map_or(0, |usage| usage.count).saturating_add(1);
        let numbers = [position, milliseconds(now), count].map(u64::to_le_bytes);
        let path = entry.join(USAGE);
        replace_other(&path);
        let file = open(&path, File::options().write(true).create(true).truncate(false))?;
        write_record(&file, &numbers.concat())
    }
}

/// Locks a file to write a record into it.
pub(crate) fn lock_record(path: &Path) -> io::Result<Lock> {
    replace_other(path);
    Lock::acquire(path, Mode::Exclusive)
}

/// Removes anything but a regular file at the path of a record. Errors are ignored here; they show when the
/// file is opened.
fn replace_other(path: &Path) {
    if is_other(path) {
        let _ = remove_all(path);
    }
}
