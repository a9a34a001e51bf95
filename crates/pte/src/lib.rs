//! ExecuTorch programs: the `.pte` files that apps ship.
//!
//! A file begins with tables in the FlatBuffers format, which say what the program does; behind them lie segments
//! of bytes: constants, and what delegates are given. [`read`](read()) maps a file, checks all of its tables, and
//! leaves the segments where they are. [`write`](write()) puts a file in place in one step; the same program
//! always gives the same bytes.
//!
//! | module | holds |
//! |---|---|
//! | [`program`] | what a program says: methods, their values and instructions, constants, delegates |
//! | `data` | [`ByteRope`]: bytes in parts, of which none is copied together |
//! | `read`, `write` | files and programs |
//! | [`coreml`] | the models that Core ML's delegates are given |
//! | `external` | [`ExternalData`]: `.ptd` files of tensors that programs refer to by name |
//! | [`limits`] | what readers refuse as too much |
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
