use coremill_simd::Isa;

use crate::limits::Limits;

/// How a program is to be computed.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Where results are rounded.
    pub numerics: Numerics,
    /// How many threads share the work; 0 stands for one for each processor.
    pub threads: usize,
    /// The vector instructions; none stands for the best that this machine has.
    pub isa: Option<Isa>,
    /// What the program may ask for.
    pub limits: Limits,
}

/// Where results are rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Numerics {
    /// Floats are computed and kept in fp32, whatever their type.
    #[default]
    Fast,
    /// The result of each operation is rounded to its type, as a device does that stores it: fp16
    /// values overflow and lose numerics where they would there.
    Rounded,
}
