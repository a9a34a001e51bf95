//! Threads and instruction set of a run.

use std::sync::{Mutex, PoisonError};

use coremill_kernels::Pool;
use coremill_simd::Isa;

/// Threads and instruction set of kernels.
pub struct CpuContext {
    /// The threads.
    pub pool: Pool,
    /// The vector instructions.
    pub isa: Isa,
}

impl CpuContext {
    /// Runs each part on a thread, with its position.
    pub fn share<P: Send>(
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
