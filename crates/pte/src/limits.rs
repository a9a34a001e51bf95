//! What readers of programs refuse as too much.
//!
//! Each limit is far above what ExecuTorch writes and low enough that no file makes a reader use memory or
//! time out of proportion to its size.

/// Dimensions of a tensor; ExecuTorch's runtime has the same limit.
pub const RANK: usize = 16;

/// What is read may take this much memory for each byte that describes it, and [`MEMORY_FLOOR`] besides. Many
/// offsets may lead to the same table, so a small file could otherwise ask for any amount.
pub const MEMORY_FACTOR: u64 = 64;

/// Bytes of memory that what is read may take in any case.
pub const MEMORY_FLOOR: u64 = 1 << 24;

/// Bytes of the description at the end of a directory in one piece; ExecuTorch's runtime has the same limit.
pub const DIRECTORY_JSON_BYTES: usize = 10 << 20;

/// Files and directories of a directory in one piece.
pub const DIRECTORY_ENTRIES: usize = 4096;

/// Directories inside directories.
pub const DIRECTORY_DEPTH: usize = 16;

/// Bytes of a name in a directory; file systems have the same limit.
pub const NAME_BYTES: usize = 255;

/// Bytes of a JSON file that is read: notes about a model, or which model is meant.
pub const JSON_BYTES: usize = 256 << 20;

/// Bytes of a model's description of its inputs and outputs; real ones take kilobytes.
pub const DESCRIPTION_BYTES: usize = 64 << 20;
