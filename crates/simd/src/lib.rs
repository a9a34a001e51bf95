//! SIMD vectors of floats for AVX-512, AVX2 with FMA, NEON and scalar Rust, and elementwise functions for
//! kernels.
//!
//! | module | contents |
//! |---|---|
//! | [`math`] | elementwise functions, and conversion of 16-bit floats |
//! | `isa` | [`Isa`]: the instruction sets for which kernels are compiled |
//! | `vector` | vectors with the width of the machine |

mod isa;
pub mod math;
#[doc(hidden)]
pub mod vector;

pub use isa::{Isa, UnknownIsa};
