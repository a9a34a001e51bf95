//! Kernels: what computes on dense row-major `f32` elements in memory.
//!
//! A kernel takes slices and extents, the [`Isa`](crate::Isa) to compute with, and the
//! [`Pool`](crate::Pool) to share the work over; it knows nothing about programs. Extents that do not fit
//! the slices are the caller's mistake and panic; nothing is read or written out of bounds.

mod activation;
pub mod codes;
pub mod depthwise;
pub mod integer;
pub mod layout;
pub mod map;
pub mod matmul;
pub mod normalize;
pub mod pooling;
pub mod recurrent;
pub mod reduce;
mod scratch;
mod shared;
pub mod stored;

pub use activation::{Activation, activate};
