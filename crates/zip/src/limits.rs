//! Limits of the reader, against malicious archives.

/// Maximum number of entries. Exported programs have far fewer than 100,000 weights.
pub const MAX_ENTRIES: u64 = 1 << 20;

/// Maximum length of a name in bytes.
pub const MAX_NAME_BYTES: usize = 4096;
