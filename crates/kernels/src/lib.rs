//! Kernels: what computes on dense row-major `f32` elements in memory.
//!
//! A kernel takes slices and extents, the [`Isa`](coremill_simd::Isa) to compute with, and the
//! [`Pool`](crate::Pool) to share the work over; it knows nothing about programs. Extents that do not fit
//! the slices are the caller's mistake and panic; nothing is read or written out of bounds.

mod activation;
mod arena;
pub mod codes;
pub mod depthwise;
pub mod integer;
pub mod layout;
pub mod map;
pub mod matmul;
mod memory;
pub mod normalize;
mod pool;
pub mod pooling;
pub mod product;
pub mod recurrent;
mod recycle;
pub mod reduce;
mod scratch;
mod shared;
pub mod stored;

pub use activation::{Activation, activate};
pub use arena::{Arena, FLOATS_PER_LINE};
pub use pool::{MAX_THREADS, Pool};
pub use recycle::recycle_vec;
