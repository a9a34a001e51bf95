//! Handles: unique numbers that identify objects.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use crate::error::{CoremillStatus, Failure, Result};

/// Objects by handle.
pub(crate) struct Table<T> {
    what: &'static str,
    entries: OnceLock<RwLock<HashMap<u64, Arc<T>>>>,
}

/// The next handle. Handles are unique across all tables, so a freed one is never reused.
static NEXT: AtomicU64 = AtomicU64::new(1);

impl<T> Table<T> {
    pub(crate) const fn new(what: &'static str) -> Table<T> {
        Table { what, entries: OnceLock::new() }
    }

    fn entries(&self) -> &RwLock<HashMap<u64, Arc<T>>> {
        self.entries.get_or_init(RwLock::default)
    }

    pub(crate) fn insert(&self, value: T) -> u64 {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut entries = self.entries().write().unwrap_or_else(PoisonError::into_inner);
        entries.insert(id, Arc::new(value));
        id
    }

    /// The object of a handle. It stays alive while in use, even if the handle is freed.
    pub(crate) fn get(&self, id: u64) -> Result<Arc<T>> {
        let entries = self.entries().read().unwrap_or_else(PoisonError::into_inner);
        entries.get(&id).cloned().ok_or_else(|| self.unknown(id))
    }

    pub(crate) fn remove(&self, id: u64) -> Result {
        let mut entries = self.entries().write().unwrap_or_else(PoisonError::into_inner);
        let removed = entries.remove(&id).ok_or_else(|| self.unknown(id))?;
        // Outside the lock, as dropping may take a while.
        drop(entries);
        drop(removed);
        Ok(())
    }

    fn unknown(&self, id: u64) -> Failure {
        Failure {
            status: CoremillStatus::InvalidHandle,
            message: format!("{id} is not the handle of a {}, or the handle was freed", self.what),
            hint: None,
        }
    }
}
