//! Limits on the work that a hostile archive can cause.

// Limits of the zip archive itself are in `coremill_zip::limits`.

/// Maximum nesting depth of symbolic expressions, pickled values, and tree specifications.
pub const MAX_DEPTH: usize = 100;

/// Maximum number of terms in a symbolic expression.
pub const MAX_EXPRESSION_TERMS: usize = 1 << 16;

/// Maximum rank of a tensor.
pub const MAX_RANK: usize = 64;

/// Maximum number of values of a pickle, counted at each use: a few bytes can refer to one value any number
/// of times.
pub const MAX_PICKLE_VALUES: usize = 1 << 22;

/// Maximum size in bytes of a materialized tensor whose strides repeat elements of its storage.
pub const MAX_EXPANDED_BYTES: u64 = 1 << 31;

/// Maximum length of a default that an operator schema specifies as one number for a list.
pub const MAX_REPEATED_DEFAULT: u32 = 64;
