//! Compute kernels on dense row-major `f32` elements in memory.
//!
//! A kernel takes slices and sizes, the [`Isa`](coremill_simd::Isa) to use, and the [`Pool`](crate::Pool) of
//! threads. Kernels do not depend on programs. Sizes that do not match the slices are programming errors and
//! panic; memory is never accessed out of bounds.

mod activation;
mod arena;
pub mod codes;
pub mod depthwise;
pub mod device;
pub mod integer;
pub mod layout;
pub mod map;
pub mod matmul;
mod memory;
pub mod normalize;
mod numerics;
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
pub use numerics::{Numerics, UnknownNumerics};
pub use pool::{MAX_THREADS, Pool};
pub use recycle::recycle_vec;
