//! Bytes that are computed when they are read.
//!
//! A weight of a model that is converted passes through several hands: it is transposed, scaled, cast,
//! and written. A [`LazyTensor`] says what is to be done with elements that stay where they are, usually in
//! a mapped file. [`LazyTensor::to_buffer`] gives a [`Buffer`] that stands for the result; whoever reads a
//! part of it has that part computed, in one pass over the part's elements. So weights of any size flow
//! from one file to another in bounded memory.
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
