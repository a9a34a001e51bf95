//! Element types and tensor data: in memory, mapped from a file, or computed when it is read.
//!
//! | module | contents |
//! |---|---|
//! | `dtype` | [`DType`]: every element type of Core ML, sub-byte ones included |
//! | `buffer` | [`Buffer`]: shared bytes in memory, in a mapped file, or computed when they are read |
//! | `deferred` | [`LazyTensor`]: lazily computed elements; their [`Statistics`]; [`ReadTracker`]: tracking of reads |
//! | [`packed`] | packing of elements narrower than a byte |
//! | `produce` | [`ByteSource`]: the computation behind a deferred buffer |
//! | `profile` | [`Span`], [`self_times`]: the time of each step of a run |
//! | `random` | [`SplitMix64`]: random numbers that are identical on every machine |
//!
//! ```
//! use coremill_tensor::{Buffer, DType, packed};
//!
//! let bytes = Buffer::from(packed::pack(DType::UInt3, &[1, 7, 2]).expect("values fit"));
//! assert_eq!(packed::unpack(DType::UInt3, bytes.as_bytes(), 3), Some(vec![1, 7, 2]));
//! ```

mod buffer;
mod deferred;
mod dtype;
pub mod packed;
mod produce;
mod profile;
mod random;

pub use buffer::{Buffer, FileSpan, Files};
pub use deferred::{
    LazyTensor, Overflow, ReadTracker, RecipeError, Replace, Statistics, with_source,
};
pub use dtype::{DType, UnknownDType};
pub use produce::{ByteSource, Fingerprint};
pub use profile::{Span, self_times};
pub use random::SplitMix64;
