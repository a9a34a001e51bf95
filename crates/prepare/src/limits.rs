//! Bounds on the work that a hostile program can cause.

/// Maximum number of values that functionalization adds to a graph. A chain of views with a write to each needs a
/// number that is quadratic in its length.
pub const MAX_ADDED_VALUES: usize = 1 << 18;

/// Maximum number of terms in the symbolic strides of a new value. Longer expressions become unknown.
pub const MAX_STRIDE_TERMS: usize = 256;
