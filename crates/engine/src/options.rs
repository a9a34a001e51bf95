use coremill_simd::Isa;

use crate::limits::Limits;

/// Options of [`Engine::load`](crate::Engine::load).
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Rounding of results.
    pub numerics: Numerics,
    /// Number of threads; 0 uses all processors.
    pub threads: usize,
    /// Vector instruction set; `None` uses the best available.
    pub isa: Option<Isa>,
    /// Limits of each run.
    pub limits: Limits,
}

/// Rounding of results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Numerics {
    /// Floats are computed and stored in fp32 for every float type.
    #[default]
    Fast,
    /// The result of each operation is rounded to its type, as on a device that stores it. fp16
    /// values overflow and lose precision where they do on the device.
    Rounded,
}
