//! Limits on the resources of a run. A program from a file may request any amount.

/// Limits of a run. The defaults suit realistic programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of elements of one tensor.
    pub elements: usize,
    /// Maximum bytes of all live values, without weights.
    pub bytes: usize,
    /// Maximum number of operations, counting each iteration of a loop.
    pub operations: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { elements: 1 << 31, bytes: 16 << 30, operations: 1 << 32 }
    }
}
