//! Limits of the readers.
//!
//! Each limit is far above the values in files that ExecuTorch writes, and prevents that a file causes memory use or
//! run time out of proportion to its size.

/// Maximum rank of a tensor, as in ExecuTorch's runtime.
pub const RANK: usize = 16;

/// Maximum memory per byte of the tables, in addition to [`MEMORY_FLOOR`]. Many offsets may refer to the same table,
/// so a small file could otherwise use any amount of memory.
pub const MEMORY_FACTOR: u64 = 64;

/// Memory in bytes that reading may always use.
pub const MEMORY_FLOOR: u64 = 1 << 24;

/// Maximum size in bytes of a serialized directory's description, as in ExecuTorch's runtime.
pub const DIRECTORY_JSON_BYTES: usize = 10 << 20;

/// Maximum number of entries of a serialized directory.
pub const DIRECTORY_ENTRIES: usize = 4096;

/// Maximum depth of nested directories.
pub const DIRECTORY_DEPTH: usize = 16;

/// Maximum length in bytes of a file name, as in file systems.
pub const NAME_BYTES: usize = 255;

/// Maximum size in bytes of a JSON file: debug information or references.
pub const JSON_BYTES: usize = 256 << 20;

/// Maximum size in bytes of a model's description; actual ones have kilobytes.
pub const DESCRIPTION_BYTES: usize = 64 << 20;
