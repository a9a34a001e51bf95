//! How much a hostile archive can make the reader do.

/// Entries of an archive. A program of 100,000 weights is far beyond what is exported.
pub const MAX_ENTRIES: u64 = 1 << 20;

/// Bytes of one name.
pub const MAX_NAME_BYTES: usize = 4096;
