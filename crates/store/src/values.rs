//! Small values by key.

use std::time::SystemTime;

use rusqlite::OptionalExtension;
use rusqlite::types::{ToSqlOutput, ValueRef};

use crate::error::{Error, ErrorKind, Result};
use crate::index::tick;
use crate::manifest::milliseconds;
use crate::store::Store;

/// Larger values belong into entries.
const MAX_BYTES: usize = 1 << 20;

/// The values of a store under one name. They are lost if the store's index is.
pub struct Values<'s> {
    store: &'s Store,
    space: String,
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Text.
    Text(String),
    /// An integer.
    Integer(i64),
    /// Bytes.
    Bytes(Vec<u8>),
}

/// A value, and how it was used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredValue {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Value,
    /// How often it was set and read.
    pub uses: u64,
    /// When it was set or read last, in milliseconds since 1970.
    pub used: u64,
}

impl Store {
    /// The values under a name.
    pub fn values(&self, space: impl Into<String>) -> Values<'_> {
        Values { store: self, space: space.into() }
    }
}

impl Values<'_> {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Result<Option<Value>> {
        self.store.with_index(|index| {
            index.write(|transaction| {
                let tick = tick(transaction)?;
                let mut query = transaction.prepare_cached(
                    "UPDATE pairs SET uses = uses + 1, used = ?3, used_at = ?4
                     WHERE space = ?1 AND key = ?2 RETURNING value",
                )?;
                let now = milliseconds(SystemTime::now());
                query.query_row((&self.space, key, tick, now), |row| row.get(0)).optional()
            })
        })
    }

    /// Sets the value of a key.
    pub fn set(&self, key: &str, value: impl Into<Value>) -> Result {
        let value = value.into();
        let bytes = key.len()
            + match &value {
                Value::Text(text) => text.len(),
                Value::Bytes(bytes) => bytes.len(),
                Value::Integer(_) => 8,
            };
        if bytes > MAX_BYTES {
            let message =
                format!("a key and its value must have at most {MAX_BYTES} bytes, got {bytes}");
            return Err(
                Error::new(ErrorKind::Input, message).with_hint("keep larger values as entries")
            );
        }
        self.store.with_index(|index| {
            index.write(|transaction| {
                let tick = tick(transaction)?;
                let now = milliseconds(SystemTime::now());
                transaction
                    .prepare_cached(
                        "INSERT INTO pairs VALUES (?1, ?2, ?3, 1, ?4, ?5) ON CONFLICT (space, key)
                         DO UPDATE SET value = ?3, uses = uses + 1, used = ?4, used_at = ?5",
                    )?
                    .execute((&self.space, key, &value, tick, now))
                    .map(|_| ())
            })
        })
    }

    /// Removes a key, and says whether it was there.
    pub fn remove(&self, key: &str) -> Result<bool> {
        self.store.with_index(|index| {
            let mut query = index
                .connection
                .prepare_cached("DELETE FROM pairs WHERE space = ?1 AND key = ?2")?;
            query.execute((&self.space, key)).map(|count| count > 0)
        })
    }

    /// All of them, the one used last first. Listing does not count as use.
    pub fn list(&self) -> Result<Vec<StoredValue>> {
        self.store.with_index(|index| {
            let mut query = index.connection.prepare_cached(
                "SELECT key, value, uses, used_at FROM pairs WHERE space = ?1 ORDER BY used DESC",
            )?;
            let rows = query.query_map([&self.space], |row| {
                Ok(StoredValue {
                    key: row.get(0)?,
                    value: row.get(1)?,
                    uses: row.get(2)?,
                    used: row.get(3)?,
                })
            })?;
            rows.collect()
        })
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

impl From<i64> for Value {
    fn from(integer: i64) -> Value {
        Value::Integer(integer)
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Value {
        Value::Bytes(bytes.to_vec())
    }
}

impl rusqlite::ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
            Value::Integer(integer) => ValueRef::Integer(*integer),
            Value::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

impl rusqlite::types::FromSql for Value {
    fn column_result(value: ValueRef<'_>) -> rusqlite::types::FromSqlResult<Value> {
        match value {
            ValueRef::Text(_) => value.as_str().map(Value::from),
            ValueRef::Integer(integer) => Ok(Value::Integer(integer)),
            ValueRef::Blob(bytes) => Ok(Value::from(bytes)),
            ValueRef::Null | ValueRef::Real(_) => Err(rusqlite::types::FromSqlError::InvalidType),
        }
    }
}
