//! Bounds on what a program may ask for. A program that was read from a file can ask for anything.

/// What a run may take. The defaults serve programs that people write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most elements of one tensor.
    pub elements: usize,
    /// The most bytes that values take at any one time, weights not counted.
    pub bytes: usize,
    /// The most operations that a run performs, those of loops counted each time.
    pub operations: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { elements: 1 << 31, bytes: 16 << 30, operations: 1 << 32 }
    }
}
