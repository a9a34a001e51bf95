//! Resource limits of a program.

/// Maximum rank of a tensor, as in ExecuTorch.
pub const MAX_RANK: usize = 16;

/// Resource limits of a program.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum size of a method's memory in bytes.
    pub memory: u64,
    /// Maximum number of instructions per execution, and of operations per call of a delegate.
    pub instructions: u64,
    /// Maximum size in bytes of weights cached in the kernels' layout. Further weights are rearranged on each call.
    pub packed: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { memory: 16 << 30, instructions: 1 << 32, packed: 1 << 30 }
    }
}
