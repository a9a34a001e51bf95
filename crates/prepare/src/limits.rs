//! Bounds on the work that a hostile program can cause.

/// Values that making a program functional may add to a graph: a chain of views, each written to, asks for as many as
/// the square of its length.
pub const MAX_ADDED_VALUES: usize = 1 << 18;

/// Terms of the strides that a new value gets where its sizes are expressions; longer ones are left unknown.
pub const MAX_STRIDE_TERMS: usize = 256;
