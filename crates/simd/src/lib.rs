//! SIMD vectors of floats for AVX-512, AVX2 with FMA, NEON and scalar Rust, and elementwise functions for
//! kernels.
//!
//! | module | contents |
//! |---|---|
//! | [`math`] | elementwise functions, and conversion of 16-bit floats |
//! | `isa` | [`Isa`]: the instruction sets for which kernels are compiled |
//! | [`peak`] | arithmetic for measurements of a machine's peak rate |
//! | `vector` | vectors with the width of the machine |

mod isa;
pub mod math;
pub mod peak;
#[doc(hidden)]
pub mod vector;

pub use isa::{Isa, UnknownIsa};
