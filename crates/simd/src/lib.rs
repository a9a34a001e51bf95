//! Vectors of floats for AVX-512, AVX2 with FMA, NEON and plain Rust, and the functions of single elements that kernels are
//! made of.
//!
//! | module | holds |
//! |---|---|
//! | [`math`] | functions of single elements, and the formats of half the width |
//! | `isa` | [`Isa`]: the vector instructions that kernels are written for |
//! | `vector` | vectors of floats of the width that the machine has; kernels are compiled for each instruction set |

mod isa;
pub mod math;
#[doc(hidden)]
pub mod vector;

pub use isa::{Isa, UnknownIsa};
