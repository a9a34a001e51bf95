//! Limits that readers of packages enforce.
//!
//! Each limit is far above what converters write and Core ML accepts. It is low enough that no file makes a
//! reader use memory or time out of proportion to the file's size.

/// Maximum size of a model file in bytes: the limit of protobuf for one message.
pub const MODEL_BYTES: u64 = i32::MAX as u64;

/// Maximum nesting depth of messages. Protobuf's own readers have the same limit.
pub const MESSAGE_DEPTH: u32 = 100;

/// Maximum nesting depth of blocks. Each block needs two messages, so [`MESSAGE_DEPTH`] leaves room for a few
/// more.
pub const BLOCK_DEPTH: u32 = 40;

/// Maximum nesting depth of types and of values.
pub const TYPE_DEPTH: u32 = 16;

/// Maximum rank of a tensor. Core ML supports rank 5 in general; lookup tables of palettized weights have a
/// higher rank.
pub const RANK: usize = 32;

/// Maximum number of functions in a program.
pub const FUNCTIONS: usize = 4096;

/// Maximum number of stages in a pipeline.
pub const PIPELINE_STAGES: usize = 256;

/// Maximum number of operations in a program, in all functions and blocks together.
pub const OPS: usize = 1 << 20;

/// Maximum number of values in a program, in all functions and blocks together.
pub const VALUES: usize = 1 << 22;

/// Maximum number of blocks in a program.
pub const BLOCKS: usize = 1 << 18;

/// Maximum number of arguments, attributes or entries in one message.
pub const ENTRIES: usize = 1 << 16;

/// Maximum length of a name in bytes.
pub const NAME_BYTES: usize = 1 << 16;

/// Memory that a model may use for each byte of its file, in addition to [`MEMORY_FLOOR`]. Real models need
/// about 4 times the size of the file.
pub const MEMORY_FACTOR: u64 = 32;

/// Memory in bytes that any model may use.
pub const MEMORY_FLOOR: u64 = 1 << 24;

/// Maximum size of `Manifest.json` in bytes.
pub const MANIFEST_BYTES: u64 = 1 << 20;

/// Maximum number of entries in `Manifest.json`.
pub const MANIFEST_ITEMS: usize = 1024;

/// Maximum number of files and directories in a package.
pub const PACKAGE_ENTRIES: usize = 4096;

/// Maximum nesting depth of directories in a package.
pub const PACKAGE_DEPTH: usize = 16;

/// Maximum number of weight files of a program. Each file stays open while the program is in memory.
pub const WEIGHT_FILES: usize = 128;

/// Size up to which a file that the program does not refer to is read into memory. Larger files are mapped.
pub const SMALL_FILE_BYTES: u64 = 1 << 16;

/// Maximum number of files above [`SMALL_FILE_BYTES`] that the program does not refer to. Each file stays
/// open while the model is in memory.
pub const LARGE_EXTRA_FILES: usize = 128;
