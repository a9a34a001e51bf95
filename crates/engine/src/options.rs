use coremill_kernels::Numerics;
use coremill_simd::Isa;

use coremill_reference::limits::Limits;

/// Options of [`Engine::load`](crate::Engine::load).
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// The arithmetic.
    pub numerics: Numerics,
    /// Number of threads; 0 uses all processors.
    pub threads: usize,
    /// Vector instruction set; `None` uses the best available.
    pub isa: Option<Isa>,
    /// Limits of each run.
    pub limits: Limits,
}
