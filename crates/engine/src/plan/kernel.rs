use std::sync::{Mutex, PoisonError};

use coremill_kernels::Pool;
use coremill_simd::Isa;

use crate::array::View;
use crate::error::Result;

/// Work on tensors whose shapes were known when the plan was made.
pub(crate) trait Kernel: Send + Sync {
    /// Reads the inputs and writes every element of the outputs, tensors of floats all; what the
    /// outputs hold before is arbitrary. The scratch is as long as [`Kernel::scratch`] says.
    fn run(
        &self,
        machine: &CpuContext,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        scratch: &mut [f32],
    ) -> Result<()>;

    /// What it does, for profiles: `conv+relu`.
    fn label(&self) -> String;

    /// What it takes.
    fn cost(&self) -> Cost;

    /// Whether it does something beside writing its outputs.
    fn has_side_effects(&self) -> bool {
        false
    }

    /// How many floats of memory it needs beside its outputs.
    fn scratch(&self) -> usize {
        0
    }
}

/// What a kernel takes each time that it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Floating-point operations; a multiply-add counts two.
    pub(crate) operations: u64,
    /// Bytes read and written, weights as they lie in memory.
    pub(crate) bytes: u64,
}

/// What kernels run on.
pub(crate) struct CpuContext {
    /// The threads.
    pub(crate) pool: Pool,
    /// The vector instructions.
    pub(crate) isa: Isa,
}

impl CpuContext {
    /// Gives each part to a thread, with its position.
    pub(crate) fn share<P: Send>(
        &self,
        parts: impl Iterator<Item = P>,
        body: impl Fn(usize, &mut P) + Sync,
    ) {
        let parts: Vec<_> = parts.map(Mutex::new).collect();
        self.pool.run(parts.len(), |index| {
            let mut part = parts[index].lock().unwrap_or_else(PoisonError::into_inner);
            body(index, &mut part);
        });
    }
}
