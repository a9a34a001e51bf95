//! How much a hostile archive can make the reader do.

// Of the zip archive itself: `coremill_zip::limits`.

/// Nesting of an expression of symbolic sizes, of a pickle's values, and of tree specifications.
pub const MAX_DEPTH: usize = 100;

/// Terms of one expression of symbolic sizes.
pub const MAX_EXPRESSION_TERMS: usize = 1 << 16;

/// Dimensions of a tensor.
pub const MAX_RANK: usize = 64;

/// Values of a pickle, counted where they are used: a few bytes can name one value any number of times.
pub const MAX_PICKLE_VALUES: usize = 1 << 22;

/// Bytes that a tensor whose strides repeat elements of its storage may take when it is written out.
pub const MAX_EXPANDED_BYTES: u64 = 1 << 31;

/// Elements that a default of an operator schema, given as one number for a list, is repeated to.
pub const MAX_REPEATED_DEFAULT: u32 = 64;
