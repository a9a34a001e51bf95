use std::sync::{Mutex, PoisonError};

use coremill_kernels::Pool;
use coremill_simd::Isa;

use crate::array::View;
use crate::error::Result;

/// A computation on tensors whose shapes are known at planning time.
pub(crate) trait Kernel: Send + Sync {
    /// Reads the inputs and writes every element of the outputs, which are all floats. The initial
    /// contents of the outputs are arbitrary. `scratch` has the length of [`Kernel::scratch`].
    fn run(
        &self,
        machine: &CpuContext,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        scratch: &mut [f32],
    ) -> Result<()>;

    /// Name for profiles, such as `conv+relu`.
    fn label(&self) -> String;

    /// Estimated cost of one run.
    fn cost(&self) -> Cost;

    /// Returns true if the kernel does more than write its outputs.
    fn has_side_effects(&self) -> bool {
        false
    }

    /// Number of floats of temporary memory.
    fn scratch(&self) -> usize {
        0
    }
}

/// Cost of one run of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Floating-point operations; a multiply-add counts as two.
    pub(crate) operations: u64,
    /// Bytes read and written. Weights count at their size in memory.
    pub(crate) bytes: u64,
}

/// The threads and instruction set that kernels use.
pub(crate) struct CpuContext {
    pub(crate) pool: Pool,
    pub(crate) isa: Isa,
}

impl CpuContext {
    /// Runs `body` on each part, with its index, in the thread pool.
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
