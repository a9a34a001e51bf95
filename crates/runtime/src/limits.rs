//! What a program may ask for.

/// The most dimensions of a tensor, as in ExecuTorch.
pub const MAX_RANK: usize = 16;

/// What a program may ask for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most bytes that the memory of a method may take.
    pub memory: u64,
    /// The most instructions that one execution may perform, and the most operations that each of its delegates may
    /// at a time.
    pub instructions: u64,
    /// The most bytes of weights that are kept a second time, in the order in which kernels read them; beyond, they
    /// are brought into that order at each call.
    pub packed: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { memory: 16 << 30, instructions: 1 << 32, packed: 1 << 30 }
    }
}
