//! What SQLite keeps: when entries were used, and values.
//!
//! Order of use is counted in ticks, which a clock that is set back does not disturb.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior};

use crate::lock::identity;
use crate::manifest::{Manifest, milliseconds};

/// Other processes hold the database for less than this.
const PATIENCE: Duration = Duration::from_secs(30);

/// The form of the tables.
const VERSION: i64 = 1;

const TABLES: &str = "
    CREATE TABLE entries (
        key TEXT PRIMARY KEY NOT NULL, bytes INTEGER NOT NULL, uses INTEGER NOT NULL, used INTEGER NOT NULL,
        used_at INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX entries_by_use ON entries (used);
    CREATE TABLE pairs (
        space TEXT NOT NULL, key TEXT NOT NULL, value NOT NULL, uses INTEGER NOT NULL, used INTEGER NOT NULL,
        used_at INTEGER NOT NULL, PRIMARY KEY (space, key)
    ) WITHOUT ROWID;
    CREATE TABLE clock (tick INTEGER NOT NULL);
    INSERT INTO clock VALUES (0);
";

/// An open database.
pub(crate) struct Index {
    pub(crate) connection: Connection,
    path: PathBuf,
    identity: (u64, u64),
}

/// When and how often something was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) count: u64,
    /// By the tick.
    pub(crate) order: u64,
    /// Milliseconds since 1970.
    pub(crate) at: u64,
}

impl Index {
    /// Opens the database, and makes it if it is not there. An error means damage, or no room.
    pub(crate) fn open(path: &Path) -> rusqlite::Result<Index> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(PATIENCE)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        let mut index = Index { connection, path: path.to_owned(), identity: (0, 0) };
        let version: i64 =
            index.connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if version == 0 {
            index.write(|transaction| {
                transaction.execute_batch(TABLES)?;
                transaction.pragma_update(None, "user_version", VERSION)
            })?;
        } else if version != VERSION {
            // Another version's tables are no use to this one.
            return Err(rusqlite::Error::InvalidQuery);
        }
        let sound: String =
            index.connection.pragma_query_value(None, "quick_check", |row| row.get(0))?;
        if sound != "ok" {
            return Err(rusqlite::Error::InvalidQuery);
        }
        index.identity = fs::metadata(path).map_or((0, 0), |metadata| identity(&metadata));
        Ok(index)
    }

    /// Whether the file that is open is still the one at the path.
    pub(crate) fn is_current(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|metadata| identity(&metadata) == self.identity)
    }

    /// Performs a transaction that writes.
    pub(crate) fn write<T>(
        &mut self,
        act: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let outcome = act(&transaction)?;
        transaction.commit()?;
        Ok(outcome)
    }

    /// Notes that an entry is there and was used now.
    pub(crate) fn used(&mut self, manifest: &Manifest) -> rusqlite::Result<()> {
        self.write(|transaction| put_entry(transaction, manifest, SystemTime::now()))
    }

    /// The entries, those first that were not used for the longest time, with their sizes.
    pub(crate) fn oldest_first(&self) -> rusqlite::Result<Vec<(String, u64)>> {
        let mut query =
            self.connection.prepare_cached("SELECT key, bytes FROM entries ORDER BY used")?;
        let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows.collect()
    }

    /// How an entry was used.
    pub(crate) fn usage(&self, key: &str) -> rusqlite::Result<Option<Use>> {
        let mut query = self
            .connection
            .prepare_cached("SELECT uses, used, used_at FROM entries WHERE key = ?1")?;
        let use_of = |row: &rusqlite::Row<'_>| {
            Ok(Use { count: row.get(0)?, order: row.get(1)?, at: row.get(2)? })
        };
        query.query_row([key], use_of).optional()
    }

    /// The bytes of all entries.
    pub(crate) fn total(&self) -> rusqlite::Result<u64> {
        let mut query =
            self.connection.prepare_cached("SELECT coalesce(sum(bytes), 0) FROM entries")?;
        query.query_row([], |row| row.get(0))
    }

    /// Forgets an entry.
    pub(crate) fn forget(&mut self, key: &str) -> rusqlite::Result<()> {
        self.connection.execute("DELETE FROM entries WHERE key = ?1", [key]).map(|_| ())
    }
}

/// Notes an entry as the one that was used last, at a time that people are told.
pub(crate) fn put_entry(
    transaction: &Transaction<'_>,
    manifest: &Manifest,
    at: SystemTime,
) -> rusqlite::Result<()> {
    let tick = tick(transaction)?;
    transaction
        .prepare_cached(
            "INSERT INTO entries VALUES (?1, ?2, 1, ?3, ?4)
             ON CONFLICT (key) DO UPDATE SET bytes = ?2, uses = uses + 1, used = ?3, used_at = ?4",
        )?
        .execute((&manifest.key, manifest.bytes, tick, milliseconds(at)))
        .map(|_| ())
}

/// The next tick.
pub(crate) fn tick(transaction: &Transaction<'_>) -> rusqlite::Result<u64> {
    transaction
        .prepare_cached("UPDATE clock SET tick = tick + 1 RETURNING tick")?
        .query_row([], |row| row.get(0))
}

/// Whether an error says that the database is not what was written: it is made again then.
pub(crate) fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::*;
    match error {
        SqliteFailure(failure, _) => matches!(
            failure.code,
            ErrorCode::DatabaseCorrupt
                | ErrorCode::NotADatabase
                | ErrorCode::SystemIoFailure
                | ErrorCode::CannotOpen
                | ErrorCode::ReadOnly
                | ErrorCode::SchemaChanged
                | ErrorCode::FileLockingProtocolFailed
                | ErrorCode::Unknown
        ),
        // A column that is not of its type, a table that is not there or has no row.
        InvalidQuery
        | InvalidColumnType(..)
        | IntegralValueOutOfRange(..)
        | FromSqlConversionFailure(..)
        | QueryReturnedNoRows => true,
        // SQL that the tables do not fit has a variant of its own, in newer versions of SQLite alone.
        _ => error.sqlite_error_code() == Some(ErrorCode::Unknown),
    }
}
