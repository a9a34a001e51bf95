//! ExecuTorch programs (`.pte` files).
//!
//! A file starts with FlatBuffers tables that define the program, followed by segments of data: constants and
//! payloads of delegates. [`read`](read()) maps a file and checks all tables; segments are not copied.
//! [`write`](write()) replaces a file atomically. Output is deterministic.
//!
//! | module | holds |
//! |---|---|
//! | [`program`] | the program: methods, their values and instructions, constants, delegates |
//! | `data` | [`ByteRope`]: bytes composed of parts without a copy |
//! | `read`, `write` | readers and writers of files |
//! | [`coreml`] | payloads of Core ML delegates |
//! | `external` | [`ExternalData`]: `.ptd` files of named tensors |
//! | [`limits`] | limits of the readers |
//!
//! ```
//! use coremill_pte::program::{ExecutionPlan, Program, ScalarType, Tensor, Placement, Value, ValueId};
//!
//! let input = Tensor::new(ScalarType::Float, vec![2, 3], Placement::GivenAtRunTime);
//! let plan = ExecutionPlan {
//!     name: "forward".to_owned(),
//!     values: vec![Value::Tensor(input)],
//!     inputs: vec![ValueId(0)],
//!     outputs: vec![ValueId(0)],
//!     ..ExecutionPlan::default()
//! };
//! let program = Program { plans: vec![plan], ..Program::default() };
//! let bytes = coremill_pte::to_data(&program)?;
//! assert_eq!(coremill_pte::from_buffer(&bytes.to_buffer())?, program);
//! # Ok::<(), coremill_pte::Error>(())
//! ```

mod check;
pub mod coreml;
mod data;
mod error;
mod external;
mod flatbuffer;
pub mod limits;
pub mod program;
mod read;
mod schema;
mod segments;
mod write;

pub use data::ByteRope;
pub use error::{Error, ErrorKind};
pub use external::{ExternalData, ExternalEntry, TensorLayout};
pub use program::Program;
pub use read::{from_buffer, is_program, read};
pub use segments::{SEGMENT_ALIGNMENT, WriteOptions};
pub use write::{to_data, write};
