//! Packages: the `.mlpackage` directories that hold ML Programs.
//!
//! | file | holds |
//! |---|---|
//! | `Manifest.json` | which files there are, and which is the model |
//! | `Data/com.apple.CoreML/model.mlmodel` | the model, a protobuf message |
//! | `Data/com.apple.CoreML/weights/weight.bin` | large constants, which the model refers to by offset |
//!
//! [`read`] takes any package that an attacker may have written: what it does not refuse is sound, as
//! far as the format goes; whether the program makes sense is for the verifier to say. Weights stay in
//! their files. [`write`](write()) replaces a package in one step, and the same model always gives the
//! same bytes. Whatever a reader here does not know is kept and written again, or refused by name.
//!
//! ```
//! use coremill_mil::ir::{Constant, Function, Op, Opset};
//! use coremill_mil::model::Model;
//! use coremill_mil::package;
//! use coremill_tensor::DType;
//!
//! let mut function = Function::new("main", Opset::Ios18);
//! let body = function.body;
//! let weight = Constant::weight(DType::Int8, &[16], vec![7; 16]);
//! let ty = weight.ty.clone();
//! let op = function.add_op(body, Op::constant(weight), [("w".to_owned(), ty)]);
//! function.block_mut(body).outputs = function.op(op).outputs.clone();
//! let mut model = Model { specification_version: 9, ..Model::default() };
//! model.program.functions.push(function);
//!
//! let directory = tempfile::tempdir()?;
//! let path = directory.path().join("seven.mlpackage");
//! package::write(&path, &model, &package::WriteOptions::default())?;
//! assert_eq!(package::read(&path)?, model);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod decode;
mod directory;
mod encode;
mod error;
pub mod limits;
mod manifest;
mod read;
mod schema;
pub mod weights;
mod wire;
mod write;

pub use error::{Error, ErrorKind};
pub use read::{from_bytes, read};
pub use write::{WriteOptions, to_bytes, write};
