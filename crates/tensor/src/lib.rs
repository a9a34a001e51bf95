//! What a tensor is made of: element types, and bytes that are owned or mapped from a file.
//!
//! | module | holds |
//! |---|---|
//! | `dtype` | [`DType`]: every element type of Core ML, sub-byte ones included |
//! | `buffer` | [`Buffer`]: shared bytes in memory, mapped from a file, or computed when they are read |
//! | [`cancel`] | how work is stopped that somebody no longer wants |
//! | `deferred` | [`Recipe`]: how to compute elements from others; [`Statistics`] of them; [`Watch`]: whether they were read |
//! | [`packed`] | elements narrower than a byte, packed and unpacked |
//! | `arena` | [`Arena`]: floats that kernels read and write in parts |
//! | [`math`] | functions of single elements, and the formats of half the width |
//! | `mapped` | [`guard`], [`changed`]: files that change while they are mapped |
//! | `isa` | [`Isa`]: the vector instructions that kernels are written for |
//! | `pages` | the pages of new memory |
//! | `pool` | [`Pool`]: the threads that share a kernel's work |
//! | `produce` | [`Produce`]: a computation of bytes that a deferred buffer stands for |
//! | `shown` | [`shown`], [`printable`]: text out of files in messages and at terminals |
//! | `staged` | [`Temporary`], [`remove_staged_on_signals`]: files beside an output that signals must not leave behind |
//! | `vector` | vectors of floats of the width that the machine has; kernels are compiled for each instruction set |
//! | `windows` | [`for_each_window`], [`share`], [`SharedFile`]: bytes on their way into a file, on several threads |
//! | [`product`] | the plain product of matrices that faster ones are measured against |
//! | [`kernels`] | what computes: products of matrices, convolutions, maps, reductions |
//!
//! ```
//! use coremill_tensor::{Buffer, DType, packed};
//!
//! let bytes = Buffer::from(packed::pack(DType::UInt3, &[1, 7, 2]).expect("values fit"));
//! assert_eq!(packed::unpack(DType::UInt3, bytes.as_bytes(), 3), Some(vec![1, 7, 2]));
//! ```

mod arena;
mod buffer;
pub mod cancel;
mod deferred;
mod destination;
mod dtype;
mod emptied;
mod isa;
pub mod kernels;
mod mapped;
pub mod math;
mod memory;
pub mod packed;
mod pages;
mod pool;
mod produce;
pub mod product;
mod room;
mod shown;
mod staged;
mod vector;
mod windows;

pub use arena::{Arena, FLOATS_PER_LINE};
pub use buffer::{Buffer, FileSpan, Files};
pub use deferred::{Overflow, Recipe, RecipeError, Replace, Statistics, Watch, rebased};
pub use destination::{StagedDirectory, is_stream, write_anew};
pub use dtype::{DType, UnknownDType};
pub use emptied::emptied;
pub use isa::{Isa, UnknownIsa};
pub use mapped::{changed, guard, unchanged};
pub use pool::{MAX_THREADS, Pool};
pub use produce::{Identity, Produce};
pub use shown::{is_printable, printable, printable_line, shown};
pub use staged::{Temporary, remove_staged_on_signals, uninterrupted};
pub use windows::{SharedFile, copied, fill_windows, for_each_window, share};
