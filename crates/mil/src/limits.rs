//! What readers of packages refuse as too much.
//!
//! Each limit is far above what converters write and Core ML takes, and low enough that no file makes
//! a reader use memory or time out of proportion to its size.

/// Bytes of a model file: what protobuf itself allows in one message.
pub const MODEL_BYTES: u64 = i32::MAX as u64;

/// Messages inside messages; protobuf's own readers stop at the same depth.
pub const MESSAGE_DEPTH: u32 = 100;

/// Blocks inside blocks. Each takes two messages, so [`MESSAGE_DEPTH`] leaves room for a few more.
pub const BLOCK_DEPTH: u32 = 40;

/// Types inside types, and values inside values.
pub const TYPE_DEPTH: u32 = 16;

/// Dimensions of a tensor. Core ML takes 5 in general; tables of palettized weights have more.
pub const RANK: usize = 32;

/// Functions of a program.
pub const FUNCTIONS: usize = 4096;

/// Stages of a pipeline.
pub const PIPELINE_STAGES: usize = 256;

/// Operations of a program, all functions and blocks together.
pub const OPS: usize = 1 << 20;

/// Values of a program, all functions and blocks together.
pub const VALUES: usize = 1 << 22;

/// Blocks of a program.
pub const BLOCKS: usize = 1 << 18;

/// Arguments, attributes or entries of one holder.
pub const ENTRIES: usize = 1 << 16;

/// Bytes of a name.
pub const NAME_BYTES: usize = 1 << 16;

/// A model may take this much memory for each of its bytes, and [`MEMORY_FLOOR`] besides. Real models
/// take about 4 times their size.
pub const MEMORY_FACTOR: u64 = 32;

/// Bytes of memory that any model may take.
pub const MEMORY_FLOOR: u64 = 1 << 24;

/// Bytes of `Manifest.json`.
pub const MANIFEST_BYTES: u64 = 1 << 20;

/// Entries of `Manifest.json`.
pub const MANIFEST_ITEMS: usize = 1024;

/// Files and directories of a package.
pub const PACKAGE_ENTRIES: usize = 4096;

/// Directories inside directories of a package.
pub const PACKAGE_DEPTH: usize = 16;

/// Weight files of a program. Each stays open while the program is in memory.
pub const WEIGHT_FILES: usize = 128;

/// Files that a program does not refer to are read into memory up to this size each, and mapped
/// beyond.
pub const SMALL_FILE_BYTES: u64 = 1 << 16;

/// Files beyond [`SMALL_FILE_BYTES`] that a program does not refer to. Each stays open while the model
/// is in memory.
pub const LARGE_EXTRA_FILES: usize = 128;
