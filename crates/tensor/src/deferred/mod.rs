//! Lazily computed bytes.
//!
//! During a conversion, a weight is transposed, scaled, cast and written by different parts of the code. A
//! [`LazyTensor`] describes these steps; the elements stay in their source, usually a mapped file.
//! [`LazyTensor::to_buffer`] returns a [`Buffer`] of the result. Reading a part of this buffer computes the
//! part in one pass over its elements. Weights of any size are therefore converted from file to file in
//! bounded memory.
//!
//! ```
//! use coremill_tensor::{Buffer, DType, LazyTensor};
//!
//! let floats: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
//! let halves = LazyTensor::new(Buffer::from(floats), DType::Fp32, &[2, 2])?
//!     .permute(&[1, 0])?
//!     .scale(0, &[1.0, 0.5])?
//!     .cast(DType::Fp16)?
//!     .to_buffer();
//! let expected = [1.0, 3.0, 1.0, 2.0].map(|x| half::f16::from_f32(x).to_le_bytes());
//! assert_eq!(halves.as_bytes(), expected.concat());
//! # Ok::<(), coremill_tensor::RecipeError>(())
//! ```

mod error;
mod join;
mod narrow;
mod pack;
mod recipe;
mod scan;
mod statistics;
mod steps;
#[cfg(test)]
mod tests;
mod view;
mod watch;

pub use error::RecipeError;
pub use recipe::{LazyTensor, Overflow, Replace};
pub use statistics::Statistics;
pub use watch::{ReadTracker, with_source};
